"""The consumers of a topic: each is made, moved and removed here. Contract: delivery.md; protocol.md, "SEEK", "FORGET".

Deliveries and acks of a consumer belong to its ``Channel``. Knows no session. Belongs to the event loop.
"""

from collections.abc import Callable

from toymq_py.clock import Clock
from toymq_py.consumer import Consumer
from toymq_py.consumer_options import Start
from toymq_py.errors import NoSuchConsumer, OutOfRange
from toymq_py.names import some_of
from toymq_py.storage.log import Log
from toymq_py.topic.channel import Channel
from toymq_py.topic.consumer_offsets import ConsumerOffsets
from toymq_py.topic.consumer_recovery import skip_missing
from toymq_py.topic.delays import Delays
from toymq_py.topic.services import TopicServices


class ConsumerRegistry:
    """The consumers of one topic. ``channels``, by consumer name, is the topic's own mapping; only this class changes it."""

    def __init__(
        self, topic: str, channels: dict[str, Channel], log: Log, clock: Clock, offsets: ConsumerOffsets, delays: Delays,
        services: TopicServices, *, open_channel: Callable[[Consumer], Channel], moved: Callable[[], None],
    ) -> None:  # fmt: skip
        """
        Args:
            open_channel: makes the channel of a consumer.
            moved: called when a consumer was made, removed or moved.
        """
        self._topic = topic
        self._channels = channels
        self._log = log
        self._clock = clock
        self._offsets = offsets
        self._delays = delays
        self._services = services
        self._open_channel = open_channel
        self._moved = moved
        self._max_attempts = 0

    def limit_attempts(self, max_attempts: int) -> None:
        """Apply ``max_attempts`` of the topic to all consumers, present and later; 0 for no limit."""
        self._max_attempts = max_attempts
        for channel in self._channels.values():
            channel.limit_attempts(max_attempts)

    def resolve(self, start: Start) -> int:
        """The id that a position stands for now; it may lie outside the log. Raises: OSError when the log cannot be searched
        for a time."""
        if start.kind == "earliest":
            return self._log.first_id
        if start.kind == "latest":
            return self._log.committed_id
        if start.kind == "time":
            return self._log.id_at_time(start.value * 1_000_000, self._clock.wall_ns())
        return start.value

    def start_of_new(self, start: Start | None) -> int:
        """The id at which a new consumer begins. Raises: as ``resolve``."""
        if start is None or self._offsets.lacks_consumers:
            return self._log.first_id
        return min(max(self.resolve(start), self._log.first_id), self._log.committed_id)

    def make(self, name: str, start: int) -> Channel:
        """Make a consumer in memory that begins at the id ``start``. Raises: TooManyConsumers."""
        self._services.quotas.admit_consumer(self._topic, name, self._channels)
        consumer = Consumer(name, start=start, since_ns=self._clock.wall_ns(), scheduled=self._delays.schedule.ids)
        skip_missing(consumer, self._log)
        channel = self.add(consumer)
        self._offsets.changed()
        self._moved()
        return channel

    def add(self, consumer: Consumer) -> Channel:
        """Enter a consumer that is on the disk, or was just made. Returns: its channel."""
        channel = self._channels[consumer.name] = self._open_channel(consumer)
        channel.limit_attempts(self._max_attempts)
        return channel

    def seek(self, name: str, start: Start, *, creates: bool = True) -> int:
        """Move a consumer, or make it at the position (ADR 0104). The caller flushes the offsets before it answers.

        Returns: the id. Raises: NoSuchConsumer (without ``creates``), OutOfRange, TooManyConsumers, OSError.
        """
        channel = self._channels.get(name)
        if channel is None and not creates:
            raise self.missing(name)
        target = self.resolve(start)
        if not self._log.first_id <= target <= self._log.committed_id:
            raise OutOfRange.outside(self._topic, target, self._log.first_id, self._log.committed_id)
        if channel is None:
            self.make(name, target)
            return target
        ended = channel.end_sessions("SEEK")
        self._offsets.moved_back()
        channel.consumer.seek(target, self._clock.wall_ns())
        skip_missing(channel.consumer, self._log)
        self._offsets.changed()
        self._services.rejoin(self._topic, ended)
        channel.notify_ready()
        self._moved()
        return target

    def forget(self, name: str) -> None:
        """Delete a consumer; the caller flushes the offsets before it answers. Raises: NoSuchConsumer."""
        channel = self._channels.get(name)
        if channel is None:
            raise self.missing(name)
        self._remove(channel)
        self._offsets.moved_back()

    def withdraw(self, channel: Channel) -> None:
        """Remove a consumer that could not be stored, unless others already take from it."""
        if not channel.closed and not channel.takers:
            self._remove(channel)

    def _remove(self, channel: Channel) -> None:
        del self._channels[channel.consumer.name]
        channel.close("DELETED")
        self._offsets.changed()
        self._moved()

    def missing(self, name: str) -> NoSuchConsumer:
        """The error for a consumer that does not exist."""
        return NoSuchConsumer(f"{self._topic} has no consumer {name}: it has {some_of(self._channels)}")
