"""Records of a data directory or a backup, read straight from the segments, with no broker. Changes nothing.

The one door for those who read a log beside the broker (architecture.md, rule 4): Spark reads whole directories through it. It
takes no lock, so the directory may be in use. Then its newest records may be there before their sync has returned: they were
written, and no ``OK`` was said yet.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from toymq_py.errors import DataDirectoryError, NoSuchTopic, OutOfRange
from toymq_py.model import check_name
from toymq_py.storage.fs import File, FileSystem, RealFileSystem
from toymq_py.storage.identity import survey
from toymq_py.storage.offsets import load
from toymq_py.storage.record import FRAME_BYTES_MAX, Columns, Stop, scan
from toymq_py.storage.segment import WINDOW_BYTES, Segment, load_sidecar, newest_times, scan_segment, segment_name
from toymq_py.storage.verify import topic_names

T = TypeVar("T")

Walk = Callable[[bytes, int, int, int], tuple[int, int, Stop, T]]
"""What a caller makes of frames: (bytes, position, id of the frame there, records at most) to position and id behind the last
valid frame, why it stopped, and what it saw. ``scan`` says what valid means."""


class Run(NamedTuple, Generic[T]):
    """Consecutive records, from ``first_id`` to below ``next_id``, and what a walk over them saw."""

    first_id: int
    next_id: int
    seen: T


def walk_columns(data: bytes, pos: int, expected_id: int, max_count: int) -> tuple[int, int, Stop, Columns]:
    """A ``Walk`` that sees columns, payloads included."""
    columns = Columns()
    return *scan(data, pos, expected_id, columns, with_payloads=True, max_count=max_count), columns


class DirectoryReader:
    """A data directory. Made from its path, opened anew for every look at a topic."""

    def __init__(self, data_dir: str, fs: FileSystem | None = None) -> None:
        """Raises: DataDirectoryError when there are no topics to be found at the path."""
        self._fs = fs or RealFileSystem()
        self._data_dir = data_dir.rstrip("/") or "/"
        if not self._fs.is_dir(f"{self._data_dir}/topics"):
            raise DataDirectoryError(f"{data_dir} is no data directory: it has no topics directory")

    def topics(self) -> list[str]:
        """Names, sorted. Raises: OSError."""
        return topic_names(self._fs, self._data_dir)

    def topic(self, name: str) -> "TopicReader":
        """A topic as it is now. Raises: BadName, NoSuchTopic, OSError."""
        path = f"{self._data_dir}/topics/{check_name('topic', name)}"
        if not self._fs.is_dir(path):
            raise NoSuchTopic(f"no topic {name} in {self._data_dir}")
        return TopicReader(self._fs, path, name)


class TopicReader:
    """A topic as it was when this was made: what is appended or removed later is not seen, or ``OutOfRange``."""

    def __init__(self, fs: FileSystem, path: str, topic: str) -> None:
        """Raises: OSError."""
        self._fs = fs
        self._path = path
        self._topic = topic
        state = load(fs, path).state
        bases = survey(fs, path).bases
        while len(bases) > 1 and bases[1] <= state.first_id:
            del bases[0]  # retention had decided to remove it
        self._bases = bases
        self._segments: dict[int, Segment] = {}
        self.first_id = max(state.first_id, bases[0]) if bases else state.first_id
        """The first retained id, as far as files and offsets tell."""
        self._known_next_id = state.next_id

    @property
    def next_id(self) -> int:
        """The id behind the last record; checks the newest segment when it is first asked for. Raises: OSError."""
        return max(self._known_next_id, self._segment(self._bases[-1]).next_id if self._bases else self.first_id)

    def id_at_time(self, ts_ns: int) -> int:
        """The first record at or after a time, the next id when there is none. Raises: OSError, OutOfRange."""
        segments = [self._segment(base_id) for base_id in self._bases]
        for segment, newest_ns in zip(segments, newest_times(segments), strict=True):
            if newest_ns < ts_ns:
                continue
            for run in self.read(max(segment.seek_time(ts_ns)[0], self.first_id), segment.next_id, walk_columns):
                for row, at_ns in enumerate(run.seen.ts_ns):
                    if at_ns >= ts_ns:
                        return run.first_id + row
        return self.next_id

    def read(self, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[Run[T]]:
        """Records of an id range, checked, in runs of about a MiB. Ids that no record stands for are passed over.

        Raises: OutOfRange when ``from_id`` lies below what is retained, or retention takes a segment meanwhile. OSError.
        """
        if from_id < self.first_id:
            raise OutOfRange(self.first_id, f"is the first id of {self._topic}")
        for at, base_id in enumerate(self._bases):
            following = self._bases[at + 1] if at + 1 < len(self._bases) else to_id
            if from_id < following and base_id < to_id:
                yield from self._read_segment(base_id, max(from_id, base_id), to_id, walk)

    def _segment(self, base_id: int) -> Segment:
        segment = self._segments.get(base_id)
        if segment is None:
            segment = self._segments[base_id] = self._look(base_id, trust_sidecar=True)
        return segment

    def _look(self, base_id: int, *, trust_sidecar: bool) -> Segment:
        name = f"{self._path}/{segment_name(base_id)}"
        at = bisect_right(self._bases, base_id)
        try:
            if trust_sidecar and at < len(self._bases):
                segment = load_sidecar(self._fs, name, base_id, self._bases[at])
                if segment is not None:
                    return segment
            return scan_segment(self._fs, name, base_id).segment
        except FileNotFoundError:
            raise self._overtaken() from None

    def _overtaken(self) -> OutOfRange:
        now = TopicReader(self._fs, self._path, self._topic)
        return OutOfRange(now.first_id, f"is now the first id of {self._topic}: retention went on while it was read")

    def _read_segment(self, base_id: int, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[Run[T]]:
        segment = self._segment(base_id)
        try:
            file = self._fs.open(segment.path, write=False)
        except FileNotFoundError:
            raise self._overtaken() from None
        try:
            for run in self._runs(segment, file, from_id, min(to_id, segment.next_id), walk):
                yield run
                from_id = run.next_id
            if from_id < min(to_id, segment.next_id) and not segment.damages:
                # What the sidecar knows of the file is not so any more: look at every byte, and go on behind the damage.
                self._segments[base_id] = segment = self._look(base_id, trust_sidecar=False)
                yield from self._runs(segment, file, from_id, min(to_id, segment.next_id), walk)
        finally:
            file.close()

    @staticmethod
    def _runs(segment: Segment, file: File, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[Run[T]]:
        """Up to the first place where a record should be and is not, unless the segment knows of that damage."""
        msg_id, pos = segment.seek_id(from_id)
        resumes = {damage.position: (damage.last_id + 1, damage.resume) for damage in segment.damages}
        window = WINDOW_BYTES
        while msg_id < to_id and pos < segment.end:
            if pos in resumes:
                msg_id, pos = resumes[pos]
                continue
            data = file.pread(min(window, segment.end - pos), pos)
            used, stop = 0, Stop.END
            if msg_id < from_id:
                used, msg_id, stop = scan(data, 0, msg_id, max_count=from_id - msg_id)
            if msg_id >= from_id:
                first_id = msg_id
                used, msg_id, stop, seen = walk(data, used, msg_id, to_id - msg_id)
                if msg_id > first_id:
                    yield Run(first_id, msg_id, seen)
            if used:
                window = WINDOW_BYTES
            elif stop is Stop.PARTIAL and window < FRAME_BYTES_MAX:
                window *= 2
            else:
                return
            pos += used
