"""Received but unparsed bytes of an HTTP connection, and whether more are read.

Contract: gateway.md. Reading goes on while a request waits: otherwise the end of the stream, and so the loss of the client,
would not be noticed.
"""

import asyncio

from toymq_py.auth.quotas import Seat

AHEAD_BYTES = 64 * 1024
"""Most bytes that wait for the parser, or of a body for the application; beyond, no more is read."""

CROWDED = "toymq.crowded"
"""A message to the application (ASGI), once in a request: no more is read behind the request, and the end of the connection
will not be noticed. A wait for messages ends."""

HEAD_COST, HEAD_FREE_BYTES = 4, 2048
"""The memory that a byte of a head takes, as headers of a few letters do; and the size up to which heads are not looked at."""


class ReadAhead:
    """The bytes of one connection that are read ahead of its parser. The calls to its transport are idempotent."""

    __slots__ = ("_head_bytes", "_stays_bytes", "_transport", "body_waits", "data", "eof", "held", "seat", "stopped")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.seat: Seat | None = None
        self._stays_bytes = self._head_bytes = 0
        self.data = b""
        self.eof = False
        """Whether the client sends no more: it waits for answers, or is gone."""
        self.held = False
        """Whether more waits for the parser than is read ahead."""
        self.body_waits = False
        """Whether more of a body waits for the application than is read ahead."""
        self.stopped = False
        """Whether the last answer is known: further input is not read."""

    @property
    def reads(self) -> bool:
        """Whether the connection is being read."""
        return not (self.held or self.body_waits or self.stopped)

    @property
    def bytes_max(self) -> int:
        """The number of unparsed bytes at which reading stops: ``AHEAD_BYTES``, or less when so many connections are open that
        together they would hold too much."""
        return AHEAD_BYTES if self.seat is None else min(AHEAD_BYTES, self.seat.floor_bytes)

    def add(self, data: bytes, *, stays: bool) -> None:
        """Append received bytes. ``stays``: as for ``keep``. The first piece is parsed before reading pauses."""
        waits = bool(self.data)
        self._keep(self.data + data, stays=stays)
        if waits or stays:
            self._hold()

    def keep(self, data: bytes, *, stays: bool) -> None:
        """Replace the unparsed bytes. ``stays``: they wait until the request ahead is answered, and are counted."""
        self._keep(data, stays=stays)
        self._hold()

    def _keep(self, data: bytes, *, stays: bool) -> None:
        self.data = data
        self._stays_bytes = len(data) if stays else 0
        self._count()

    def head(self, size: int) -> bool:
        """Count the memory of a request's head (request line and headers), also while it is still arriving; 0 when the request
        is answered. Returns: whether there is room for it."""
        self._head_bytes = size * HEAD_COST
        return self._count()

    def _count(self) -> bool:
        return self.seat is None or self.seat.arriving(self._stays_bytes + self._head_bytes)

    def _hold(self) -> None:
        held = len(self.data) > self.bytes_max
        if held != self.held:
            self.held = held
            self.read_or_not()

    def wait_for_body(self, waits: bool) -> None:
        """Note whether parts of a body wait for the application to take them."""
        if waits != self.body_waits:
            self.body_waits = waits
            self.read_or_not()

    def stop(self) -> None:
        """Read no more, and drop what was read."""
        self.stopped = True
        self.keep(b"", stays=False)
        self.read_or_not()

    def drop(self) -> None:
        """Drop the bytes that were read. Reading goes on, for the protocol to drop later bytes."""
        self.stopped = self.body_waits = False
        self._head_bytes = 0
        self.keep(b"", stays=False)
        self.read_or_not()

    def read_or_not(self) -> None:
        """Pause reading, or go on."""
        if self._transport.is_closing() or self.eof:
            return
        if self.reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
