"""How long one session may hold the loop: the shares of a pass.

Knows how many are at work, and nothing of what they do. Touched on the loop only.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from toymq_py.clock import Clock

SLICE_S = 0.002
"""One session's share of a loop pass while few are at work: redeliveries in many small pieces cost more than their bytes."""
PASS_S = 0.010
"""What all of them take of a pass together, about: a PING of somebody else waits for four, from its bytes to its PONG."""
SLICE_MIN_S = 0.0002
"""Below, changing from one to the next would cost more than the work."""
FEW = 4
MAKERS_PER_PASS = 4
"""Sessions that make replies in a pass: one FETCH of a MiB takes 5 ms and cannot be cut."""
LEAVES_PER_PASS = 32
"""The end of a session takes about 0.2 ms: a crowd that goes at once is let out little by little."""


class Turns:
    """Shared by all sessions of a server. ``busy``: readers with bytes to parse, and writers with something to write."""

    __slots__ = ("_admitted", "_clock", "_leaving", "_loop", "_makers", "_waiting", "busy")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.busy = 0
        self._clock = clock
        self._loop = loop
        self._leaving: deque[Callable[[], None]] = deque()
        self._makers = 0  # in this pass
        self._waiting: dict[Callable[[], None], None] = {}
        self._admitted: set[Callable[[], None]] = set()

    def slice_end(self) -> float:
        """Until when a session that begins now may go on before it yields."""
        share_s = SLICE_S if self.busy <= FEW else max(PASS_S / self.busy, SLICE_MIN_S)
        return self._clock.monotonic() + share_s

    def share(self, whole: int) -> int:
        """What one session may take of something that takes time in proportion, and cannot be cut by ``slice_end``."""
        return whole if self.busy <= FEW else max(whole * FEW // self.busy, whole // 64)

    def may_make(self, again: Callable[[], None]) -> bool:
        """Whether there is room in this pass for replies that are still to be made, such as FETCH's.

        Args:
            again: stands for the session. If there is no room, it is called when there is, first come, first served.
        """
        if again in self._admitted:
            self._admitted.discard(again)
            return True
        if not self._makers and not self._waiting:
            self._loop.call_soon(self._next_pass)
        if self._makers < MAKERS_PER_PASS and not self._waiting:
            self._makers += 1
            return True
        self._waiting[again] = None
        return False

    def _next_pass(self) -> None:
        self._admitted.clear()  # who did not come: its connection is gone, or the socket is full
        self._makers = 0
        while self._waiting and self._makers < MAKERS_PER_PASS:
            again = next(iter(self._waiting))
            del self._waiting[again]
            self._admitted.add(again)
            self._makers += 1
            again()
        if self._makers:
            self._loop.call_soon(self._next_pass)

    def leave(self, end: Callable[[], None]) -> None:
        """Call ``end`` in one of the next passes, in order."""
        self._leaving.append(end)
        if len(self._leaving) == 1:
            self._loop.call_soon(self._let_out)

    def _let_out(self) -> None:
        for _ in range(min(LEAVES_PER_PASS, len(self._leaving))):
            self._leaving.popleft()()
        if self._leaving:
            self._loop.call_soon(self._let_out)
