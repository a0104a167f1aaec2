"""Ranges of ids that tasks read, and which of them are read in a bucket.

Knows nothing of Spark. The ranges of a batch depend on its offsets, the options and the borders of sealed segments alone: a
batch that is run again is cut in the same way, which a sink needs to know its rows again (ADR 0016, ADR 0167).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from toymq_py.records import IdRange
from toymq_py.storage.id_ranges import subtract
from toymq_py.tier.reader import SealedSegment
from toymq_spark.options import SourceOptions

SEGMENTS_MAX = 8
"""Most segments that one task reads: half a GiB, about a second."""

Segments = Sequence[SealedSegment]
Removed = Mapping[str, Sequence[IdRange]]


@dataclass(frozen=True, slots=True)
class IdSpan:
    """Ids of one topic that one task reads, ``end`` excluded. ``segments``: first ids of the sealed segments that have them,
    when they are read in a bucket."""

    topic: str
    start: int
    end: int
    incarnation: str | None = None
    segments: tuple[int, ...] = ()


def overlapping(segments: Segments, start: int, end: int) -> list[SealedSegment]:
    """The segments that have ids of a range."""
    return [each for each in segments if each.first_id < end and each.next_id > start]


def whole(segments: Segments, start: int, end: int) -> list[SealedSegment]:
    """The segments of a range that are worth a fetch: from the one that has ``start`` on, without a gap, and each read to its
    end, so that a batch that goes on fetches it no second time."""
    found: list[SealedSegment] = []
    for each in overlapping(segments, start, end):
        if not each.is_whole or each.next_id > end or each.first_id > (found[-1].next_id if found else start):
            break
        found.append(each)
    return found


def cut(
    options: SourceOptions,
    start: Mapping[str, int],
    end: Mapping[str, int],
    incarnations: Mapping[str, str],
    history: Mapping[str, Segments] = MappingProxyType({}),
    removed: Removed = MappingProxyType({}),
) -> list[IdSpan]:
    """Ranges for tasks: of about equal size, and in a bucket by segments. Deterministic: a repeated batch is cut likewise.

    Args:
        history: segments that are read in a bucket, by topic; they hold the first ids of its range.
        removed: ids that have no record, by topic; they count for nothing, and belong to the task before them.
    """
    total = sum(count_of(start.get(topic, 0), end[topic], removed.get(topic, ())) for topic in end)
    spans = []
    for topic in sorted(end):
        begin, stop, incarnation = start.get(topic, 0), end[topic], incarnations.get(topic)
        gaps = removed.get(topic, ())
        if not count_of(begin, stop, gaps):
            continue
        limit = options.max_records_per_partition
        if options.min_partitions is not None:
            limit = min(limit, max(total // options.min_partitions, 1))
        segments = history.get(topic, ())
        spans += [
            IdSpan(topic, a, b, incarnation, first_ids)
            for a, b, first_ids in _by_segments(segments, begin, stop, limit, gaps, cuts=options.cuts_segments)
        ]
        if segments:
            begin = min(segments[-1].next_id, stop)
        size = count_of(begin, stop, gaps)
        parts = -(-size // options.max_records_per_partition)
        if options.min_partitions is not None:
            parts = max(parts, -(-size * options.min_partitions // total))
        spans += [IdSpan(topic, a, b, incarnation) for a, b in _parts(begin, stop, parts, gaps)]
    return spans


def count_of(start: int, end: int, gaps: Sequence[IdRange]) -> int:
    """How many ids of a range are in no gap."""
    return sum(last - first + 1 for first, last in _kept(start, end, gaps))


def nth(start: int, end: int, gaps: Sequence[IdRange], number: int) -> int:
    """The id of a range that has ``number`` others before it, gaps not counted; ``end`` when there is none."""
    for first, last in _kept(start, end, gaps):
        if number <= last - first:
            return first + number
        number -= last - first + 1
    return end


def _kept(start: int, end: int, gaps: Sequence[IdRange]) -> list[IdRange]:
    return subtract([(start, end - 1)], gaps) if start < end else []


def _parts(start: int, end: int, count: int, gaps: Sequence[IdRange]) -> Iterator[tuple[int, int]]:
    """A range in so many parts with about equal numbers of ids, none of them empty."""
    size = count_of(start, end, gaps)
    count = min(count, size)
    inner = (nth(start, end, gaps, size * part // count) for part in range(1, count))
    return itertools.pairwise([start, *inner, end] if size else [])


def _by_segments(
    segments: Segments, start: int, end: int, limit: int, gaps: Sequence[IdRange], *, cuts: bool
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """The part of a range that segments have, in ranges of about ``limit`` records. ``cuts``: one with more is read several
    times, a part of it each time."""
    begin, stop = start, start
    pending: list[int] = []
    for each in segments:
        last = min(each.next_id, end)
        if pending and (count_of(begin, last, gaps) > limit or len(pending) == SEGMENTS_MAX):
            yield begin, stop, tuple(pending)
            begin, pending = stop, []
        if cuts and (size := count_of(begin, last, gaps)) > limit:
            yield from ((a, b, (each.first_id,)) for a, b in _parts(begin, last, -(-size // limit), gaps))
            begin = last
        else:
            pending.append(each.first_id)
        stop = last
    if pending:
        yield begin, stop, tuple(pending)
