"""Reads records straight from a data directory or a backup, without a broker. Changes nothing.

The one way to read a log beside the broker (architecture.md, rule 4): Spark reads whole directories through it. It takes no
lock, so a broker may be using the directory. Then the newest records may be read before their sync has returned, so before
their ``OK``.
"""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from toymq_py.clock import Clock, SystemClock
from toymq_py.errors import NoSuchTopic, OutOfRange
from toymq_py.names import check_name
from toymq_py.records import IdRange
from toymq_py.storage import topic_settings
from toymq_py.storage.fs import File, FileSystem, RealFileSystem
from toymq_py.storage.id_ranges import above, record_range, subtract, union
from toymq_py.storage.offline.verify import check_data_directory
from toymq_py.storage.offsets import load
from toymq_py.storage.record import FRAME_BYTES_MAX, Columns, Stop, scan
from toymq_py.storage.scanner import WINDOW_BYTES, adopt, rescan
from toymq_py.storage.segment import Segment, newest_times
from toymq_py.storage.segment_heads import list_segment_files
from toymq_py.storage.segment_inventory import SegmentStatus, segment_inventory
from toymq_py.storage.topic_directories import topic_names

T = TypeVar("T")

Walk = Callable[[bytes, int, int, int], tuple[int, int, Stop, T]]
"""Walks frames: (bytes, position, id of the frame there, records at most) to position and id behind the last valid frame, why
it stopped, and a value of the caller's. ``scan`` says what valid means."""


class RecordRun(NamedTuple, Generic[T]):
    """Consecutive records, from ``first_id`` to below ``next_id``, and what the ``Walk`` over their bytes returned."""

    first_id: int
    next_id: int
    seen: T


def walk_columns(data: bytes, pos: int, expected_id: int, max_count: int) -> tuple[int, int, Stop, Columns]:
    """A ``Walk`` that collects the records' columns, payloads included."""
    columns = Columns()
    return *scan(data, pos, expected_id, columns, with_payloads=True, max_count=max_count), columns


class DirectoryReader:
    """Reads a data directory. Each topic is opened anew."""

    def __init__(self, data_dir: str, fs: FileSystem | None = None, clock: Clock | None = None) -> None:
        """Raises: DataDirectoryError when there are no topics to be found at the path."""
        self._fs = fs or RealFileSystem()
        self._clock = clock or SystemClock()
        self._data_dir = data_dir.rstrip("/") or "/"
        check_data_directory(self._fs, self._data_dir)

    def topics(self) -> list[str]:
        """Names of the topics, sorted. Raises: OSError."""
        return topic_names(self._fs, self._data_dir)

    def topic(self, name: str) -> "TopicReader":
        """Open a topic as it is now. Raises: BadName, NoSuchTopic, OSError."""
        path = f"{self._data_dir}/topics/{check_name('topic', name)}"
        if not self._fs.is_dir(path):
            raise NoSuchTopic(f"no topic {name} in {self._data_dir}")
        return TopicReader(self._fs, path, name, self._clock)


