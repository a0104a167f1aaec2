"""A session without a transport, on the simulated disk, loop and clock."""

import random
from types import TracebackType
from typing import Any

from tests.support.broker_rig import BrokerRig
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.protocol import Command
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.handler import Handler
from toymq_py.session.replies import Replies


class SessionRig:
    """A session for tests. ``apply`` gives it a command; ``write`` returns the replies that are due."""

    def __init__(self, **options: Any) -> None:
        self.rig = BrokerRig(**options)
        self.seat = self.rig.broker.quotas.enter("127.0.0.1", None)
        self.loop = SimEventLoop(random.Random(1))
        runnable = Runnable(FairQueue(self.rig.clock, self.loop), lambda slice_end: False)
        self.replies = Replies(self.rig.broker.metrics, runnable, self.rig.clock)
        self.deliveries = Deliveries(self.replies, runnable, self.rig.clock, self.loop.call_later, self.seat)
        self.handler = Handler(1, self.rig.broker, self.replies, self.deliveries, self.loop)

    def __enter__(self) -> "SessionRig":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.loop.close()

    def apply(self, command: Command) -> None:
        """Apply a command, and let the broker's loop run."""
        self.handler.apply(command)
        self.rig.loop.advance(0)

    def write(self) -> bytes:
        """Return the replies that are due now."""
        self.deliveries.begin_write()
        return b"".join(self.replies.take_due(self.rig.clock.monotonic() + 1))
