"""The promises of an archive as a table, in each format: every record once, whatever happens in between."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.requirements import require
from tests.support.tables import KINDS, QUERY, ROWS, SCHEMA, archive, batch_of, ids
from toymq_py.errors import ConfigError
from toymq_spark.manifest import ArchiveFile, ArchiveMismatch, NoArchive
from toymq_spark.tables.opening import open_table
from toymq_spark.tables.partitioning import parse_partitions
from toymq_spark.tables.table import Conflict, Files, NotOurTable, State, Table, TableError, append, check_types, failure
from toymq_spark.tables.writing import write

pytestmark = pytest.mark.parametrize("kind", KINDS)


MOMENTS = ("while files are written", "before it is committed", "while it is committed")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "an {archive,}[of] a#"


def compact(kind: str, place: Path) -> None:
    """Compact the table as its owner may do with the format's library, at any time."""
    if kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(place))
        assert table.optimize.compact()["numFilesRemoved"] > 0
        table.create_checkpoint()
        assert DeltaTable(str(place)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    else:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        from toymq_spark.tables.iceberg import IcebergArchive

        archive = IcebergArchive(str(place))
        target = archive.prepare(QUERY, SCHEMA)
        rows = archive.snapshot()
        merged = write(rows.batches(rows.paths(), SCHEMA.names), target)
        with archive._catalog() as catalog, catalog.load_table("toymq.archive").transaction() as changes:
            old = [task.file for task in changes._scan().plan_files()]
            new = [f"{place}/data/{file.path}" for file in merged]
            assert len(new) < len(old)
            with changes.update_snapshot().overwrite() as replaced:
                for file in old:
                    replaced.delete_data_file(file)
                for file in parquet_files_to_data_files(changes._table.io, changes.table_metadata, iter(new)):
                    replaced.append_data_file(file)


def test_a_batch_is_there_once(kind: str, place: Path) -> None:
    table = open_table(str(place), kind)
    assert table.state() is None
    with pytest.raises(NoArchive, match=r"is not an archive: it has no (Delta|Iceberg) table"):
        table.snapshot()
    assert not place.exists(), "to look for a table makes none"
    for number in range(3):
        assert archive(table, number)
        assert not archive(table, number)
    assert not archive(open_table(str(place), kind), 1)
    assert table.state() == State(QUERY, 2)
    assert ids(kind, place) == list(range(3 * ROWS))


def test_a_batch_without_records_counts(kind: str, place: Path) -> None:
    table = open_table(str(place), kind)
    assert append(table, QUERY, 0, SCHEMA, lambda target: write([batch_of(range(0))], target))
    assert table.state() == State(QUERY, 0)
    assert table.snapshot().paths() == Files(table.snapshot()).files() == []
    assert archive(table, 1)
    assert not append(table, QUERY, 0, SCHEMA, lambda target: write([], target))


def test_the_plan_is_stored_before_the_batch_counts(kind: str, place: Path) -> None:
    table = open_table(str(place), kind)
    order = []
    append(
        table, QUERY, 0, SCHEMA, lambda target: order.append("files") or [],
        lambda: order.append(f"plan, at batch {(table.state() or State('', -2)).batch}"),
    )  # fmt: skip
    assert order == ["files", "plan, at batch -1"]


@pytest.mark.parametrize("at", MOMENTS)
def test_of_two_attempts_at_a_batch_one_counts(
    kind: str, at: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(str(place), kind)
    archive(table, 0)
    between(at, table, monkeypatch, lambda: archive(open_table(str(place), kind), 1))
    assert not archive(table, 1)
    assert ids(kind, place) == list(range(2 * ROWS))


@pytest.mark.parametrize("at", MOMENTS)
def test_a_table_that_is_compacted_meanwhile_and_vacuumed(
    kind: str, at: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(str(place), kind)
    for number in range(3):
        archive(table, number)
    between(at, table, monkeypatch, lambda: compact(kind, place))
    assert archive(table, 3)
    assert not archive(table, 3)
    assert not archive(table, 0)
    compact(kind, place)
    assert not archive(table, 2), "what was archived stays known"
    assert archive(table, 4)
    rows = records(table)
    assert [row["offset"] for row in rows] == list(range(5 * ROWS))
    assert [row["headers"] for row in rows[:3]] == [
        None, [{"key": "Trace", "value": b"1"}], [{"key": "Trace", "value": b"2"}],
    ]  # fmt: skip


def between(at: str, table: Any, monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Let something happen once: before files are written, before the commit, or after the table was read for it.

    Found by torture, seed 16: a driver that was paused just before its commit appended its batch again, as it had checked
    before the pause."""
    moments = iter([other])
    if at == MOMENTS[0]:
        from tests.support import tables

        def slow(*words: Any) -> Any:
            next(moments, lambda: None)()
            return write(*words)

        monkeypatch.setattr(tables, "write", slow)
        return
    commit, load = table.commit, table._load
    committing = False

    def loaded(*words: Any) -> Any:
        found = load(*words)
        if committing:
            next(moments, lambda: None)()
        return found

    def committed(*words: Any) -> bool:
        nonlocal committing
        committing = at == MOMENTS[2]
        if at == MOMENTS[1]:
            next(moments, lambda: None)()
        return bool(commit(*words))

    monkeypatch.setattr(table, "_load", loaded)
    monkeypatch.setattr(table, "commit", committed)


def test_a_table_that_never_holds_still_is_given_up(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(str(place), kind)
    archive(table, 0)

    def conflict(*words: Any) -> None:
        raise Conflict("again")

    monkeypatch.setattr(table, "commit", conflict)
    with pytest.raises(Conflict, match="again"):
        archive(table, 1)


def records(table: Table, **which: Any) -> list[dict[str, Any]]:
    """Return the records that ``replay`` reads, by id."""
    snapshot = table.snapshot()
    batches = snapshot.batches(snapshot.paths(**which), snapshot.schema().names, **which)
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: (row["topic"], row["offset"]))


def test_a_column_more_does_not_break_an_old_table(kind: str, place: Path) -> None:
    table = open_table(str(place), kind)
    archive(table, 0)
    wider = SCHEMA.append(pa.field("price", pa.int64()))
    for number, schema in ((1, wider), (2, SCHEMA), (3, wider)):
        assert archive(table, number, schema=schema)
    price = [row["price"] for row in records(table)]
    none = [None] * ROWS
    assert price == [*none, *range(ROWS, 2 * ROWS), *none, *range(3 * ROWS, 4 * ROWS)]
    other = SCHEMA.append(pa.field("price", pa.string()))
    with pytest.raises(ArchiveMismatch, match=r"has a column price of type int64, and the archive's is string: archive to an"):
        append(table, QUERY, 4, other, lambda target: [])


@pytest.mark.parametrize(
    ("partitions", "files"),
    [("hours(timestamp)", 60), ("months(timestamp),topic", 2), ("years(timestamp)", 1), ("topic", 2), ("none", 1)],
)
def test_partitions(kind: str, partitions: str, files: int, place: Path) -> None:
    table = open_table(str(place), kind, partition_by=partitions)
    rows = [batch_of(range(ROWS), topic) for topic in ("a", "__HIVE_DEFAULT_PARTITION__")]
    moved = [one if partitions != "hours(timestamp)" else batch_of(range(n * ROWS, (n + 1) * ROWS), "ab"[n])
             for n, one in enumerate(rows)]  # fmt: skip
    append(table, QUERY, 0, SCHEMA, lambda target: write(moved, target))
    found = Files(table.snapshot()).files()
    assert len({file.path for file in found}) == files
    by_topic: dict[str, int] = {}
    for file in found:
        by_topic[file.topic] = by_topic.get(file.topic, 0) + file.rows
    assert sorted(by_topic.values()) == [ROWS, ROWS], "also of files with several topics"
    topic = sorted(by_topic)[-1]
    ours = [file for file in found if file.topic == topic]
    offsets = Files(table.snapshot()).offsets_of(ours).sort().to_pylist()
    assert [row["offset"] for row in records(table, topic=topic)] == offsets
    assert [row["offset"] for row in records(table, topic=topic, start=offsets[3], end=offsets[5])] == offsets[3:5]
    assert records(table, topic="nothing") == []
    assert open_table(str(place), kind, partition_by=partitions).prepare(QUERY, SCHEMA).keys == parse_partitions(partitions)
    if partitions != "topic":
        with pytest.raises(ArchiveMismatch, match="which cannot be changed: leave --partition-by out"):
            open_table(str(place), kind, partition_by="topic").prepare(QUERY, SCHEMA)


def test_files_that_cannot_have_the_ids_are_not_read(kind: str, place: Path) -> None:
    table = open_table(str(place), kind)
    for number in range(3):
        archive(table, number)
    files = Files(table.snapshot()).files()
    assert all(isinstance(file, ArchiveFile) and file.last_id - file.first_id == file.rows - 1 for file in files)
    between = {file.path for file in files if file.first_id < ROWS + 5 and file.last_id >= ROWS}
    assert set(table.snapshot().paths("orders", ROWS, ROWS + 5)) == between
    assert 0 < len(between) < len(files)


def test_what_is_not_our_table_is_refused(kind: str, place: Path, tmp_path: Path) -> None:
    table = open_table(str(place), kind)
    archive(table, 0)
    with pytest.raises(ArchiveMismatch, match="has a batch 0 of another query"):
        archive(table, 1, query="another checkpoint")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(NotOurTable, match=r"photos is not an? (Delta|Iceberg) table, and not empty \(it has cat.png\)"):
        open_table(str(tmp_path / "photos"), kind).state()
    (tmp_path / "begun" / "_checkpoint").mkdir(parents=True)
    assert open_table(str(tmp_path / "begun"), kind).state() is None, "a driver was killed before it made the table"
    strip(kind, place)
    with pytest.raises(NotOurTable, match=r"did not make \(it has no property toymq.query\): archive to another place"):
        open_table(str(place), kind).state()


def strip(kind: str, place: Path) -> None:
    """Make a table look like one of another program."""
    if kind == "delta":
        log = place / "_delta_log" / "00000000000000000000.json"
        log.write_text(log.read_text().replace("toymq.query", "other.query"))
    else:
        from toymq_spark.tables.iceberg import IcebergArchive

        with IcebergArchive(str(place))._catalog() as catalog, catalog.load_table("toymq.archive").transaction() as changes:
            changes.remove_properties("toymq.query")


def test_a_damaged_table_is_one_line(kind: str, place: Path) -> None:
    table = open_table(str(place), kind)
    archive(table, 0)
    for file in (place / ("_delta_log" if kind == "delta" else "metadata")).iterdir():
        file.write_bytes(b"{]")
    with pytest.raises((TableError, ConfigError)) as caught:
        open_table(str(place), kind).state()
    assert str(caught.value).startswith(str(place))
    assert "\n" not in str(caught.value)


@require("tmpfs")
def test_a_disk_that_is_full_at_any_step(kind: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "toymq-test", str(disk)], check=True)
    try:
        table = open_table(str(disk / "a"), kind)
        failed = 0
        for number, left in enumerate(range(0, 32 << 10, 4 << 10)):
            space = os.statvfs(disk)
            (disk / "filler").write_bytes(bytes(max(space.f_bavail * space.f_frsize - left, 0)))
            try:
                archive(table, number)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 (it may also have worked)
                failed += 1
            (disk / "filler").unlink()
            archive(table, number)
            assert ids(kind, disk / "a") == list(range((number + 1) * ROWS)), f"{left} bytes were left"
        assert failed, "there was always room"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_named(kind: str) -> None:
    found = failure("/a", ValueError(f"Generic error\n  caused by: {os.strerror(errno.ENOSPC)} (os error 28)"))
    assert isinstance(found, OSError)
    assert found.errno == errno.ENOSPC
    assert str(failure("/a", ValueError("\n first\n second"))) == "/a: first"
    assert str(failure("/a", ValueError())) == "/a: ValueError"


def test_types_are_compared_as_values_are_stored(kind: str) -> None:
    large = pa.list_(pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())]))
    table = pa.schema([("headers", large), ("value", pa.large_binary()), ("offset", pa.int64())])
    missing = [field.name for field in check_types("p", table, SCHEMA)]
    assert missing == ["key", "partition", "timestamp", "timestampType", "topic"]
    for name, kind_ in (("headers", pa.list_(pa.string())), ("value", pa.string()), ("offset", pa.int32())):
        with pytest.raises(ArchiveMismatch, match=f"p has a column {name} of type"):
            check_types("p", table, pa.schema([(name, kind_)]))