class TopicReader:
    """Reads a topic as it was when this was made. Later records are not seen; removed ones are ``OutOfRange``."""

    def __init__(self, fs: FileSystem, path: str, topic: str, clock: Clock) -> None:
        """Raises: OSError."""
        self._fs = fs
        self._clock = clock
        self._path = path
        self._topic = topic
        files = list_segment_files(fs, path)
        loaded = load(fs, path)  # after the files: retention tells the offsets before it removes
        files, state = replace(files, first_id_known=loaded.first_id_known), loaded.state
        self._parts = segment_inventory(fs, path, files, state.first_id, state.next_id, sidecars=True)
        self._segments: list[Segment] = []
        self.first_id = files.begin(state.first_id)
        """The first retained id, as far as files and offsets tell."""
        self.removed: list[IdRange] = above(union([*state.removed, *files.removed]), self.first_id)
        """Ids above the first that were removed on purpose; some may still have a record."""
        self.incarnation = topic_settings.load(fs, path).incarnation
        """The incarnation in its ``topic.json``; None: it was never asked for, or the file is damaged."""
        self._known_next_id = max(state.next_id, self.first_id)

    @property
    def next_id(self) -> int:
        """The id behind the last record; checks the newest segment when it is first asked for. Raises: OSError, OutOfRange."""
        segments = self._segments_below(1 << 64)
        return max(self._known_next_id, segments[-1].next_id if segments else 0)

    def _segments_below(self, to_id: int) -> list[Segment]:
        """Segments that hold ids below ``to_id``, perhaps more. Opens no more than needed, since a segment without a sidecar is
        scanned.

        Raises: OSError, OutOfRange.
        """
        segments = self._segments
        while (not segments or segments[-1].next_id < to_id) and (each := next(self._parts, None)) is not None:
            if isinstance(each.error, FileNotFoundError):
                raise self._overtaken()
            if each.error is not None:
                raise each.error
            if each.status is SegmentStatus.PART:
                segments.append(each.segment)
        return segments

    def id_at_time(self, ts_ns: int) -> int:
        """The first record at or after a time, the next id when there is none. Raises: OSError, OutOfRange."""
        segments = self._segments_below(1 << 64)
        for segment, newest_ns in zip(segments, newest_times(segments, self._clock.wall_ns()), strict=True):
            if newest_ns < ts_ns:
                continue
            for run in self.read(max(segment.seek_time(ts_ns)[0], self.first_id), segment.next_id, walk_columns):
                for row, at_ns in enumerate(run.seen.ts_ns):
                    if at_ns >= ts_ns:
                        return run.first_id + row
        return self.next_id

    def read(self, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[RecordRun[T]]:
        """Read the records of an id range, checked, in runs of about a MiB. Ids without a record are skipped.

        Raises: OutOfRange when ``from_id`` lies below what is retained, or retention takes a segment meanwhile. OSError.
        """
        if from_id < self.first_id:
            raise OutOfRange(self.first_id, f"is the first id of {self._topic}: {from_id} is outside")
        for segment in self._segments_below(to_id):
            if from_id < segment.next_id and segment.base_id < to_id:
                yield from self._read_segment(segment, max(from_id, segment.base_id), to_id, walk)

    def _overtaken(self) -> OutOfRange:
        now = TopicReader(self._fs, self._path, self._topic, self._clock)
        return OutOfRange(now.first_id, f"is now the first id of {self._topic}: retention went on while it was read")

    def _read_segment(self, segment: Segment, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[RecordRun[T]]:
        to_id = min(to_id, segment.next_id)
        if segment.is_away:
            text = record_range(segment.base_id, segment.next_id - 1, "are in the bucket of --tier alone: read by a broker")
            raise OSError(errno.ENODATA, text, segment.path)
        for examined in (False, True):
            try:
                file = self._fs.open(segment.path, write=False)
            except FileNotFoundError:
                raise self._overtaken() from None
            try:
                for run in segment_runs(segment, file, from_id, to_id, walk):
                    yield run
                    from_id = run.next_id
            finally:
                file.close()
            left = subtract([(from_id, to_id - 1)], segment.ids_of_damage(unreadable=False)) if from_id < to_id else []
            if not left:
                return
            if examined:
                raise OSError(errno.EIO, record_range(*left[0], "cannot be read"), segment.path)
            # What the sidecar knows of the file is not so any more: the scanner looks at every byte.
            scanned = rescan(self._fs, segment, segment.next_id)
            adopt(segment, scanned, segment.end, segment.keyed, segment.expiring)


def segment_runs(segment: Segment, file: File, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[RecordRun[T]]:
    """Read the records of one segment from ``from_id`` to below ``to_id``. Damage that the segment knows of is skipped; any
    other missing record ends the reading."""
    msg_id, pos = segment.seek_id(from_id)
    resumes = {damage.position: (damage.last_id + 1, damage.resume) for damage in segment.damages}
    window = WINDOW_BYTES
    while msg_id < to_id and pos < segment.end:
        if pos in resumes:
            msg_id, pos = resumes.pop(pos)  # it may have no bytes
            continue
        data = file.pread(min(window, segment.end - pos), pos)
        used, stop = 0, Stop.END
        if msg_id < from_id:
            used, msg_id, stop = scan(data, 0, msg_id, max_count=from_id - msg_id)
        if msg_id >= from_id:
            first_id = msg_id
            used, msg_id, stop, seen = walk(data, used, msg_id, to_id - msg_id)
            if msg_id > first_id:
                yield RecordRun(first_id, msg_id, seen)
        if used:
            window = WINDOW_BYTES
        elif stop is Stop.PARTIAL and window < FRAME_BYTES_MAX:
            window *= 2
        else:
            return
        pos += used
