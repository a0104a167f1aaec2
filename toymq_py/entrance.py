"""Turns accepted sockets into connections: client address, socket options, TLS handshakes, which count as connections.

Contract: delivery.md, "Sessions" (limits); reliability.md, "Security". Its TLS is for ``Server`` and ``AmqpServer``, whose
protocols can tell a client why it is refused; HTTPS uses the event loop's TLS (``gateway.tls_listener``). Belongs to the
event loop.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

from toymq_py.auth.quotas import Quotas, Seat
from toymq_py.errors import RequestError, TooManyConnections
from toymq_py.metrics import Metrics
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.certificates import Certificates
from toymq_py.net.peer import peer_address
from toymq_py.net.tls import TlsProtocol

REFUSED_LINGER_MAX = 16
"""Most refused clients that hear the reason at once: each holds a descriptor."""
KEEPALIVE_S = 15
KEEPALIVE_PROBES = 3


class Entrance:
    """Accepts on listeners, with and without TLS."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, quotas: Quotas, metrics: Metrics, certificates: Certificates | None,
        protocol: Callable[[str], BoundedProtocol],
        refuse: Callable[[asyncio.Transport, RequestError], None] = lambda transport, _: transport.abort(),
    ) -> None:  # fmt: skip
        """
        Args:
            certificates: of the TLS listeners.
            protocol: makes the protocol of a connection, given the client's address ("" at a Unix socket). With TLS it gets the
                connection once the handshake is done.
            refuse: closes the connection of a client that did not use TLS, and tells it why.
        """
        self._loop = loop
        self._quotas = quotas
        self._metrics = metrics
        self._certificates = certificates
        self._protocol = protocol
        self._refuse = refuse
        self.handshakes: dict[TlsProtocol, Seat | None] = {}
        """The handshakes under way; without a seat those of clients that are only told that there is none."""
        self._acceptors: list[Acceptor] = []
        self._tasks: asyncio.TaskGroup

    def open(
        self, listeners: Sequence[socket.socket], tls_listeners: Sequence[socket.socket], tasks: asyncio.TaskGroup
    ) -> None:
        """Begin to accept. ``tasks`` runs the coroutines that make connections."""
        self._tasks = tasks
        room = self._quotas.make_room
        self._acceptors = [Acceptor(listener, self._loop, self._accept, room) for listener in listeners]
        self._acceptors += [Acceptor(listener, self._loop, self._accept_tls, room) for listener in tls_listeners]
        for acceptor in self._acceptors:
            acceptor.start()

    def close(self) -> None:
        """Stop accepting; ``abort_handshakes`` ends handshakes that are under way."""
        for acceptor in self._acceptors:
            acceptor.stop()

    def abort_handshakes(self) -> None:
        for handshake in list(self.handshakes):
            handshake.abort()

    def _accept(self, connection: socket.socket) -> None:
        if (address := _address_of(connection)) is not None:
            self._tasks.create_task(self._connect(connection, self._protocol(address)))

    def _accept_tls(self, connection: socket.socket) -> None:
        """Begin a TLS handshake, which counts as a connection: it holds a descriptor."""
        assert self._certificates is not None
        if (address := _address_of(connection)) is None:
            return
        inner = self._protocol(address)
        protocol = TlsProtocol(
            self._certificates.context, inner, self._loop, self._quotas.read_buffer, self._handshake_begins,
            self._handshake_ended, self._refuse,
        )  # fmt: skip
        seat = None
        try:
            seat = self._quotas.enter(address, protocol.abort)
        except TooManyConnections as error:
            if list(self.handshakes.values()).count(None) >= REFUSED_LINGER_MAX:
                self._metrics.refused(error.code)
                connection.close()  # a reason needs a handshake; enough refused clients linger already
                return
        self.handshakes[protocol] = seat
        self._tasks.create_task(self._connect(connection, protocol))

    def _handshake_begins(self, protocol: TlsProtocol) -> bool:
        seat = self.handshakes.get(protocol)
        return seat is None or seat.begin_handshake()

    def _handshake_ended(self, protocol: TlsProtocol) -> None:
        """Stop counting a handshake; its session counts by itself."""
        seat = self.handshakes.pop(protocol, None)
        if seat is not None:
            seat.leave()

    async def _connect(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        """Make a transport for an accepted socket. Must not be cancelled: a transport without an owner would never be
        closed."""
        try:
            _set_options(connection)
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            if isinstance(protocol, TlsProtocol):
                self._handshake_ended(protocol)
            connection.close()  # gone again already


def _address_of(connection: socket.socket) -> str | None:
    """The address of a client, "" for a Unix socket. None when the client is gone; the connection is then closed, since the
    audit trail would have no address for its commands."""
    address = peer_address(connection)
    if address is None and connection.family == socket.AF_UNIX:
        return ""
    if address is None:
        connection.close()
    return address


def _set_options(connection: socket.socket) -> None:
    """Set keepalive, so that a dead peer that holds messages is detected within about a minute: by the kernel while no data is
    in flight, by ``net.dead_peers`` otherwise, as TCP_USER_TIMEOUT would also end a living client that does not read.

    A Unix socket needs none: the kernel closes it when the peer dies.
    """
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
