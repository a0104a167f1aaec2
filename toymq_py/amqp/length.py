"""The limit on a queue's length, where what is beyond it goes to a dead-letter exchange.

Contract: amqp.md, "Model" (x-max-length, x-max-length-bytes); RabbitMQ, "Queue Length Limit". Without such an exchange, and
with ``reject-publish``, the limit is the topic's. Belongs to the event loop.
"""

from collections.abc import Mapping
from typing import Any

from toymq_py.topic import Channel, Topic
from toymq_py.topic.backlog import UNLIMITED, Backlog


class LengthLimit:
    """How far a queue may grow. Messages that are ready count, as in RabbitMQ; in bytes, what they take in the log, as exact as
    ``Log.bytes_between``."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """``arguments`` are the queue's."""
        self._messages_max: int | None = arguments.get("x-max-length")
        self._bytes_max: int | None = arguments.get("x-max-length-bytes")

    def excess(self, topic: Topic, channel: Channel) -> tuple[int, int]:
        """How many messages and bytes are beyond the limit: at the end of both, zero or less."""
        messages_max = UNLIMITED if self._messages_max is None else self._messages_max
        excess = channel.available() - messages_max
        if self._bytes_max is None:
            return excess, 0
        first, limit = topic.id_range()
        size = Backlog(topic.log, {channel.consumer.name: channel}).bytes(first, limit)
        for leased_first, leased_last in channel.consumer.leased_under([(first, limit - 1)], None):
            size -= topic.log.bytes_between(leased_first, leased_last + 1)
        return excess, size - self._bytes_max
