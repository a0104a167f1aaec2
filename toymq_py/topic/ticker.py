"""Timed work of all topics: leases, backoffs and delayed messages, under one deadline.

Contract: delivery.md, "Visibility timeout" (one ticker, driven by ``tick(now)``). Knows neither clock nor loop.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol


class Due(Protocol):
    """A part of a topic with timed work: the leases of a channel, or the delays of a topic."""

    def due(self, now: float) -> None:
        """Do the work that is due at ``now`` (monotonic seconds), and arm again for the rest."""


class Ticker:
    """Calls each part of a topic when its timed work is due, and keeps the earliest time of each."""

    def __init__(self, earlier: Callable[[float], None]) -> None:
        """``earlier`` is called with a time when ``tick`` must run sooner than it last returned."""
        self._earlier = earlier
        self._due: list[tuple[float, int, Due]] = []
        self._armed: dict[Due, float] = {}
        self._ticket = count()

    def arm(self, part: Due, at: float) -> None:
        """Have ``part.due`` called at a monotonic time, in seconds, unless it is armed for an earlier one."""
        armed = self._armed.get(part)
        if armed is not None and armed <= at:
            return
        self._armed[part] = at
        if len(self._due) > 2 * len(self._armed) + 64:  # entries that an earlier deadline made void
            self._due = [(when, next(self._ticket), each) for each, when in self._armed.items()]
            heapify(self._due)
            self._earlier(self._due[0][0])
            return
        earliest = not self._due or at < self._due[0][0]
        heappush(self._due, (at, next(self._ticket), part))
        if earliest:
            self._earlier(at)

    def tick(self, now: float) -> float | None:
        """Do all timed work that is due at ``now``. Returns: when there is more to do, None for never."""
        due = self._due
        while due and due[0][0] <= now:
            at, _, part = heappop(due)
            if self._armed.get(part) == at:
                del self._armed[part]
                part.due(now)
        return due[0][0] if due else None
