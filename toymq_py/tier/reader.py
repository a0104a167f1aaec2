"""Reads records of sealed segments straight from a bucket, without a broker. Changes nothing.

The counterpart of ``storage.reader`` for directories; Spark reads history through it. A segment is used only if it fits its
seal by size and checksum, and its records are checked as on a disk. One segment is in memory at a time.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

from toymq_py.errors import DamagedData, LocalError, NoSuchTopic
from toymq_py.records import MSG_ID_MAX, IdRange
from toymq_py.storage.fs import File, FileSystem, RealFileSystem, Stamp
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.reader import RecordRun, Walk, segment_runs, walk_columns
from toymq_py.storage.record import Stop, scan
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import segment_name
from toymq_py.tier.bucket import Bucket, check_there, open_bucket
from toymq_py.tier.deletions import list_holdings
from toymq_py.tier.keys import Holding, Place, seal_key, segment_key
from toymq_py.tier.objects import Seal, State
from toymq_py.tier.states import begins_at, choose, newest_state

logger = logging.getLogger("toymq_py.tier")

T = TypeVar("T")

RUN_BYTES = 4 << 20
"""The bytes of a run, about: a batch of Arrow. They stay in the cache between its checks and its columns."""


class SegmentLost(LocalError):
    """The bucket has lost the records ``first_id`` <= id < ``next_id``: their object is missing or damaged."""

    def __init__(self, first_id: int, next_id: int, why: str) -> None:
        super().__init__(why)
        self.first_id = first_id
        self.next_id = next_id


class SealedSegment(NamedTuple):
    """A segment in a listing. ``next_id``: the first id of the next segment; for the last one, the id in its seal.

    ``is_whole``: whether both segment and seal are listed.
    """

    first_id: int
    next_id: int
    is_whole: bool


class BucketTopic(NamedTuple):
    """A topic in a bucket's listing. ``first_id``: the first retained id; ``next_id``: the id after the last segment.

    ``removed``: ids between them that were removed on purpose, by the newest state. ``state_ns``: when that was stored.
    """

    place: Place
    first_id: int
    next_id: int
    segments: list[SealedSegment]
    removed: tuple[IdRange, ...] = ()
    state_ns: int | None = None


class BucketReader:
    """Reads a bucket. All methods may raise BucketError: the bucket is away, or refuses the call."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._unnamed: set[Place] = set()
        """Topics with seals that name none, of which a warning was given."""

    def topics(self) -> list[str]:
        """Names of the topics that were not deleted, sorted."""
        return sorted({place.topic for place in choose(list_holdings(self._bucket))[0]})

    def topic(self, name: str) -> BucketTopic:
        """The current state of a topic. Of several incarnations the one with the newest state counts. Raises: NoSuchTopic."""
        found = {place: each for place, each in list_holdings(self._bucket, name).items() if place.topic == name}
        chosen = choose(found)[0]
        if not chosen:
            check_there(self._bucket)
            raise NoSuchTopic(f"no topic {name} in the bucket")
        ((place, holding),) = chosen.items()
        newest = newest_state(self._bucket, place, holding.states, lambda _problem: None)
        at, state, known = newest or (None, State(0, None, None), OffsetsState())
        segments = [
            each for each in self._sealed(place, holding)
            if not (known.has_removed(each.first_id) and known.has_removed(each.next_id - 1))  # else its deletion is under way
        ]  # fmt: skip
        first_id, next_id = (segments[0].first_id, segments[-1].next_id) if segments else (state.next_id, state.next_id)
        if at is not None:
            first_id = max(first_id, known.first_id)
        return BucketTopic(place, first_id, next_id, segments, known.removed, at)

    def segments(self, place: Place) -> list[SealedSegment]:
        """The segments of one incarnation of a topic, ascending; [] when the bucket does not have it."""
        found = list_holdings(self._bucket, f"{place.topic}/{place.incarnation}").get(place, Holding())
        return [] if found.deleted else self._sealed(place, found)

    def _sealed(self, place: Place, holding: Holding) -> list[SealedSegment]:
        bases = sorted(first_id for first_id in holding.segments | holding.seals if first_id < MSG_ID_MAX)
        found = [SealedSegment(a, b, holding.is_whole(a)) for a, b in pairwise(bases)]
        if bases and bases[-1] in holding.seals:  # else it is under way
            try:
                next_id = self._seal(place, bases[-1], MSG_ID_MAX).next_id
            except SegmentLost:  # where it ends is not known, so the topic ends before it
                return found
            found.append(SealedSegment(bases[-1], next_id, holding.is_whole(bases[-1])))
        return found

    def id_at_time(self, topic: BucketTopic, ts_ns: int) -> int:
        """The id of the first record at or after a time, or ``next_id`` when there is none. If a lost segment may have that
        record, its first id. A binary search reads few segments: if a clock was set back by more than a day between two of
        them (ADR 0050), the result may be too early or too late."""
        segments = [each for each in topic.segments if each.is_whole and each.next_id > topic.first_id]
        low, high = 0, len(segments)
        while low < high:  # the first segment that begins at the time or later
            middle = (low + high) // 2
            known = (begins_at(self._bucket, topic.place, each.first_id) for each in segments[middle:high])
            if next((begin_ns for begin_ns in known if begin_ns is not None), ts_ns) < ts_ns:
                low = middle + 1
            else:
                high = middle
        for first_id, next_id, _ in segments[max(low - 1, 0) : low + 1]:
            try:
                for run in self.read(topic.place, [first_id], max(first_id, topic.first_id), next_id, walk_columns):
                    for row, at_ns in enumerate(run.seen.ts_ns):
                        if at_ns >= ts_ns:
                            return run.first_id + row
            except SegmentLost as lost:
                return lost.first_id
        return topic.next_id

    def read(
        self, place: Place, segments: Sequence[int], from_id: int, to_id: int, walk: Walk[T]
    ) -> Iterator[RecordRun[T]]:
        """Read the records of an id range in runs, from the segments that begin at these ids.

        Raises: SegmentLost; later records, from its ``next_id`` on, can be read by another call.
        """
        for first_id, following in pairwise([*segments, to_id]):
            if from_id < following and first_id < to_id:
                yield from self._read_segment(place, first_id, max(from_id, first_id), min(following, to_id), walk)

    def _read_segment(self, place: Place, base_id: int, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[RecordRun[T]]:
        seal = self._seal(place, base_id, to_id, from_id)
        data = self._bucket.get(segment_key(place, base_id))
        if data is None:
            check_there(self._bucket)
            raise SegmentLost(from_id, to_id, f"{segment_key(place, base_id)} is gone from the bucket")
        misfit = seal.quick_misfit(data)
        if misfit is not None:
            raise SegmentLost(from_id, to_id, f"{segment_key(place, base_id)} in the bucket is damaged: {misfit}")
        end_id = min(to_id, seal.next_id)
        for run in _runs(data, base_id, seal.next_id, from_id, end_id, walk):
            yield run
            from_id = run.next_id
        if from_id < end_id:  # it was sealed with damage in it: what of it holds is decided as on the disk
            held = _Held(data)
            segment = scan_segment(held.fs, segment_name(base_id), base_id, next_id=seal.next_id).segment
            yield from segment_runs(segment, held.file, from_id, end_id, walk)
        if end_id < to_id:
            why = f"the bucket has no segment of them: {segment_key(place, base_id)} ends before"
            raise SegmentLost(max(from_id, end_id), to_id, why)

    def _seal(self, place: Place, base_id: int, to_id: int, from_id: int | None = None) -> Seal:
        """Read the seal of a segment. Raises: SegmentLost."""
        key = seal_key(place, base_id)
        data = self._bucket.get(key)
        if data is None:
            check_there(self._bucket)
            raise SegmentLost(base_id if from_id is None else from_id, to_id, f"{key} is gone from the bucket")
        try:
            seal = Seal.decode(data, place, base_id)
            if not base_id < seal.next_id <= MSG_ID_MAX:
                raise DamagedData(f"it ends at {seal.next_id}")  # noqa: TRY301
        except DamagedData as error:
            why = f"{key} in the bucket is damaged: {error}"
            raise SegmentLost(base_id if from_id is None else from_id, to_id, why) from None
        if seal.place is None and place not in self._unnamed:
            self._unnamed.add(place)
            logger.warning("%s and maybe others name no topic, as those of before 2026-11-29: their keys are believed", key)
        return seal


def _runs(data: bytes, base_id: int, next_id: int, from_id: int, to_id: int, walk: Walk[T]) -> Iterator[RecordRun[T]]:
    """Read records up to the first missing one. Does not copy the bytes, which would take a tenth of the time."""
    step = max(RUN_BYTES * (next_id - base_id) // max(len(data), 1), 1)
    pos, msg_id, stop = scan(data, 0, base_id, max_count=from_id - base_id)
    while msg_id < to_id and stop is Stop.COUNT:
        first_id = msg_id
        pos, msg_id, stop, seen = walk(data, pos, msg_id, min(step, to_id - msg_id))
        if msg_id > first_id:
            yield RecordRun(first_id, msg_id, seen)


class _Held:
    """An object in memory with the interface of a file, for reads and for ``storage.scanner``, which finds damage."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.file = cast(File, self)  # as much of one as they ask for
        self.fs = cast(FileSystem, self)

    def open(self, path: str, *, write: bool) -> File:
        return self.file

    def pread(self, length: int, offset: int) -> bytes:
        return self._data[offset : offset + length]

    def stamp(self) -> Stamp:
        return 0, 0, len(self._data), 0

    def close(self) -> None:
        pass


def open_reader(url: str) -> BucketReader:
    """Make a reader of the bucket at a URL. Raises: ConfigError for an invalid URL, or without the extra that it needs."""
    return BucketReader(open_bucket(url, RealFileSystem(), read_only=True))
