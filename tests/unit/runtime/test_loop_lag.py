"""The lag of the event loop, as STATS reports it."""

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import cast

from tests.support.fake_clock import FakeClock
from toymq_py.runtime import loop_lag
from toymq_py.runtime.loop_lag import LAG_PERIOD_S, LAG_PERIODS, LoopLag


class Timers:
    """The ``call_later`` of a loop; the test calls a due timer itself, as late as it likes."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Timers":
        assert delay_s == LAG_PERIOD_S
        self.calls.append(call)
        return self

    def cancel(self) -> None:
        self.calls.clear()


def test_the_worst_of_ten_seconds_is_told() -> None:
    clock, timers = FakeClock(), Timers()
    lag = LoopLag(cast(asyncio.AbstractEventLoop, timers), clock)
    assert lag.worst_s() == 0
    lag.start()

    def period(late_s: float) -> None:
        clock.advance(LAG_PERIOD_S + late_s)
        timers.calls.pop()()

    period(0.0)
    assert lag.worst_s() == 0
    period(0.5)
    period(0.1)
    assert round(lag.worst_s(), 9) == 0.5
    for _ in range(LAG_PERIODS - 1):
        period(0.1)
    assert round(lag.worst_s(), 9) == 0.1, "what is older counts no more"
    clock.advance(LAG_PERIOD_S + 3.0)
    assert round(lag.worst_s(), 9) == 3.0, "the delay that is not over yet counts"
    lag.stop()
    assert timers.calls == []


def test_what_was_measured_leaves_no_object_behind() -> None:
    """Found with ten thousand connections: each of forty floats, created among their objects, kept up to a MiB from being
    freed."""
    clock, timers = FakeClock(), Timers()
    lag = LoopLag(cast(asyncio.AbstractEventLoop, timers), clock)
    lag.start()
    tracemalloc.start()
    try:
        for _ in range(LAG_PERIODS):
            clock.advance(LAG_PERIOD_S + 0.1)
            timers.calls.pop()()
        held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, loop_lag.__file__)])
    finally:
        tracemalloc.stop()
    assert sum(each.count for each in held.statistics("filename")) < 10
    assert lag.worst_s() > 0.09
