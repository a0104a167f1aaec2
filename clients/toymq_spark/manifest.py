"""What belongs to an archive of Parquet files: manifests, one a batch, that name its files. Readers read what they name.

    <archive>/
      manifest/0000000007.json              a batch of the archive job: it is there whole, or not at all
      manifest/compact-0000000002.json      the second compaction: what it wrote, and which files that stands for
      data/batch=0000000007.<attempt>/date=2026-11-21/topic=orders/part-….parquet

An attempt at a batch writes to a directory of its own, syncs it, and then puts the batch's manifest in place, which only one
attempt can do: the name is linked, and a link never takes the place of another. So two jobs at once never stand for the same
rows, and none of them holds a lock that it could leave behind. A directory that no manifest names is what a killed job left,
or another that runs: it is removed when the manifest of its batch is there, since no attempt at it can succeed any more.

So pyarrow, DuckDB and Spark see each record once, if they are given ``files``. Knows neither Spark nor brokers. The archive is
a path that all nodes share, on a file system with hard links.
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
    """Raises: ArchiveMismatch where a batch was written by another query than this one."""
    if found != query:
        raise ArchiveMismatch(
            f"{place} has a batch {batch} of another query: it was written with another checkpoint. Use that checkpoint, or "
            "archive to another place"
        )


class AlreadyCommitted(LocalError):
    """Another attempt has committed this manifest."""


class NoArchive(ConfigError):
    """The directory has no manifest: it is a wrong one, or nothing is archived yet."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file. ``path`` is relative to the archive; ids of one topic, both included."""

    path: str
    topic: str
    date: str
    rows: int
    first_id: int
    last_id: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """
    ``query``: id of the streaming query that wrote the batch, or of the compaction.
    ``replaces``: paths of files that this one's files stand for.
    ``written_ms``: stays when files are removed and it is written again; 0 where it is unknown.
    """

    name: str
    query: str
    files: tuple[ArchiveFile, ...]
    replaces: tuple[str, ...] = ()
    written_ms: int = field(default_factory=lambda: time_ns() // 1_000_000, compare=False)


class Archive:
    """A directory with manifests."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._manifests = self.path / "manifest"

    def manifests(self) -> list[Manifest]:
        """All manifests, by name; empty where there is no archive yet. Raises: DamagedData, OSError."""
        if not self._manifests.is_dir():
            return []
        return [self._load(file) for file in sorted(self._manifests.glob("*.json"))]

    def require(self) -> None:
        """Raises: NoArchive, OSError."""
        if next(self._manifests.glob("*.json"), None) is None:
            raise NoArchive(f"{self.path} is not an archive: it has no manifest")

    def files(self) -> list[ArchiveFile]:
        """Current files by topic and id; none after empty batches only.

        Raises: NoArchive, DamagedData, OSError.
        """
        self.require()
        manifests = self.manifests()
        replaced = {path for manifest in manifests for path in manifest.replaces}
        found = [file for manifest in manifests for file in manifest.files if file.path not in replaced]
        return sorted(found, key=lambda file: (file.topic, file.first_id, file.path))

    def paths(self) -> list[str]:
        """The same as whole paths, for ``read_parquet([...], hive_partitioning=true)`` of DuckDB and others. Topic and day of
        the records stand in the paths only.

        Raises: NoArchive, DamagedData, OSError.
        """
        return [str(self.path / file.path) for file in self.files()]

    def dataset(self) -> Dataset:
        """The same for pyarrow, with the columns ``topic`` and ``date``: all records that are archived now.

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
        """Ids of files, in any order. Raises: OSError."""
        columns = [pq.ParquetFile(self.path / file.path).read(columns=["offset"])["offset"] for file in files]
        return pa.chunked_array([chunk for column in columns for chunk in column.chunks])

    def find(self, name: str) -> Manifest | None:
        """Raises: DamagedData, OSError."""
        file = self._manifests / f"{name}.json"
        return self._load(file) if file.exists() else None

    def attempt(self, name: str) -> Path:
        """A new directory for one attempt at a batch."""
        return self.path / "data" / f"batch={name}.{uuid.uuid4().hex[:8]}"

    def next_compaction(self) -> str:
        """Name of the next compaction. Concurrent ones get the same name, and only one can commit it."""
        names = (file.stem for file in self._manifests.glob(f"{COMPACTION}*.json"))
        done = [int(found[1]) for name in names if (found := re.fullmatch(COMPACTION + r"([0-9]+)", name))]
        return f"{COMPACTION}{max(done, default=0) + 1:0{NAME_DIGITS}d}"

    def commit(self, manifest: Manifest) -> None:
        """Put a manifest in place, after its files are on stable storage. Once for each name.

        Raises: AlreadyCommitted, LocalError on a file system without hard links, OSError.
        """
        for directory in sync_order(self.path / file.path for file in manifest.files):
            sync(directory)
        self._manifests.mkdir(parents=True, exist_ok=True)
        create_atomically(self._manifests / f"{manifest.name}.json", _json(manifest))
        sync(self.path)

    def discard_attempts(self, prefix: str) -> None:
        """Remove files of other attempts at committed batches with this prefix; an attempt at an uncommitted batch may be about
        to commit. Raises: DamagedData, OSError."""
        for place in (self.path / "data").glob(f"batch={prefix}*"):
            manifest = self.find(place.name.removeprefix("batch=").partition(".")[0])
            if manifest is not None and place.name not in _places(manifest.files):
                shutil.rmtree(place, ignore_errors=True)

    def remove(self, manifest: Manifest, paths: Sequence[str]) -> None:
        """Remove replaced files. The manifest stays, even empty: it proves that its batch was archived, and by which query.
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
    """Type of the column ``value`` in files: bytes, or a struct with all columns that any of them has.

    Raises: ArchiveMismatch where they do not go together, OSError.
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
    """A type for values of both. Raises: ArchiveMismatch."""
    try:
        return pa.unify_schemas(
            [pa.schema([pa.field("value", one)]) for one in (kind, other)], promote_options="permissive"
        ).field("value").type  # fmt: skip
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise ArchiveMismatch(f"values are {kind} and {other} in one archive: archive to another place") from None


def describe(archive: Path, directory: Path) -> Iterator[ArchiveFile]:
    """What was written to ``…/date=D/topic=T/*.parquet``, from the files' own footers. Raises: OSError."""
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
    """Create a file atomically: a crash leaves the content or no file. Raises: AlreadyCommitted, LocalError, OSError."""
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
    """A synced temporary file beside ``path`` with this content."""
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
    """Directories of attempts that have these files."""
    return {Path(file.path).parts[1] for file in files}


def _json(manifest: Manifest) -> dict[str, Any]:
    return {"version": VERSION, **asdict(manifest)}


def sync_order(files: Iterable[Path]) -> Iterator[Path]:
    """Files, then their directories from the innermost up to the batch's parent."""
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
