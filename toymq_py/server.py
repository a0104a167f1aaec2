"""The TCP server: accepts connections, owns their sessions, runs the broker's timers, shuts down.

Contract: delivery.md, "Sessions" (limits, shutdown). Knows no command.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from toymq_py.auth.quotas import Seat
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.entrance import REFUSED_LINGER_MAX, Entrance
from toymq_py.errors import RequestError, TooManyConnections
from toymq_py.net.certificates import Certificates
from toymq_py.net.open_connections import OpenConnection
from toymq_py.net.roster import Roster
from toymq_py.session import LINGER_S, Errands, FairQueue, Session, SessionProtocol, refuse

logger = logging.getLogger("toymq_py.server")

EXPIRY_CHECK_S = 5.0
"""How often expired tokens are looked for, also after the wall clock was set."""
FINISH_S = 1.0
"""The last part of a shutdown, at most a quarter of it, is for commits and offsets alone; acks are taken before."""


def cannot_listen(option: str, address: str, error: OSError) -> str:
    """The error text for an address that an option names, from an error of ``Server.bind`` or ``listen``."""
    text = f"{option}: cannot listen on {address}: {error.strerror or error}"
    if error.errno != errno.EADDRINUSE:
        return text
    return f"{text}: a broker may be running there: stop it, or give {option} {address.rpartition(':')[0]}:PORT"


class Server:
    """Serves one broker on listeners: ``run`` serves until ``stop``."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        authority: Authority | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """
        Args:
            authority: checks tokens; None allows everything.
            certificates: for the TLS listeners.
        """
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._sessions: Roster[Session, Seat] = Roster()
        self._fair_queue = FairQueue(clock, loop, broker.quotas)
        self._last_number = 0
        self._refused = 0
        protocol = partial(SessionProtocol, self._open_session, broker.quotas.read_buffer)
        self._entrance = Entrance(loop, broker.quotas, broker.metrics, certificates, protocol, self._refuse)
        self._authority = authority
        if authority is not None:
            broker.quotas.guarded = True
            authority.on_change.append(self._rights_changed)
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._at_once = False
        self._within_s = broker.options.shutdown_timeout_ms / 1000
        self._none_left = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        broker.quotas.open_connections.sources.append(self._open_connections)
        broker.on_deadline = self._arm_ticker
        broker.commit_place.crowded = lambda: self._fair_queue.waits

    @staticmethod
    def bind(host: str, port: int) -> list[socket.socket]:
        """Bind a socket for every address of ``host``, without listening: recovery comes first. Raises: OSError."""
        sockets: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, proto, _, address in dict.fromkeys(found):  # /etc/hosts may have an address of a name twice
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
        async with asyncio.TaskGroup() as tasks:
            self._check_expiry()
            self._tick()  # recovery may have set deadlines
            self._entrance.open(listeners, tls_listeners, tasks)
            await self._stopping.wait()
            self._entrance.close()
            if self._at_once:
                self.cut()
            else:
                await self._drain()
        for timer in (self._ticker, self._expiry_timer):
            if timer is not None:
                timer.cancel()

    def stop(self, *, at_once: bool = False, within_s: float | None = None) -> None:
        """Begin the shutdown; with ``at_once`` drop everything that is not committed. Idempotent.

        ``within_s``: the longest wait for acks; commits and offsets may still take ``--shutdown-timeout``.
        """
        self._at_once = self._at_once or at_once
        if within_s is not None:
            self._within_s = min(self._within_s, within_s)
        self._stopping.set()

    def cut(self) -> None:
        """Close all connections now, whatever they wait for, without an answer to any client."""
        self._entrance.abort_handshakes()
        for session in list(self._sessions):
            session.abort()

    def debug_wire(self) -> None:
        """Apply a changed level of the logger ``toymq_py.wire``."""
        for session in self._sessions:
            session.debug_wire()

    def _open_connections(self) -> Iterator[OpenConnection]:
        for session, seat in self._sessions.walk():
            token = None if seat.token is None else seat.token.name
            yield OpenConnection(
                "toymq", session.number, session.since_ms, session.transport, session.abort, token, session.client_name, seat,
                partial(getattr, session, "subscriptions"), lacks=partial(getattr, session, "lacks"),
            )  # fmt: skip

    # -- sessions

    def passed(self, trusted: bool) -> SessionProtocol:
        """Make the protocol of a connection by which another group passes a client's commands on. ``trusted``: the other
        group's node asks on its own behalf, with all rights."""
        return SessionProtocol(partial(self._open_session, trusted=trusted), self._broker.quotas.read_buffer)

    def errands(self) -> Errands | None:
        """The object that asks all groups of a cluster, for requests that come by HTTP; None without groups."""
        return Errands(self._broker, self._clock, self._loop) if self._broker.placement.table is not None else None

    def _open_session(self, protocol: SessionProtocol, *, trusted: bool = False) -> Session | None:
        """Make the session of a connection. Returns: None for a refused connection, which is then closed with the reason."""
        broker = self._broker
        if self._stopping.is_set():
            protocol.transport.abort()
            return None
        transport = protocol.transport
        try:
            # A session may be evicted until its token is known; without an auth file it has its rights at once.
            seat = broker.quotas.enter(protocol.address or None, transport.abort if self._authority is not None else None)
        except TooManyConnections as error:
            self._refuse(transport, error)
            return None
        self._last_number += 1
        session = Session(
            self._last_number, transport, broker, self._clock, self._loop, self._fair_queue, self._session_ended,
            None if trusted else self._authority, seat, protocol.address or None,
        )  # fmt: skip
        self._sessions.join(session, seat)
        broker.metrics.connections += 1
        broker.metrics.connections_opened_total += 1
        return session

    def _refuse(self, transport: asyncio.Transport, error: RequestError) -> None:
        """Write the reason and close. A few refused connections stay open until the client has read the reason; more would use
        up the descriptors."""
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

    def _check_expiry(self) -> None:
        """End sessions whose token has expired. Sessions that only receive send no further command that would detect it."""
        if self._authority is not None:
            left_s = self._authority.look_at_time()
            delay_s = EXPIRY_CHECK_S if left_s is None else min(left_s, EXPIRY_CHECK_S)
            self._expiry_timer = self._loop.call_later(delay_s, self._check_expiry)

    def _session_ended(self, session: Session) -> None:
        seat = self._sessions.leave(session)
        assert seat is not None
        seat.leave()
        self._broker.metrics.connections -= 1
        if not self._sessions:
            self._none_left.set()

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
        """Stop deliveries, accept the acks that still arrive, commit, and flush, all within ``--shutdown-timeout``."""
        broker = self._broker
        timeout_s, acks_s = broker.options.shutdown_timeout_ms / 1000, self._within_s
        acks_until = self._loop.time() + acks_s - min(FINISH_S, acks_s / 4)
        self._entrance.abort_handshakes()
        owed = {session: session.inflight() for session in self._sessions}
        broker.stop_deliveries(ends_at=self._clock.monotonic() + timeout_s)
        for session, ranges in owed.items():
            session.shut_down(ranges)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(acks_until):
                while self._sessions:
                    self._none_left.clear()
                    await self._none_left.wait()
        finished: asyncio.Future[None] = self._loop.create_future()
        broker.finish(lambda: finished.set_result(None))
        await finished
        for session in list(self._sessions):
            session.abort()
