"""One channel of an AMQP connection: its methods, applied to the broker.

Contract: amqp.md, "Model". A method is applied at once, or gives a coroutine where it waits for the disk: then what follows on
the connection waits, too. Belongs to the event loop.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from toymq_py.amqp import methods, properties
from toymq_py.amqp.arguments import check_consumer
from toymq_py.amqp.connection import PUBLISH, Content
from toymq_py.amqp.dead_letters import dead_letter_of
from toymq_py.amqp.declarations import COUNT_MAX, Declarations, Later, Owner
from toymq_py.amqp.deliveries import (
    LEASE_S,
    WINDOW,
    Consumer,
    DeliveryFrames,
    Unacked,
    UnackedMessages,
    by_source,
    content_frames,
    content_of,
)
from toymq_py.amqp.errors import (
    COMMAND_INVALID,
    NO_ROUTE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
    amqp_error,
)
from toymq_py.amqp.methods import Method
from toymq_py.amqp.properties import Envelope
from toymq_py.amqp.publishing import Confirms, Publishes
from toymq_py.amqp.queues import CONSUMER, Queues
from toymq_py.amqp.transaction import Transaction
from toymq_py.broker_waits import stored
from toymq_py.errors import RequestError
from toymq_py.topic import Delivery, Subscription, Topic
from toymq_py.units import DURATION_MS_MAX

TAKE_BYTES = 64 * 1024
TAKE_MESSAGES = 128
READ_THE_QUEUE = frozenset(("basic.get", "queue.declare", "queue.purge", "queue.delete"))
"""Methods that find what their channel published before: a message is in its queue once it is on stable storage."""


class Outlet(Owner, Protocol):
    """The channel's connection."""

    body_bytes_max: int

    @property
    def frame_max(self) -> int:
        """The largest frame that the client takes."""

    def write(self, *pieces: bytes) -> None: ...

    def wake(self, consumer: Consumer) -> bool:
        """Have ``deliver`` called for a consumer. Returns: whether that is soon."""

    def check_subscriptions(self) -> None:
        """Whether the connection may have one more. Raises: AmqpError."""

    def fail(self, channel: int, error: AmqpError) -> None:
        """Close the channel, or the connection, with an error that no method caused."""

    def progress(self) -> None:
        """Publishes were answered."""

    def when_taken(self, call: Callable[[None], object]) -> None:
        """Call ``call(None)`` once the socket has taken what was written."""


