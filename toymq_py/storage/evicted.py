"""``evicted.json``: the sealed segments of a topic that left the disk for the bucket of ``--tier`` (ADR 0166).

A row stands for a file that is elsewhere, and is treated like a name in the directory: it is written before the file is
unlinked, and removed after the offsets that say that the segment was removed. If the file still exists, the file counts. So a
kill between any two steps does no harm. One file lists all segments: a topic may have 16,000.

Two generations with the same content are written one after the other, since all evicted records depend on them.
"""

import errno
import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from toymq_py.disk_errors import BeingFetched
from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.scanner import ScanResult, scan_segment
from toymq_py.storage.segment import Producers, Segment, bases_of, join_producers, load_sidecar, segment_name

logger = logging.getLogger("toymq_py.storage")

FILE_NAME, OTHER_NAME = "evicted.json", "evicted.json.prev"
VERSION = 1
_COLUMNS = ("base_id", "next_id", "end", "keyed", "newest_ts_ns", "newest_deliver_at_ns", "expiring", "newest_expires_at_ns")
_fields = attrgetter(*_COLUMNS)


@dataclass(frozen=True, slots=True)
class Evicted:
    """The content of the file. ``producers``: the last sequences of producers in all its segments."""

    segments: Mapping[int, Segment] = field(default_factory=dict)
    """The evicted segments by first id; without those whose file is on the disk."""
    producers: Producers = field(default_factory=dict)
    problem: str | None = None
    """Why both generations are damaged: nothing is known of what was evicted."""


Adopt = Callable[[Segment, ScanResult], None]


class Cold(Protocol):
    """Fetches evicted segments from the bucket, and keeps them while they are read. Belongs to the event loop."""

    def use(self, topic: str, following: Sequence[Segment], from_id: int, adopt: Adopt) -> Segment:
        """Prepare the read of an evicted segment, the first of ``following``. A second one there is the next segment, to which
        the reader may go on.

        Args:
            from_id: the id to read.
            adopt: called with the scan of a segment that was fetched as a whole, before waiting readers are woken.

        Returns: the segment to read, or a part of it with ``from_id``, in a file of its own.

        Raises: BeingFetched while it is not on the disk.
        """

    def spoilt(self, segment: Segment) -> None:
        """Note that a fetched segment or part is damaged, or gone from the disk."""

    def problem(self, segments: Iterable[Segment]) -> str | None:
        """Why readers of one of these segments wait for longer than a fetch takes; None if they do not."""


WITHOUT_TIER = "the broker was started without --tier, and these records are in its bucket"


class NoCold:
    """``Cold`` of a broker without a tier: nothing can be fetched."""

    def use(self, topic: str, following: Sequence[Segment], from_id: int, adopt: Adopt) -> Segment:
        raise BeingFetched(following[0].path, lambda call: None, WITHOUT_TIER)

    def spoilt(self, segment: Segment) -> None:
        raise AssertionError("nothing was fetched")

    def problem(self, segments: Iterable[Segment]) -> str | None:
        return WITHOUT_TIER


def load(fs: FileSystem, path: str, names: Iterable[str]) -> Evicted:
    """Load what was evicted of the topic in a directory.

    Args:
        names: the directory's file names, listed before this call: a segment is entered in the file before it is unlinked.

    Raises: OSError.
    """
    names = set(names)
    if FILE_NAME not in names and OTHER_NAME not in names:
        return Evicted()
    problems = []
    for name in (FILE_NAME, OTHER_NAME):
        try:
            data = checked_json.read(fs, f"{path}/{name}")
            if data is None:
                continue
            segments, producers = _decode(path, data)
        except DamagedData as error:
            problems.append(f"{name}: {error}")
            continue
        there = {base_id: each for base_id, each in segments.items() if segment_name(base_id) not in names}
        return Evicted(there, producers)
    return Evicted(problem="; ".join(problems) or f"{FILE_NAME} is gone")


def list_log(fs: FileSystem, path: str) -> tuple[list[int], Mapping[int, Segment]]:
    """The first ids of all segments of a topic, ascending, and the evicted ones among them. Raises: OSError."""
    names = fs.listdir(path)
    away = load(fs, path, names)
    if away.problem is not None:
        raise OSError(errno.EIO, away.problem, path)
    return sorted([*bases_of(names), *away.segments]), away.segments


def _decode(path: str, data: bytes) -> tuple[dict[int, Segment], Producers]:
    """Decode the file of evicted segments. Raises: DamagedData."""
    found = checked_json.decode("evicted", data)
    try:
        if found["version"] != VERSION:
            raise DamagedData(f"version {found['version']!r} is unknown: this toymq reads version {VERSION}")
        if found["topic"] != path.rpartition("/")[2]:
            raise DamagedData(f"it is of topic {str(found['topic'])[:200]!a}")
        columns = [checked_json.numbers(found[name]) for name in (*_COLUMNS, "first_ts_ns")]
        producers = {}
        for name, pair in found["producers"].items():
            seq, msg_id = checked_json.numbers(pair)
            producers[name.encode("latin-1")] = seq, msg_id
        segments = {}
        zero = array("Q", (0,))
        for base_id, next_id, end, keyed, newest_ts_ns, deliver_at_ns, expiring, expires_at_ns, first_ts_ns, sha256 in zip(
            *columns, found["sha256"], strict=True
        ):  # all at once: what a start with 16,000 of them takes
            segments[base_id] = Segment(
                f"{path}/{base_id:020d}.log", base_id, next_id, end=end, keyed=keyed, newest_ts_ns=newest_ts_ns,
                newest_deliver_at_ns=deliver_at_ns, expiring=expiring, newest_expires_at_ns=expires_at_ns, sealed=True,
                sha256=str(sha256), index_ids=array("Q", (base_id,)), index_positions=zero[:], index_keyed=zero[:],
                index_ts_ns=array("Q", (first_ts_ns,)),
            )  # fmt: skip
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DamagedData(f"it lacks what it should have: {error!r}") from None
    return segments, producers


