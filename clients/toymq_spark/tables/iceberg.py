"""An archive as an Iceberg table, by PyIceberg: a directory with a catalog of its own in SQLite, or a table of a named catalog.

The number of the last batch is a property of the table. The transaction that appends a batch sets it, and requires that the
table's snapshot is still the one that was read. The snapshot's summary has the number, too, but snapshots expire. After a
conflict PyIceberg would retry the append without reading the properties again, so its retries are off here.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, schema_to_pyarrow
from pyiceberg.table import DataScan, FileScanTask, StaticTable
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.types import LongType
from sqlalchemy.exc import SQLAlchemyError

from toymq_py.errors import ConfigError
from toymq_spark.manifest import ArchiveFile, ArchiveMismatch, NoArchive, sync
from toymq_spark.tables.partitioning import DEFAULT, TOPIC, Key, parse_partitions
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

BATCH = "toymq.batch"
"""Property of a table, and of the summary of a snapshot: number of the last batch."""
CATALOG = "_catalog.db"
LOCKED_S = 20
"""Time that another process may hold the catalog, which it does for an fsync."""
IN_DIRECTORY = "toymq.archive"
"""Name of the one table of a directory's own catalog."""
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",  # else each batch leaves a manifest that every later scan reads
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
NO_RETRIES = {"commit.retry.num-retries": "0"}
SYNCED = {"py-io-impl": "toymq_spark.tables.iceberg.SyncedFileIO"}
TRANSFORMS: dict[str, Transform[Any, Any]] = {
    "years": YearTransform(), "months": MonthTransform(), "days": DayTransform(), "hours": HourTransform(),
    TOPIC: IdentityTransform(),
}  # fmt: skip
SOURCES = {unit: TOPIC if unit == TOPIC else "timestamp" for unit in TRANSFORMS}


