"""The transport that uvicorn writes to: joins writes of one pass of the loop, and controls reading. Knows no HTTP."""

import asyncio
from collections.abc import Callable
from typing import Any

COLLECTED_BYTES = 64 * 1024
"""Joined bytes are sent at this size: a pass may write megabytes, and only the transport reports a full buffer."""


class BufferedTransport:
    """A transport that sends the writes of one pass of the loop by one system call, or by few when they are large.

    Uvicorn writes head and body of a response separately, and uvloop sends each at once. Uvicorn also resumes reading whenever
    the application asks for a body; ``hold_reading`` overrides that.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, lingers: Callable[[], bool] = lambda: False
    ) -> None:
        """``lingers`` is called by ``close``; True puts the close off to a later ``close``."""
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
        """Send the joined writes now."""
        if self._written:
            data = b"".join(self._written)
            self._written.clear()
            self._collected = 0
            if not self._transport.is_closing():  # uvloop refuses to write then; an answer may end after the close
                self._transport.write(data)

    def close(self) -> None:
        self.flush()
        if not self._lingers():
            self._transport.close()

    @property
    def reads(self) -> bool:
        """Whether the transport reads."""
        return not (self._paused or self._held)

    def pause_reading(self) -> None:
        self._paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._paused = False
        self._read_or_not()

    def hold_reading(self, *, held: bool) -> None:
        """Stop reading, or let uvicorn decide again."""
        if held != self._held:
            self._held = held
            self._read_or_not()

    def _read_or_not(self) -> None:
        """Apply both; the transport's calls are idempotent."""
        if self._transport.is_closing():
            return
        if self.reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
