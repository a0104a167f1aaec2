"""Manifests of an archive of Parquet files. There is one for each batch, and it names the batch's files; readers read only
files that a manifest names.

    <archive>/
      manifest/0000000007.json              a batch of the archive job: it is there whole, or not at all
      manifest/compact-0000000002.json      the second compaction: what it wrote, and which files that stands for
      data/batch=0000000007.<attempt>/date=2026-11-21/topic=orders/part-….parquet

An attempt at a batch writes to a directory of its own, syncs it, and then creates the batch's manifest by a hard link, which
fails if the name exists, so only one attempt can succeed. So two concurrent jobs never archive the same rows twice, and there
is no lock that a job could leave behind. A directory that no manifest names belongs to a killed job, or to one that still runs:
it is removed once the manifest of its batch exists, since then no other attempt at the batch can succeed.

So pyarrow, DuckDB and Spark see each record once, if they read only ``Archive.files``. Knows neither Spark nor brokers. The
archive is a path that all nodes share, on a file system with hard links.
"""

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import Dataset, HivePartitioning, dataset

from toymq_py.errors import ConfigError, DamagedData, LocalError

VERSION = 1
NAME_DIGITS = 10
COMPACTION = "compact-"
PARTITIONS = pa.schema([("topic", pa.string()), ("date", pa.date32())])
COLUMNS = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")), ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)  # fmt: skip
"""Of the files; topic and date are in their paths."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""A directory's name for no value, and also of the topic that is called so; a record always has a topic."""
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Error numbers of a file system without hard links."""


class ArchiveMismatch(ConfigError):
    """The archive and the checkpoint do not belong together."""


def check_query(place: str | Path, batch: int, found: str, query: str) -> None:
    """Check that a batch was written by this query. Raises: ArchiveMismatch."""
    if found != query:
        raise ArchiveMismatch(
            f"{place} has a batch {batch} of another query: it was written with another checkpoint. Use that checkpoint, or "
            "archive to another place"
        )


class AlreadyCommitted(LocalError):
    """Another attempt has created this manifest before."""


class NoArchive(ConfigError):
    """The directory has no manifest: it is the wrong directory, or nothing has been archived yet."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file of an archive. ``path`` is relative to the archive; ``first_id`` and ``last_id`` are included."""

    path: str
    topic: str
    date: str
    rows: int
    first_id: int
    last_id: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Names the files of one batch. ``query``: id of the streaming query that wrote the batch, or of the compaction.
    ``replaces``: paths of the files that this compaction replaced. ``written_ms``: when the batch was archived, milliseconds
    since 1970; 0 if unknown.
    """

    name: str
    query: str
    files: tuple[ArchiveFile, ...]
    replaces: tuple[str, ...] = ()
    written_ms: int = field(default_factory=lambda: time_ns() // 1_000_000, compare=False)


class Archive:
    """An archive: a directory with manifests and the Parquet files that they name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._manifests = self.path / "manifest"

    def manifests(self) -> list[Manifest]:
        """Return all manifests, sorted by name; empty where there is no archive yet. Raises: DamagedData, OSError."""
        if not self._manifests.is_dir():
            return []
        return [self._load(file) for file in sorted(self._manifests.glob("*.json"))]

    def require(self) -> None:
        """Check that the archive exists. Raises: NoArchive, OSError."""
        if next(self._manifests.glob("*.json"), None) is None:
            raise NoArchive(f"{self.path} is not an archive: it has no manifest")

    def files(self) -> list[ArchiveFile]:
        """Return the current files, sorted by topic and id; empty if all batches were empty.

        Raises: NoArchive, DamagedData, OSError.
        """
        self.require()
        manifests = self.manifests()
        replaced = {path for manifest in manifests for path in manifest.replaces}
        found = [file for manifest in manifests for file in manifest.files if file.path not in replaced]
        return sorted(found, key=lambda file: (file.topic, file.first_id, file.path))

    def paths(self) -> list[str]:
        """Return the full paths of the current files, for ``read_parquet([...], hive_partitioning=true)`` of DuckDB and others.
        Only the paths contain the records' topic and day.

        Raises: NoArchive, DamagedData, OSError.
        """
        return [str(self.path / file.path) for file in self.files()]

    def dataset(self) -> Dataset:
        """Return all records that are archived now as a pyarrow dataset, with the columns ``topic`` and ``date``.

        Raises: NoArchive, DamagedData, OSError.
        """
        # No name of a directory stands for null, also where a topic is called like that.
        partitioning = HivePartitioning(PARTITIONS, null_fallback="")
        paths = self.paths()
        columns = [field.with_type(value_type(paths)) if field.name == "value" else field for field in COLUMNS]
        schema = pa.schema([*columns, *PARTITIONS])
        if not paths:
            return dataset(pa.Table.from_pylist([], schema))
        return dataset(paths, schema, "parquet", partitioning=partitioning, partition_base_dir=str(self.path / "data"))

    def offsets_of(self, files: Sequence[ArchiveFile]) -> pa.ChunkedArray:
        """Return the ids in files, in any order. Raises: OSError."""
        columns = [pq.ParquetFile(self.path / file.path).read(columns=["offset"])["offset"] for file in files]
        return pa.chunked_array([chunk for column in columns for chunk in column.chunks])

    def find(self, name: str) -> Manifest | None:
        """Return the manifest with a name; None if there is none. Raises: DamagedData, OSError."""
        file = self._manifests / f"{name}.json"
        return self._load(file) if file.exists() else None

    def attempt(self, name: str) -> Path:
        """Return the path of a new directory for one attempt at a batch."""
        return self.path / "data" / f"batch={name}.{uuid.uuid4().hex[:8]}"

    def next_compaction(self) -> str:
        """Return the name of the next compaction. Concurrent compactions get the same name, and only one of them can commit."""
        names = (file.stem for file in self._manifests.glob(f"{COMPACTION}*.json"))
        done = [int(found[1]) for name in names if (found := re.fullmatch(COMPACTION + r"([0-9]+)", name))]
        return f"{COMPACTION}{max(done, default=0) + 1:0{NAME_DIGITS}d}"

    def commit(self, manifest: Manifest) -> None:
        """Sync the files of a manifest and then create it. Only one call can succeed for each name.

        Raises: AlreadyCommitted, LocalError on a file system without hard links, OSError.
        """
        for directory in sync_order(self.path / file.path for file in manifest.files):
            sync(directory)
        self._manifests.mkdir(parents=True, exist_ok=True)
        create_atomically(self._manifests / f"{manifest.name}.json", _json(manifest))
        sync(self.path)

    def discard_attempts(self, prefix: str) -> None:
        """Remove the files of unsuccessful attempts at committed batches whose names have this prefix; an attempt at an
        uncommitted batch may be about to commit. Raises: DamagedData, OSError."""
        for place in (self.path / "data").glob(f"batch={prefix}*"):
            manifest = self.find(place.name.removeprefix("batch=").partition(".")[0])
            if manifest is not None and place.name not in _places(manifest.files):
                shutil.rmtree(place, ignore_errors=True)

    def remove(self, manifest: Manifest, paths: Sequence[str]) -> None:
        """Remove files that a compaction replaced. Their manifest stays, even without files: it proves that its batch was
        archived, and by which query.
        Raises: OSError."""
        for path in paths:
            (self.path / path).unlink(missing_ok=True)
        left = tuple(file for file in manifest.files if file.path not in set(paths))
        for place in _places(manifest.files) - _places(left):
            shutil.rmtree(self.path / "data" / place, ignore_errors=True)
        write_atomically(self._manifests / f"{manifest.name}.json", _json(replace(manifest, files=left)))

    def _load(self, file: Path) -> Manifest:
        try:
            found: dict[str, Any] = json.loads(file.read_text())
            version = found.pop("version")
            files = tuple(ArchiveFile(**one) for one in found.pop("files"))
            manifest = Manifest(files=files, replaces=tuple(found.pop("replaces")), **found)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedData(f"{file}: invalid manifest of an archive") from None
        if version != VERSION:
            raise DamagedData(f"{file} has version {version!r}, and this toymq reads {VERSION}")
        return manifest


