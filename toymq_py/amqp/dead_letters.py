"""Dead-lettering: messages on their way from a queue to its dead-letter exchange.

Contract: amqp.md, "Model" (x-dead-letter-exchange, x-death); RabbitMQ, "Dead Letter Exchanges". Belongs to the event loop.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from toymq_py.amqp import properties
from toymq_py.amqp.deliveries import Unacked
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.properties import Envelope, block_of, envelope_of
from toymq_py.amqp.queues import Queues
from toymq_py.amqp.timestamp import Timestamp
from toymq_py.errors import RequestError
from toymq_py.topic import Channel

logger = logging.getLogger("toymq_py.amqp")

GO_BY_THEMSELVES = ("expired", "maxlen")
"""Reasons of dead letters that no client has caused."""


def dead_letter_of(
    queues: Queues, message: Unacked, target: tuple[str, str], reason: str, settled: Callable[[bool], None] | None = None
) -> None:
    """Publish a message to the dead-letter exchange, and ack it in its queue when the copy is on stable storage. It is
    dropped if no queue gets it or the exchange is gone, as in RabbitMQ.

    ``settled``: called with True when the message has left its queue, with False when the copy was not stored; then the message
    is ready again at once, and the caller retries. Without ``settled``, a message that was not stored is retried later.
    """
    _Letter(queues, message, target, reason, settled).send()


def dead_letter_of_refused(
    queues: Queues, queue: str, payload: bytes, block: bytes, target: tuple[str, str], at_s: int
) -> None:
    """Publish a message that its full queue refused to the dead-letter exchange (``reject-publish-dlx``). Nothing waits for the
    outcome: the publisher already knows of the refusal.

    Raises: AmqpError, RequestError, where a target is full, too: then it is dropped, as by RabbitMQ.
    """
    letter, topics = letter_of(queues, queue, block, target, "maxlen", at_s)
    for topic in topics:
        for outcome in queues.broker.topic_to_publish(topic).publish([b""], [payload], [letter]):
            if outcome.error is not None:
                raise outcome.error


def letter_of(
    queues: Queues, queue: str, block: bytes, target: tuple[str, str], reason: str, at_s: int
) -> tuple[bytes, list[str]]:
    """The header block of a dead letter, and the topics that it goes to.

    Args:
        queue: the queue that the message leaves.
        block: the header block of the message.
        at_s: when it leaves, in seconds since 1970.

    Raises: AmqpError, when the exchange is gone.
    """
    exchange, routing_key = target
    envelope = envelope_of(queue, block)
    found = with_death(properties.decode(envelope.properties), queue, envelope, reason, at_s)
    passed = _passed(queues, reason, found["headers"]["x-death"])
    topics = queues.targets(exchange, routing_key, found["headers"], internal=True)
    if passed.intersection(topics):
        logger.warning("queue %s: a message is dropped, without a rejection it goes round", queue)
    letter = block_of(Envelope(exchange, routing_key, properties.encode(found)), found)
    return letter, [topic for topic in topics if topic not in passed]


def _passed(queues: Queues, reason: str, deaths: list[dict[str, Any]]) -> set[str]:
    """Topics of the queues that dead-lettered a message since its last rejection. A message that expires, or exceeds
    a queue's length, must not return to these queues: it would cycle for ever, so RabbitMQ drops it."""
    if reason not in GO_BY_THEMSELVES:
        return set()
    passed = set[str]()
    for death in deaths:
        if death.get("reason") == "rejected":
            break
        passed.add(queues.topic_name(str(death.get("queue"))))
    return passed


class _Letter:
    """One message on its way to a dead-letter exchange."""

    def __init__(
        self, queues: Queues, message: Unacked, target: tuple[str, str], reason: str, settled: Callable[[bool], None] | None
    ) -> None:
        assert isinstance(message.source, Channel), "a stream gives up nothing"
        self._queues = queues
        self._source = message.source
        self._message = message
        self._target = target
        self._reason = reason
        self._settled = settled
        self._waits = 1
        self._error: RequestError | None = None

    def send(self) -> None:
        queues, message = self._queues, self._message
        try:
            run, row, _ = queues.broker.topic(self._source.context.topic).read(message.msg_id, 1)
            if run is not None:
                block = b"" if run.headers is None else run.headers[row]
                at_s = run.ts_ns[row] // 1_000_000_000
                letter, topics = letter_of(queues, message.queue, block, self._target, self._reason, at_s)
                for topic in topics:
                    self._publish(topic, run.payloads[row], letter)
        except AmqpError as error:
            logger.warning("queue %s, message %d: dropped, its dead-letter exchange: %s", message.queue, message.msg_id, error)
        except (RequestError, OSError) as error:
            self._error = error if isinstance(error, RequestError) else RequestError(str(error))
        self._done()

    def _publish(self, topic: str, payload: bytes, block: bytes) -> None:
        """Publish a dead letter to a topic. Raises: RequestError."""
        for outcome in self._queues.broker.topic_to_publish(topic).publish([b""], [payload], [block]):
            if outcome.error is not None:
                raise outcome.error
            self._waits += 1
            outcome.commit.add_waiter(partial(self._committed, outcome.commit))

    def _committed(self, commit: Any) -> None:
        self._error = self._error or commit.error
        self._done()

    def _done(self) -> None:
        self._waits -= 1
        if self._waits:
            return
        message = self._message
        ids = [(message.msg_id, message.msg_id)]
        if self._error is None:
            self._source.ack(ids)
        else:
            logger.warning("queue %s, message %d: not dead-lettered yet: %s", message.queue, message.msg_id, self._error)
            if self._settled is None:
                self._source.nack(ids, self._queues.retry_in_s(message.queue))
            else:
                self._source.return_uncounted(ids)
        if self._settled is not None:
            self._settled(self._error is None)


def with_death(found: dict[str, Any], queue: str, envelope: Envelope, reason: str, at_s: int) -> dict[str, Any]:
    """The properties of a dead letter: with RabbitMQ's ``x-death``, newest first, one entry for each queue and reason, and with
    ``x-first-death-…``. The property ``expiration`` is removed."""
    expiration = found.get("expiration")
    found = {name: value for name, value in found.items() if name != "expiration"}
    headers = dict(found.get("headers", {}))
    before = headers.get("x-death")
    deaths = [death for death in before if isinstance(death, dict)] if isinstance(before, list) else []
    same = next((death for death in deaths if (death.get("queue"), death.get("reason")) == (queue, reason)), None)
    count = same.get("count", 0) if same is not None else 0
    death = {
        "count": (count if type(count) is int else 0) + 1, "reason": reason, "queue": queue, "time": Timestamp(at_s),
        "exchange": envelope.exchange, "routing-keys": [envelope.routing_key],
    }  # fmt: skip
    if reason == "expired" and expiration is not None:
        death["original-expiration"] = expiration
    headers["x-death"] = [death, *(other for other in deaths if other is not same)]
    for name, value in (("queue", queue), ("reason", reason), ("exchange", envelope.exchange)):
        headers.setdefault(f"x-first-death-{name}", value)
    return {**found, "headers": headers}
