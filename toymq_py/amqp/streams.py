"""Streams: queues that each consumer reads from its own position, without taking messages from other consumers.

Contract: amqp.md, "Model" (x-queue-type stream, x-stream-offset); RabbitMQ, "Streams"; ADR 0161. A stream is a topic without
the consumer of queues: its retention alone removes messages. Belongs to the event loop.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toymq_py.amqp.errors import PRECONDITION_FAILED, AmqpError
from toymq_py.amqp.timestamp import Timestamp
from toymq_py.amqp.topology import Queue
from toymq_py.disk_errors import BeingExamined
from toymq_py.records import IdRange, Records
from toymq_py.topic import Topic
from toymq_py.units import DURATION_MS_MAX

_AGE = re.compile(r"([0-9]{1,12})([YMDhms])")
_UNITS_S = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_LATEST_S = 1 << 33
"""A time far away, in seconds; its nanoseconds still fit into an index."""
_WORDS = ("first", "last", "next")
OF_QUEUES = (
    "x-message-ttl", "x-expires", "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-dead-letter-strategy", "x-delivery-limit", "x-max-priority", "x-single-active-consumer",
)  # fmt: skip
"""Arguments that a stream cannot have."""

Offset = str | int
"""``first``, ``last``, ``next``, an age as in ``x-max-age``, a number, or a Timestamp."""


def is_stream(arguments: Mapping[str, Any]) -> bool:
    """Whether a queue's arguments declare a stream."""
    return arguments.get("x-queue-type") == "stream"


def age_ms(name: str, value: Any) -> int:
    """Parse an age such as ``7D`` to milliseconds. ``name``: the argument's. Raises: AmqpError (PRECONDITION_FAILED)."""
    found = _AGE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}': {str(value)[:40]!r} is not a number with a unit of YMDhms")
    return min(max(int(found[1]) * _UNITS_S[found[2]] * 1000, 1), DURATION_MS_MAX)


def check_stream(queue: Queue, vhost: str) -> None:
    """Check the arguments of a stream. Raises: AmqpError (PRECONDITION_FAILED), in RabbitMQ's words, for those that
    streams do not have."""
    of = f"for queue '{queue.name}' in vhost '{vhost}': it is a stream"
    wrong = {"non-durable": not queue.durable, "exclusive-owner": queue.exclusive, "auto-delete": queue.auto_delete}
    for what, is_so in wrong.items():
        if is_so:
            raise AmqpError(PRECONDITION_FAILED, f"invalid property '{what}' {of}")
    for argument in OF_QUEUES:
        if queue.arguments.get(argument) is not None:
            raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{argument}' {of}")


def stream_settings(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The topic settings of a stream's arguments, as CREATE takes them. Raises: AmqpError."""
    settings: dict[str, str] = {}
    if (size := arguments.get("x-max-length-bytes")) is not None:
        settings["retain_max_bytes"] = str(size)
    if (age := arguments.get("x-max-age")) is not None:
        settings["retain_max_age"] = str(age_ms("x-max-age", age))
    return settings


def offset_of(arguments: Mapping[str, Any]) -> Offset:
    """The position at which a consumer begins, by default the next message. Raises: AmqpError (PRECONDITION_FAILED)."""
    value = arguments.get("x-stream-offset", "next")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value not in _WORDS:
        age_ms("x-stream-offset", value)
    elif not isinstance(value, str):
        text = f"invalid arg 'x-stream-offset': {str(value)[:40]!r} is none of {', '.join(_WORDS)}, no offset, time or age"
        raise AmqpError(PRECONDITION_FAILED, text)
    return value


def position_of(topic: Topic, offset: Offset) -> int:
    """The message id at which an offset begins, within the topic's range of ids. Raises: OSError."""
    first, limit = topic.id_range()
    if offset == "first":
        return first
    if offset == "next":
        return limit
    if offset == "last":
        return max(limit - 1, first)
    if isinstance(offset, str):
        now_ms = topic.context.clock.wall_ns() // 1_000_000
        return topic.id_range(now_ms - age_ms("x-stream-offset", offset))[0]
    if isinstance(offset, Timestamp):
        return topic.id_range(min(int(offset), _LATEST_S) * 1000)[0]
    return min(max(offset, first), limit)


class StreamReader:
    """Reads a topic for one consumer, as far as its credit goes. A settled message, acked or not, gives its credit back."""

    def __init__(self, topic: Topic, position: int, window: int, wake: Callable[[], object]) -> None:
        """``wake`` is called when there may be something to read."""
        self._topic = topic
        self._position = position
        self._wake = wake
        self._withdraw: Callable[[], object] | None = None
        self.closed = False
        self.window = window
        self.inflight = 0

    @property
    def is_over(self) -> bool:
        """Whether the topic is gone."""
        return self._topic.deleted

    def read(self, max_bytes: int, max_count: int) -> tuple[Records, int, int] | None:
        """The next records: a batch, the first row of it to take, and the row after the last. None if there are none; ``wake``
        is then called when some exist or the topic is deleted. Raises: OSError."""
        count = min(max_count, self.window - self.inflight)
        while count > 0 and not self.closed:
            first, limit = self._topic.id_range()
            self._position = max(self._position, first)
            if self._position >= limit:
                if self._withdraw is None:
                    self._withdraw = self._topic.when_committed(self._committed)
                return None
            try:
                run, start, next_id = self._topic.read(self._position, count, max_bytes)
            except BeingExamined as busy:
                busy.when_done(self._examined)
                return None
            last = min(next_id, limit)
            found = last - self._position
            self._position = last
            if run is not None and found > 0:  # else they are lost
                self.inflight += found
                return run, start, start + found
        return None

    def _examined(self) -> None:
        if not self.closed:
            self._wake()

    def _committed(self) -> None:
        self._withdraw = None
        if not self.closed:
            self._wake()

    def ack(self, ids: Sequence[IdRange]) -> None:
        """Return the credit of settled messages."""
        was_full = self.inflight >= self.window
        self.inflight -= sum(last + 1 - first for first, last in ids)
        if was_full and not self.closed:
            self._wake()

    def nack(self, ids: Sequence[IdRange], delay_s: float | None) -> None:
        """Return the credit of settled messages, as ``ack``, since a stream redelivers nothing."""
        self.ack(ids)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self.closed = True
        if self._withdraw is not None:
            self._withdraw()
            self._withdraw = None
