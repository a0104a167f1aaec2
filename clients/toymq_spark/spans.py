"""Cuts the ids of a batch into the ranges that tasks read, and decides which ranges are read in a bucket.

Does not know Spark. The ranges depend only on the batch's offsets, the options and the borders of sealed segments. So a
repeated batch is cut in the same way, which a sink needs to recognise its rows (ADR 0016, ADR 0167).
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
    """The id range of one topic that one task reads, ``end`` excluded. ``segments``: when it is read in a bucket, the first ids
    of its sealed segments there."""

    topic: str
    start: int
    end: int
    incarnation: str | None = None
    segments: tuple[int, ...] = ()


def overlapping(segments: Segments, start: int, end: int) -> list[SealedSegment]:
    """Return the segments that have ids in a range."""
    return [each for each in segments if each.first_id < end and each.next_id > start]


def whole(segments: Segments, start: int, end: int) -> list[SealedSegment]:
    """Return the segments at the beginning of a range that are worth fetching from the bucket: from the segment with ``start``
    on, without a gap, and only those that end within the range, so that the next batch need not fetch the same segment
    again."""
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
    """Cut ranges for tasks: of about equal size, in a bucket at the borders of segments. Deterministic: a repeated batch is cut
    in the same way.

    Args:
        history: by topic, the segments that are read in a bucket, at the beginning of the topic's range.
        removed: by topic, ids that have no record. They do not count for a range's size, and belong to the range before them.
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
    """Return how many ids of a range are in no gap."""
    return sum(last - first + 1 for first, last in _kept(start, end, gaps))


def nth(start: int, end: int, gaps: Sequence[IdRange], number: int) -> int:
    """Return the id in a range that has ``number`` other ids before it, not counting gaps; ``end`` when there is none."""
    for first, last in _kept(start, end, gaps):
        if number <= last - first:
            return first + number
        number -= last - first + 1
    return end


def _kept(start: int, end: int, gaps: Sequence[IdRange]) -> list[IdRange]:
    return subtract([(start, end - 1)], gaps) if start < end else []


def _parts(start: int, end: int, count: int, gaps: Sequence[IdRange]) -> Iterator[tuple[int, int]]:
    """Cut a range into ``count`` parts with about equal numbers of ids, none of them empty."""
    size = count_of(start, end, gaps)
    count = min(count, size)
    inner = (nth(start, end, gaps, size * part // count) for part in range(1, count))
    return itertools.pairwise([start, *inner, end] if size else [])


def _by_segments(
    segments: Segments, start: int, end: int, limit: int, gaps: Sequence[IdRange], *, cuts: bool
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Cut the part of a range that segments cover into ranges of about ``limit`` records, with their segments. ``cuts``: a
    segment with more records is cut, too, and so is fetched several times."""
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
