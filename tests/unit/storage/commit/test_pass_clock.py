"""Timestamps of loop passes, and how long their records waited for the disk."""

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.storage.commit.pass_clock import PassClock
from toymq_py.storage.segment import CLOCK_AHEAD_MAX_NS


def test_a_clock_that_jumps_back_a_little_moves_no_time_stamp_back() -> None:
    clock = FakeClock()
    newest_ns = clock.wall_ns() + CLOCK_AHEAD_MAX_NS
    passes = PassClock(clock, "orders", newest_ns)
    assert not passes.begin(0)
    assert passes.ts_ns == newest_ns


def test_a_newest_record_too_far_ahead_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    passes = PassClock(clock, "orders", clock.wall_ns() + CLOCK_AHEAD_MAX_NS + 1)
    assert passes.begin(0)
    assert passes.ts_ns == clock.wall_ns()
    assert "topic orders: its newest record is" in caplog.text
    passes.end()
    assert not passes.begin(1), "only once"


def test_each_pass_waited_for_its_own_time_and_may_fill_two_batches() -> None:
    clock = FakeClock()
    passes = PassClock(clock, "orders", 0)
    passes.begin(0)  # records 0 to 2
    passes.end()
    clock.advance(1.0)
    passes.begin(3)  # 3 to 9, of which the next batch has those from 5 on
    clock.advance(0.5)
    assert passes.waits(0, 5) == [(1.5, 3), (0.5, 2)]
    clock.advance(0.5)
    assert passes.waits(5, 10) == [(1.0, 5)]


def test_what_was_refused_is_not_waited_for() -> None:
    clock = FakeClock()
    passes = PassClock(clock, "orders", 0)
    passes.begin(0)
    passes.reset(7)
    assert passes.ts_ns == 0
    clock.advance(1.0)
    passes.begin(0)
    assert passes.waits(0, 1) == [(0.0, 1)]
