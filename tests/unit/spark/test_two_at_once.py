"""Jobs on one archive at the same time, and a checkpoint with another archive: rows are there once, or the job refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toymq_spark.jobs import archive, compact
from toymq_spark.manifest import AlreadyCommitted, Archive, ArchiveMismatch, Manifest, describe

NO_SPARK: Any = None


class Rows:
    """What a job does with a table, without Spark: it is written as it is."""

    def __init__(self, ids: list[int], meanwhile: Callable[[], object] = lambda: None) -> None:
        self._ids = ids
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return self if name == "write" else lambda *words: self

    def parquet(self, place: str) -> None:
        self._meanwhile()
        file = Path(place) / "date=2026-11-21" / "topic=t" / f"part-{self._ids[0]}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"offset": self._ids}), file)


@pytest.fixture
def store(tmp_path: Path) -> Archive:
    """Three batches of ten rows."""
    found = Archive(tmp_path / "archive")
    for number in range(3):
        name = f"{number:010d}"
        place = found.attempt(name)
        Rows(list(range(10 * number, 10 * number + 10))).parquet(str(place))
        found.commit(Manifest(name, "q", tuple(describe(found.path, place))))
    return found


def reader(meanwhile: Callable[[], object] = lambda: None) -> Callable[..., Rows]:
    def read(spark: Any, place: Path, paths: list[str]) -> Rows:
        ids = [row for path in paths for row in pq.read_table(place / path)["offset"].to_pylist()]
        return Rows(ids, meanwhile)

    return read


def ids(store: Archive) -> list[int]:
    return [row for path in store.paths() for row in pq.ParquetFile(path).read()["offset"].to_pylist()]


@pytest.mark.parametrize("grace_ms", [1000, 0])
def test_of_two_compactions_at_once_one_is_done(
    grace_ms: int, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reader saw every row twice."""

    def run() -> compact.Compacted:
        return compact.compact(NO_SPARK, store.path, grace_ms=grace_ms)

    def other() -> None:
        monkeypatch.setattr(archive, "read", reader())
        assert (run().merged, run().merged) == (3, 0), "and when the grace time is over the old files are gone"

    monkeypatch.setattr(archive, "read", reader(other))
    with pytest.raises(AlreadyCommitted, match="another compaction was done meanwhile; this one has replaced nothing"):
        run()
    assert ids(store) == list(range(30))
    (kept,) = (store.path / "data").glob("batch=compact-*")
    assert kept.name.startswith("batch=compact-0000000001."), "what the slower one wrote is gone"
    assert run().merged == 0


def test_a_compaction_that_died_holds_up_nobody(store: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def died() -> None:
        raise KeyboardInterrupt

    Rows([1]).parquet(str(store.attempt(store.next_compaction())))  # as SIGKILL leaves it
    monkeypatch.setattr(archive, "read", reader(died))
    with pytest.raises(KeyboardInterrupt):
        compact.compact(NO_SPARK, store.path)
    monkeypatch.setattr(archive, "read", reader())
    assert compact.compact(NO_SPARK, store.path).merged == 3
    assert ids(store) == list(range(30))
    assert len(list((store.path / "data").glob("batch=compact-*"))) == 1


def test_batches_that_are_archived_while_files_are_merged(store: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch() -> None:
        place = store.attempt("0000000003")
        Rows([30, 31]).parquet(str(place))
        store.commit(Manifest("0000000003", "q", tuple(describe(store.path, place))))

    monkeypatch.setattr(archive, "read", reader(batch))
    assert compact.compact(NO_SPARK, store.path, grace_ms=0).merged == 3
    assert ids(store) == list(range(32))


class Batch(Rows):
    """One that the stream with the id ``query`` hands over."""

    def __init__(self, rows: list[int], query: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(rows, meanwhile)
        self._query = query

    def __getattr__(self, name: str) -> Any:
        if name in ("sparkSession", "sparkContext"):
            return self
        return (lambda key: self._query) if name == "getLocalProperty" else super().__getattr__(name)


def plan(place: Path, *numbers: int) -> Path:
    """What Spark writes before it hands a batch over."""
    (place / "offsets").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (place / "offsets" / str(number)).write_text("v1\n{}\n{}")
        (place / "offsets" / f".{number}.crc").touch()
    return place


def test_two_archives_at_once_write_a_batch_once(store: Archive) -> None:
    def write(number: int, query: str = "q", meanwhile: Callable[[], object] = lambda: None) -> None:
        batch: Any = Batch(list(range(10 * number, 10 * number + 10)), query, meanwhile)
        archive.write_batch(store, plan(store.path / "checkpoint", number), batch, number)

    def fails() -> None:
        raise FileNotFoundError

    def other_is_faster_and_ours_fails() -> None:
        write(4)
        fails()

    write(3, meanwhile=lambda: write(3))
    assert ids(store) == list(range(40))
    assert len(list((store.path / "data").iterdir())) == 4
    with pytest.raises(FileNotFoundError):
        write(4, meanwhile=fails)
    write(4, meanwhile=other_is_faster_and_ours_fails)
    with pytest.raises(ArchiveMismatch, match="has a batch 5 of another query"):
        write(5, "p", meanwhile=lambda: write(5))
    assert ids(store) == list(range(60))


def test_the_plan_of_a_batch_is_on_the_disk_before_its_manifest(store: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could take it, and Spark would take other records for the batch that is archived."""
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(archive, "sync", lambda path: synced.append((path.name, store.find("0000000003") is None)))
    batch: Any = Batch([30], "q")
    archive.write_batch(store, plan(store.path / "checkpoint", 3), batch, 3)
    assert synced == [("3", True), ("offsets", True)]


def checkpoint(place: Path, query: str, *done: int) -> Path:
    """As Spark writes it."""
    plan(place, *done)
    (place / "commits").mkdir()
    (place / "metadata").write_text(json.dumps({"id": query}))
    for number in done:
        (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (place / "commits" / f".{number}.crc").touch()
    return place


def test_a_checkpoint_is_good_for_one_archive(store: Archive, tmp_path: Path) -> None:
    """Another archive was left without what had been archived before, and the exit code was 0."""
    theirs = checkpoint(tmp_path / "ck", "q", 1, 2)  # Spark forgets old ones
    archive.check_checkpoint(store, theirs)
    archive.check_checkpoint(Archive(tmp_path / "new"), tmp_path / "none")
    archive.check_checkpoint(Archive(tmp_path / "new"), checkpoint(tmp_path / "begun", "p"))
    with pytest.raises(ArchiveMismatch, match=r"has no batch 0, and the checkpoint .*ck says that all up to 2"):
        archive.check_checkpoint(Archive(tmp_path / "new"), theirs)
    with pytest.raises(ArchiveMismatch, match="has a batch 0 of another query"):
        archive.check_checkpoint(store, tmp_path / "none")
    with pytest.raises(ArchiveMismatch, match=r"a batch 2, and the checkpoint .*old none after 1: it is older"):
        archive.check_checkpoint(store, checkpoint(tmp_path / "old", "q", 0, 1))
    (store.path / "manifest" / "0000000001.json").unlink()
    with pytest.raises(ArchiveMismatch, match="has no batch 1"):
        archive.check_checkpoint(store, theirs)
