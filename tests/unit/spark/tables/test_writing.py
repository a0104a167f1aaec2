"""The files that an executor writes: divided, bounded, and either complete or removed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from tests.support.tables import NOON_S, SCHEMA, batch_of
from toymq_spark.tables import writing
from toymq_spark.tables.partitioning import DEFAULT, parse_partitions
from toymq_spark.tables.table import Target, Written
from toymq_spark.tables.writing import write


def target(place: Path, by: str = DEFAULT, dropped: tuple[str, ...] = ()) -> Target:
    return Target(LocalFileSystem, str(place), parse_partitions(by), dropped)


def offsets(place: Path, files: list[Written]) -> list[list[int]]:
    return [pq.ParquetFile(place / file.path).read()["offset"].to_pylist() for file in files]


def test_files_by_key_and_what_they_have(tmp_path: Path) -> None:
    batches = [batch_of(range(20)), batch_of(range(3), "other"), batch_of(range(20, 24))]
    files = write(batches, target(tmp_path, dropped=("topic",)))
    assert [file.partition for file in files] == [
        {"date": "2026-11-28", "topic": "orders"}, {"date": "2026-11-28", "topic": "other"},
        {"date": "2026-11-29", "topic": "orders"},
    ]  # fmt: skip
    assert offsets(tmp_path, files) == [[*range(12)], [0, 1, 2], [*range(12, 24)]]
    last = files[-1]
    assert (last.rows, last.first_id, last.last_id) == (12, 12, 23)
    assert (last.oldest_us, last.newest_us) == ((NOON_S + 12 * 3600) * 1_000_000, (NOON_S + 23 * 3600) * 1_000_000)
    assert last.path.startswith("date=2026-11-29/topic=orders/")
    assert last.bytes == (tmp_path / last.path).stat().st_size
    assert Written.from_json(last.to_json()) == last, "it travels to the driver as text"
    assert pq.read_schema(tmp_path / last.path).names == [name for name in SCHEMA.names if name != "topic"]


def test_nothing_to_write(tmp_path: Path) -> None:
    assert write([], target(tmp_path)) == write([batch_of(range(0))], target(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BUFFER_BYTES", 100)
    monkeypatch.setattr(writing, "FILE_BYTES_MAX", 1)
    files = write([batch_of(range(n, n + 5)) for n in (0, 5)], target(tmp_path, "none"))
    assert offsets(tmp_path, files) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "OPEN_MAX", 2)
    files = write([batch_of(range(5)), batch_of(range(4, 5))], target(tmp_path, "hours(timestamp)"))
    assert sorted(offsets(tmp_path, files)) == [[0], [1], [2], [3], [4, 4]]


def test_records_in_memory_become_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BUFFER_BYTES", 5000)
    (file,) = write([batch_of(range(n, n + 5)) for n in range(0, 100, 5)], target(tmp_path, "none"))
    groups = pq.read_metadata(tmp_path / file.path).num_row_groups
    assert 1 < groups < 10, "neither all in memory nor a row group for each batch"


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BUFFER_BYTES", 100)
    monkeypatch.setattr(writing, "OPEN_MAX", 1)

    def batches() -> Any:
        yield batch_of(range(20))
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write(batches(), target(tmp_path))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_files_are_synced_before_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(writing, "sync", synced.append)
    (file,) = write([batch_of(range(3))], target(tmp_path))
    path = tmp_path / file.path
    assert synced == [path, path.parent, path.parent.parent, tmp_path]


def test_a_column_that_no_key_knows_is_kept(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("price", pa.int64()))
    (file,) = write([batch_of(range(3), schema=schema)], target(tmp_path, "topic"))
    assert pq.ParquetFile(tmp_path / file.path).read()["price"].to_pylist() == [0, 1, 2]
