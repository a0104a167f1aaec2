"""The AMQP listener: accepts connections and owns their sessions.

Contract: amqp.md. Its connections count towards the limits of all listeners (``Quotas``). Knows no AMQP method.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from toymq_py.amqp import definitions
from toymq_py.amqp.blocking import Alarm
from toymq_py.amqp.errors import CONNECTION_FORCED, AmqpError
from toymq_py.amqp.intake import Room
from toymq_py.amqp.login import Login
from toymq_py.amqp.session import Session
from toymq_py.amqp.vhosts import Vhosts
from toymq_py.auth.quotas import Seat
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.config.amqp_definitions import AmqpDefinition, Declare
from toymq_py.entrance import Entrance
from toymq_py.errors import BadArgument, ConfigError, DamagedData, DataDirectoryError, RequestError, TooManyConnections
from toymq_py.net.certificates import Certificates
from toymq_py.net.fair_queue import FairQueue
from toymq_py.net.open_connections import CHANNELS_MAX, OpenConnection
from toymq_py.net.roster import Roster
from toymq_py.topic import Subscription

logger = logging.getLogger("toymq_py.amqp")

GOODBYE_S = 1.0
"""The time at a shutdown for clients to answer connection.close, after the waiting publishes were answered."""
CLOSED_BY_OPERATOR = AmqpError(CONNECTION_FORCED, "an operator closed this connection")


class AmqpServer:
    """Serves AMQP on listeners: ``run`` serves until ``stop``. Call ``load`` first."""

    def __init__(
        self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop, *, authority: Authority | None = None,
        certificates: Certificates | None = None, vhosts: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """
        Args:
            authority: checks tokens; None allows everything.
            certificates: for the TLS listeners.
            vhosts: virtual hosts beside ``/``.
        """
        self.vhosts = Vhosts(broker, loop, vhosts)
        self.vhosts.watch(clock)
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._login = Login(authority)
        self._entrance = Entrance(loop, broker.quotas, broker.metrics, certificates, self._session, _refuse)
        self._guarded = authority is not None
        self._fair = FairQueue(clock, loop, broker.quotas)
        self._alarm = Alarm(broker, loop, self._alarm_changed)
        self._room = Room(broker.quotas, clock, loop, broker.options.max_payload_bytes)
        self._sessions: Roster[Session, tuple[int, int]] = Roster()  # number and time
        self._last_number = 0
        broker.quotas.open_connections.sources.append(self._open_connections)
        self._stopping = asyncio.Event()
        self._goodbye_s = GOODBYE_S
        self._none_left = asyncio.Event()
        if authority is not None:
            broker.quotas.guarded = True
            authority.on_change.append(self._rights_changed)

    async def load(self) -> None:
        """Read exchanges, queues and bindings. Raises: DamagedData, OSError."""
        await self.vhosts.load()

    async def prepare(self, wanted: Iterable[AmqpDefinition], source: str | None) -> None:
        """Load the stored declarations, then declare those of a definitions file. ``source``: the file's name.

        Raises: DataDirectoryError, where the file in the data directory is damaged; ConfigError; OSError.
        """
        try:
            await self.load()
        except DamagedData as error:
            problem = f"amqp.json: {error}; `toymq repair` puts it aside, its queues stay as topics"
            raise DataDirectoryError(problem) from None
        try:
            for change in await self.declare(wanted):
                logger.info("%s: %s", source, change)
        except (BadArgument, OSError) as error:
            raise ConfigError(f"{source}: {error}") from error

    def exchanges(self) -> Iterator[dict[str, Any]]:
        """JSON objects of all exchanges (docs/http.md, "Exchanges, queues, bindings")."""
        return chain.from_iterable(map(definitions.exchange_rows, self.vhosts))

    def declared_queues(self) -> Iterator[dict[str, Any]]:
        """JSON objects of the declared queues."""
        return chain.from_iterable(map(definitions.queue_rows, self.vhosts))

    def bindings(self) -> Iterator[dict[str, Any]]:
        """JSON objects of all bindings."""
        return chain.from_iterable(map(definitions.binding_rows, self.vhosts))

    async def declare(self, wanted: Iterable[AmqpDefinition]) -> list[Declare]:
        """Declare, durably, definitions that do not exist yet. Returns: those declared. Raises: BadArgument, OSError."""
        return await definitions.declare_defined(self.vhosts, wanted)

    async def run(self, listeners: Sequence[socket.socket], tls_listeners: Sequence[socket.socket] = ()) -> None:
        """Accept and serve until ``stop``; then answer the waiting publishes and send connection.close to each client."""
        async with asyncio.TaskGroup() as tasks:
            self._entrance.open(listeners, tls_listeners, tasks)
            await self._stopping.wait()
            self._entrance.close()
            self._entrance.abort_handshakes()
            await asyncio.gather(*(session.shut_down() for session in list(self._sessions)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._goodbye_s):
                    while self._sessions:
                        self._none_left.clear()
                        await self._none_left.wait()
            self.cut()
            self._alarm.close()
            self._room.close()
            self.vhosts.close()
            await self.vhosts.settle()

    def stop(self, *, within_s: float | None = None) -> None:
        """Begin the shutdown. ``within_s``: the longest time in which clients may answer connection.close. Idempotent."""
        if within_s is not None:
            self._goodbye_s = min(self._goodbye_s, within_s)
        self._stopping.set()

    def cut(self) -> None:
        """Close all connections now."""
        self._entrance.abort_handshakes()
        for session in list(self._sessions):
            session.abort()

    def _session(self, address: str) -> Session:
        return Session(
            self.vhosts, self._clock, self._loop, self._fair, self._login, self._alarm, self._room, address, self._enter,
            self._ended
        )

    def _enter(self, session: Session) -> Seat:
        """Give a session a seat. Raises: TooManyConnections."""
        if self._stopping.is_set():
            raise TooManyConnections("the broker is shutting down")
        evict = partial(session.abort, "without a login, closed to make room for another") if self._guarded else None
        seat = self._broker.quotas.enter(session.address or None, evict)
        self._last_number += 1
        self._sessions.join(session, (self._last_number, self._clock.wall_ns() // 1_000_000))
        self._broker.metrics.connections += 1
        self._broker.metrics.connections_opened_total += 1
        return seat

    def _ended(self, session: Session) -> None:
        if self._sessions.leave(session) is not None:
            self._broker.metrics.connections -= 1
        if not self._sessions:
            self._none_left.set()

    def _open_connections(self) -> Iterator[OpenConnection]:
        for session, (number, since_ms) in self._sessions.walk():
            yield OpenConnection(
                "amqp", number, since_ms, session.transport, partial(session.close_with, CLOSED_BY_OPERATOR),
                session.rights.name, session.handshake.client_name, session.seat, partial(_subscriptions, session),
                partial(_channels, session),
            )  # fmt: skip

    def _alarm_changed(self) -> None:
        for session in list(self._sessions):
            session.alarm_changed()

    def _rights_changed(self) -> None:
        for session in list(self._sessions):
            session.rights_changed()


def _refuse(transport: asyncio.Transport, _: RequestError) -> None:
    """Close the connection of a client that did not use TLS: AMQP cannot express a refusal before the handshake."""
    transport.close()


def _subscriptions(session: Session) -> list[Subscription]:
    consumers = [consumer for channel in session.channels.values() for consumer in channel.consumers.by_tag.values()]
    return [consumer.subscription for consumer in consumers if consumer.subscription is not None]


def _channels(session: Session) -> list[dict[str, Any]]:
    return [channel.describe() for _, channel in sorted(session.channels.items())[:CHANNELS_MAX]]
