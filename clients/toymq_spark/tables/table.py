"""The interface of an archive's table, whatever its format, and the steps by which a batch is appended to it.

A batch is appended in three steps: executors write Parquet files that nothing names yet, the driver syncs Spark's plan of the
batch, and one transaction adds the files and the number of the batch. The number stands in the table's own metadata, and two
transactions with one number conflict, so a batch is there once or not at all. Files of an attempt that was killed stay until
the table is vacuumed. Knows nothing of Spark.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyarrow.fs import FileSystem

from toymq_py.errors import ConfigError, LocalError
from toymq_spark.manifest import ArchiveFile, ArchiveMismatch, check_query
from toymq_spark.tables.partitioning import Key

T = TypeVar("T")
PROPERTY = "toymq.query"
"""Property of a table: the id of the query that writes it. A table without it is not an archive."""
COMMIT_ATTEMPTS = 10
"""A compaction, or a change of the schema, may come between; more than a few in a row are a mistake."""
DISK_FULL = (os.strerror(errno.ENOSPC), "database or disk is full")
"""What libraries say; the last is SQLite's."""
CHECKPOINT = "_checkpoint"
"""Directory of Spark's progress in a local table: vacuuming leaves names alone that begin with an underscore."""


class TableError(LocalError):
    """The table cannot be read or written; the text begins with the table's place."""


class NotOurTable(ConfigError):
    """The place contains something other than an archive's table."""


class Conflict(TableError):
    """Another transaction was committed first. Whether to try again depends on what the table contains now."""


@dataclass(frozen=True, slots=True)
class Written:
    """A Parquet file that no transaction names yet. ``path`` is relative to the table's data; times are microseconds since
    1970."""

    path: str
    partition: dict[str, str]
    rows: int
    bytes: int
    first_id: int
    last_id: int
    oldest_us: int
    newest_us: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Written":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Target:
    """Where executors write files; it is sent to them.

    Attributes:
        open: makes the file system; each task calls it.
        base: directory of the table's data in that file system.
        keys: the partition keys, by which records are divided into files.
        dropped: columns that the format keeps in its metadata, not in files.
    """

    open: Callable[[], FileSystem]
    base: str
    keys: tuple[Key, ...]
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What a table says of its archiving. ``query``: id of the query that writes the table. ``batch``: number of the last batch
    in it; -1 for none."""

    query: str
    batch: int


class Snapshot(Protocol):
    """A table at one moment. The object is small: it is sent to executors, which open the table themselves."""

    def paths(self, topic: str | None = None, start: int = 0, end: int | None = None) -> list[str]:
        """Return the files that may have records of a topic with ids in a range, ``end`` excluded. Raises: TableError."""

    def batches(
        self, paths: Sequence[str], columns: Sequence[str], topic: str | None = None, start: int = 0, end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records in files, filtered by topic and ids. Raises: TableError."""

    def listed(self) -> list[ArchiveFile | str]:
        """Return all files; for a file whose metadata does not tell its topic or ids, only its path. Raises: TableError."""

    def schema(self) -> pa.Schema: ...


class Table(Protocol):
    """An archive's table, or the place for one. All methods may raise TableError, and ConfigError when the place contains
    something else.

    Attributes:
        place: the table's place, for error texts.
        directory: the table's directory; None in an object store, and where a catalog chooses the place.
    """

    place: str
    directory: Path | None

    def state(self) -> State | None:
        """Return the archive's state; None where there is no table yet."""

    def prepare(self, query: str, schema: pa.Schema) -> Target:
        """Create the table, or add the columns that it lacks. Raises: ArchiveMismatch for a column of another type."""

    def commit(self, query: str, batch: int, files: Sequence[Written]) -> bool:
        """Add files and the number of the batch in one transaction, unless the table has that batch. Check and commit are
        atomic: the transaction fails if the table has changed since the check.

        Returns: whether this call added the files.
        Raises: Conflict; ArchiveMismatch for a table of another query.
        """

    def snapshot(self) -> Snapshot:
        """Return the table as it is now. Raises: NoArchive where there is no table."""


