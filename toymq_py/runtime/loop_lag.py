"""Measures the lag of the event loop, for STATS and the metrics."""

import asyncio
from array import array

from toymq_py.clock import Clock

LAG_PERIOD_S = 0.25
LAG_PERIODS = 40
"""The periods of which the lag is kept: ten seconds, so that polling once a second shows every delay. Kept in an array: each
float in a list would be a small object, which may keep a freed MiB from being returned to the OS (``heap_trimming``)."""


class LoopLag:
    """How late the event loop runs a timer: a delay that every request has, beside that of the disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._late_s = array("d", [0.0] * LAG_PERIODS)
        self._oldest = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure, until ``stop``."""
        self._due = self._clock.monotonic() + LAG_PERIOD_S
        self._timer = self._loop.call_later(LAG_PERIOD_S, self._look)

    def _look(self) -> None:
        self._late_s[self._oldest] = self._clock.monotonic() - self._due
        self._oldest = (self._oldest + 1) % LAG_PERIODS
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def worst_s(self) -> float:
        """The longest delay of the last ten seconds, the present one included, in seconds."""
        overdue_s = self._clock.monotonic() - self._due if self._timer is not None else 0.0
        return max([*self._late_s, overdue_s, 0.0])
