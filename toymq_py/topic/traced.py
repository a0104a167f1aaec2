"""A topic that tells a tracer what becomes of its messages.

A class of its own, so that a broker without tracing pays nothing for it: nobody looks whether there is a tracer, nor into
headers. What is followed is found by the message's headers, so it is the same after a restart.
"""

from collections.abc import Sequence

from toymq_py.failure import Failure
from toymq_py.model import IdRange
from toymq_py.topic.subscription import Delivery, Subscription
from toymq_py.topic.topic import Topic
from toymq_py.topic.tracer import Tracer


class TracedTopic(Topic):
    """See the module. Assumes ``follow`` before the first command."""

    def follow(self, tracer: Tracer) -> None:
        """Tell this one from now on."""
        self._tracer = tracer
        self.publisher.tracer = tracer
        count_sync = self.committer.on_sync

        def synced(seconds: float) -> None:
            count_sync(seconds)
            tracer.synced(seconds)

        self.committer.on_sync = synced

    def take(self, subscription: Subscription, room: int, max_bytes: int) -> Delivery | None:
        delivery = super().take(subscription, room, max_bytes)
        if delivery is not None and delivery.records.headers is not None:
            self._tracer.delivered(delivery)
        return delivery

    def ack(self, name: str, ids: Sequence[IdRange], *, unseen: bool = False) -> int:
        count = super().ack(name, ids, unseen=unseen)
        if count:
            self._tracer.settled("ack", self.name, name, ids)
        return count

    def nack(
        self, name: str, ids: Sequence[IdRange], delay_s: float | None, *, dead: bool = False, failure: Failure | None = None
    ) -> int:
        count = super().nack(name, ids, delay_s, dead=dead, failure=failure)
        if count:
            self._tracer.settled("nack", self.name, name, ids)
        return count
