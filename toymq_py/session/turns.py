"""Who is next: sessions with something to do, and the share of a loop pass that each may take.

Contract: delivery.md, "Sessions" (fair); ADR 0011. Knows nothing of what they do. Touched on the loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from toymq_py.clock import Clock

SLICE_S = 0.002
"""One session's share: redeliveries in many small pieces cost more than their bytes."""
LIGHT_S = 0.0005
"""Who took no more in the last turn comes first in the next."""
PASS_S = 0.010
"""When a pass of the loop has taken so long, those that take much wait for the next one: new bytes come first."""


class Place:
    """One session's place in the queue. It takes it by ``wake``, and again after each turn that left something to do."""

    __slots__ = ("_heavy", "_queued", "_turns", "_work")

    def __init__(self, turns: "Turns", work: Callable[[float], bool]) -> None:
        """
        Args:
            work: gets the time until which it may go on, and returns whether it left something to do. It must not raise. What
                wakes it meanwhile it sees by itself.
        """
        self._turns = turns
        self._work: Callable[[float], bool] | None = work
        self._queued = False
        self._heavy = False

    def wake(self) -> None:
        """There may be something to do."""
        if not self._queued and self._work is not None:
            self._queued = True
            self._turns.add(self, heavy=self._heavy)

    def wake_last(self) -> None:
        """There is something to do that nobody waits for: ten thousand connections may end at once."""
        self._heavy = True
        self.wake()

    def close(self) -> None:
        """No more turns. Lets go of ``work``, and by that of the session."""
        self._work = None

    def take(self, now: float, monotonic: Callable[[], float]) -> float:
        """Have the turn. Returns: the time after it."""
        if self._work is None:
            return now
        slice_end = now + SLICE_S
        more = self._work(slice_end)
        after = monotonic()
        self._heavy = after - now > LIGHT_S
        self._queued = False
        if more:
            self.wake()
        return after


class Turns:
    """Two queues, first come, first served: those whose last turn was long have theirs when the others are through,
    and never more of them than a pass has time for. So who takes little waits for a pass at most, whoever else there is.
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
        light, heavy, monotonic = self._light, self._heavy, self._clock.monotonic
        now = monotonic()
        pass_end = now + PASS_S
        heavy_ones = len(heavy)
        for _ in range(len(light)):
            now = light.popleft().take(now, monotonic)
        for n in range(heavy_ones):
            if n and now > pass_end:
                break
            now = heavy.popleft().take(now, monotonic)
        if light or heavy:
            self._loop.call_soon(self._pass)
        else:
            self._due = False
