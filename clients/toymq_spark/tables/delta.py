"""An archive as a Delta table, by delta-rs: a directory, or a URL of an object store whose options are in the environment.

The number of a batch is the version of an application transaction (``txn`` in Delta's protocol), with the query as the
application. A commit conflicts with any other commit of that application since the table was read, also when delta-rs retries
it after the appends of others. Checkpoints of Delta's log keep that version, and neither compaction nor vacuuming changes it.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.dataset import Dataset, Fragment
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem

from toymq_py.errors import ConfigError
from toymq_spark.manifest import ArchiveFile, ArchiveMismatch, NoArchive, sync
from toymq_spark.tables.partitioning import DEFAULT, NAMES, TOPIC, Key, parse_partitions
from toymq_spark.tables.table import (
    PROPERTY,
    Conflict,
    NotOurTable,
    Snapshot,
    State,
    Target,
    Written,
    check_types,
    failure,
    has,
    nullable,
    one_line,
)

LOG = "_delta_log"
PARTITION = "partition."
"""Begins the names of partition columns in delta-rs's list of files."""
KEY_TYPES = {"years": pa.string(), "months": pa.string(), "days": pa.date32(), "hours": pa.string(), "topic": pa.string()}
"""Types of partition columns; those of time are a year, 2026-11, a date, and 2026-11-28-09."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)


class DeltaArchive:
    """An archive that is the Delta table at a URL or a path."""

    def __init__(self, url: str, partition_by: str | None = None) -> None:
        """
        Args:
            partition_by: how a new table is partitioned; None: as the existing table, or else ``DEFAULT``.

        Raises: ConfigError.
        """
        self.directory = None if "://" in url else Path(url).absolute()
        self.place = url if self.directory is None else str(self.directory)
        if self.directory is not None and "%" in self.place:  # delta-rs 1.6 decodes it
            raise ConfigError(f"{self.place}: a Delta table cannot be in a path with %: archive to another place")
        self._keys = None if partition_by is None else parse_partitions(partition_by)
        self._table: DeltaTable | None = None

    def state(self) -> State | None:
        table = self._load()
        if table is None:
            self._refuse_other_files()
            return None
        return self._state_of(table)

    def prepare(self, query: str, schema: pa.Schema) -> Target:
        table = self._load()
        if table is None:
            keys = parse_partitions(DEFAULT) if self._keys is None else self._keys
            self._create(query, nullable(schema), keys)
        else:
            keys = self._keys_of(table)
            missing = check_types(self.place, pa.schema(table.schema().to_arrow()), nullable(schema))
            if missing:
                fields = Schema.from_arrow(pa.schema(missing)).fields
                with _named(self.place):
                    table.alter.add_columns(fields)
                self._sync(table.version())
        dropped = tuple(key.name for key in keys)
        if self.directory is None:
            return Target(partial(_object_store, self.place), "", keys, dropped)
        return Target(LocalFileSystem, str(self.directory), keys, dropped)

    def commit(self, query: str, batch: int, files: Sequence[Written]) -> bool:
        table = self._load()
        if table is None:
            raise NoArchive(f"{self.place}: the table is gone")
        if has(self.place, self._state_of(table), query, batch):
            return False
        actions: list[Any] = [_action(file) for file in files]
        its = CommitProperties(app_transactions=[Transaction(query, batch)])
        columns = table.metadata().partition_columns
        with _named(self.place):
            table.create_write_transaction(actions, "append", table.schema(), partition_by=columns, commit_properties=its)
        self._sync(table.version())
        return True

    def snapshot(self) -> Snapshot:
        table = self._load()
        if table is None:
            raise NoArchive(f"{self.place} is not an archive: it has no Delta table")
        return DeltaSnapshot(self.place, table.version())

    def _state_of(self, table: DeltaTable) -> State:
        """Read the archive's state from the table's metadata. Raises: NotOurTable."""
        with _named(self.place):
            query = table.metadata().configuration.get(PROPERTY)
            if query is None:
                raise NotOurTable(
                    f"{self.place} is a Delta table that toymq-pipeline did not make (it has no property {PROPERTY}): "
                    "archive to another place"
                )
            batch = table.transaction_version(query)
        return State(query, -1 if batch is None else batch)

    def _load(self) -> DeltaTable | None:
        """Return the table as it is now; None if there is none. An open table reads only the log's new entries, which is
        faster."""
        with _named(self.place):
            try:
                if self._table is None:
                    self._table = DeltaTable(self.place)
                else:
                    self._table.update_incremental()
            except TableNotFoundError:
                self._table = None
            return self._table

    def _create(self, query: str, schema: pa.Schema, keys: Sequence[Key]) -> None:
        columns = [pa.field(key.name, KEY_TYPES[key.unit]) for key in keys if key.unit != TOPIC]
        for column in columns:
            if schema.get_field_index(column.name) >= 0:
                raise ArchiveMismatch(f"{self.place}: partition {column.name} is also a column: give another --partition-by")
        with _named(self.place):
            try:
                DeltaTable.create(
                    self.place, Schema.from_arrow(pa.schema([*schema, *columns])), partition_by=[key.name for key in keys],
                    configuration={PROPERTY: query}, raise_if_key_not_exists=False,
                )  # fmt: skip
            except DeltaError as error:
                if "already exists" in str(error):
                    raise Conflict(f"{self.place}: the table was created meanwhile") from None
                raise
        self._sync(-1)

    def _keys_of(self, table: DeltaTable) -> tuple[Key, ...]:
        """Return the partition keys of the table. Raises: ArchiveMismatch."""
        units = {name: unit for unit, name in NAMES.items()}
        columns = table.metadata().partition_columns
        if not set(columns) <= set(units):
            raise ArchiveMismatch(f"{self.place} is partitioned by {', '.join(columns)}: archive to another place")
        found = tuple(Key(units[column]) for column in columns)
        if self._keys not in (None, found):
            raise ArchiveMismatch(
                f"{self.place} is partitioned by {', '.join(columns) or 'nothing'}, which cannot be changed: leave "
                "--partition-by out, or archive to another place"
            )
        return found

    def _refuse_other_files(self) -> None:
        """Check that the directory for a new table has no other files. Raises: NotOurTable."""
        if self.directory is None or not self.directory.exists():
            return
        other = next((file.name for file in sorted(self.directory.iterdir()) if not file.name.startswith(("_", "."))), None)
        if other is not None:
            raise NotOurTable(f"{self.place} is not a Delta table, and not empty (it has {other}): archive to another place")

    def _sync(self, before: int) -> None:
        """Sync the files of the table's log from version ``before`` on; delta-rs does not. Raises: OSError."""
        if self.directory is None:
            return
        log = self.directory / LOG
        for file in log.iterdir():
            version = file.name.partition(".")[0]
            if (version.isdecimal() and int(version) >= before) or file.name == "_last_checkpoint":
                sync(file)
        for directory in (log, self.directory, self.directory.parent):
            sync(directory)


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """One version of a table. Each task lists its files again, from the table's log."""

    place: str
    version: int

    def paths(self, topic: str | None = None, start: int = 0, end: int | None = None) -> list[str]:
        return [path for path, _ in self._fragments(topic, start, end)]

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], topic: str | None = None, start: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted, chosen, schema = set(paths), _filter(topic, start, end), self.schema()
        with _named(self.place):
            for path, fragment in self._fragments(topic, start, end):
                if path in wanted:
                    scanner = fragment.scanner(schema=schema, columns=list(columns), filter=chosen, use_threads=False)
                    yield from scanner.to_batches()

    def listed(self) -> list[ArchiveFile | str]:
        with _named(self.place):
            return [_listed(file) for file in _files(self.place, self.version)]

    def schema(self) -> pa.Schema:
        return _dataset(self.place, self.version).schema

    def _fragments(self, topic: str | None, start: int, end: int | None) -> list[tuple[str, Fragment]]:
        with _named(self.place):
            known = {fragment.path: fragment for fragment in _dataset(self.place, self.version).get_fragments()}
            files = [file for file in _files(self.place, self.version) if _may_have(file, topic, start, end)]
            return [(str(file["path"]), _of_partition(known[file["path"]], file)) for file in files]


