"""The fair queue of connections: each turn and each owner of connections takes a bounded share of a loop pass.

Contract: delivery.md, "Sessions" (fair); ADR 0011, 0250, 0244. Does not know what a turn does. Belongs to the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

from toymq_py.clock import Clock

SLICE_S = 0.002
"""One session's share: redeliveries in many small pieces cost more than their bytes."""
LIGHT_S = 0.0005
"""A session that took no more in its last turn comes first in the next pass."""
PASS_S = 0.010
"""When a pass of the loop has taken so long, heavy sessions wait for the next one: new bytes come first."""
SHARE_S = 0.004
"""The time for the light sessions of an owner in a pass, where there are other owners. However many connections an owner has, a
light session of another waits for a pass at most, and for this time of each owner that came before."""
OWNERS_KEPT = 64
"""Most owners without anything to do that are kept, so that two that alternate are not made anew with each turn."""


class Guarded(Protocol):
    """Says whether clients need tokens; implemented by ``Quotas``."""

    guarded: bool


class Seated(Protocol):
    """Names the owner of a connection; implemented by ``quotas.Seat``."""

    @property
    def holder(self) -> object: ...


class Runnable:
    """One session in the queue. ``wake`` enqueues it, and so does each turn after which work is left."""

    __slots__ = ("heavy", "queue", "queued", "seat", "work")

    def __init__(self, queue: "FairQueue", work: Callable[[float], bool], seat: Seated | None = None) -> None:
        """
        Args:
            work: runs one turn. It gets the time at which to stop, and returns whether work is left. It must not raise, and it
                notices by itself what arrives during the turn.
            seat: names the connection's owner, which may change: its address, until a token is accepted.
        """
        self.queue = queue
        self.work: Callable[[float], bool] | None = work
        self.seat = seat
        self.queued = False
        """Whether the session is in the queue, or has its turn."""
        self.heavy = False

    def wake(self) -> None:
        """Give the session a turn: it may have work."""
        if not self.queued and self.work is not None:
            self.queued = True
            self.queue.add(self)

    def wake_last(self) -> None:
        """As ``wake``, but the session runs after the light sessions: ten thousand connections may end at once."""
        self.heavy = True
        self.wake()

    def close(self) -> None:
        """End the session's turns, and drop ``work``, which references the session."""
        self.work = None


class _Line:
    """The light or the heavy sessions of one owner: first come, first served."""

    __slots__ = ("due", "heavy", "listed", "runnables")

    def __init__(self, *, heavy: bool) -> None:
        self.heavy = heavy
        self.runnables: deque[Runnable] = deque()
        self.due = 0
        """The number of sessions that have a turn to come in this pass. A session that is woken during the pass has one in the
        next."""
        self.listed = False
        """Whether the next pass looks at this line; else the line is empty."""


class FairQueue:
    """Runs sessions in turns. A session whose last turn was long is heavy: it runs after the light ones, if the pass has time
    left.

    A pass gives each owner ``SHARE_S`` for its light sessions; owners that needed more in the last pass come last. The rest of
    ``PASS_S`` goes, owner by owner, to the heavy sessions and to light ones beyond their share; one heavy session runs in any
    case. When there is only one owner, all its light sessions run in each pass, so that their publishes are one batch; but not
    where clients need tokens: it may be an address that has none, and other listeners wait for the pass.
    """

    __slots__ = ("_clock", "_cut", "_due", "_heavy", "_light", "_loop", "_owners", "_owners_max", "_quotas")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, quotas: Guarded | None = None) -> None:
        """``quotas``: whether clients need tokens; None if they do not."""
        self._clock = clock
        self._loop = loop
        self._quotas = quotas
        self._owners: dict[object, tuple[_Line, _Line]] = {}  # the light and the heavy ones
        self._owners_max = OWNERS_KEPT
        self._light: list[_Line] = []
        self._cut: list[_Line] = []  # light ones that needed more than their share
        self._heavy: deque[_Line] = deque()
        self._due = False

    @property
    def waits(self) -> bool:
        """Whether any session has a turn to come."""
        return bool(self._light or self._cut or self._heavy)

    def add(self, runnable: Runnable) -> None:
        """Enqueue a session for the next pass."""
        seat = runnable.seat
        owner = None if seat is None else seat.holder
        lines = self._owners.get(owner) or self._new_owner(owner)
        line = lines[runnable.heavy]
        line.runnables.append(runnable)
        if not line.listed:
            line.listed = True
            (self._heavy if runnable.heavy else self._light).append(line)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._pass)

    def _new_owner(self, owner: object) -> tuple[_Line, _Line]:
        if len(self._owners) >= self._owners_max:
            self._owners = {key: both for key, both in self._owners.items() if both[0].listed or both[1].listed}
            self._owners_max = max(OWNERS_KEPT, 2 * len(self._owners))
        lines = self._owners[owner] = (_Line(heavy=False), _Line(heavy=True))
        return lines

    def _pass(self) -> None:
        now = self._clock.monotonic()
        pass_end = now + PASS_S
        shared = len(self._owners) > 1 or (self._quotas is not None and self._quotas.guarded)
        share_s = SHARE_S if shared else inf
        light, heavy = self._light, self._heavy
        if self._cut:
            light += self._cut
            self._cut = []
        self._light = []
        for line in heavy:
            line.due = len(line.runnables)
        for line in light:
            line.due = len(line.runnables)
        cut: list[_Line] = []
        for line in light:
            now = self._take(line, now, now + share_s)
            if line.due:
                cut.append(line)
        if heavy or (cut and now < pass_end):
            self._take_in_turn(cut, now, pass_end)
        for line in light:
            if line.due:
                self._cut.append(line)
            elif line.runnables:
                self._light.append(line)
            else:
                line.listed = False
        if self._light or self._cut or self._heavy:
            self._loop.call_soon(self._pass)
        else:
            self._due = False

    def _take_in_turn(self, cut: list[_Line], now: float, pass_end: float) -> None:
        """Run heavy sessions, and light ones beyond their owner's share (``cut``): each owner gets ``SLICE_S`` in turn until
        ``pass_end``, and the first owner in any case. The next pass goes on with the heavy sessions that are next."""
        heavy = self._heavy
        due = sum(line.due > 0 for line in heavy) + len(cut)
        heavy.extend(cut)
        while due:
            line = heavy.popleft()
            if line.due:
                now = self._take(line, now, min(now + SLICE_S, pass_end))
                due -= not line.due
            if line.runnables:
                heavy.append(line)
            elif line.heavy:
                line.listed = False
            if now >= pass_end:
                break
        if cut:
            self._heavy = deque(line for line in heavy if line.heavy)

    def _take(self, line: _Line, now: float, until: float) -> float:
        """Run the sessions of a line that are due in this pass, at least one, and stop after ``until``. Returns: the time at
        the end."""
        monotonic, runnables = self._clock.monotonic, line.runnables
        left = line.due
        while left:
            left -= 1
            runnable = runnables.popleft()
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
        line.due = left
        return now
