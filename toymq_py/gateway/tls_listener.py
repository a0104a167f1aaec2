"""The listener for HTTPS: after the handshake a connection is served like any other; plain HTTP gets an error that tells it to
use TLS.

Contract: reliability.md, "Security"; ADR 0035. Uses the event loop's TLS, unlike sessions of the TCP protocol, which must know
which bytes the socket took (ADR 0019). Every handshake uses the current certificates.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from toymq_py.auth.quotas import Quotas, Seat
from toymq_py.errors import TooManyConnections
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.certificates import Certificates
from toymq_py.net.peer import peer_address

logger = logging.getLogger("toymq_py.gateway")

HANDSHAKE_S = 10
"""The time from accept to the end of the handshake."""
HANDSHAKE_RECORD = b"\x16"
"""The first byte of a TLS connection."""
CLEARED_BYTES = 64 * 1024
REFUSED_MAX = 16
"""Connections beyond ``--max-connections`` that still get a handshake, so that they read 503; further ones are closed."""


class TlsListener:
    """One listening socket with TLS, from ``start`` to ``stop``. Belongs to the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        loop: asyncio.AbstractEventLoop,
        tasks: asyncio.TaskGroup,
        certificates: Certificates,
        connected: Callable[[Callable[[], None]], BoundedProtocol],
        quotas: Quotas,
        refusal: bytes,
    ) -> None:
        """
        Args:
            connected: makes the protocol of a connection; the protocol calls its argument when the handshake is done.
            quotas: a handshake counts as a connection; otherwise unfinished ones would hold descriptors without a limit.
            refusal: the response to a request without TLS.
        """
        self._acceptor = Acceptor(listener, loop, self._knocked, quotas.make_room)
        self._loop = loop
        self._tasks = tasks
        self._certificates = certificates
        self._connected = connected
        self._quotas = quotas
        self._refusal = refusal
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handshakes: set[socket.socket] = set()
        self._seats: dict[socket.socket, Seat | None] = {}

    def start(self) -> None:
        self._acceptor.start()

    def stop(self) -> None:
        """Close the listener and the connections whose handshake is not done."""
        self._acceptor.stop()
        for connection in list(self._seats):
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Close a connection whose handshake is not finished."""
        if connection in self._silent:
            self._forget(connection)
            self._close(connection)
        elif connection in self._handshakes:
            with suppress(OSError):  # it finds the stream's end. Cancelled, it would wait for the client's answer to a close
                connection.shutdown(socket.SHUT_RDWR)

    def _close(self, connection: socket.socket) -> None:
        self._leave(connection)
        connection.close()

    def _leave(self, connection: socket.socket) -> None:
        seat = self._seats.pop(connection, None)
        if seat is not None:
            seat.leave()

    def _knocked(self, connection: socket.socket) -> None:
        """Begin TLS for a new connection when its first byte arrives, so that a silent one costs no TLS state."""
        seat = None
        try:
            seat = self._quotas.enter(peer_address(connection), partial(self._end, connection))
        except TooManyConnections:
            if list(self._seats.values()).count(None) >= REFUSED_MAX:
                connection.close()
                return
        self._seats[connection] = seat
        connection.setblocking(False)
        self._silent[connection] = self._loop.call_later(HANDSHAKE_S, self._too_late, connection)
        self._loop.add_reader(connection, self._heard, connection)

    def _forget(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._silent.pop(connection).cancel()

    def _too_late(self, connection: socket.socket) -> None:
        self._forget(connection)
        self._close(connection)

    def _heard(self, connection: socket.socket) -> None:
        self._forget(connection)
        first = b""
        with suppress(OSError):
            first = connection.recv(1, socket.MSG_PEEK)
        seat = self._seats.get(connection)
        if first == HANDSHAKE_RECORD and seat is not None and not seat.begin_handshake():
            logger.info("no TLS handshake: the broker's memory is at its limit (--memory-max)")
        elif first == HANDSHAKE_RECORD:
            self._handshakes.add(connection)
            self._tasks.create_task(self._shake_hands(connection)).add_done_callback(lambda _: self._handshook(connection))
            return
        elif first:
            with suppress(OSError):
                connection.recv(CLEARED_BYTES)  # with unread bytes a close resets the connection, and the response is lost
                connection.send(self._refusal)
        self._close(connection)

    def _handshook(self, connection: socket.socket) -> None:
        self._handshakes.remove(connection)
        self._leave(connection)

    def _connect(self, connection: socket.socket) -> BoundedProtocol:
        """Make the protocol of a connection. After the handshake the protocol counts it, instead of this listener."""
        return self._connected(partial(self._leave, connection))

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                partial(self._connect, connection), connection,
                ssl=self._certificates.context, ssl_handshake_timeout=HANDSHAKE_S,
            )  # fmt: skip
        except OSError as error:
            logger.debug("TLS handshake failed: %s", error)
            connection.close()
