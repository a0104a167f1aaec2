"""Which sealed segments may be removed. Contract: storage.md, "Retention"."""

import pytest

from toymq_py.id_rows import IdRows
from toymq_py.storage.offsets import AckedView
from toymq_py.storage.retention import removable_by_acks, roll_age_ns
from toymq_py.storage.segment import Segment

HOUR_NS = 3_600_000_000_000


def segments() -> list[Segment]:
    """Return segments with ids 0-9, 10-19, 20-29 (sealed) and 30- (active), an hour apart."""
    return [
        Segment(f"/{n}", n * 10, next_id=n * 10 + 10, newest_ts_ns=n * HOUR_NS, sealed=n < 3) for n in range(4)
    ]


def removable(*views: AckedView, now_h: int = 100, retain_h: int = 24, disk_low: bool = False) -> list[int]:
    found = removable_by_acks(
        segments(), views, now_ns=now_h * HOUR_NS, retain_acked_for_ns=retain_h * HOUR_NS, disk_low=disk_low
    )
    return [segment.base_id for segment in found]


@pytest.mark.parametrize(
    ("floor", "expected"), [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (30, [0, 10, 20]), (35, [0, 10, 20])]
)
def test_what_the_slowest_consumer_has_acked(floor: int, expected: list[int]) -> None:
    assert removable(AckedView(floor, IdRows.of(2, []))) == expected
    assert removable(AckedView(floor, IdRows.of(2, [])), AckedView(99, IdRows.of(2, []))) == expected


def test_without_consumers_nothing_goes() -> None:
    assert removable() == []
    assert removable(disk_low=True) == []


def test_one_stuck_message_pins_its_own_segment_alone() -> None:
    assert removable(AckedView(12, IdRows.of(2, [(13, 29)]))) == [0, 20]
    assert removable(AckedView(0, IdRows.of(2, [(1, 29)]))) == [10, 20]
    assert removable(AckedView(0, IdRows.of(2, [(5, 18), (20, 28)]))) == []


def test_age_counts_but_for_a_low_disk() -> None:
    assert removable(AckedView(99, IdRows.of(2, [])), now_h=25) == [0, 10]
    assert removable(AckedView(99, IdRows.of(2, [])), now_h=25, disk_low=True) == [0, 10, 20]


def test_a_delayed_message_keeps_its_segment() -> None:
    rows = segments()
    rows[1].newest_deliver_at_ns = 200 * HOUR_NS
    found = removable_by_acks(
        rows, [AckedView(99, IdRows.of(2, []))], now_ns=100 * HOUR_NS, retain_acked_for_ns=0, disk_low=True
    )
    assert [segment.base_id for segment in found] == [0, 20]


def test_the_active_segment_rolls_at_a_quarter_of_the_time() -> None:
    assert roll_age_ns(24 * HOUR_NS) == 6 * HOUR_NS
    assert roll_age_ns(0) == 1_000_000_000, "a second at least"
