"""The machine's clocks."""

import asyncio
from datetime import UTC, datetime

from toymq_py.clock import SystemClock


def test_one_is_the_time_of_day_and_the_other_never_goes_back() -> None:
    clock = SystemClock()
    assert abs(clock.wall_ns() / 1e9 - datetime.now(UTC).timestamp()) < 60
    times = [clock.monotonic() for _ in range(1000)]
    assert times == sorted(times)


async def test_the_monotonic_clock_is_the_loops_own() -> None:
    """Deadlines by this clock are passed to the loop's timers."""
    loop, clock = asyncio.get_running_loop(), SystemClock()
    before, now, after = clock.monotonic(), loop.time(), clock.monotonic()
    assert before - 0.002 <= now <= after + 0.002, "a loop may count in milliseconds"
