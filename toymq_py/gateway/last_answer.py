"""The last answer of an HTTP connection, after which no request is accepted, and how it reaches a client that still sends.

Contract: gateway.md; ADR 0094, 0236. Closing a socket with unread bytes resets the connection, and the answer may be lost.
"""

import asyncio

from toymq_py.errors import RequestError
from toymq_py.gateway.answers import encode_last
from toymq_py.gateway.problems import problem
from toymq_py.gateway.read_ahead import ReadAhead
from toymq_py.net.half_close import end_writing

LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
"""Most bytes of input that are dropped after the last answer; ``LINGER_S`` is the longest time."""


class LastAnswer:
    """Sends an error as the last answer, and closes the connection."""

    __slots__ = ("_ahead", "_dropped_bytes", "_lingers", "_loop", "_over_tls", "_transport")

    def __init__(
        self, transport: asyncio.Transport, ahead: ReadAhead, loop: asyncio.AbstractEventLoop, *, over_tls: bool
    ) -> None:
        self._transport = transport
        self._ahead = ahead
        self._loop = loop
        self._over_tls = over_tls
        self._lingers = False
        self._dropped_bytes = 0

    def say(self, error: RequestError, *, lingers: bool) -> None:
        """Write the answer and send no more. ``lingers``: arriving bytes are read and dropped for a moment."""
        refusal = problem(error)
        self._transport.write(encode_last(refusal.status_code, refusal.raw_headers, bytes(refusal.body)))
        if self._over_tls or not lingers:
            self.cut()
            return
        self._lingers = True
        self._ahead.drop()
        end_writing(self._transport)
        self._loop.call_later(LINGER_S, self._transport.close)

    def drop(self, size: int) -> None:
        """Count bytes that arrived after the answer and were dropped."""
        self._dropped_bytes += size
        if self._lingers and self._dropped_bytes > LINGER_BYTES:
            self._transport.close()

    def cut(self) -> None:
        """Close the connection. A TLS client that goes on sending has a moment to read the answer; the event loop by itself
        would wait longer for the client's close, and decrypt all bytes that arrive."""
        self._transport.close()
        if self._over_tls:
            self._loop.call_later(LINGER_S, self._transport.abort)
