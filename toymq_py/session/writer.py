"""Write one connection: replies that are due, then deliveries. Contract: delivery.md, "Sessions"; ADR 0076."""

import asyncio

from toymq_py.clock import Clock
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.replies import WRITE_BYTES, Replies
from toymq_py.session.wire_log import WireLog


class Writer:
    """Writes the replies and deliveries of a session to its transport.

    A write has about ``WRITE_BYTES``. The next one is made when the socket has taken the last one whole, so a client that does
    not read costs one write. While the client's token or address has used up its share, a write has ``FLOOR_BYTES``.
    """

    __slots__ = ("_clock", "_deliveries", "_last_write_bytes", "_replies", "_transport", "paused", "wire")

    def __init__(self, transport: asyncio.Transport, replies: Replies, deliveries: Deliveries, clock: Clock) -> None:
        self._transport = transport
        self._replies = replies
        self._deliveries = deliveries
        self._clock = clock
        self._last_write_bytes = 0
        self.paused = False
        """Whether the socket has not taken the last write whole."""
        self.wire: WireLog | None = None

    def pause(self) -> None:
        self.paused = True
        self._deliveries.stall(True)

    def resume(self) -> None:
        self.paused = False
        self._deliveries.stall(False)

    @property
    def unread_bytes(self) -> int:
        """Bytes of the last write that the client has not read."""
        return self._transport.get_write_buffer_size() if self.paused else 0

    def connection_lost(self) -> None:
        """Give back the deliveries that were not written whole, without counting an attempt."""
        if self.paused:
            # The transport may not know any more how much was written; then assume nothing.
            unsent = self._transport.get_write_buffer_size() or self._last_write_bytes
            self._deliveries.give_back(self._last_write_bytes - unsent)

    def step(self, slice_end: float, *, deliver: bool) -> bool:
        """Write replies, and with ``deliver`` messages, while the socket has room and until ``slice_end``.

        Returns: whether there is more, and room.
        """
        replies, deliveries = self._replies, self._deliveries
        while not self.paused:
            deliveries.begin_write()
            out = replies.take_due(slice_end)
            ready = deliveries.ready
            if ready and deliver:
                deliveries.take(out, slice_end, deliveries.bytes_to_take(WRITE_BYTES))
            if not out:
                return replies.unfinished
            data = b"".join(out) if len(out) > 1 else out[0]
            self._last_write_bytes = len(data)
            self._transport.write(data)
            if self.wire is not None:
                self.wire.written(data)
            if not replies.due and not (ready and deliveries.ready):
                return False
            if (
                len(data) >= WRITE_BYTES // 2
                or deliveries.ready
                or replies.unfinished
                or self._clock.monotonic() > slice_end
            ):
                return True
        return False
