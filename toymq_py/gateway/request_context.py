"""The objects that all requests of the gateway share: broker, clock, event loop, logins, webhooks, alerts.

Contract: gateway.md. Requests change the broker's state, and keep no state of their own between requests.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker, Done
from toymq_py.broker_waits import settled, stored
from toymq_py.clock import Clock
from toymq_py.config.amqp_definitions import AmqpDefinition, Declare
from toymq_py.errors import RequestError, ShuttingDown
from toymq_py.gateway.alert_watch import AlertWatch
from toymq_py.gateway.group_errands import GroupErrands
from toymq_py.gateway.logins import Logins
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.search_turns import SearchTurns
from toymq_py.gateway.snapshots import Snapshots
from toymq_py.gateway.waiters import Waiting
from toymq_py.gateway.webhook_pusher import WebhookPusher
from toymq_py.gateway.webhook_sender import WebhookSender
from toymq_py.observability.history import History
from toymq_py.routes import Router
from toymq_py.topic import Commit


class Amqp(Protocol):
    """The exchanges, queues and bindings of AMQP (``AmqpServer``), listed as JSON objects."""

    def exchanges(self) -> Iterator[dict[str, Any]]: ...

    def declared_queues(self) -> Iterator[dict[str, Any]]: ...

    def bindings(self) -> Iterator[dict[str, Any]]: ...

    async def declare(self, wanted: Iterable[AmqpDefinition]) -> Sequence[Declare]:
        """Declare definitions that do not exist yet. Returns: those declared. Raises: BadArgument, OSError."""


class Gateway:
    """The objects that all requests share. Belongs to the broker's event loop."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        authority: Authority | None = None,
        private_webhooks: bool = False,
        mq_delay_s: float = 10.0,
    ) -> None:
        """
        Args:
            authority: checks tokens and rights; None allows everything.
            private_webhooks: webhooks and alerts may be sent to private addresses.
            mq_delay_s: visibility timeout of the dialect ``mq``.
        """
        self.authority = authority
        self.amqp: Amqp | None = None
        """The state of AMQP; None where it is not served."""
        self.logins: Logins | None = None
        if authority is not None:
            self.logins = Logins(authority, clock, lambda: self.waiting.wake())
            authority.on_change.append(lambda: self.waiting.wake())
        self.mq_delay_s = mq_delay_s
        self.broker = broker
        self.clock = clock
        self.loop = loop
        self.waiting = Waiting(loop)
        self.searches = SearchTurns(clock, self.waiting)
        self.history = History(broker, clock)
        self.router = Router()
        """Chooses partitions: messages without a route go to the next one, whichever connection they come from."""
        self.neighbours = Neighbours(broker.placement) if broker.placement.addresses else None
        self.errands: GroupErrands | None = None
        """Errands at all groups of the cluster; None where the broker is of no group."""
        self.snapshots = Snapshots(broker, clock, loop, self.waiting, self.history, self.neighbours)
        self.sender = WebhookSender(clock, loop, private=private_webhooks)
        self.webhooks = WebhookPusher(broker, self.sender, clock, loop, self.waiting)
        self.alerts = AlertWatch(broker, self.sender, clock, loop, self.waiting)

    def refuse_late(self) -> None:
        """Refuse new work during the shutdown. Raises: ShuttingDown."""
        self.broker.refuse_late()
        if self.waiting.stopped:  # said before the broker knows
            raise ShuttingDown("the broker is shutting down: try again later")

    async def settled(self, commit: Commit) -> RequestError | None:
        """Wait until a commit is done (``broker_waits.settled``). Returns: its error, None on success."""
        return await settled(commit)

    async def stored(self, begin: Callable[[Done], None]) -> None:
        """Begin a change, and wait until it is stored (``waiters.stored``)."""
        await stored(begin)