class IcebergArchive:
    """An archive that is the Iceberg table in a directory, or of a catalog."""

    def __init__(self, place: str, catalog: str | None = None, partition_by: str | None = None) -> None:
        """
        Args:
            place: a directory, or with ``catalog`` the name of a table.
            catalog: name of a catalog in PyIceberg's configuration (its file or environment).
            partition_by: how a new table is partitioned; None: as the existing table, or else ``DEFAULT``.

        Raises: ConfigError.
        """
        self._catalog_name = catalog
        self._keys = None if partition_by is None else parse_partitions(partition_by)
        self.directory: Path | None = None
        if catalog is not None:
            self.place = self._name = place
            if "." not in place or "/" in place:
                raise ConfigError(f"invalid table {place!r}: with --catalog write a name, as lake.orders")
        elif "://" in place:
            raise ConfigError(f"{place}: an Iceberg table in an object store needs a catalog: give --catalog, and its name")
        else:
            self.directory = Path(place).absolute()
            self.place, self._name = str(self.directory), IN_DIRECTORY

    def state(self) -> State | None:
        if self.directory is not None and not (self.directory / CATALOG).exists():
            self._refuse_other_files(self.directory)
            return None
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                return None
            return self._state_of(table)

    def prepare(self, query: str, schema: pa.Schema) -> Target:
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                keys = parse_partitions(DEFAULT) if self._keys is None else self._keys
                table = self._create(catalog, query, nullable(schema), keys)
            else:
                keys = self._keys_of(table)
                missing = check_types(self.place, schema_to_pyarrow(table.schema()), nullable(schema))
                if missing:
                    with table.transaction() as changes, changes.update_schema() as columns:
                        columns.union_by_name(pa.schema(missing))
            open_files = partial(_file_system, table.location(), tuple(_plain(table.io.properties).items()))
            return Target(open_files, f"{_parsed(table.location())[2]}/data", keys)

    def commit(self, query: str, batch: int, files: Sequence[Written]) -> bool:
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                raise NoArchive(f"{self.place}: the table is gone")
            if has(self.place, self._state_of(table), query, batch):
                return False
            table.metadata.properties.update(NO_RETRIES)  # of this object, not of the table
            summary = {PROPERTY: query, BATCH: str(batch)}
            changes = table.transaction()
            changes.set_properties({BATCH: str(batch)})
            if files:
                paths = [f"{table.location()}/data/{file.path}" for file in files]
                changes.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
            else:  # a snapshot all the same: the requirement belongs to it
                with changes.update_snapshot(snapshot_properties=summary).fast_append():
                    pass
            changes.commit_transaction()
            return True

    def snapshot(self) -> Snapshot:
        if self.directory is not None and not (self.directory / CATALOG).exists():
            raise _no_archive(self.place)  # to open a catalog makes one
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                raise _no_archive(self.place)
            return IcebergSnapshot(self.place, table.metadata_location, tuple(_plain(table.io.properties).items()))

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        """Yield the catalog, and convert PyIceberg's errors to ours. Raises: Conflict, TableError, OSError."""
        with _named(self.place):
            if self.directory is None:
                opened: Catalog = load_catalog(self._catalog_name)
            else:
                uri = f"sqlite:///{quote(str(self.directory / CATALOG))}?timeout={LOCKED_S}"
                at = {"uri": uri, "warehouse": str(self.directory), **SYNCED}
                opened = SqlCatalog("toymq", **at)
            with closing(opened) as catalog:
                yield catalog

    def _state_of(self, table: IcebergTable) -> State:
        """Read the archive's state from the table's properties. Raises: NotOurTable."""
        query = table.properties.get(PROPERTY)
        if query is None:
            raise NotOurTable(
                f"{self.place} is an Iceberg table that toymq-pipeline did not make (it has no property {PROPERTY}): "
                "archive to another place"
            )
        return State(query, int(table.properties.get(BATCH, -1)))

    def _load(self, catalog: Catalog) -> IcebergTable | None:
        try:
            return catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, catalog: Catalog, query: str, schema: pa.Schema, keys: Sequence[Key]) -> IcebergTable:
        try:
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            location = None if self.directory is None else str(self.directory)
            its = {**PROPERTIES, PROPERTY: query}
            changes = catalog.create_table_transaction(self._name, schema, location, properties=its)
            with changes, changes.update_spec() as spec:
                for key in keys:
                    name = TOPIC if key.unit == TOPIC else f"timestamp_{key.unit.removesuffix('s')}"
                    spec.add_field(SOURCES[key.unit], TRANSFORMS[key.unit], name)
            return catalog.load_table(self._name)
        except (TableAlreadyExistsError, NamespaceAlreadyExistsError):
            raise Conflict(f"{self.place}: the table was created meanwhile") from None

    def _keys_of(self, table: IcebergTable) -> tuple[Key, ...]:
        """Return the partition keys of the table. Raises: ArchiveMismatch."""
        found = []
        for field in table.spec().fields:
            source = table.schema().find_column_name(field.source_id)
            unit = next((unit for unit, one in TRANSFORMS.items() if one == field.transform and SOURCES[unit] == source), None)
            if unit is None:
                raise ArchiveMismatch(f"{self.place} is partitioned by {field.name}: archive to another place")
            found.append(Key(unit))
        if self._keys not in (None, tuple(found)):
            raise ArchiveMismatch(
                f"{self.place} is partitioned by {', '.join(key.unit for key in found) or 'nothing'}, which cannot be "
                "changed: leave --partition-by out, or archive to another place"
            )
        return tuple(found)

    def _refuse_other_files(self, directory: Path) -> None:
        """Check that the directory for a new table has no other files. Raises: NotOurTable."""
        if not directory.exists():
            return
        other = next((file.name for file in sorted(directory.iterdir()) if not file.name.startswith(("_", "."))), None)
        if other is not None:
            raise NotOurTable(f"{self.place} is not an Iceberg table, and not empty (it has {other}): archive to another place")


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """A table as described by one metadata file. A task needs no catalog to read it."""

    place: str
    metadata_location: str
    properties: tuple[tuple[str, str], ...]

    def paths(self, topic: str | None = None, start: int = 0, end: int | None = None) -> list[str]:
        with _named(self.place):
            return [task.file.file_path for task in self._tasks(self._scan(topic, start, end))]

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], topic: str | None = None, start: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        wanted = set(paths)
        with _named(self.place):
            table = self._table()
            scan = self._scan(topic, start, end, tuple(columns))
            tasks = [task for task in self._tasks(scan) if task.file.file_path in wanted]
            rows = ArrowScan(table.metadata, table.io, scan.projection(), _filter(topic, start, end))
            yield from map(_with_nulls, rows.to_record_batches(tasks))

    def listed(self) -> list[ArchiveFile | str]:
        with _named(self.place):
            table = self._table()
            offset = table.schema().find_field("offset").field_id
            topic = table.schema().find_field(TOPIC).field_id
            places = {
                spec.spec_id: at
                for spec in table.specs().values()
                for at, field in enumerate(spec.fields)
                if field.source_id == topic and field.transform == TRANSFORMS[TOPIC]
            }
            return [_listed(task, offset, places.get(task.file.spec_id)) for task in self._tasks(self._scan(None, 0, None))]

    def schema(self) -> pa.Schema:
        return schema_to_pyarrow(self._table().schema())

    def _scan(self, topic: str | None, start: int, end: int | None, columns: tuple[str, ...] = ("*",)) -> DataScan:
        return self._table().scan(row_filter=_filter(topic, start, end), selected_fields=columns)

    def _tasks(self, scan: DataScan) -> list[FileScanTask]:
        return list(scan.plan_files())

    def _table(self) -> StaticTable:
        return _table(self.metadata_location, self.properties)