class Channel:
    """State of one channel."""

    def __init__(self, number: int, outlet: Outlet, queues: Queues) -> None:
        self.number = number
        self.queues = queues
        self._outlet = outlet
        self._broker = queues.broker
        self.consumers: dict[str, Consumer] = {}
        self.unacked = UnackedMessages()
        self._getters: dict[str, Subscription] = {}
        self._acked: list[Unacked] = []  # since the last ``flush``
        self._retired: list[Subscription] = []  # of consumers that are gone, with messages that are not settled
        self._confirms: Confirms | None = None
        self._transaction: Transaction | None = None
        self._prefetch = 0
        self._channel_prefetch = 0
        self._stopped = False
        """The client has paused deliveries (channel.flow)."""
        self._closed = False
        """What still comes of it is of no concern to the client: its number may be another channel's."""
        self.publishes = Publishes(
            self._broker, confirmed=self._confirmed, refused=self._refused, progress=outlet.progress
        )
        self._declarations = Declarations(outlet, queues, self._reply)
        self._handlers: Mapping[str, Callable[[Method], Later]] = {
            "channel.flow": self._flow,
            **self._declarations.handlers,
            "basic.qos": self._qos, "basic.consume": self._consume, "basic.cancel": self._cancel, "basic.get": self._get,
            "basic.ack": self._ack, "basic.nack": self._nack, "basic.reject": self._nack,
            "basic.recover": self._recover, "basic.recover-async": self._recover,
            "confirm.select": self._confirm_select, "tx.select": self._tx_select, "tx.commit": self._tx_commit,
            "tx.rollback": self._tx_rollback,
        }  # fmt: skip

    @property
    def transaction_bytes(self) -> int:
        """Of publishes that wait for tx.commit."""
        return 0 if self._transaction is None else self._transaction.held_bytes

    @property
    def subscriptions(self) -> int:
        """Consumers, queues that basic.get took from, and cancelled consumers with messages that are not settled."""
        return len(self.consumers) + len(self._getters) + len(self._retired)

    def _reply(self, name: str, **values: Any) -> None:
        if not self._closed:
            self._outlet.write(methods.encode(self.number, name, **values))

    def apply(self, method: Method) -> Later:
        """Apply a method. Raises: AmqpError, RequestError, OSError."""
        handler = self._handlers.get(method.name)
        if handler is None:
            raise AmqpError(COMMAND_INVALID, f"{method.name} is not a client's", method.index)
        if method.name != "basic.ack":
            self.flush()
            if self._closed:  # a publish was refused
                return None
            if method.name in READ_THE_QUEUE and self.publishes.waiting:
                return self._behind_publishes(handler, method)
        return handler(method)

    async def _behind_publishes(self, handler: Callable[[Method], Later], method: Method) -> None:
        await stored(self.publishes.when_answered)
        if not self._closed and (later := handler(method)) is not None:
            await later

    def flush(self) -> None:
        """Carry out what was collected: publishes, and acks."""
        self.publishes.flush()
        if self._acked:
            acked, self._acked = self._acked, []
            for source, ids in by_source(acked):
                source.ack(ids)
            self._room_again()

    def close(self) -> None:
        """The channel ends: its consumers go, its messages are ready again. Idempotent."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        for consumer in list(self.consumers.values()):
            self._drop(consumer)
        for subscription in (*self._getters.values(), *self._retired):
            subscription.close()
        self._getters.clear()
        self._retired.clear()
        self.unacked.take_all()

    def stop(self) -> None:
        """Deliver no more; what is delivered may be settled."""
        self._stopped = True

    # -- publishing

    def publish(self, content: Content) -> None:
        """Publish a message. Raises: AmqpError."""
        method, body = content.method, content.body
        if method.index != PUBLISH:
            raise AmqpError(COMMAND_INVALID, f"{method.name} is not a client's", method.index)
        if method["immediate"]:
            raise AmqpError(NOT_IMPLEMENTED, "immediate=true", PUBLISH)
        exchange, routing_key = method["exchange"], method["routing_key"]
        try:
            block, found = properties.as_logged(Envelope(exchange, routing_key, content.properties))
            topics = tuple(self.queues.targets(exchange, routing_key, found.get("headers", {})))
            for topic in topics:
                self._outlet.rights.publish(topic)
            self._check_size(len(body) + len(block))
            ttl_ms = _ttl_ms(found.get("expiration"))
        except AmqpError as error:
            error.method = PUBLISH
            raise
        if not topics and method["mandatory"]:
            self._return(exchange, routing_key, content)
        self._in_transaction(lambda: self.publishes.add(topics, body, block, ttl_ms), len(body) + len(block))

    def _check_size(self, size: int) -> None:
        """Raises: AmqpError."""
        most = self._outlet.body_bytes_max
        if size > most:
            raise AmqpError(PRECONDITION_FAILED, f"message and headers are larger than max size {most} (--max-payload)")

    def _return(self, exchange: str, routing_key: str, content: Content) -> None:
        self.publishes.flush()  # the confirms before this one go first
        head = methods.encode(
            self.number, "basic.return", reply_code=NO_ROUTE, reply_text="NO_ROUTE", exchange=exchange, routing_key=routing_key
        )
        self._outlet.write(head, *content_frames(self.number, content.properties, content.body, self._outlet.frame_max))

    def _confirmed(self, count: int, stored: bool) -> None:
        if self._confirms is not None and not self._closed:
            self._outlet.write(self._confirms.frame(count, stored))

    def _refused(self, error: RequestError) -> None:
        """A publish was not stored: without confirms nothing else would tell."""
        told = amqp_error(error)
        told.method = PUBLISH
        if self._transaction is not None:
            self._transaction.failed = told
        elif self._confirms is None and not self._closed:
            told.code = PRECONDITION_FAILED
            self._outlet.fail(self.number, told)

    def _confirm_select(self, method: Method) -> Later:
        if self._transaction is not None:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode", method.index)
        self._confirms = self._confirms or Confirms(self.number)
        if not method["no_wait"]:
            self._reply("confirm.select-ok")
        return None

    # -- transactions

    def _in_transaction(self, call: Callable[[], None], size: int = 0) -> None:
        """Do it now, or at tx.commit. ``size``: bytes that it holds until then. Raises: AmqpError."""
        if self._transaction is None:
            call()
        else:
            self._transaction.add(call, size)

    def _tx_select(self, method: Method) -> Later:
        if self._confirms is not None:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode", method.index)
        self._transaction = self._transaction or Transaction()
        self._reply("tx.select-ok")
        return None

    def _tx_commit(self, method: Method) -> Later:
        if self._transaction is None:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional", method.index)
        return self._commit(self._transaction)

    async def _commit(self, transaction: Transaction) -> None:
        transaction.begin_commit()
        self.flush()
        if self.publishes.waiting:
            await stored(self.publishes.when_answered)
        transaction.end_commit()
        self._reply("tx.commit-ok")

    def _tx_rollback(self, method: Method) -> Later:
        if self._transaction is None:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional", method.index)
        self._transaction.roll_back()
        self._reply("tx.rollback-ok")
        return None

    # -- consuming

    def _flow(self, method: Method) -> Later:
        self._stopped = not method["active"]
        self._reply("channel.flow-ok", active=method["active"])
        self._wake()
        return None

    def _qos(self, method: Method) -> Later:
        if method["prefetch_size"]:
            raise AmqpError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method['prefetch_size']})", method.index)
        if method["global"]:
            self._channel_prefetch = method["prefetch_count"]
        else:
            self._prefetch = method["prefetch_count"]
        self._reply("basic.qos-ok")
        self._wake()
        return None

    def _wake(self) -> None:
        for consumer in self.consumers.values():
            self._outlet.wake(consumer)

    def _consume(self, method: Method) -> Later:
        check_consumer(method["arguments"])
        queue, tag = self._declarations.queue_of(method), method["consumer_tag"] or f"amq.ctag-{secrets.token_urlsafe(16)}"
        topic = self.queues.topic(queue, self._outlet)
        self._outlet.rights.subscribe(topic.name)
        if tag in self.consumers:
            raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", method.index)
        self._outlet.check_subscriptions()
        consumer = Consumer(self.number, queue, tag, method["no_ack"], method["exclusive"], self._cancelled)
        self.queues.attach(queue, consumer)
        try:
            window = WINDOW if method["no_ack"] else self._prefetch or WINDOW
            consumer.subscription = self._subscribe(topic, consumer, window)
        except BaseException:
            self.queues.detach(queue, consumer)
            raise
        declared = self.queues.topology.queues.get(queue)
        if declared is not None and "x-dead-letter-exchange" in declared.arguments:
            consumer.delivery_limit = declared.arguments.get("x-delivery-limit")
        self.consumers[tag] = consumer
        if not method["no_wait"]:
            self._reply("basic.consume-ok", consumer_tag=tag)
        self._outlet.wake(consumer)
        return None

    def _subscribe(self, topic: Topic, consumer: Consumer, window: int) -> Subscription:
        """Raises: RequestError, OSError."""
        subscription, _ = topic.subscribe(
            CONSUMER, mode="shared", window=window, visibility_s=LEASE_S,
            wake=lambda _: self._woken(consumer),
            ended=lambda _, code: self._cancelled(consumer),
        )  # fmt: skip
        return subscription

    def _woken(self, consumer: Consumer) -> bool:
        """Messages are ready. Returns: whether they are taken soon; else another consumer is woken."""
        return self.consumers.get(consumer.tag) is consumer and self._outlet.wake(consumer) and self._room(consumer) > 0

    def _cancel(self, method: Method) -> Later:
        consumer = self.consumers.get(method["consumer_tag"])
        if consumer is not None:
            self._drop(consumer)
        if not method["no_wait"]:
            self._reply("basic.cancel-ok", consumer_tag=method["consumer_tag"])
        return None

    def _cancelled(self, consumer: Consumer) -> None:
        """The queue is gone, or the broker shuts down: the client is told."""
        if self.consumers.get(consumer.tag) is consumer:
            self._reply("basic.cancel", consumer_tag=consumer.tag, no_wait=True)
            self._drop(consumer)

    def _drop(self, consumer: Consumer) -> None:
        """End a consumer. What it has delivered stays with the channel until it is settled: so long its leases last."""
        self.consumers.pop(consumer.tag, None)
        if consumer.subscription is not None:
            self._retired.append(consumer.subscription)
            self._end_retired()
        self.queues.detach(consumer.queue, consumer)

    def _end_retired(self) -> None:
        for subscription in [each for each in self._retired if each.closed or not each.lessee.inflight]:
            self._retired.remove(subscription)
            subscription.close()

    def _room(self, consumer: Consumer) -> int:
        """How many messages of a consumer the client takes now."""
        if self._stopped:
            return 0
        if not self._channel_prefetch or consumer.no_ack:
            return TAKE_MESSAGES
        return min(TAKE_MESSAGES, self._channel_prefetch - len(self.unacked))

    def deliver(self, consumer: Consumer) -> bool:
        """Write messages of a consumer. Returns: whether there may be more. Raises: OSError."""
        subscription = consumer.subscription
        if subscription is None or self.consumers.get(consumer.tag) is not consumer:
            return False  # cancelled, with messages that are not settled
        if (room := self._room(consumer)) <= 0:
            consumer.wake_others()  # an ack, or channel.flow, wakes this one
            return False
        delivery = subscription.take(TAKE_BYTES, room)
        if delivery is None:
            return False
        self._write(consumer, delivery)
        return True

    def _write(self, consumer: Consumer, delivery: Delivery) -> None:
        encoder = DeliveryFrames(self.number, consumer.tag, self._outlet.frame_max)
        source, ids, out = delivery.subscription.channel, delivery.records.ids, []
        limit = consumer.delivery_limit
        for row in range(delivery.start, delivery.stop):
            if limit is not None and delivery.attempt > limit + 1:
                envelope, _ = content_of(consumer.queue, delivery, row)
                gone = Unacked(consumer.queue, source, ids[row], envelope.routing_key, delivery.attempt)
                self._give_up([gone], "delivery_limit")
                continue
            if consumer.no_ack:
                pieces, _ = encoder.encode(self.unacked.next_tag(), consumer.queue, delivery, row)
            else:
                tag = self.unacked.next_tag()
                pieces, routing_key = encoder.encode(tag, consumer.queue, delivery, row)
                self.unacked.add(tag, Unacked(consumer.queue, source, ids[row], routing_key, delivery.attempt))
            out += pieces
        if out:
            self._outlet.write(*out)
        if consumer.no_ack:
            self._outlet.when_taken(partial(self._taken, source, delivery.ranges()))

    def _taken(self, source: Any, ids: list[tuple[int, int]], _: None) -> None:
        """Messages without acks are with the client."""
        source.ack(ids)
        self._end_retired()

    def _get(self, method: Method) -> Later:
        queue = self._declarations.queue_of(method)
        topic = self.queues.topic(queue, self._outlet)
        self._outlet.rights.subscribe(topic.name)
        getter = self._getters.get(queue)
        if getter is None or getter.closed:
            self._outlet.check_subscriptions()
            getter, _ = topic.subscribe(
                CONSUMER, mode="shared", window=1, visibility_s=LEASE_S, wake=lambda _: False, ended=lambda _, code: None
            )
            self._getters[queue] = getter
        self.queues.used(queue)
        delivery = getter.take_some(1, TAKE_BYTES)
        if delivery is None:
            self._reply("basic.get-empty")
            return None
        envelope, body = content_of(queue, delivery, delivery.start)
        tag, source, msg_id = self.unacked.next_tag(), getter.channel, delivery.first_id
        ready, _ = self.queues.counts(queue, topic)
        head = methods.encode(
            self.number, "basic.get-ok", delivery_tag=tag, redelivered=delivery.attempt > 1, exchange=envelope.exchange,
            routing_key=envelope.routing_key, message_count=min(ready, COUNT_MAX),
        )  # fmt: skip
        self._outlet.write(head, *content_frames(self.number, envelope.properties, body, self._outlet.frame_max))
        if method["no_ack"]:
            self._outlet.when_taken(partial(self._taken, source, [(msg_id, msg_id)]))
        else:
            self.unacked.add(tag, Unacked(queue, source, msg_id, envelope.routing_key, delivery.attempt))
        return None

    # -- settling

    def _settled(self, method: Method, *, multiple: bool) -> list[Unacked]:
        """Raises: AmqpError (PRECONDITION_FAILED) for a tag that is not there."""
        tag = method["delivery_tag"]
        found = self.unacked.take(tag, multiple=multiple)
        if found is None:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}", method.index)
        return found

    def _ack(self, method: Method) -> Later:
        found = self._settled(method, multiple=method["multiple"])
        if self._transaction is None:
            self._acked += found
        else:
            self._in_transaction(lambda: self._acked.extend(found))
        return None

    def _nack(self, method: Method) -> Later:
        found = self._settled(method, multiple=method.index[1] == 120 and method["multiple"])
        requeue = method["requeue"]
        self._in_transaction(lambda: self._requeue(found) if requeue else self._give_up(found, "rejected"))
        self._room_again()
        return None

    def _room_again(self) -> None:
        self._end_retired()
        if self._channel_prefetch:
            self._wake()

    @staticmethod
    def _requeue(messages: list[Unacked]) -> None:
        for source, ids in by_source(messages):
            source.nack(ids, 0.0)

    def _give_up(self, messages: list[Unacked], reason: str) -> None:
        """Messages are done with: they go to the dead-letter exchange of their queue, if it has one."""
        lasting = []
        for message in messages:
            target = self.queues.dead_letter_target(message.queue, message.routing_key)
            if target is None:
                lasting.append(message)
            else:
                dead_letter_of(self.queues, message, target, reason)
        for source, ids in by_source(lasting):
            source.ack(ids)

    def _recover(self, method: Method) -> Later:
        if not method["requeue"]:
            raise AmqpError(NOT_IMPLEMENTED, "requeue=false", method.index)
        self._requeue(self.unacked.take_all())
        if method.name == "basic.recover":
            self._reply("basic.recover-ok")
        self._room_again()
        return None


def _ttl_ms(expiration: str | None) -> int | None:
    """Raises: AmqpError."""
    if expiration is None:
        return None
    if not (expiration.isascii() and expiration.isdigit() and len(expiration) <= 15):
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration[:40]}': write milliseconds")
    return min(max(int(expiration), 1), DURATION_MS_MAX)