def append(
    table: Table,
    query: str,
    batch: int,
    schema: pa.Schema,
    write: Callable[[Target], Sequence[Written]],
    planned: Callable[[], None] = lambda: None,
) -> bool:
    """Append a batch to a table, unless the table has it.

    Args:
        schema: the schema of the batch.
        write: writes the batch's files. Called at most once.
        planned: puts Spark's plan of the batch on stable storage; called before the transaction.

    Returns: whether this call appended it.
    Raises: ArchiveMismatch, TableError, OSError.
    """
    if has(table.place, table.state(), query, batch):
        return False
    target = _retried(lambda: table.prepare(query, schema))
    files = write(target)
    planned()
    return _retried(lambda: table.commit(query, batch, files))


def has(place: str, state: State | None, query: str, batch: int) -> bool:
    """Whether a table already contains a batch. Raises: ArchiveMismatch for a table of another query."""
    if state is None:
        return False
    check_query(place, max(state.batch, 0), state.query, query)
    return state.batch >= batch


class Files:
    """The files of a snapshot, with the interface that ``replay`` needs to plan (``replay_ranges.Archived``)."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def files(self) -> list[ArchiveFile]:
        """Return the files, sorted by topic and id; a file with several topics is listed once for each. Raises: TableError."""
        found: list[ArchiveFile] = []
        for file in self._snapshot.listed():
            found.extend([file] if isinstance(file, ArchiveFile) else _read_topics(self._snapshot, file))
        return sorted(found, key=lambda file: (file.topic, file.first_id, file.path))

    def offsets_of(self, files: Sequence[ArchiveFile]) -> pa.ChunkedArray:
        """Return the ids in files, all of the topic of the first file. Raises: TableError."""
        batches = self._snapshot.batches([file.path for file in files], ["offset"], topic=files[0].topic)
        return pa.chunked_array([batch.column("offset") for batch in batches], pa.int64())


def one_line(error: BaseException) -> str:
    """Return the first line of a library's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def failure(place: str, error: BaseException) -> LocalError | OSError:
    """Convert a library's error to ours: OSError for a full disk, else a TableError with the place and one line."""
    if any(full in str(error) for full in DISK_FULL):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)
    return TableError(f"{place}: {one_line(error)}")


def check_types(place: str, table: pa.Schema, archived: pa.Schema) -> list[pa.Field]:
    """Compare the columns of a table with those of an archive.

    Returns: the fields that the table lacks.
    Raises: ArchiveMismatch for a column of another type.
    """
    for field in archived:
        at = table.get_field_index(field.name)
        if at >= 0 and not _same_type(table.field(at).type, field.type):
            raise ArchiveMismatch(
                f"{place} has a column {field.name} of type {table.field(at).type}, and the archive's is {field.type}: "
                "archive to another place"
            )
    return [field for field in archived if table.get_field_index(field.name) < 0]


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the same columns, all nullable: a later record may lack a value that the first ones have."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _same_type(table: pa.DataType, archived: pa.DataType) -> bool:
    """Whether two types are the same, ignoring the size of lengths (string or large_string), and names and nullability within
    lists and structs."""
    if pa.types.is_struct(table) and pa.types.is_struct(archived):
        return table.num_fields == archived.num_fields and all(
            one.name == other.name and _same_type(one.type, other.type) for one, other in zip(table, archived, strict=True)
        )
    if _is_list(table) and _is_list(archived):
        return _same_type(table.value_type, archived.value_type)
    same = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(same.get(table, table) == same.get(archived, archived))


def _is_list(found: pa.DataType) -> bool:
    return bool(pa.types.is_list(found) or pa.types.is_large_list(found))


def _retried(step: Callable[[], T]) -> T:
    for _ in range(COMMIT_ATTEMPTS - 1):
        try:
            return step()
        except Conflict:
            continue
    return step()


def _read_topics(snapshot: Snapshot, path: str) -> Iterator[ArchiveFile]:
    batches = list(snapshot.batches([path], ["topic", "offset"]))
    if not batches:
        return
    grouped: Any = pa.Table.from_batches(batches).group_by("topic")
    measured = grouped.aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    for row in measured.to_pylist():
        yield ArchiveFile(path, row["topic"], "", row["offset_count"], row["offset_min"], row["offset_max"], 0)
