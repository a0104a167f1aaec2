"""Sends messages that expire, or exceed a queue's maximum length, to its dead-letter exchange, whether consumers exist or not.

Contract: amqp.md, "Model" (x-message-ttl, expiration, x-max-length, x-dead-letter-exchange); RabbitMQ, "Time-to-Live", "Queue
Length Limit". The topic of such a queue has neither ttl nor limit, which would drop messages. Instead this file looks at the
head of the queue, and dead-letters that message when it has expired or the queue is too long, so messages leave in the order
of the queue. Belongs to the event loop.
"""

import asyncio
import logging

from toymq_py.amqp.arguments import drops_to_exchange, refuses_to_exchange
from toymq_py.amqp.dead_letters import dead_letter_of, dead_letter_of_refused
from toymq_py.amqp.deliveries import WINDOW, Unacked
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.length import PAGE_BYTES, LengthLimit, Surplus
from toymq_py.amqp.properties import envelope_of, expiration_of
from toymq_py.amqp.queues import CONSUMER, Queues
from toymq_py.amqp.topology import Queue
from toymq_py.clock import Clock
from toymq_py.errors import RequestError
from toymq_py.records import Records
from toymq_py.topic import Delivery, Subscription, Topic

logger = logging.getLogger("toymq_py.amqp")

AT_ONCE = 64
"""Messages that expire in one go; other work has its turn before the next."""
DROPPED_AT_ONCE = 512
"""Dead letters that are stored in one go for messages beyond the length: more than publishers append meanwhile, so that they do
not pile up."""
TAKERS_FIRST_S = 0.01
"""The delay before a queue with ready consumers is cut: messages that they take at once were never beyond the length."""
LOOK_MIN_S, LOOK_MAX_S = 1.0, 60.0
"""The shortest and longest time between two searches for expired messages, if messages have expirations of their own: an
expired one may have become the head of the queue."""
LATEST_S = 86_400.0
SAY_EVERY_S = 10.0
"""The time between two lines of the log about refused messages that a queue has lost."""


def expires_at_ns(records: Records, row: int, ttl_ms: int | None) -> int | None:
    """When a message expires: by its own expiration or by its queue's, whichever is sooner. None: never."""
    block = b"" if records.headers is None else records.headers[row]
    own_ms = expiration_of(envelope_of("", block).properties) if block else None
    times_ms = [ms for ms in (own_ms, ttl_ms) if ms is not None]
    return records.ts_ns[row] + min(times_ms) * 1_000_000 if times_ms else None


