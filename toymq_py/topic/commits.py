"""What follows a commit: keys settle, limits and retention apply, delays begin, sessions and polls wake.

Contract: delivery.md. Belongs to the event loop.
"""

from collections.abc import Callable, Mapping, Sequence

from toymq_py.callbacks import call_all
from toymq_py.metrics import Metrics
from toymq_py.storage.commit.listener import CommitListener
from toymq_py.storage.segment import Producers
from toymq_py.topic.channel import Channel
from toymq_py.topic.delays import Delays
from toymq_py.topic.deliverer import ChannelContext
from toymq_py.topic.publisher import Publisher
from toymq_py.topic.retention import Retention


class TopicCommits(CommitListener):
    """Carries out what follows a commit: keys settle, limits and retention apply, sessions and polls wake."""

    def __init__(
        self,
        context: ChannelContext,
        channels: Mapping[str, Channel],
        publisher: Publisher,
        delays: Delays,
        retention: Retention,
    ) -> None:
        """``channels``: the topic's own mapping, which changes as consumers come and go."""
        self._context = context
        self._channels = channels
        self._publisher = publisher
        self._delays = delays
        self._retention = retention
        self._metrics: Metrics = context.metrics
        self._waiters: dict[Callable[[], None], None] = {}
        self.on_failed: Callable[[], None] = lambda: None
        """Called when publishes were refused by their commit."""

    def when_committed(self, call: Callable[[], None]) -> Callable[[], object]:
        """Call ``call`` once, at the next commit or when the topic is deleted. Returns: a function that cancels that."""
        self._waiters[call] = None
        return lambda: self._waiters.pop(call, None)

    def notify_waiters(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, {}
            call_all(waiters)

    # -- told by the committer

    def scheduled(self, first_id: int, deliver_at_ns: Sequence[int]) -> None:
        self._delays.enter(range(first_id, first_id + len(deliver_at_ns)), deliver_at_ns)

    def synced(self, seconds: float) -> None:
        self._metrics.synced(seconds)

    def stored(self, seconds: float, count: int) -> None:
        self._metrics.publish_seconds.observe(seconds, count)

    def committed(self, first_id: int, next_id: int, keys: list[bytes], producers: Producers) -> None:
        self._publisher.committed(first_id, next_id, keys, producers)
        self._retention.committed()
        if next_id > first_id:
            self._metrics.publish_total += next_id - first_id
            self._metrics.commit_messages.observe(next_id - first_id)
        if self._context.takers:
            for channel in self._channels.values():
                if channel.idle:
                    channel.wake(next_id - first_id)
        self.notify_waiters()

    def failed(self, keys: list[bytes]) -> None:
        self._publisher.failed(keys)
        self.on_failed()

    def sealed(self) -> None:
        self._retention.apply()

    def producers_since(self, first_id: int) -> Producers:
        return self._publisher.producers.since(first_id)