def _keep_first_entry(segment: Segment, ts_ns: int) -> None:
    """Drop the sparse index of an evicted segment, except its first entry: its first frame and the time of that."""
    segment.index_ids, segment.index_positions = array("Q", (segment.base_id,)), array("Q", (segment.start,))
    segment.index_keyed, segment.index_ts_ns = array("Q", (0,)), array("Q", (ts_ns,))


def send_away(segment: Segment) -> None:
    """Note that no part of an evicted segment is on the disk any more. Assumes that its file is closed."""
    segment.cached_path = segment.inode = segment.stamp = None
    _keep_first_entry(segment, segment.index_ts_ns[0])


def encode(topic: str, segments: Iterable[tuple[Segment, str]], producers: Producers) -> bytes:
    """Encode the file from evicted segments, with the SHA-256 of each, and their producers."""
    rows = [(*_fields(segment), segment.index_ts_ns[0], sha256) for segment, sha256 in segments]
    columns = list(zip(*rows, strict=True)) if rows else [()] * (len(_COLUMNS) + 2)
    names = {name.decode("latin-1"): entry for name, entry in producers.items()}
    value = {"version": VERSION, "topic": topic, "producers": names}
    value |= dict(zip((*_COLUMNS, "first_ts_ns", "sha256"), columns, strict=True))
    return checked_json.encode_pieces("evicted", checked_json.pieces_of(value))


def store(fs: FileSystem, path: str, data: bytes) -> None:
    """Write both generations to stable storage. Raises: OSError."""
    for name in (FILE_NAME, OTHER_NAME):
        replace_file(fs, f"{path}/{name}", data)


class EvictedFile:
    """Writes ``evicted.json`` of one topic, one change at a time. Belongs to the event loop."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        segments: Sequence[Segment],
        run_behind: Callable[[Callable[[], None], Callable[[], None]], None],
        left: Callable[[Segment], None],
    ) -> None:
        """
        Args:
            path: of the topic's directory.
            segments: the log's own list, which changes.
            run_behind: runs a job on a sync thread, then its callback on the loop.
            left: called with a segment whose file will be unlinked: from now on it is evicted.
        """
        self._fs = fs
        self._path = path
        self._segments = segments
        self._producers: Producers | None = None  # until the file is read, or written
        self._run_behind = run_behind
        self._left = left
        self._waiting: deque[tuple[Mapping[int, str], Callable[[], None]]] = deque()  # the one at the head runs

    def change(self, going: Mapping[int, str], done: Callable[[], None] = lambda: None) -> None:
        """Evict the segments ``going`` (the SHA-256 by first id), and forget evicted segments that are no longer in the log.
        ``done`` is called at the end, even after a failure, which is logged; the segments concerned stay."""
        self._waiting.append((going, done))
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        going, done = self._waiting[0]
        fs, path, known = self._fs, self._path, self._producers
        rows = [(segment, segment.sha256) for segment in self._segments if segment.sha256 is not None]
        new = [segment for segment in self._segments if segment.base_id in going and segment.sha256 is None]
        stored: list[Producers] = []

        def job() -> None:
            try:
                producers = dict(load(fs, path, fs.listdir(path)).producers if known is None else known)
                for segment in new:
                    found = load_sidecar(fs, segment.path, segment.base_id, segment.next_id)
                    if found is None:
                        found = scan_segment(fs, segment.path, segment.base_id, next_id=segment.next_id).segment
                    join_producers(producers, found.producers)
                    rows.append((segment, going[segment.base_id]))
                rows.sort(key=lambda row: row[0].base_id)
                kept = {name: entry for name, entry in producers.items() if rows and entry[1] >= rows[0][0].base_id}
                store(fs, path, encode(path.rpartition("/")[2], rows, kept))
                stored.append(kept)
            except OSError as error:
                level = logging.DEBUG if error.errno == errno.ENOENT else logging.WARNING  # retention was quicker
                logger.log(level, "%s/%s not written: %s", path, FILE_NAME, error)

        def written() -> None:
            self._waiting.popleft()
            if stored:
                self._producers = stored[0]
                self._unlink(new, going)
            if self._waiting:
                self._begin()
            done()

        self._run_behind(job, written)

    def _unlink(self, new: Sequence[Segment], going: Mapping[int, str]) -> None:
        """Unlink the files of segments that are in the list. Files that retention has removed meanwhile are dropped from the
        list."""
        present = {id(segment) for segment in self._segments}
        left = [segment for segment in new if id(segment) in present]
        if len(left) < len(new):
            self._waiting.append(({}, lambda: None))
        for segment in left:
            segment.sha256 = going[segment.base_id]
            self._left(segment)
            send_away(segment)
        fs, names = self._fs, [name for segment in left for name in (segment.path, segment.sidecar_path)]

        def job() -> None:
            for name in names:
                try:
                    fs.unlink(name)
                except OSError as error:
                    if error.errno != errno.ENOENT:  # it takes space until the next start, which finds it in the log again
                        logger.warning("%s not removed: %s", name, error)

        if names:
            self._run_behind(job, lambda: None)