class Expiry:
    """Watches one queue: sends its messages to the dead-letter exchange when they expire or exceed the limit."""

    def __init__(self, queues: Queues, queue: Queue, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._queues = queues
        self._clock = clock
        self._queue = queue
        self._loop = loop
        self._ttl_ms: int | None = queue.arguments.get("x-message-ttl")
        self._surplus = None
        if drops_to_exchange(queue.arguments):
            self._surplus = Surplus(LengthLimit(queue.arguments), self._subscribe, self._beyond)
        self._letters = 0  # on their way
        self._lost, self._say_again_at = 0, 0.0  # refused messages that were not dead-lettered
        self._subscription: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._own = True  # messages with an expiration of their own may be there
        self._pause_s = LOOK_MIN_S
        self._at = 0.0  # of the timer
        self._refusals = 0  # in turn
        self._not_before = 0.0
        self._closed = False

    def is_over(self, delivery: Delivery, row: int) -> bool:
        """Whether a message of a delivery has expired."""
        return self._is_over(delivery.records, row)

    def _is_over(self, records: Records, row: int) -> bool:
        at_ns = expires_at_ns(records, row, self._ttl_ms)
        return at_ns is not None and at_ns <= self._clock.wall_ns()

    def published(self, ttl_ms: int) -> None:
        """Note that a message with its own expiration is stored."""
        self._own = True
        self._pause_s = LOOK_MIN_S
        self.look_in(ttl_ms / 1000)

    def refused(self, payload: bytes, block: bytes) -> None:
        """Note that the queue is full and a message was not stored."""
        name = self._queue.name
        target = self._queues.dead_letter_target(name, envelope_of(name, block).routing_key)
        if target is None or not refuses_to_exchange(self._queue.arguments):
            return
        try:
            dead_letter_of_refused(self._queues, name, payload, block, target, self._clock.wall_ns() // 1_000_000_000)
        except (AmqpError, RequestError) as error:
            self._lost += 1
            if (now := self._loop.time()) >= self._say_again_at:
                logger.warning("queue %s is full: %d refused messages were not dead-lettered: %s", name, self._lost, error)
                self._lost, self._say_again_at = 0, now + SAY_EVERY_S

    def begin(self) -> None:
        """Begin: examine the queue now, and after each commit if its length is limited."""
        self.look_in(0.0)
        self._listen()

    def _listen(self) -> None:
        broker, name = self._queues.broker, self._queue.topic
        if self._surplus is not None and not self._closed and broker.has(name):
            broker.topic(name).when_committed(self._committed)

    def _committed(self) -> None:
        """Cut the queue before any consumer can see that it is too long; the dead letters follow in turns of their own."""
        self._listen()
        if self._queues.wake_consumer(self._queue.name):
            self.look_in(TAKERS_FIRST_S)
        elif self._surplus is not None and not self._closed and self._not_before <= self._loop.time():
            broker, name = self._queues.broker, self._queue.topic
            if broker.shutting_down or not broker.has(name):
                return
            try:
                topic = broker.topic(name)
                if (channel := topic.channels.get(CONSUMER)) is not None:
                    self._surplus.lease(topic, channel)
            except (RequestError, OSError):
                self.look_in(0.0)  # which tells
            else:
                if self._surplus:
                    self.look_in(0.0)

    def look_in(self, delay_s: float) -> None:
        """Examine the queue in ``delay_s`` seconds, or earlier if that is already scheduled."""
        if self._closed:
            return
        at = self._loop.time() + min(delay_s, LATEST_S)
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self.look)

    def look(self) -> None:
        """Expire the messages whose time is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (left_s := self._not_before - self._loop.time()) > 0:
            self.look_in(left_s)
            return
        if left_s < -LOOK_MAX_S:
            self._refusals = 0
        broker, name = self._queues.broker, self._queue.topic
        if broker.shutting_down or not broker.has(name):
            return
        try:
            delay_s = self._expire(broker.topic(name))
        except (AmqpError, RequestError, OSError) as error:
            logger.warning("queue %s: what has expired is not dead-lettered yet: %s", self._queue.name, error)
            delay_s = LOOK_MIN_S
        if delay_s is not None:
            self.look_in(delay_s)

    def _expire(self, topic: Topic) -> float | None:
        """Send expired messages to the dead-letter exchange.

        Returns: when to look again, in seconds; None for not before something is published.

        Raises: RequestError, OSError.
        """
        if self._subscription is not None and not self._subscription.lessee.inflight:
            self._subscription.close()
            self._subscription = None
        channel = topic.channels.get(CONSUMER)
        if self._surplus is not None and channel is not None:
            self._surplus.lease(topic, channel)
            self._give_up_surplus(self._surplus)
            if self._surplus or self._not_before:
                return LOOK_MIN_S if self._not_before else 0.0 if self._letters < WINDOW else None
        for _ in range(AT_ONCE):
            head = None if channel is None else channel.head()
            if head is None:
                self._own = channel is not None and channel.consumer.unacked(topic.next_id) > 0  # leased, or delayed
                return self._next_s(None if self._ttl_ms is None else self._ttl_ms / 1000)
            records, row, _ = topic.read(head, 1)
            if records is not None:  # a lost record is passed over by taking
                at_ns = expires_at_ns(records, row, self._ttl_ms)
                left_s = None if at_ns is None else (at_ns - self._clock.wall_ns()) / 1e9
                if left_s is None or left_s > 0:
                    return self._next_s(left_s)
            if not self._take_expired(topic):
                return LOOK_MIN_S
        return 0.0

    def _give_up_surplus(self, surplus: Surplus) -> None:
        for message, reason in surplus.take(min(DROPPED_AT_ONCE, WINDOW - self._letters)):
            self._give_up(message, reason)
            if self._not_before:  # it was refused: what waits counts again, and leaves later in its order
                surplus.give_back()
                return

    def _beyond(self, delivery: Delivery, row: int) -> tuple[Unacked, str]:
        """A message beyond the maximum length, as an unacked one, and why it leaves: ``expired`` or ``maxlen``."""
        return self._unacked(delivery, row), "expired" if self._is_over(delivery.records, row) else "maxlen"

    def _unacked(self, delivery: Delivery, row: int) -> Unacked:
        records, name = delivery.records, self._queue.name
        routing_key = envelope_of(name, b"" if records.headers is None else records.headers[row]).routing_key
        return Unacked(name, delivery.subscription.channel, records.ids[row], routing_key, delivery.attempt)

    def _next_s(self, wanted_s: float | None) -> float | None:
        if self._subscription is not None:
            return min(LOOK_MIN_S, LATEST_S if wanted_s is None else wanted_s)  # to end it when its letters are stored
        if not self._own:
            return wanted_s
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, LOOK_MAX_S)
        return pause_s if wanted_s is None else min(wanted_s, pause_s)

    def _subscribe(self, topic: Topic, window: int) -> Subscription:
        """Attach to the queue, to lease messages for the dead-letter exchange. Raises: RequestError, OSError."""
        subscription = self._queues.subscribe(
            self._queue.name, topic, window=window, wake=lambda _: False, ended=lambda _, code: None
        )
        subscription.lessee.settles = True
        return subscription

    def _take_expired(self, topic: Topic) -> bool:
        """Lease the next message and dead-letter it. Returns: False when that has to wait. Raises: RequestError, OSError."""
        if self._subscription is None or self._subscription.closed:
            self._subscription = self._subscribe(topic, WINDOW)
        subscription = self._subscription
        delivery = subscription.take(PAGE_BYTES, 1)
        if delivery is None:
            return False
        if not self._is_over(delivery.records, delivery.start):
            subscription.unsend(delivery.first_id, delivery.first_id)
            return False
        self._give_up(self._unacked(delivery, delivery.start), "expired")
        return not self._not_before

    def _give_up(self, message: Unacked, reason: str) -> None:
        target = self._queues.dead_letter_target(self._queue.name, message.routing_key)
        if target is None:
            message.source.ack([(message.msg_id, message.msg_id)])
        else:
            self._not_before = 0.0
            self._letters += 1
            dead_letter_of(self._queues, message, target, reason, self._settled)

    def _settled(self, stored: bool) -> None:
        """Note whether a dead letter was stored. If not, as when its target is full, retry the head after 1, 2, 4 … 60 s."""
        self._letters -= 1
        if stored:
            if self._surplus:
                self.look_in(0.0)
            elif self._surplus is not None:
                self._surplus.rest()
            return
        if self._not_before > self._loop.time():
            return  # one that was on its way together with the first
        self._refusals = min(self._refusals + 1, 6)
        self._not_before = self._loop.time() + min(LOOK_MIN_S * 2 ** (self._refusals - 1), LOOK_MAX_S)
        self.look_in(0.0)

    def close(self) -> None:
        """Stop. Dead letters may still be on their way; no more follow."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._subscription is not None:
            self._subscription.close()
        if self._surplus is not None:
            self._surplus.close()


class Expiries:
    """The queues with a dead-letter exchange, by name and by topic."""

    def __init__(self, queues: Queues, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._queues = queues
        self._clock = clock
        self._loop = loop
        self._by_name: dict[str, Expiry] = {}
        self._by_topic: dict[str, Expiry] = {}

    def watch(self, queue: Queue) -> None:
        """Watch a queue. One without a dead-letter exchange drops expired and surplus messages by the settings of its topic."""
        if queue.arguments.get("x-dead-letter-exchange") is None or queue.name in self._by_name:
            return
        self._by_name[queue.name] = self._by_topic[queue.topic] = expiry = Expiry(self._queues, queue, self._clock, self._loop)
        expiry.begin()

    def forget(self, queue: Queue) -> None:
        """Stop watching a queue that is gone. Idempotent."""
        expiry = self._by_name.pop(queue.name, None)
        if expiry is not None:
            self._by_topic.pop(queue.topic, None)
            expiry.close()

    def left(self, name: str) -> None:
        """Look at a queue whose last consumer is gone: messages that it gave back may have expired."""
        if (expiry := self._by_name.get(name)) is not None:
            expiry.look_in(0.0)

    def of_topic(self, topic: str) -> Expiry | None:
        return self._by_topic.get(topic)

    def close(self) -> None:
        """Stop all timers."""
        for expiry in self._by_name.values():
            expiry.close()
        self._by_name.clear()
        self._by_topic.clear()
