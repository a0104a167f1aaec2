"""The first record at or after a time, also among records that are in a bucket only."""

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.log_rig import LogRig
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.disk_errors import BeingFetched
from toymq_py.storage.time_search import id_at_time


def found(rig: TierRig, ts_ns: int) -> tuple[int, int]:
    """Return the id, and how many segments had to be fetched."""
    log = rig.broker.topic("t").log
    for fetches in range(10):
        try:
            return id_at_time(log, ts_ns, rig.clock.wall_ns()), fetches
        except BeingFetched:
            rig.loop.drain()
    raise AssertionError("it does not come to an end")


def test_a_time_is_found_where_the_records_are_and_no_more_is_fetched_than_one_segment() -> None:
    rig = TierRig(MemoryBucket())
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    times = []
    for n in range(40):
        rig.clock.advance(1)
        times.append(rig.clock.wall_ns())
        rig.publish("t", b"%d" % n + PAYLOAD)
    here = [found(rig, ts_ns) for ts_ns in times]
    assert here == [(msg_id, 0) for msg_id in range(40)]
    rig.rounds(3)
    assert len(rig.away()) == 7
    assert found(rig, times[10]) == (10, 0), "the list knows the time of a segment's first record"
    for msg_id, ts_ns in enumerate(times):
        at, fetches = found(rig, ts_ns)
        assert at == msg_id
        assert fetches <= 1
    assert found(rig, times[-1] + 1) == (40, 0)
    assert found(rig, 0) == (0, 0)


DAYS_S = 3 * 86400


@pytest.mark.parametrize(
    ("jump_s", "expected"), [(0, [0, 1, 5]), (DAYS_S, [0, 1, 5]), (-DAYS_S, [0, 1, 5]), (3600, [0, 1, 2]), (-3600, [0, 1, 5])]
)
def test_what_a_clock_that_jumps_for_a_moment_does_to_a_position_by_time(jump_s: int, expected: list[int]) -> None:
    """As protocol.md says in "A position by time": records stored while the clock was days ahead are skipped until it has
    caught up. Found: after a clock was days behind, records with the right time were skipped, too."""
    rig = LogRig()
    times = []
    for number in range(6):
        rig.clock.advance(1)
        times.append(rig.clock.wall_ns())
        rig.clock.jump_wall(jump_s if number == 2 else -jump_s if number == 4 else 0)
        if number == 4:
            times[4] = rig.clock.wall_ns()
        rig.publish(b"%d" % number)
    asked = (times[0] - 2 * DAYS_S * 10**9, times[1], times[4] + 1)
    assert [rig.log.id_at_time(ts_ns, rig.clock.wall_ns()) for ts_ns in asked] == expected
