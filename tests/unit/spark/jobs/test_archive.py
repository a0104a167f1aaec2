"""``archive``: a batch is written once, and a checkpoint belongs to one archive."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.archives import Rows, ids, three_batches
from toymq_spark.jobs import archive
from toymq_spark.manifest import Archive, ArchiveMismatch


@pytest.fixture
def store(tmp_path: Path) -> Archive:
    return three_batches(tmp_path / "archive")


class Batch(Rows):
    """A batch that the stream with the id ``query`` hands over."""

    def __init__(self, rows: list[int], query: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(rows, meanwhile)
        self._query = query

    def __getattr__(self, name: str) -> Any:
        if name in ("sparkSession", "sparkContext"):
            return self
        return (lambda key: self._query) if name == "getLocalProperty" else super().__getattr__(name)


def plan(place: Path, *numbers: int) -> Path:
    """Write what Spark writes before it hands a batch over."""
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
    """Otherwise a power cut could remove the plan, and Spark would plan other records for the batch that is archived."""
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr(archive, "sync", lambda path: synced.append((path.name, store.find("0000000003") is None)))
    batch: Any = Batch([30], "q")
    archive.write_batch(store, plan(store.path / "checkpoint", 3), batch, 3)
    assert synced == [("3", True), ("offsets", True)]


def checkpoint(place: Path, query: str, *done: int) -> Path:
    """Make a checkpoint as Spark writes it."""
    plan(place, *done)
    (place / "commits").mkdir()
    (place / "metadata").write_text(json.dumps({"id": query}))
    for number in done:
        (place / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (place / "commits" / f".{number}.crc").touch()
    return place


def test_a_checkpoint_is_good_for_one_archive(store: Archive, tmp_path: Path) -> None:
    """Found: with the checkpoint of another archive, a new archive lacked all earlier batches, and the exit code was 0."""
    theirs = checkpoint(tmp_path / "ck", "q", 1, 2)  # Spark forgets old ones
    archive.check_checkpoint(store, theirs)
    archive.check_checkpoint(Archive(tmp_path / "new"), tmp_path / "none")
    archive.check_checkpoint(Archive(tmp_path / "new"), checkpoint(tmp_path / "begun", "p"))
    with pytest.raises(ArchiveMismatch, match=r"has no batch 0, and in the checkpoint .*ck all up to 2"):
        archive.check_checkpoint(Archive(tmp_path / "new"), theirs)
    with pytest.raises(ArchiveMismatch, match="has a batch 0 of another query"):
        archive.check_checkpoint(store, tmp_path / "none")
    with pytest.raises(ArchiveMismatch, match=r"a batch 2, and the checkpoint .*old none after 1: it is older"):
        archive.check_checkpoint(store, checkpoint(tmp_path / "old", "q", 0, 1))
    (store.path / "manifest" / "0000000001.json").unlink()
    with pytest.raises(ArchiveMismatch, match="has no batch 1"):
        archive.check_checkpoint(store, theirs)
