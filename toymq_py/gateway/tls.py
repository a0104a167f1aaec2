"""HTTPS: who shakes hands becomes a connection like any other, who does not is told so.

Contract: reliability.md, "Security"; ADR 0035. The loop's own TLS does the work: HTTP promises nothing of what is left in a
buffer, unlike a session (ADR 0019). Every handshake is made with the present certificates.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from toymq_py.acceptor import Acceptor
from toymq_py.certificates import Certificates

logger = logging.getLogger("toymq_py.gateway")

HANDSHAKE_S = 10
"""From a connection's beginning until the two sides agree on keys."""
HANDSHAKE_RECORD = b"\x16"
"""The first byte of whoever speaks TLS."""
CLEARED_BYTES = 64 * 1024


class TlsListener:
    """One listening socket on which TLS is spoken, from ``start`` to ``stop``. Belongs to the loop."""

    def __init__(
        self,
        listener: socket.socket,
        loop: asyncio.AbstractEventLoop,
        tasks: asyncio.TaskGroup,
        certificates: Certificates,
        connected: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
        refusal: bytes,
    ) -> None:
        """
        Args:
            connected: makes the protocol of a connection; it hears of it after the handshake.
            has_room: whether so many that are not there yet have a place beside those who are: handshakes that never end
                would else hold descriptors without a limit.
            refusal: the answer to a request without TLS.
        """
        self._acceptor = Acceptor(listener, loop, self._knocked)
        self._loop = loop
        self._tasks = tasks
        self._certificates = certificates
        self._connected = connected
        self._has_room = has_room
        self._refusal = refusal
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._acceptor.start()

    def stop(self) -> None:
        """Who is not connected by now is not going to be."""
        self._acceptor.stop()
        for connection in list(self._silent):
            self._forget(connection)
            connection.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _knocked(self, connection: socket.socket) -> None:
        """No TLS state before the first byte says that it is wanted."""
        if not self._has_room(len(self._silent) + len(self._handshakes) + 1):
            connection.close()
            return
        connection.setblocking(False)
        self._silent[connection] = self._loop.call_later(HANDSHAKE_S, self._too_late, connection)
        self._loop.add_reader(connection, self._heard, connection)

    def _forget(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._silent.pop(connection).cancel()

    def _too_late(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _heard(self, connection: socket.socket) -> None:
        self._forget(connection)
        first = b""
        with suppress(OSError):
            first = connection.recv(1, socket.MSG_PEEK)
        if first == HANDSHAKE_RECORD:
            handshake = self._tasks.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
            return
        if first:
            with suppress(OSError):
                connection.recv(CLEARED_BYTES)  # closed with bytes unread, the connection would be reset, and the answer lost
                connection.send(self._refusal)
        connection.close()

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._connected, connection, ssl=self._certificates.context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:
            logger.debug("no TLS came about: %s", error)
            connection.close()
