"""Looks up the addresses of host names (DNS) for webhooks; names without an answer do not stop others. ADR 0081.

The C library's lookup blocks, for half a minute where no DNS server answers, and cannot be cancelled. The event loop has two
threads for lookups, so two names without an answer would stop all others. Here each name that is being looked up has a thread,
up to a limit. Belongs to the event loop.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from toymq_py.threads import start_thread

THREADS_MAX = 64
SLOW_THREADS_MAX = 48
"""Most threads that look up names that took longer than ``SLOW_S`` the last time."""
SLOW_S = 2.0
SLOW_NAMES_MAX = 1024
"""Most slow names that are remembered, the latest."""
RETRY_S = 1.0
"""The time between two attempts to start a thread on a machine that has none left."""

Lookup = Callable[[str], list[str]]
"""Returns the addresses of a name. Blocks. Raises: OSError, UnicodeError."""


def look_up(host: str) -> list[str]:
    """The operating system's lookup."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


class NameLookups:
    """Looks up host names, each in a thread; callers that ask for the same name at the same time share the lookup."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lookup: Lookup = look_up) -> None:
        self._loop = loop
        self._lookup = lookup
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._slow: dict[str, None] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def begin(self, host: str) -> "asyncio.Future[list[str]]":
        """Begin a lookup, after waiting for a free thread. Returns: a future of the addresses, or of OSError or UnicodeError.
        Shield it from cancellation, as other callers may share it."""
        with suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)  # asks no server
            literal: asyncio.Future[list[str]] = self._loop.create_future()
            literal.set_result([str(entry[4][0]) for entry in found])
            return literal
        while (running := self._running.get(host)) is None:
            if self._has_thread_for(host):
                with suppress(OSError):
                    return self._start(host)
                self._loop.call_later(RETRY_S, self._wake)
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiters[turn] = None
            try:
                await turn
            finally:
                del self._waiters[turn]
        return running

    def _has_thread_for(self, host: str) -> bool:
        if len(self._running) >= THREADS_MAX:
            return False
        return host not in self._slow or sum(name in self._slow for name in self._running) < SLOW_THREADS_MAX

    def _start(self, host: str) -> "asyncio.Future[list[str]]":
        """Start a lookup on a new thread. Raises: OSError when the machine has no thread left."""
        future: asyncio.Future[list[str]] = self._loop.create_future()
        future.add_done_callback(lambda done: done.exception())  # none may be left that waits for it

        def work() -> None:
            found: list[str] | OSError | UnicodeError
            try:
                found = self._lookup(host)
            except (OSError, UnicodeError) as error:
                found = error.with_traceback(None)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end, host, future, found, started)

        started = self._loop.time()
        start_thread(work, f"toymq-lookup-{host}")
        self._running[host] = future
        self._loop.call_later(SLOW_S, self._look, host, future)
        return future

    def _look(self, host: str, future: "asyncio.Future[list[str]]") -> None:
        if not future.done():
            self._slow.pop(host, None)
            self._slow[host] = None
            if len(self._slow) > SLOW_NAMES_MAX:
                del self._slow[next(iter(self._slow))]

    def _end(
        self, host: str, future: "asyncio.Future[list[str]]", found: list[str] | OSError | UnicodeError, started: float
    ) -> None:
        del self._running[host]
        if self._loop.time() - started < SLOW_S:
            self._slow.pop(host, None)
        if isinstance(found, list):
            future.set_result(found)
        else:
            future.set_exception(found)
        self._wake()

    def _wake(self) -> None:
        for turn in self._waiters:
            if not turn.done():
                turn.set_result(None)
