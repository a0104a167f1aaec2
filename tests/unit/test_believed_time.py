"""A wall clock that jumps ahead is believed when it has stood for ten minutes. ADR 0219."""

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.believed_time import BELIEVED_AFTER_S, JUMP_MIN_NS, Belief, BelievedTime, judge

HOUR_NS = 3600 * 10**9


def behind_s(clock: FakeClock, time: BelievedTime) -> float:
    """Return how far the believed time is behind the wall clock."""
    return (clock.wall_ns() - time.now_ns()) / 1e9


def test_a_jump_is_believed_when_it_has_stood(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    time = BelievedTime(clock)
    assert (behind_s(clock, time), time.settles_in_s) == (0, None)
    clock.jump_wall(7200)
    for _ in range(10):
        assert behind_s(clock, time) == 7200
        assert time.settles_in_s is not None
        clock.advance(BELIEVED_AFTER_S / 10)
    assert (behind_s(clock, time), time.settles_in_s) == (0, None)
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock jumped ahead by 7200 s: it was set, or the machine slept; "
        "nothing is removed for that age before it has stood for 10 minutes"
    ], "one line"


def test_one_that_is_set_back_meanwhile_never_was() -> None:
    clock = FakeClock()
    time = BelievedTime(clock)
    clock.jump_wall(7200)
    assert behind_s(clock, time) == 7200
    clock.advance(BELIEVED_AFTER_S - 1)
    clock.jump_wall(-7200)
    assert (behind_s(clock, time), time.settles_in_s) == (0, None)
    clock.jump_wall(7200)
    assert behind_s(clock, time) == 7200
    clock.advance(2)
    assert behind_s(clock, time) == 7200, "its time begins anew"


@pytest.mark.parametrize("seconds", [-86_400, -1, 1, JUMP_MIN_NS / 1e9])
def test_what_is_back_or_little_is_believed_at_once(seconds: float) -> None:
    clock = FakeClock()
    time = BelievedTime(clock)
    clock.jump_wall(seconds)
    assert (behind_s(clock, time), time.settles_in_s) == (0, None)


def test_of_a_clock_that_jumps_on_and_on_the_least_is_believed() -> None:
    """If each step restarted the waiting time, a clock stepped by 15 s every five minutes would never be believed, and messages
    kept for ever."""
    clock = FakeClock()
    time = BelievedTime(clock)
    worst = 0.0
    for _ in range(200):
        clock.jump_wall(15)
        for _ in range(150):
            worst = max(worst, behind_s(clock, time))
            clock.advance(2)
    assert 15 <= worst <= 60


def test_a_further_jump_is_not_believed_for_the_time_of_a_lesser_one() -> None:
    lesser = judge(Belief(0), 2 * HOUR_NS, 0.0)
    further = judge(lesser, 87_600 * HOUR_NS, BELIEVED_AFTER_S - 1)
    assert judge(further, 87_600 * HOUR_NS, BELIEVED_AFTER_S) == Belief(2 * HOUR_NS)
