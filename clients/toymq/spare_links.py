"""Spare connections for requests that wait at the broker, such as PULL: the next such request takes one; unused ones are
closed.

ADR 0237. For the asyncio client: the blocking one has at most one of them, since one call waits at a time.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from toymq.url import Address

SPARE_KEPT = 4
"""The number of spare connections that are not closed: requests that wait now and then do not connect each time."""
SPARE_S = 10.0
"""How long the other spare connections are kept: longer than the pause between two pulls of a loop, which would connect for
each."""


class Closable(Protocol):
    """The part of a connection that spare links need: it can be closed."""

    @property
    def home(self) -> Address | None: ...


L = TypeVar("L", bound=Closable)


class SpareLinks(Generic[L]):
    """The spare connections of one client and its event loop. The one used last is taken first, so that unneeded ones reach
    their age limit."""

    def __init__(self, close: Callable[[L], None]) -> None:
        self._close = close
        self._links: list[tuple[L, float]] = []
        """The spare connections, the one that is spare for longest first, each with the end of its time."""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, home: Address | None) -> L | None:
        """Take a spare connection to the worker at ``home``; None if there is none."""
        for index in reversed(range(len(self._links))):
            if self._links[index][0].home == home:
                return self._links.pop(index)[0]
        return None

    def add(self, link: L) -> None:
        """Keep a connection for the next request."""
        loop = asyncio.get_running_loop()
        self._links.append((link, loop.time() + SPARE_S))
        if self._timer is None and len(self._links) > SPARE_KEPT:
            self._timer = loop.call_at(self._links[0][1], self._close_old)

    def _close_old(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while len(self._links) > SPARE_KEPT:
            link, ends = self._links[0]
            if ends > loop.time():
                self._timer = loop.call_at(ends, self._close_old)
                return
            del self._links[0]
            self._close(link)

    def stop(self) -> None:
        """Stop keeping connections: the client closes all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