def value_type(paths: Sequence[str]) -> pa.DataType:
    """Return the type of the column ``value`` in files: bytes, or a struct with all columns that any file has.

    Raises: ArchiveMismatch when the types cannot be combined, OSError.
    """
    found = pa.binary()
    for number, path in enumerate(reversed(paths)):
        kind = pq.read_schema(path).field("value").type
        if number == 0:
            found = kind
            if not pa.types.is_struct(kind):
                break  # bytes have no columns to add
        elif kind != found:
            found = united(found, kind)
    return found


def united(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that can hold values of both types. Raises: ArchiveMismatch."""
    try:
        return pa.unify_schemas(
            [pa.schema([pa.field("value", one)]) for one in (kind, other)], promote_options="permissive"
        ).field("value").type  # fmt: skip
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise ArchiveMismatch(f"values are {kind} and {other} in one archive: archive to another place") from None


def describe(archive: Path, directory: Path) -> Iterator[ArchiveFile]:
    """Describe the files that were written to ``…/date=D/topic=T/*.parquet``, from their footers. Raises: OSError."""
    for file in sorted(directory.glob("date=*/topic=*/*.parquet")):
        metadata = pq.read_metadata(file)
        column = metadata.schema.names.index("offset")
        ranges = [metadata.row_group(at).column(column).statistics for at in range(metadata.num_row_groups)]
        if ranges:
            yield ArchiveFile(
                path=str(file.relative_to(archive)),
                topic=file.parent.name.removeprefix("topic="),
                date=file.parent.parent.name.removeprefix("date="),
                rows=metadata.num_rows,
                first_id=min(one.min for one in ranges),
                last_id=max(one.max for one in ranges),
                bytes=file.stat().st_size,
            )


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Write a file atomically: a crash leaves the old content or the new. Raises: OSError."""
    with _temporary(path, content) as temporary:
        temporary.replace(path)
    sync(path.parent)


def create_atomically(path: Path, content: dict[str, Any]) -> None:
    """Create a file atomically: a crash leaves the whole file or no file. Raises: AlreadyCommitted, LocalError, OSError."""
    with _temporary(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            if temporary.stat().st_nlink == 1:  # two on NFS: the link was made, and the reply lost
                raise AlreadyCommitted(f"{path} is there already") from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise LocalError(f"{path.parent}: an archive needs a file system with hard links") from None
    sync(path.parent)


@contextmanager
def _temporary(path: Path, content: dict[str, Any]) -> Iterator[Path]:
    """Yield a synced temporary file beside ``path`` with this content, and remove it at the end."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _places(files: Iterable[ArchiveFile]) -> set[str]:
    """Return the names of the attempts' directories that contain these files."""
    return {Path(file.path).parts[1] for file in files}


def _json(manifest: Manifest) -> dict[str, Any]:
    return {"version": VERSION, **asdict(manifest)}


def sync_order(files: Iterable[Path]) -> Iterator[Path]:
    """Yield paths in the order to sync them: files, then their directories from the innermost up to the batch's parent."""
    directories: set[Path] = set()
    for file in files:
        yield file
        directories.update(list(file.parents)[:4])  # topic=, date=, the batch, data
    yield from sorted(directories, key=lambda path: -len(path.parts))


def sync(path: Path) -> None:
    """Fsync a file or a directory. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
