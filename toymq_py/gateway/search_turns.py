"""Limits concurrent searches of logs, for each token and for the broker.

Contract: gateway.md; ADR 0147. Any token with the right to read may ask for a search, which costs CPU and disk reads. The cost
to other clients is limited here, before a search runs. Belongs to the event loop. Does not know what a search does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from toymq_py.clock import Clock
from toymq_py.errors import ShuttingDown
from toymq_py.gateway.problems import TooManySearches
from toymq_py.gateway.waiters import Waiting

RUNNING_MAX = 4
"""Most searches of the broker that run: each holds up to 8 MiB of what it reads and has found."""
RUNNING_OF_ONE = 1
"""Most searches of a token that run, or of an address without tokens: its other requests wait, and no other token waits for
them."""
WAITING_MAX = 64
"""Most searches of the broker that wait; each costs its connection and a place in line."""
WAITING_OF_ONE = 8
WAIT_S = 10.0
"""The longest wait of a search. It takes a tenth of a second: one that waits longer shares the turns with many."""


class _Ticket:
    """A search's place in line."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.has_turn = False
        self.call: Callable[[], None] | None = None

    def begin(self, call: Callable[[], None]) -> Callable[[], None]:
        """Set the function to call when the turn comes. Returns: a function that withdraws it; for ``Waiting.wait_for``."""
        self.call = call
        return partial(setattr, self, "call", None)


class SearchTurns:
    """The running and waiting searches, first in first out, except that a token or address that has its share waits longer."""

    def __init__(self, clock: Clock, waiting: Waiting) -> None:
        self._clock = clock
        self._waiting = waiting
        self._running: list[str] = []
        """The holders of the searches that run."""
        self._line: list[_Ticket] = []

    @asynccontextmanager
    async def turn(self, holder: str) -> AsyncIterator[None]:
        """A context manager: waits for a turn to search on behalf of a token or address; the turn ends with the block.

        A cancellation gives up the place in line, or the turn. Raises: TooManySearches, ShuttingDown.
        """
        ticket = _Ticket(holder)
        try:
            await self._take(ticket)
            yield
        finally:
            if ticket.has_turn:
                self._running.remove(holder)
                self._start_next()
            elif ticket in self._line:
                self._line.remove(ticket)

    async def _take(self, ticket: _Ticket) -> None:
        self._check_room(ticket)
        self._line.append(ticket)
        self._start_next()
        until = self._clock.monotonic() + WAIT_S
        while not ticket.has_turn:
            if self._waiting.stopped:
                raise ShuttingDown("the broker is shutting down: try again later")
            if (left_s := until - self._clock.monotonic()) <= 0:
                raise TooManySearches(f"no turn within {WAIT_S:.0f} s, {len(self._running)} searches run: try again later")
            await self._waiting.wait_for(ticket.begin, left_s)

    def _check_room(self, ticket: _Ticket) -> None:
        waiting = sum(other.holder == ticket.holder for other in self._line)
        if waiting >= WAITING_OF_ONE:
            raise TooManySearches(
                f"{waiting} searches of this token or address wait, the most there may be: send one after the other"
            )
        if len(self._line) >= WAITING_MAX:
            raise TooManySearches(f"{WAITING_MAX} searches wait, the most there may be: try again later")

    def _start_next(self) -> None:
        """Start the first search that may run; a search that ends makes room for one at most."""
        if len(self._running) >= RUNNING_MAX:
            return
        for ticket in self._line:
            if self._running.count(ticket.holder) < RUNNING_OF_ONE:
                self._line.remove(ticket)
                self._running.append(ticket.holder)
                ticket.has_turn = True
                if ticket.call is not None:
                    ticket.call()
                return
