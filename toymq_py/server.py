"""The server: makes sessions of connections, counts them, keeps time, shuts down.

Contract: delivery.md, "Sessions" (limits, shutdown). Owns the sessions; knows no command.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from toymq_py.acceptor import Acceptor
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.errors import TooManyConnections
from toymq_py.session import LINGER_S, Session, SessionProtocol, Turns, refuse

logger = logging.getLogger("toymq_py.server")

LEFT_S = 0.5
"""How long others that leave, too, are waited for."""
REFUSED_LINGER_MAX = 16
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
        some_left: Callable[[], None] = lambda: None,
    ) -> None:
        """``some_left`` is called some time after connections have ended: the moment to look at what they leave behind."""
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._sessions: dict[Session, None] = {}
        self._turns = Turns(clock, loop)
        self._numbers = 0
        self._refused = 0
        self._some_left = some_left
        self._left_timer: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
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

    async def run(self, listeners: list[socket.socket]) -> None:
        """Accept and serve until ``stop``, then shut down gracefully (delivery.md, "Shutdown")."""
        acceptors = [Acceptor(listener, self._loop, self._take) for listener in listeners]
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for acceptor in acceptors:
                acceptor.start()
            await self._stopping.wait()
            for acceptor in acceptors:
                acceptor.stop()
            await self._drain()
        for timer in (self._ticker, self._left_timer):
            if timer is not None:
                timer.cancel()

    def stop(self) -> None:
        """Begin the shutdown. Idempotent."""
        self._stopping.set()

    # -- accepting

    def _take(self, connection: socket.socket) -> None:
        assert self._tasks is not None
        self._tasks.create_task(self._adopt(connection))

    async def _adopt(self, connection: socket.socket) -> None:
        """Make a session of it. Not to be cancelled halfway: a transport that nobody owns never says that its connection is
        gone."""
        try:
            _set_options(connection)
            await self._loop.connect_accepted_socket(lambda: SessionProtocol(self._accepted), connection)
        except OSError:
            connection.close()  # gone again already

    def _accepted(self, protocol: SessionProtocol) -> Session | None:
        """A connection stands. None refuses it: the reason is written and the connection closed."""
        broker = self._broker
        if self._stopping.is_set():
            protocol.transport.abort()
            return None
        if len(self._sessions) >= broker.options.max_connections or self._tasks is None:
            self._refuse(protocol.transport)
            return None
        self._numbers += 1
        session = Session(
            self._numbers, protocol.transport, broker, self._clock, self._loop, self._turns, self._session_ended
        )
        self._sessions[session] = None
        broker.metrics.connections += 1
        broker.metrics.connections_opened_total += 1
        return session

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Only some at a time stay until their reason was read: those who are refused must not hold the descriptors instead."""
        self._broker.metrics.refused(TooManyConnections.code)
        limit = self._broker.options.max_connections
        error = TooManyConnections(f"{limit} connections are the limit (--max-connections)")
        lingers = self._refused < REFUSED_LINGER_MAX
        refuse(transport, error, linger_s=LINGER_S if lingers else 0)
        if lingers:
            self._refused += 1
            self._loop.call_later(LINGER_S, self._forget_refused)

    def _forget_refused(self) -> None:
        self._refused -= 1

    def _session_ended(self, session: Session) -> None:
        del self._sessions[session]
        self._broker.metrics.connections -= 1
        if self._left_timer is None:
            self._left_timer = self._loop.call_later(LEFT_S, self._when_some_left)
        if not self._sessions:
            self._none_left.set()

    def _when_some_left(self) -> None:
        self._left_timer = None
        self._sessions = dict(self._sessions)  # a dict does not shrink
        self._some_left()

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
        owed = {session: session.inflight() for session in self._sessions}
        broker.stop_deliveries()
        for session, subscriptions in owed.items():
            session.shut_down(subscriptions)
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
