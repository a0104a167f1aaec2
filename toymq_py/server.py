"""The server: makes sessions of connections, counts them, keeps time, shuts down.

Contract: delivery.md, "Sessions" (limits, shutdown). Owns the sessions; knows no command.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from toymq_py.auth.quotas import Seat, peer_address, peer_of
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.errors import RequestError, TooManyConnections
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.certificates import Certificates
from toymq_py.session import LINGER_S, FairQueue, Session, SessionProtocol, TlsProtocol, refuse

logger = logging.getLogger("toymq_py.server")

LEFT_S = 0.5
"""How long others that leave, too, are waited for."""
REFUSED_LINGER_MAX = 16
EXPIRY_LOOK_S = 5.0
"""So soon a token is found expired whose table is new, or whose moment the clock has passed in a leap."""
KEEPALIVE_S = 15
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 30_000


class Server:
    """Serves one broker on the listeners it is given. ``run`` until ``stop``."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        some_left: Callable[[int, int], None] = lambda most, now: None,
        authority: Authority | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """
        Args:
            some_left: called some time after connections have ended, with how many there were at the most since the last time
                and how many there are: the moment to look at what they leave behind.
            authority: decides what a client may do; None lets all of them do everything.
            certificates: for the listeners on which TLS is spoken.
        """
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._sessions: dict[Session, Seat] = {}
        self._fair_queue = FairQueue(clock, loop)
        self._numbers = 0
        self._refused = 0
        self._handshakes: dict[TlsProtocol, Seat | None] = {}
        self._certificates = certificates
        self._some_left = some_left
        self._authority = authority
        if authority is not None:
            broker.quotas.guarded = True
            authority.on_change.append(self._rights_changed)
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._left_timer: asyncio.TimerHandle | None = None
        self._most = 0  # sessions at a time since ``some_left`` was called
        self._stopping = asyncio.Event()
        self._at_once = False
        self._none_left = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._ticker: asyncio.TimerHandle | None = None
        broker.on_deadline = self._arm_ticker

    @staticmethod
    def bind(host: str, port: int) -> list[socket.socket]:
        """Bound sockets for every address of ``host``, not listening yet: recovery comes first. Raises: OSError."""
        sockets: list[socket.socket] = []
        try:
            for family, kind, proto, _, address in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                listener = socket.socket(family, kind, proto)
                sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if port == 0 and len(sockets) > 1:
                    address = (address[0], sockets[0].getsockname()[1], *address[2:])
                listener.bind(address)
                listener.setblocking(False)
        except OSError:
            for listener in sockets:
                listener.close()
            raise
        return sockets

    async def run(self, listeners: list[socket.socket], tls_listeners: Sequence[socket.socket] = ()) -> None:
        """Accept and serve until ``stop``, then shut down gracefully (delivery.md, "Shutdown")."""
        acceptors = [Acceptor(listener, self._loop, self._take) for listener in listeners]
        acceptors += [Acceptor(listener, self._loop, self._take_tls) for listener in tls_listeners]
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._look_at_tokens()
            self._tick()  # recovery may have found work with a deadline before the ticker ran
            for acceptor in acceptors:
                acceptor.start()
            await self._stopping.wait()
            for acceptor in acceptors:
                acceptor.stop()
            if self._at_once:
                for handshake in list(self._handshakes):
                    handshake.abort()
                for session in list(self._sessions):
                    session.abort()
            else:
                await self._drain()
        for timer in (self._ticker, self._left_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()

    def stop(self, *, at_once: bool = False) -> None:
        """Begin the shutdown; with ``at_once`` nothing is delivered, committed or stored any more. Idempotent."""
        self._at_once = self._at_once or at_once
        self._stopping.set()

    def debug_wire(self) -> None:
        """The level of the logger ``toymq_py.wire`` may have changed."""
        for session in self._sessions:
            session.debug_wire()

    # -- accepting

    def _take(self, connection: socket.socket) -> None:
        assert self._tasks is not None
        self._tasks.create_task(self._adopt(connection, SessionProtocol(self._accepted)))

    def _take_tls(self, connection: socket.socket) -> None:
        """Handshakes count as connections: one that never ends would else hold a descriptor beyond the limit."""
        assert self._tasks is not None
        assert self._certificates is not None
        inner = SessionProtocol(self._accepted)
        protocol = TlsProtocol(self._certificates.context, inner, self._loop, self._settled, self._refuse)
        seat = None
        try:
            seat = self._broker.quotas.enter(peer_address(connection), protocol.abort)
        except TooManyConnections as error:
            if list(self._handshakes.values()).count(None) >= REFUSED_LINGER_MAX:
                self._broker.metrics.refused(error.code)
                connection.close()  # a reason could only be said after a handshake, and some others hear it already
                return
        self._handshakes[protocol] = seat
        self._tasks.create_task(self._adopt(connection, protocol))

    def _settled(self, protocol: TlsProtocol) -> None:
        """Its session, if there is one, enters anew."""
        seat = self._handshakes.pop(protocol, None)
        if seat is not None:
            seat.leave()

    async def _adopt(self, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        """Make a session of it. Not to be cancelled halfway: a transport without an owner never says that its connection is
        gone."""
        try:
            _set_options(connection)
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError:
            if isinstance(protocol, TlsProtocol):
                self._settled(protocol)
            connection.close()  # gone again already

    def _accepted(self, protocol: SessionProtocol) -> Session | None:
        """A connection stands. None refuses it: the reason is written and the connection closed."""
        broker = self._broker
        if self._stopping.is_set():
            protocol.transport.abort()
            return None
        transport = protocol.transport
        try:
            # Before its token is known a session gives way to others; what needs none has its rights from the beginning.
            seat = broker.quotas.enter(peer_of(transport), transport.abort if self._authority is not None else None)
        except TooManyConnections as error:
            self._refuse(transport, error)
            return None
        self._numbers += 1
        session = Session(
            self._numbers, transport, broker, self._clock, self._loop, self._fair_queue, self._session_ended, self._authority,
            seat,
        )  # fmt: skip
        self._sessions[session] = seat
        self._most = max(self._most, len(self._sessions))
        broker.metrics.connections += 1
        broker.metrics.connections_opened_total += 1
        return session

    def _refuse(self, transport: asyncio.Transport, error: RequestError) -> None:
        """Only some at a time stay until their reason was read: refused connections must not hold the descriptors instead."""
        self._broker.metrics.refused(error.code)
        lingers = self._refused < REFUSED_LINGER_MAX
        refuse(transport, error, linger_s=LINGER_S if lingers else 0)
        if lingers:
            self._refused += 1
            self._loop.call_later(LINGER_S, self._forget_refused)

    def _forget_refused(self) -> None:
        self._refused -= 1

    def _rights_changed(self) -> None:
        for session in list(self._sessions):
            session.rights_changed()

    def _look_at_tokens(self) -> None:
        """Tokens that expire end what only listens under them, here and over HTTP: it has no next command."""
        if self._authority is not None:
            left_s = self._authority.look_at_time()
            delay_s = EXPIRY_LOOK_S if left_s is None else min(left_s, EXPIRY_LOOK_S)
            self._expiry_timer = self._loop.call_later(delay_s, self._look_at_tokens)

    def _session_ended(self, session: Session) -> None:
        self._sessions.pop(session).leave()
        self._broker.metrics.connections -= 1
        if self._left_timer is None:
            self._left_timer = self._loop.call_later(LEFT_S, self._when_some_left)
        if not self._sessions:
            self._none_left.set()

    def _when_some_left(self) -> None:
        self._left_timer = None
        most, self._most = self._most, len(self._sessions)
        self._sessions = dict(self._sessions)  # a dict does not shrink
        self._some_left(most, self._most)

    # -- time

    def _arm_ticker(self, at: float) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        delay_s = max(at - self._clock.monotonic(), 0.0)
        self._ticker = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        following = self._broker.tick(self._clock.monotonic())
        if following is not None:
            self._arm_ticker(following)

    # -- shutdown

    async def _drain(self) -> None:
        """Stop delivering, take the acks that still arrive, commit, flush."""
        broker = self._broker
        deadline = self._loop.time() + broker.options.shutdown_timeout_ms / 1000
        for handshake in list(self._handshakes):
            handshake.abort()
        owed = {session: session.inflight() for session in self._sessions}
        broker.stop_deliveries()
        for session, ranges in owed.items():
            session.shut_down(ranges)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._sessions:
                    self._none_left.clear()
                    await self._none_left.wait()
        finished: asyncio.Future[None] = self._loop.create_future()
        broker.finish(lambda: finished.set_result(None))
        await finished
        for session in list(self._sessions):
            session.abort()


def _set_options(connection: socket.socket) -> None:
    """A dead peer must not hold an exclusive consumer: it is found out within about a minute.

    The other end of a Unix socket is on this machine: the kernel knows when it dies.
    """
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
