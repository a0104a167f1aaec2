"""Closes connections whose client vanished without closing them. A client that is alive and does not read is left alone.

Contract: delivery.md, "Sessions" (limits); ADR 0227. Belongs to the event loop.
"""

import asyncio
import logging
import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from toymq_py.clock import Clock
from toymq_py.net.open_connections import OpenConnection, OpenConnections, tcp_info

logger = logging.getLogger("toymq_py.server")

PATIENCE_S = 30.0
ROUND_S = 5.0
"""The time between two looks at all connections."""
SLICE = 32
"""Connections that are looked at in a row: about half a millisecond. One of thousands takes 14 to 20 us, most of it the
kernel's, cold."""
SLICE_S = 0.01
_STATE = struct.Struct("=3xB20xI16xI4xII")
"""Fields of Linux's ``struct tcp_info``: ``tcpi_probes``, ``tcpi_unacked``, ``tcpi_last_data_sent``, ``tcpi_last_data_recv``
and ``tcpi_last_ack_recv``."""


class TcpState(NamedTuple):
    """What the kernel knows of the other end of a connection.

    Attributes:
        probes: window probes that had no answer so far.
        unacked: segments that were sent and not acknowledged.
        sent_ms: milliseconds since data was last sent or retransmitted.
        heard_ms: milliseconds since data or an acknowledgement last arrived.
    """

    probes: int
    unacked: int
    sent_ms: int
    heard_ms: int

    @property
    def unanswered(self) -> bool:
        """Whether something was sent after the last arrival.

        A peer whose receive window is full answers each probe, and each segment that it drops; probes end up two minutes apart.
        So neither an old answer nor unacknowledged data tells a full peer from a dead one, but the order of the two does.
        """
        return self.probes > 0 or (self.unacked > 0 and self.sent_ms < self.heard_ms)

    def is_dead(self, unanswered_s: float) -> bool:
        """Whether the peer is gone: it has been ``unanswered`` for ``unanswered_s`` seconds, ``PATIENCE_S`` at least, and
        nothing has arrived for as long. The second condition alone also holds for a connection that was idle before."""
        return self.unanswered and unanswered_s >= PATIENCE_S and self.heard_ms >= PATIENCE_S * 1000


def tcp_state(transport: asyncio.BaseTransport) -> TcpState | None:
    """The kernel's state of a connection; None where the kernel does not tell (``tcp_info``)."""
    info = tcp_info(transport, _STATE.size)
    if info is None:
        return None
    probes, unacked, sent_ms, data_ms, ack_ms = _STATE.unpack(info)
    return TcpState(probes, unacked, sent_ms, min(data_ms, ack_ms))


class _Waiting(NamedTuple):
    since: float
    unsent_bytes: int | None
    """Unsent bytes of a connection that the broker has closed."""


class DeadPeers:
    """Checks all connections in turn, a slice at a time, from ``start`` to ``stop``."""

    def __init__(self, connections: OpenConnections, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._connections = connections
        self._loop = loop
        self._clock = clock
        self._waiting: dict[asyncio.Transport, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(ROUND_S, self._begin)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._go_on(self._connections.with_closing(), {})

    def _go_on(self, left: Iterator[OpenConnection], waiting: dict[asyncio.Transport, _Waiting]) -> None:
        some = list(islice(left, SLICE))
        for connection in some:
            self.look(connection, waiting)
        if len(some) == SLICE:
            self._timer = self._loop.call_later(SLICE_S, self._go_on, left, waiting)
        else:
            self._waiting = waiting  # without those that answered or are gone
            self.start()

    def look(self, connection: OpenConnection, waiting: dict[asyncio.Transport, _Waiting]) -> None:
        """Close a connection if its client is gone; otherwise note in ``waiting`` since when an answer is missing, if one is.

        A connection that the broker has closed is aborted when its client takes none of the remaining bytes: otherwise it would
        stay for ever.
        """
        transport, now = connection.transport, self._clock.monotonic()
        unsent_bytes = transport.get_write_buffer_size() if transport.is_closing() else None
        state = tcp_state(transport) if unsent_bytes is None else None
        if unsent_bytes is None and (state is None or not state.unanswered):
            return
        found = self._waiting.get(transport)
        if found is None or found.unsent_bytes != unsent_bytes:
            found = _Waiting(now, unsent_bytes)
        waiting[transport] = found
        unanswered_s = now - found.since
        if unanswered_s >= PATIENCE_S if state is None else state.is_dead(unanswered_s):
            reason = "its client is gone, no answer" if state is not None else "nothing taken of what is left"
            logger.info("%s is ended: %s for %d s", connection.connection_id, reason, PATIENCE_S)
            transport.abort()
