"""Decides which sealed segments may go, and when the active one is sealed. Pure; the topic carries it out.

Contract: storage.md, "Retention".
"""

from collections.abc import Sequence

from toymq_py.storage.offsets import AckedView
from toymq_py.storage.segment import CLOCK_AHEAD_MAX_NS, Segment, newest_times

ROLL_AGE_MIN_NS = 1_000_000_000
SEGMENT_BYTES_MIN = 64 * 1024
"""Least bytes of a segment, which ``retain_max_bytes`` makes smaller: a roll costs two syncs and two files."""


def date(segments: Sequence[Segment], now_ns: int) -> None:
    """Set the time from which a segment's age counts, if that is not the time of its newest record. For a segment whose times
    are ahead of the clock, it is at most the time of later records, or the present time (ADR 0050, 0255). A damaged segment
    counts from when its damage is seen: lost records may be younger (ADR 0064)."""
    for segment, newest_ns in zip(segments, newest_times(segments, now_ns), strict=True):
        is_limited = newest_ns <= now_ns + CLOCK_AHEAD_MAX_NS
        seen_ns = newest_ns if is_limited else now_ns
        if segment.lacks_records and segment.dated_ns is None:
            segment.dated_ns = seen_ns if seen_ns > segment.newest_ts_ns else now_ns
        elif not (segment.lacks_records or segment.is_ahead(now_ns)):
            segment.dated_ns = None  # it may have been dated while the clock was behind
        elif seen_ns < segment.age_ts_ns or (is_limited and not segment.lacks_records):  # so may one that is ahead
            segment.dated_ns = seen_ns


def removable_by_acks(
    segments: Sequence[Segment],
    consumers: Sequence[AckedView],
    *,
    now_ns: int,
    retain_acked_for_ns: int,
    disk_low: bool,
) -> list[Segment]:
    """Sealed segments that all consumers have acked and that are old enough.

    A topic without consumers drops nothing by acks. One stuck message pins its own segment and not those behind it.
    ``disk_low`` ignores the age of what is on the disk.
    """
    if not consumers:
        return []
    return [
        segment
        for segment in segments
        if _free(segment, now_ns)
        and ((disk_low and segment.sha256 is None) or now_ns - segment.age_ts_ns >= retain_acked_for_ns)
        and all(view.covers(segment.base_id, segment.next_id - 1) for view in consumers)
    ]


def removable_by_age(segments: Sequence[Segment], *, now_ns: int, retain_max_age_ns: int) -> list[Segment]:
    """Sealed segments whose newest record is older than ``retain_max_age``, acked or not."""
    return [segment for segment in segments if _free(segment, now_ns) and now_ns - segment.age_ts_ns >= retain_max_age_ns]


def removable_by_bytes(segments: Sequence[Segment], *, now_ns: int, bytes_max: int) -> list[Segment]:
    """The oldest sealed segments, acked or not: as many as have to go so that the others take at most ``bytes_max``. Assumes
    that ``segments`` are in the order of the log."""
    excess = sum(segment.end for segment in segments) - bytes_max
    going = []
    for segment in segments:
        if excess <= 0:
            break
        if _free(segment, now_ns):
            going.append(segment)
            excess -= segment.end
    return going


def evictable(
    segments: Sequence[Segment], *, now_ns: int, local_bytes: int | None, local_age_ns: int | None, keys_wanted: int
) -> list[Segment]:
    """Sealed segments that may leave the disk when the bucket has them: those older than ``local_age_ns``, and the oldest until
    the others take at most ``local_bytes`` (None: no limit).

    What the next start reads stays: segments that hold one of the last ``keys_wanted`` keys, or a message that is delayed. So
    do damaged ones: only their files show the damage.
    """
    excess = 0 if local_bytes is None else sum(segment.end for segment in segments if segment.sha256 is None) - local_bytes
    keys_behind = sum(segment.keyed for segment in segments)
    going = []
    for segment in segments:
        keys_behind -= segment.keyed
        if segment.sha256 is not None:
            continue
        if excess <= 0 and (local_age_ns is None or now_ns - segment.age_ts_ns < local_age_ns):
            break  # those behind it are younger
        kept = segment.busy or segment.missing or segment.lacks_records or segment.has_surplus or segment.foreign_head_bytes
        if not kept and _free(segment, now_ns) and (not segment.keyed or keys_behind >= keys_wanted):
            going.append(segment)
            excess -= segment.end
    return going


def _free(segment: Segment, now_ns: int) -> bool:
    """Whether a segment is sealed and holds no delayed or unreadable message. Other segments stay whatever the limits say."""
    return segment.sealed and segment.newest_deliver_at_ns <= now_ns and not (segment.damages and segment.unreadable)


def expired(segment: Segment, now_ns: int) -> bool:
    """Whether a segment is sealed and all its records have expired."""
    if not segment.expiring:  # every look at retention asks this of every segment
        return False
    expires_at_ns = segment.expires_at_ns
    return _free(segment, now_ns) and expires_at_ns is not None and expires_at_ns <= now_ns


def roll_age_ns(retention_ns: int) -> int:
    """The age at which an active segment is sealed, so that retention can remove it: a quarter of the shortest retention time,
    one second at least."""
    return max(retention_ns // 4, ROLL_AGE_MIN_NS)


def segment_bytes(segment_bytes_max: int, retain_max_bytes: int | None) -> int:
    """The size at which the active segment is sealed: with ``retain_max_bytes`` a quarter of that, because only whole segments
    are removed."""
    if retain_max_bytes is None:
        return segment_bytes_max
    return min(segment_bytes_max, max(retain_max_bytes // 4, SEGMENT_BYTES_MIN))
