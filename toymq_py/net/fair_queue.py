"""The fair queue of sessions and of HTTP connections: each turn takes a bounded share of a loop pass.

Contract: delivery.md, "Sessions" (fair); ADR 0011. Does not know what a turn does. Belongs to the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

from toymq_py.clock import Clock

SLICE_S = 0.002
"""One session's share: redeliveries in many small pieces cost more than their bytes."""
LIGHT_S = 0.0005
"""A session that took no more in its last turn comes first in the next pass."""
PASS_S = 0.010
"""When a pass of the loop has taken so long, those that take much wait for the next one: new bytes come first."""


class Runnable:
    """One session in the queue. ``wake`` enqueues it, and so does each turn that left something to do."""

    __slots__ = ("heavy", "queue", "queued", "work")

    def __init__(self, queue: "FairQueue", work: Callable[[float], bool]) -> None:
        """
        Args:
            work: one turn. It gets the time at which to stop, and returns whether it left something to do. It must not raise,
                and it notices by itself what arrives during the turn.
        """
        self.queue = queue
        self.work: Callable[[float], bool] | None = work
        self.queued = False
        """In the queue, or having its turn."""
        self.heavy = False

    def wake(self) -> None:
        """Give it a turn: it may have work."""
        if not self.queued and self.work is not None:
            self.queued = True
            self.queue.add(self, heavy=self.heavy)

    def wake_last(self) -> None:
        """Like ``wake``, but behind the light ones: ten thousand connections may end at once."""
        self.heavy = True
        self.wake()

    def close(self) -> None:
        """End its turns, and drop ``work``, which holds the session."""
        self.work = None


class FairQueue:
    """Two first-in first-out queues. A session whose last turn was long is heavy: its turn comes after the light ones, if the
    pass has time left. So a light session waits for one pass at most.
    """

    __slots__ = ("_clock", "_due", "_heavy", "_light", "_loop")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._light: deque[Runnable] = deque()
        self._heavy: deque[Runnable] = deque()
        self._due = False

    @property
    def waiting(self) -> int:
        """How many have a turn to come."""
        return len(self._light) + len(self._heavy)

    def add(self, runnable: Runnable, *, heavy: bool) -> None:
        """Enqueue, for the next pass."""
        (self._heavy if heavy else self._light).append(runnable)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        light, heavy = self._light, self._heavy
        now = self._clock.monotonic()
        pass_end = now + PASS_S
        heavy_ones = len(heavy)
        now = self._take(light, len(light), now, inf)
        if heavy_ones:
            self._take(heavy, heavy_ones, now, pass_end)
        if light or heavy:
            self._loop.call_soon(self._pass)
        else:
            self._due = False

    def _take(self, queue: deque[Runnable], count: int, now: float, until: float) -> float:
        """Give up to ``count`` turns, at least one, and stop after ``until``. Returns: the time at the end."""
        monotonic = self._clock.monotonic
        for _ in range(count):
            runnable = queue.popleft()
            work = runnable.work
            if work is None:
                continue
            more = work(now + SLICE_S)
            after = monotonic()
            runnable.heavy = after - now > LIGHT_S
            runnable.queued = False
            if more:
                runnable.wake()
            now = after
            if now > until:
                break
        return now
