"""What uvicorn takes for a connection's transport: fewer system calls, and no more read than can be served. Knows no HTTP."""

import asyncio
from collections.abc import Callable
from typing import Any

COLLECTED_BYTES = 64 * 1024
"""What is collected goes out when there is so much of it: a pass may have megabytes to write, and only the transport can say
that it is enough."""


class Outgoing:
    """A transport, on which what is written in one pass of the loop goes out by one system call, or by a few if it is much.

    Uvicorn writes head and body of a response one after the other, and uvloop sends each at once. It also goes on reading
    whenever an application asks for a body, however much was read already: not while ``hold_reading`` says no.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, lingers: Callable[[], bool] = lambda: False
    ) -> None:
        """``lingers`` is asked when it is to be closed: whether that comes later, by another ``close``."""
        self._transport = transport
        self._lingers = lingers
        self._loop = loop
        self._written: list[bytes] = []
        self._collected = 0
        self._paused = False
        self._held = False
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self.flush)
        self._written.append(data)
        self._collected += len(data)
        if self._collected >= COLLECTED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was written: there is no more of it."""
        if self._written:
            data = b"".join(self._written)
            self._written.clear()
            self._collected = 0
            if not self._transport.is_closing():  # uvloop refuses; an answer that uvicorn began before may come after
                self._transport.write(data)

    def close(self) -> None:
        self.flush()
        if not self._lingers():
            self._transport.close()

    @property
    def reads(self) -> bool:
        """Whether more can come."""
        return not (self._paused or self._held)

    def pause_reading(self) -> None:
        self._paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._paused = False
        self._read_or_not()

    def hold_reading(self, *, held: bool) -> None:
        """Whether there is enough, whatever uvicorn says."""
        if held != self._held:
            self._held = held
            self._read_or_not()

    def _read_or_not(self) -> None:
        """Both calls are idempotent."""
        if self._transport.is_closing():
            return
        if self.reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
