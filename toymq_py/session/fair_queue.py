"""The fair queue of sessions: each has turns of a bounded share of a loop pass.

Contract: delivery.md, "Sessions" (fair); ADR 0011. Knows nothing of what they do. Touched on the loop only.
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


class Place:
    """One session's place in the queue. It takes it by ``wake``, and again after each turn that left something to do."""

    __slots__ = ("heavy", "queued", "turns", "work")

    def __init__(self, turns: "Turns", work: Callable[[float], bool]) -> None:
        """
        Args:
            work: gets the time until which it may go on, and returns whether it left something to do. It must not raise. What
                wakes it meanwhile it sees by itself.
        """
        self.turns = turns
        self.work: Callable[[float], bool] | None = work
        self.queued = False
        """In the queue, or having its turn."""
        self.heavy = False

    def wake(self) -> None:
        """There may be something to do."""
        if not self.queued and self.work is not None:
            self.queued = True
            self.turns.add(self, heavy=self.heavy)

    def wake_last(self) -> None:
        """There is something to do that can wait: ten thousand connections may end at once."""
        self.heavy = True
        self.wake()

    def close(self) -> None:
        """No more turns. Lets go of ``work``, and by that of the session."""
        self.work = None


class Turns:
    """Two queues, first come, first served: those whose last turn was long have theirs when the others are through,
    and never more of them than a pass has time for. So a light session waits for a pass at most, whatever the others do.
    """

    __slots__ = ("_clock", "_due", "_heavy", "_light", "_loop")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._light: deque[Place] = deque()
        self._heavy: deque[Place] = deque()
        self._due = False

    def add(self, place: Place, *, heavy: bool) -> None:
        """Enqueue, for the next pass."""
        (self._heavy if heavy else self._light).append(place)
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

    def _take(self, queue: deque[Place], count: int, now: float, until: float) -> float:
        """So many have their turns, one at least, as long as it is not later than ``until``. Returns: the time then."""
        monotonic = self._clock.monotonic
        for _ in range(count):
            place = queue.popleft()
            work = place.work
            if work is None:
                continue
            more = work(now + SLICE_S)
            after = monotonic()
            place.heavy = after - now > LIGHT_S
            place.queued = False
            if more:
                place.wake()
            now = after
            if now > until:
                break
        return now
