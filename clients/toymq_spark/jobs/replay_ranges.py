"""Pieces of a replay: id ranges of a topic with about equal numbers of rows. Knows nothing of Spark.

A piece names ids and not files, since compaction replaces files but keeps rows. Known gaps belong to no piece, so they take no
time and do not count for the rate.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import pyarrow as pa

from toymq_py.errors import OutOfRange
from toymq_py.storage.id_ranges import subtract
from toymq_py.storage.reader import walk_columns
from toymq_spark import offsets
from toymq_spark.manifest import ArchiveFile
from toymq_spark.options import SourceOptions
from toymq_spark.record_sources import Logs


@dataclass(frozen=True, slots=True)
class Piece:
    """An id range of one topic, ``end`` excluded. ``rows``: its number of records; None until they are read."""

    topic: str
    start: int
    end: int
    rows: int | None = None

    @property
    def rows_max(self) -> int:
        return self.end - self.start if self.rows is None else self.rows


class Archived(Protocol):
    """The files of an archive, whatever its format."""

    def files(self) -> list[ArchiveFile]:
        """Return the files, sorted by topic and id."""

    def offsets_of(self, files: Sequence[ArchiveFile]) -> pa.ChunkedArray:
        """Return the ids in files of one topic, in any order."""


def pieces_of_archive(archive: Archived, rows: int) -> list[Piece]:
    """Cut an archive into pieces, sorted by topic and id, each of ``rows`` records except a topic's last. Raises: NoArchive,
    DamagedData, OSError."""
    by_topic = groupby(archive.files(), lambda file: file.topic)
    return [piece for topic, files in by_topic for piece in _cut(topic, (_ids(archive, some) for some in _apart(files)), rows)]


def pieces_of_topics(
    options: SourceOptions, logs: Logs, start: Mapping[str, int], end: Mapping[str, int], rows: int
) -> list[Piece]:
    """Cut ranges of topics into pieces, sorted by topic and id, each of ``rows`` ids except a topic's last. Raises: DataLoss,
    OSError, ToymqError."""
    if options.fail_on_data_loss:  # then another gap than these is an error, and need not be found here
        whole = [
            (topic, first, last + 1) for topic in sorted(end) if start[topic] < end[topic]
            for first, last in subtract([(start[topic], end[topic] - 1)], logs.removed(topic))
        ]  # fmt: skip
        return [Piece(topic, at, min(at + rows, stop)) for topic, first, stop in whole for at in range(first, stop, rows)]
    found = []
    for topic in sorted(end):
        at = start[topic]
        while (first_id := _next_id(logs, topic, at, end[topic])) < end[topic]:
            if first_id > at:
                offsets.lost(options, topic, at, first_id - 1, "the log holds no record of them")
            at = min(first_id + rows, end[topic])
            found.append(Piece(topic, first_id, at))
    return found


def cut_anew(pieces: Iterable[Piece], rows: int) -> list[Piece]:
    """Cut the ids of pieces into pieces of another size. A piece with gaps stays as it is, since it is not known where they
    are."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and _is_whole(last) and _is_whole(piece) and (last.topic, last.end) == (piece.topic, piece.start):
            count = None if piece.rows is None or last.rows is None else last.rows + piece.rows
            joined[-1] = Piece(piece.topic, last.start, piece.end, count)
        else:
            joined.append(piece)
    return [part for piece in joined for part in _parts(piece, rows)]


def overlapping(files: Iterable[ArchiveFile], piece: Piece) -> list[ArchiveFile]:
    """Return the files that may have records of a piece."""
    return [file for file in files if file.topic == piece.topic and file.first_id < piece.end and piece.start <= file.last_id]


def _is_whole(piece: Piece) -> bool:
    """Whether each id of a piece has a record, as far as that is known."""
    return piece.rows in (None, piece.end - piece.start)


def _parts(piece: Piece, rows: int) -> Iterator[Piece]:
    if not _is_whole(piece):
        yield piece
        return
    for at in range(piece.start, piece.end, rows):
        end = min(at + rows, piece.end)
        yield Piece(piece.topic, at, end, None if piece.rows is None else end - at)


def _next_id(logs: Logs, topic: str, at: int, end: int) -> int:
    """Return the id of the first record from ``at`` on, at most ``end``."""
    try:
        run = next(logs.read(topic, at, end, walk_columns), None)
    except OutOfRange as error:
        return min(max(error.first_id, at), end)
    return end if run is None else run.first_id


def _apart(files: Iterable[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Group files of one topic, sorted by first id, so that the id ranges of the groups do not overlap. Files overlap if a
    clock was set back at midnight, which puts neighbouring ids into two days."""
    group: list[ArchiveFile] = []
    last_id = -1
    for file in files:
        if group and file.first_id > last_id:
            yield group
            group = []
        group.append(file)
        last_id = max(last_id, file.last_id)
    if group:
        yield group


def _ids(archive: Archived, files: list[ArchiveFile]) -> Sequence[int]:
    """Return the ids in files, ascending. The files are read only if ids are missing or out of order."""
    first, *others = files
    if not others and first.rows == first.last_id - first.first_id + 1:
        return range(first.first_id, first.last_id + 1)
    found: Sequence[int] = archive.offsets_of(files).sort().to_numpy()
    return found


def _cut(topic: str, groups: Iterable[Sequence[int]], rows: int) -> Iterator[Piece]:
    start = end = taken = 0
    for ids in groups:
        at = 0
        while at < len(ids):
            if not taken:
                start = int(ids[at])
            part = min(rows - taken, len(ids) - at)
            at, taken = at + part, taken + part
            end = int(ids[at - 1]) + 1
            while at < len(ids) and int(ids[at]) < end:  # an id that occurs twice: its topic was recreated
                at, taken = at + 1, taken + 1
            if taken >= rows:
                yield Piece(topic, start, end, taken)
                taken = 0
    if taken:
        yield Piece(topic, start, end, taken)
