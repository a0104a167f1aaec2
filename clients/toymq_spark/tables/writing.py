"""Writes records as Parquet files on an executor, one file for each combination of partition values.

A returned file is complete, and on a local file system it is on stable storage. A task that fails removes its files if it can,
and its next attempt writes files with other names.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

from toymq_spark.manifest import sync
from toymq_spark.tables.table import Target, Written

FILE_BYTES_MAX = 256 << 20
"""A larger file is ended, and another begun."""
BUFFER_BYTES = 64 << 20
"""Records in memory, over all files; then each becomes a row group of its file."""
OPEN_MAX = 64
"""Open files: a task has one topic and a range of ids, so that more than a few are rare."""


def write(batches: Iterable[pa.RecordBatch], target: Target) -> list[Written]:
    """Write records to files. Raises: OSError."""
    with _Files(target) as files:
        for batch in batches:
            for values, rows in _split(batch, target):
                files.add(values, rows)
        return files.end()


def _split(batch: pa.RecordBatch, target: Target) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """Split a batch by partition values, given as texts."""
    if not batch.num_rows:
        return
    columns = [key.of(batch) for key in target.keys]
    if not columns:
        yield (), batch
        return
    names = [key.name for key in target.keys]
    found: Any = pa.table(columns, names).group_by(names).aggregate([])
    for row in range(found.num_rows):
        values = [found.column(name)[row] for name in names]
        texts = tuple(key.text(value) for key, value in zip(target.keys, values, strict=True))
        if found.num_rows == 1:
            yield texts, batch
            return
        mask = pc.equal(columns[0], values[0])
        for column, value in zip(columns[1:], values[1:], strict=True):
            mask = pc.and_(mask, pc.equal(column, value))
        yield texts, batch.filter(mask)


class _Files:
    """The open files, by their partition values as texts. When an exception leaves the context, they are removed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._fs = target.open()
        self._open: dict[tuple[str, ...], _File] = {}
        self._done: list[Written] = []

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for file in self._open.values():
                file.abandon()
            for done in self._done:
                with contextlib.suppress(OSError):
                    self._fs.delete_file(f"{self._target.base}/{done.path}")

    def add(self, values: tuple[str, ...], rows: pa.RecordBatch) -> None:
        file = self._open.pop(values, None) or _File(self._fs, self._target, values)
        self._open[values] = file  # the last used is the last
        file.add(rows)
        if sum(one.buffered for one in self._open.values()) > BUFFER_BYTES:
            for one in self._open.values():
                one.flush()
        if file.bytes > FILE_BYTES_MAX:
            self._end(values)
        if len(self._open) > OPEN_MAX:
            self._end(next(iter(self._open)))

    def end(self) -> list[Written]:
        for values in list(self._open):
            self._end(values)
        return self._done

    def _end(self, values: tuple[str, ...]) -> None:
        self._done.append(self._open[values].end())
        del self._open[values]


class _File:
    def __init__(self, fs: FileSystem, target: Target, values: tuple[str, ...]) -> None:
        self._fs, self._base, self._dropped = fs, target.base, target.dropped
        self._partition = {key.name: value for key, value in zip(target.keys, values, strict=True)}
        place = "/".join(f"{name}={value}" for name, value in self._partition.items())
        self._path = f"{place}/{uuid.uuid4().hex}.parquet".lstrip("/")
        self._whole = f"{target.base}/{self._path}"
        self._out: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[pa.RecordBatch] = []
        self._count = 0
        self._ids: list[int] = []
        self._times: list[int] = []
        self.buffered = 0

    @property
    def bytes(self) -> int:
        return 0 if self._out is None else int(self._out.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        self._count += rows.num_rows
        self._ids = _range(rows.column("offset"), self._ids)
        self._times = _range(rows.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64()), self._times)
        kept = [name for name in rows.schema.names if name not in self._dropped]
        self._rows.append(rows.select(kept))
        self.buffered += rows.nbytes

    def flush(self) -> None:
        if not self._rows:
            return
        table = pa.Table.from_batches(self._rows)
        self._rows, self.buffered = [], 0
        if self._writer is None:
            if isinstance(self._fs, LocalFileSystem):  # an object store has none
                self._fs.create_dir(str(Path(self._whole).parent), recursive=True)
            self._out = self._fs.open_output_stream(self._whole)
            self._writer = pq.ParquetWriter(self._out, table.schema, compression="zstd")
        self._writer.write_table(table)

    def end(self) -> Written:
        self.flush()
        if self._writer is None:
            raise AssertionError("a file without records")
        self._writer.close()
        self._out.close()
        if isinstance(self._fs, LocalFileSystem):
            _sync(Path(self._whole), Path(self._base))
        size = int(self._fs.get_file_info(self._whole).size)
        return Written(self._path, self._partition, self._count, size, *self._ids, *self._times)

    def abandon(self) -> None:
        for part in (self._writer, self._out):
            with contextlib.suppress(OSError, pa.ArrowException):
                if part is not None:
                    part.close()
        with contextlib.suppress(OSError):
            self._fs.delete_file(self._whole)


def _range(column: pa.Array, before: list[int]) -> list[int]:
    """Return the least and the greatest of a column's values and of ``before``."""
    found = pc.min_max(column).as_py()
    return [min([found["min"], *before]), max([found["max"], *before])]


def _sync(file: Path, base: Path) -> None:
    """Sync a file and its directories, up to the table's directory."""
    sync(file)
    for directory in file.parents:
        sync(directory)
        if directory == base:
            return
