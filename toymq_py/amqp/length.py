"""The length limit of a queue whose surplus messages go to a dead-letter exchange.

Contract: amqp.md, "Model" (x-max-length, x-max-length-bytes); RabbitMQ, "Queue Length Limit"; ADR 0174. Without such an
exchange, and with ``reject-publish``, the limit is the topic's. Belongs to the event loop.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toymq_py.amqp.deliveries import Unacked
from toymq_py.topic import Channel, Delivery, Subscription, Topic
from toymq_py.topic.backlog import UNLIMITED, Backlog

PAGE_BYTES = 64 * 1024
SURPLUS_MAX = 16_384
"""Messages beyond the length that are leased and wait to be given up; with more, the queue is too long for a while."""


class LengthLimit:
    """The maximum length of a queue. Only ready messages count, as in RabbitMQ; bytes are those in the log, as exact as
    ``Log.bytes_between``."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """``arguments``: those of the queue's declaration."""
        self._messages_max: int | None = arguments.get("x-max-length")
        self._bytes_max: int | None = arguments.get("x-max-length-bytes")

    def excess(self, topic: Topic, channel: Channel) -> tuple[int, int]:
        """How many messages and bytes are beyond the limit; zero or less for none."""
        messages_max = UNLIMITED if self._messages_max is None else self._messages_max
        excess = channel.available() - messages_max
        if self._bytes_max is None:
            return excess, 0
        first, limit = topic.id_range()
        size = Backlog(topic.log, {channel.consumer.name: channel}).bytes(first, limit)
        for leased_first, leased_last in channel.consumer.leased_under([(first, limit - 1)], None):
            size -= topic.log.bytes_between(leased_first, leased_last + 1)
        return excess, size - self._bytes_max


class Surplus:
    """The messages of a queue beyond its limit: leased at once, so that they do not count and no consumer gets them, and sent
    to the dead-letter exchange bit by bit. Holds ids, not messages."""

    def __init__(
        self, limit: LengthLimit, subscribe: Callable[[Topic, int], Subscription],
        given_up: Callable[[Delivery, int], tuple[Unacked, str]],
    ) -> None:  # fmt: skip
        """
        Args:
            subscribe: attaches to the queue's consumer of a topic, with a window. Raises: RequestError, OSError.
            given_up: returns one message of a delivery as an unacked one, and the reason why it leaves the queue.
        """
        self._limit = limit
        self._subscribe = subscribe
        self._given_up = given_up
        self._subscription: Subscription | None = None
        self._waiting: deque[tuple[Unacked, str]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def lease(self, topic: Topic, channel: Channel) -> None:
        """Lease the messages beyond the length, from the head. Raises: RequestError, OSError."""
        excess, excess_bytes = self._limit.excess(topic, channel)
        while (excess > 0 or excess_bytes > 0) and len(self._waiting) < SURPLUS_MAX:
            if self._subscription is None or self._subscription.closed:
                self._subscription = self._subscribe(topic, UNLIMITED)
            delivery = self._subscription.take(PAGE_BYTES, excess if excess > 0 else 1)
            if delivery is None:
                return
            for row in range(delivery.start, delivery.stop):
                self._waiting.append(self._given_up(delivery, row))
                msg_id = delivery.records.ids[row]
                excess_bytes -= topic.log.bytes_between(msg_id, msg_id + 1)
            excess -= len(delivery)

    def take(self, most: int) -> Iterator[tuple[Unacked, str]]:
        """The next messages to dead-letter, with the reason. They stay leased until they are acked."""
        for _ in range(min(most, len(self._waiting))):
            yield self._waiting.popleft()

    def give_back(self) -> None:
        """Make the waiting messages ready again."""
        ids, self._waiting = [(message.msg_id, message.msg_id) for message, _ in self._waiting], deque()
        if self._subscription is not None and ids:
            self._subscription.channel.return_uncounted(ids)

    def rest(self) -> None:
        """Unsubscribe from the queue unless messages are leased, so that all its messages go to consumers."""
        if self._subscription is not None and not self._subscription.lessee.inflight:
            self.close()

    def close(self) -> None:
        """Close; leased messages are ready again. Idempotent."""
        self._waiting.clear()
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None
