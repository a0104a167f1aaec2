"""``compact``: each row is in the archive once, whatever runs at the same time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.archives import Rows, ids, three_batches
from toymq_spark.jobs import archive, compact
from toymq_spark.manifest import AlreadyCommitted, Archive, Manifest, NoArchive, describe

NO_SPARK: Any = None


@pytest.fixture
def store(tmp_path: Path) -> Archive:
    return three_batches(tmp_path / "archive")


def reader(meanwhile: Callable[[], object] = lambda: None) -> Callable[..., Rows]:
    def read(spark: Any, place: Path, paths: list[str]) -> Rows:
        ids = [row for path in paths for row in pq.read_table(place / path)["offset"].to_pylist()]
        return Rows(ids, meanwhile)

    return read


def test_a_directory_without_a_manifest_is_refused_and_nothing_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "data" / "batch=compact-1"
    theirs.mkdir(parents=True)
    with pytest.raises(NoArchive):
        compact.compact(NO_SPARK, tmp_path)
    assert theirs.exists()


@pytest.mark.parametrize("grace_ms", [1000, 0])
def test_of_two_compactions_at_once_one_is_done(
    grace_ms: int, store: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: after both were done every reader saw every row twice."""

    def run() -> compact.Compacted:
        return compact.compact(NO_SPARK, store.path, grace_ms=grace_ms)

    def other() -> None:
        monkeypatch.setattr(archive, "read", reader())
        assert (run().merged, run().merged) == (3, 0), "and when the grace time is over the old files are gone"

    monkeypatch.setattr(archive, "read", reader(other))
    with pytest.raises(AlreadyCommitted, match="another compaction was faster; this one replaced nothing"):
        run()
    assert ids(store) == list(range(30))
    (kept,) = (store.path / "data").glob("batch=compact-*")
    assert kept.name.startswith("batch=compact-0000000001."), "what the slower one wrote is gone"
    assert run().merged == 0


def test_a_compaction_that_died_does_not_block_the_next(store: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
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