@lru_cache(4)
def _table(place: str, version: int) -> DeltaTable:
    return DeltaTable(place, version=version)


@lru_cache(4)
def _dataset(place: str, version: int) -> Dataset:
    """Open a version of a table as a pyarrow dataset. Refuses a table with features that pyarrow does not know, such as
    deletion vectors."""
    return _table(place, version).to_pyarrow_dataset()


def _files(place: str, version: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(_table(place, version).get_add_actions(flatten=True)).to_pylist()
    return found


def _may_have(file: dict[str, Any], topic: str | None, start: int, end: int | None) -> bool:
    """Whether a file may have records of a topic with ids in a range, as far as its metadata tells."""
    first_id, last_id = file.get("min.offset"), file.get("max.offset")
    return (
        (topic is None or file.get(PARTITION + TOPIC) in (None, topic))
        and (last_id is None or start <= last_id)
        and (first_id is None or end is None or first_id < end)
    )


def _of_partition(fragment: Fragment, file: dict[str, Any]) -> Fragment:
    """Return the file's fragment with only its partition values as known facts. The statistics that delta-rs adds would wrongly
    exclude a file when a filter is on a column without statistics."""
    known = pc.scalar(True)
    for name, value in file.items():
        if name.startswith(PARTITION):
            field = pc.field(name.removeprefix(PARTITION))
            known = known & (field.is_null() if value is None else field == value)
    return fragment.format.make_fragment(fragment.path, fragment.filesystem, known)


def _object_store(url: str) -> FileSystem:
    return PyFileSystem(DeltaStorageHandler(url))


def _filter(topic: str | None, start: int, end: int | None) -> pc.Expression | None:
    if topic is None:
        return None
    found = (pc.field("topic") == topic) & (pc.field("offset") >= start)
    return found if end is None else found & (pc.field("offset") < end)


def _listed(file: dict[str, Any]) -> ArchiveFile | str:
    path, topic = str(file["path"]), file.get(PARTITION + TOPIC)
    rows, first_id, last_id = (file.get(name) for name in ("num_records", "min.offset", "max.offset"))
    if isinstance(topic, str) and isinstance(rows, int) and isinstance(first_id, int) and isinstance(last_id, int):
        return ArchiveFile(path, topic, "", rows, first_id, last_id, int(file["size_bytes"]))
    return path


def _action(file: Written) -> AddAction:
    oldest, newest = (EPOCH + timedelta(microseconds=at_us) for at_us in (file.oldest_us, file.newest_us))
    stats = {
        "numRecords": file.rows,
        "minValues": {"offset": file.first_id, "timestamp": _stamp(oldest)},
        "maxValues": {"offset": file.last_id, "timestamp": _stamp(newest + MS - timedelta(microseconds=1))},  # rounded up
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    now_ms = (datetime.now(UTC) - EPOCH) // MS
    return AddAction(file.path, file.bytes, file.partition, now_ms, True, json.dumps(stats))


def _stamp(at: datetime) -> str:
    """Convert a time to milliseconds, as Delta's protocol has it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Convert delta-rs's errors to ours, with the table's place. Raises: Conflict, TableError, OSError."""
    try:
        yield
    except CommitFailedError as error:
        raise Conflict(f"{place}: other commits came first ({one_line(error)}): run the command again") from error
    except TableNotFoundError:
        raise
    except (DeltaError, OSError, ValueError) as error:
        raise failure(place, error) from error
