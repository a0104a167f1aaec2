"""The objects that all requests of the gateway share: broker, clock, loop, logins, webhooks.

Contract: gateway.md. Requests change the broker's state, and none of their own.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker, Done
from toymq_py.broker_waits import fulfil, stored
from toymq_py.clock import Clock
from toymq_py.errors import RequestError, ShuttingDown
from toymq_py.gateway.logins import Logins
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.snapshots import Snapshots
from toymq_py.gateway.waiters import Waiting
from toymq_py.gateway.webhook_pusher import WebhookPusher
from toymq_py.topic import Commit


class Gateway:
    """Shared by all requests. Belongs to the broker's loop."""

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
            private_webhooks: webhooks may push to private addresses.
            mq_delay_s: visibility timeout of the dialect ``mq``.
        """
        self.authority = authority
        self.logins: Logins | None = None
        if authority is not None:
            self.logins = Logins(authority, clock, lambda: self.waiting.wake())
            authority.on_change.append(lambda: self.waiting.wake())
        self.mq_delay_s = mq_delay_s
        self.broker = broker
        self.clock = clock
        self.loop = loop
        self.waiting = Waiting(loop)
        self.neighbours = Neighbours(broker.placement) if broker.placement.addresses else None
        self.snapshots = Snapshots(broker, clock, loop, self.waiting, self.neighbours)
        self.webhooks = WebhookPusher(broker, clock, loop, self.waiting, private=private_webhooks)

    def refuse_late(self) -> None:
        """Refuse new work during the shutdown. Raises: ShuttingDown."""
        self.broker.refuse_late()
        if self.waiting.stopped:  # said before the broker knows
            raise ShuttingDown("the broker is shutting down: try again later")

    async def settled(self, commit: Commit) -> RequestError | None:
        """Wait until a commit is on stable storage. Returns: why it failed, else None. Cancelled, the commit goes on."""
        over: asyncio.Future[None] = self.loop.create_future()
        commit.add_waiter(partial(fulfil, over))
        await over
        return commit.error

    async def stored(self, begin: Callable[[Done], None]) -> None:
        """See ``waiters.stored``."""
        await stored(begin)
