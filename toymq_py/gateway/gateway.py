"""What every request of the gateway stands on: broker, clock, loop, and whether it is time to leave.

Contract: gateway.md. Owns no state: what a request changes is the broker's.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from toymq_py.auth import Authority
from toymq_py.broker import Broker, Done
from toymq_py.clock import Clock
from toymq_py.errors import RequestError, ShuttingDown
from toymq_py.gateway.snapshots import Snapshots
from toymq_py.gateway.waiting import Waiting, fulfil
from toymq_py.storage.batch import Commit, CommitState
from toymq_py.storage.committer import storage_error


class Gateway:
    """Belongs to the loop of the broker."""

    def __init__(
        self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop, *, authority: Authority | None = None
    ) -> None:
        """``authority``: who decides what a request may do; None lets all of them do everything."""
        self.authority = authority
        self.broker = broker
        self.clock = clock
        self.loop = loop
        self.waiting = Waiting(loop)
        self.snapshots = Snapshots(broker, loop, self.waiting)

    def refuse_late(self) -> None:
        """Raises: ShuttingDown once the broker shuts down: nothing new is begun then."""
        if self.broker.shutting_down or self.waiting.stopped:
            raise ShuttingDown("the broker is shutting down; try again later")

    async def settled(self, commit: Commit) -> RequestError | None:
        """Wait until the commit is on stable storage. Returns: why it is not, if so.

        Cancelled, the commit goes on: its outcome is just not told.
        """
        if commit.state is CommitState.PENDING:
            done: asyncio.Future[None] = self.loop.create_future()
            commit.add_waiter(partial(fulfil, done))
            await done
        return commit.error

    async def stored(self, begin: Callable[[Done], None]) -> None:
        """Wait until ``begin``'s effect is on stable storage. Cancelled, it goes on.

        Raises: RequestError when it is not, or when ``begin`` does.
        """
        outcome: asyncio.Future[OSError | RequestError | None] = self.loop.create_future()

        def done(error: OSError | RequestError | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        begin(done)
        error = await outcome
        if error is not None:
            raise error if isinstance(error, RequestError) else storage_error(error)
