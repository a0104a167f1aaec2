"""Which sealed segments may go. Pure decisions; the topic carries them out.

Contract: storage.md, "Retention".
"""

from collections.abc import Sequence

from toymq_py.storage.offsets import AckedView
from toymq_py.storage.segment import Segment


def removable_by_acks(
    segments: Sequence[Segment],
    consumers: Sequence[AckedView],
    *,
    now_ns: int,
    retain_acked_for_ns: int,
    disk_low: bool,
) -> list[Segment]:
    """Sealed segments that every registered consumer has acked and that are old enough.

    A topic without consumers drops nothing by acks. One stuck message pins its own segment and not those behind it.
    ``disk_low`` ignores the age.
    """
    if not consumers:
        return []
    return [
        segment
        for segment in segments
        if segment.sealed
        and segment.newest_deliver_at_ns <= now_ns
        and (disk_low or now_ns - segment.newest_ts_ns >= retain_acked_for_ns)
        and all(view.covers(segment.base_id, segment.next_id - 1) for view in consumers)
    ]


ROLL_AGE_MIN_NS = 1_000_000_000


def roll_age_ns(retain_acked_for_ns: int) -> int:
    """Age at which an active segment is sealed so that retention can get at it: a quarter of the retention time, and a
    second at least, so that no retention makes a segment of every message."""
    return max(retain_acked_for_ns // 4, ROLL_AGE_MIN_NS)
