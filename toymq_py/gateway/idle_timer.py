"""Closes connections that are idle for long. Knows no request."""

import asyncio
from collections.abc import Callable

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than common connection pools do, so the client closes it and not the server."""
ANONYMOUS_KEEP_ALIVE_S = 10
"""The same for a connection without a token where tokens are required: a probe of ``/healthz``, a page before its login."""


class IdleTimer:
    """Closes a connection some time after its last answer, unless a request begins. One loop timer serves for many requests."""

    __slots__ = ("_close", "_limit_s", "_loop", "_timer", "since")

    def __init__(self, loop: asyncio.AbstractEventLoop, close: Callable[[], None]) -> None:
        self._loop = loop
        self._close = close
        self._limit_s: float = KEEP_ALIVE_S
        self.since: float | None = None
        """When the connection became idle, on the event loop's clock; None while it is not."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, anonymous: bool) -> None:
        """Start the wait: the connection is idle from now on. ``anonymous``: it lacks a token although one is required."""
        limit_s = self._limit_s = ANONYMOUS_KEEP_ALIVE_S if anonymous else KEEP_ALIVE_S
        self.since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(limit_s, self._look)

    def end(self) -> None:
        """Stop waiting: a request begins."""
        self.since = None

    def cancel(self) -> None:
        """Stop waiting: the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self.since is None:
            return
        left_s = self.since + self._limit_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._close()
