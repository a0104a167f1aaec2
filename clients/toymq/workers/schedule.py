"""Periodic jobs: every worker process publishes each tick (the job of one period) with the same key, so the topic stores it
once.

No leader is needed: a process that is late, or whose clock is behind, publishes a duplicate. A tick at which no worker runs is
left out.
"""

import asyncio
import logging
from typing import Any

from toymq.client import Client
from toymq.workers.job import Job
from toymq_py.clock import Clock, SystemClock
from toymq_py.errors import ToymqError

logger = logging.getLogger("toymq.workers")
LOOK_S = 30.0
"""How long a wait lasts at most, so that a clock that was set is noticed."""


class Schedule:
    """Publishes the ticks of one periodic job."""

    def __init__(self, job: Job[..., Any], period_ms: int, clock: Clock | None = None) -> None:
        self.job = job
        self.period_ms = period_ms
        self._now_ns = (clock or SystemClock()).wall_ns
        self._said = -1
        """The newest tick that was published."""

    def next_tick(self) -> int:
        """The number of the next tick; tick n is n periods after the epoch. No tick comes twice, even if the clock is set back
        by less than a period."""
        tick = self._now_ns() // (self.period_ms * 1_000_000) + 1
        return tick + 1 if tick == self._said else tick

    def wait_s(self, tick: int) -> float:
        """Seconds to wait before checking the clock again; 0 when the tick is due."""
        return min(max(0.0, (tick * self.period_ms * 1_000_000 - self._now_ns()) / 1e9), LOOK_S)

    def key(self, tick: int) -> str:
        """The key of a tick; it contains the period, so that a changed period makes other ticks."""
        return f"{self.period_ms}-{tick}"

    async def run(self, client: Client) -> None:
        """Publish each tick at its time. A tick that no worker takes within one period expires."""
        while True:
            tick = self.next_tick()
            while (wait_s := self.wait_s(tick)) > 0:
                await asyncio.sleep(wait_s)
                tick = min(tick, self.next_tick())  # the clock was set back
            self._said = tick
            try:
                await client.pub(self.job.topic, b"{}", key=self.key(tick), ttl=self.period_ms / 1000)
            except ToymqError as error:
                logger.warning("tick %d of %s is not published: %s", tick, self.job.name, error)
