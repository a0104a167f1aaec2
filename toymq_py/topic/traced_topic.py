"""A topic that reports the fate of its messages to a tracer.

Classes of their own, so that a broker without tracing pays nothing for it: nothing asks whether there is a tracer, nor looks
into headers. Traced messages are recognised by their headers, so tracing goes on after a restart.
"""

from collections.abc import Callable, Mapping, Sequence

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.consumer import Consumer
from toymq_py.failure import Failure
from toymq_py.records import IdRange
from toymq_py.storage.offsets import LoadedOffsets
from toymq_py.storage.recovery import RecoveredLog
from toymq_py.topic.channel import Channel, Delivery, Subscription
from toymq_py.topic.commits import TopicCommits
from toymq_py.topic.delays import Delays
from toymq_py.topic.deliverer import ChannelContext
from toymq_py.topic.publisher import Publisher
from toymq_py.topic.retention import Retention
from toymq_py.topic.services import TopicServices
from toymq_py.topic.topic import Topic
from toymq_py.topic.tracer import Tracer


class TracedTopic(Topic):
    """A topic whose commits and channels tell the tracer."""

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        path: str,
        services: TopicServices,
        settings: TopicSettings,
        *,
        held: Callable[[Topic, Channel], None],
        keys_kept: int = 0,
        recovered: RecoveredLog | None = None,
        offsets: LoadedOffsets | None = None,
        incarnation: str | None = None,
    ) -> None:
        """The arguments behind ``tracer`` are those of ``Topic``. They are not passed on as ``*args``: mypyc compiles that to a
        call without arguments."""
        self._tracer = tracer
        super().__init__(
            name, path, services, settings,
            held=held, keys_kept=keys_kept, recovered=recovered, offsets=offsets, incarnation=incarnation,
        )  # fmt: skip
        self.publisher.tracer = tracer

    def _commit_listener(self) -> TopicCommits:
        return TracedCommits(self._tracer, self.context, self.channels, self.publisher, self.delays, self.retention)

    def _open_channel(self, consumer: Consumer) -> Channel:
        return TracedChannel(self._tracer, self.context, consumer, arm=self._services.arm, held=self._held)


class TracedCommits(TopicCommits):
    """Commits that tell the tracer how long each sync took."""

    def __init__(
        self,
        tracer: Tracer,
        context: ChannelContext,
        channels: Mapping[str, Channel],
        publisher: Publisher,
        delays: Delays,
        retention: Retention,
    ) -> None:
        """The arguments behind ``tracer`` are those of ``TopicCommits``."""
        super().__init__(context, channels, publisher, delays, retention)
        self._tracer = tracer

    def synced(self, seconds: float) -> None:
        super().synced(seconds)
        self._tracer.synced(seconds)


class TracedChannel(Channel):
    """A channel that tells the tracer of deliveries, ACK and NACK."""

    __slots__ = ("_tracer",)

    def __init__(
        self,
        tracer: Tracer,
        context: ChannelContext,
        consumer: Consumer,
        *,
        arm: Callable[[Channel, float], None],
        held: Callable[[Channel], None],
    ) -> None:
        """The arguments behind ``tracer`` are those of ``Channel``."""
        super().__init__(context, consumer, arm=arm, held=held)
        self._tracer = tracer

    def take(
        self, subscription: Subscription, room: int, max_bytes: int, waiting: Subscription | None = None
    ) -> Delivery | None:
        delivery = super().take(subscription, room, max_bytes, waiting)
        if delivery is not None and delivery.records.headers is not None:
            self._tracer.delivered(delivery)
        return delivery

    def ack(self, ids: Sequence[IdRange], *, unseen: bool = False) -> int:
        count = super().ack(ids, unseen=unseen)
        if count:
            self._tracer.settled("ack", self.context.topic, self.consumer.name, ids)
        return count

    def ack_each(self, ids: Sequence[int]) -> list[int]:
        counts = super().ack_each(ids)
        acked = [(msg_id, msg_id) for msg_id, count in zip(ids, counts, strict=True) if count]
        if acked:
            self._tracer.settled("ack", self.context.topic, self.consumer.name, acked)
        return counts

    def return_uncounted(self, ids: Sequence[IdRange]) -> int:
        count = super().return_uncounted(ids)
        if count:
            self._tracer.settled("nack", self.context.topic, self.consumer.name, ids)
        return count

    def nack(self, ids: Sequence[IdRange], delay_s: float | None, *, dead: bool = False, failure: Failure | None = None) -> int:
        count = super().nack(ids, delay_s, dead=dead, failure=failure)
        if count:
            self._tracer.settled("nack", self.context.topic, self.consumer.name, ids)
        return count