def _no_archive(place: str) -> NoArchive:
    return NoArchive(f"{place} is not an archive: it has no Iceberg table")


@lru_cache(4)
def _table(location: str, properties: tuple[tuple[str, str], ...]) -> StaticTable:
    return StaticTable.from_metadata(location, dict(properties))


def _file_system(location: str, properties: tuple[tuple[str, str], ...]) -> FileSystem:
    scheme, netloc, _ = _parsed(location)
    return PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)


def _parsed(location: str) -> tuple[str, str, str]:
    """Split a location into scheme, host and path."""
    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    return scheme, netloc, path


def _plain(properties: dict[str, Any]) -> dict[str, str]:
    """Return the table's properties that tasks need for file access; tasks write no metadata."""
    return {name: str(value) for name, value in properties.items() if name != "py-io-impl"}


def _filter(topic: str | None, start: int, end: int | None) -> BooleanExpression:
    if topic is None:
        return AlwaysTrue()
    found = And(EqualTo("topic", topic), GreaterThanOrEqual("offset", start))
    return found if end is None else And(found, LessThan("offset", end))


def _listed(task: FileScanTask, offset: int, at: int | None) -> ArchiveFile | str:
    file = task.file
    lower, upper = (file.lower_bounds or {}).get(offset), (file.upper_bounds or {}).get(offset)
    if at is None or lower is None or upper is None or task.delete_files:
        return str(file.file_path)
    first_id, last_id = (from_bytes(LongType(), bound) for bound in (lower, upper))
    return ArchiveFile(
        file.file_path, str(file.partition[at]), "", int(file.record_count), int(first_id), int(last_id),
        int(file.file_size_in_bytes),
    )  # fmt: skip


class SyncedFileIO(PyArrowFileIO):  # type: ignore[misc]
    """File access of PyIceberg that syncs each file when it is closed: the catalog, which is synced, names the file next.
    PyIceberg creates this class by its name."""

    def new_output(self, location: str) -> Any:
        return _SyncedOutput(super().new_output(location), Path(self.parse_location(location)[2]))


class _SyncedOutput(OutputFile):  # type: ignore[misc]
    def __init__(self, file: OutputFile, path: Path) -> None:
        super().__init__(file.location)
        self._file, self._path = file, path

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return bool(self._file.exists())

    def to_input_file(self) -> InputFile:
        return self._file.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        return _SyncedStream(self._file.create(overwrite), self._path)


class _SyncedStream:
    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream, self._path = stream, path

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self._stream.close()
        for path in (self._path, self._path.parent, self._path.parent.parent):
            sync(path)

    def __enter__(self) -> "_SyncedStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _with_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace empty lists of headers by null: PyIceberg 0.12 reads a null list as an empty one, and no record has an empty
    list."""
    at = batch.schema.get_field_index("headers")
    if at < 0:
        return batch
    headers = batch.column(at)
    return batch.set_column(at, "headers", pc.if_else(pc.equal(pc.list_value_length(headers), 0), None, headers))


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Convert PyIceberg's errors to ours, with the table's place. Raises: Conflict, TableError, OSError."""
    try:
        yield
    except CommitFailedException as error:
        raise Conflict(f"{place}: other commits came first ({one_line(error)}): run the command again") from error
    except (NotOurTable, ArchiveMismatch, NoArchive, Conflict):
        raise
    except (SQLAlchemyError, RESTError, NotInstalledError, ValidationError, OSError, ValueError) as error:
        raise failure(place, error) from error
