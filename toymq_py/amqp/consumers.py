"""The consumers of one AMQP channel: their deliveries, and how the client settles these.

Contract: amqp.md, "Model" (basic.consume, qos, get). Belongs to the event loop.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from toymq_py.amqp import methods
from toymq_py.amqp.arguments import consumer_priority
from toymq_py.amqp.dead_letters import dead_letter_of
from toymq_py.amqp.declarations import COUNT_MAX, Later, Owner
from toymq_py.amqp.deliveries import (
    WINDOW,
    Consumer,
    DeliveryFrames,
    Unacked,
    UnackedMessages,
    by_source,
    content_frames,
    content_of,
    stream_content_of,
)
from toymq_py.amqp.errors import NOT_ALLOWED, NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from toymq_py.amqp.methods import Method
from toymq_py.amqp.properties import Envelope
from toymq_py.amqp.queues import Queues
from toymq_py.amqp.replies import REPLY_TO
from toymq_py.amqp.streams import StreamReader, offset_of, position_of
from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.topic import Delivery, Subscription, Topic
from toymq_py.topic.deliverer import ranges_of

TAKE_BYTES = 64 * 1024
TAKE_MESSAGES = 128


class Outlet(Owner, Protocol):
    """What a channel's consumers need of the connection."""

    @property
    def frame_max(self) -> int:
        """The largest frame that the client takes."""

    @property
    def is_told_of_cancels(self) -> bool:
        """Whether the client has said that it understands a basic.cancel from the broker."""

    @property
    def is_crowded(self) -> bool:
        """Whether so many bytes wait for the client to read them that direct replies are dropped."""

    def write(self, *pieces: bytes) -> None: ...

    def wake(self, consumer: Consumer) -> bool:
        """Schedule ``deliver`` for a consumer. Returns: False when it has to wait, as for a client that does not read."""

    def check_subscriptions(self) -> None:
        """Check that the connection may have one more subscription. Raises: AmqpError."""

    def when_taken(self, call: Callable[[None], object]) -> None:
        """Call ``call(None)`` once the socket has taken what was written."""


class Consumers:
    """The consumers of a channel and its unsettled messages, with the AMQP methods that concern them."""

    def __init__(
        self, number: int, outlet: Outlet, queues: Queues, reply: Callable[..., None], queue_of: Callable[[Method], str],
        in_transaction: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        """
        Args:
            reply: writes a method of this channel.
            queue_of: returns the queue that a method names. Raises: AmqpError.
            in_transaction: makes a call now, or in a transaction at tx.commit. Raises: AmqpError.
        """
        self._number = number
        self._outlet = outlet
        self._queues = queues
        self._reply = reply
        self._queue_of = queue_of
        self._in_transaction = in_transaction
        self.by_tag: dict[str, Consumer] = {}
        self._unacked = UnackedMessages()
        self._getters: dict[str, Subscription] = {}
        self._acked: list[Unacked] = []  # since the last ``flush``
        self._retired: list[Subscription] = []  # of consumers that are gone, with messages that are not settled
        self._prefetch = 0
        self._channel_prefetch = 0
        self._stopped = False
        """Whether the client has paused deliveries (channel.flow)."""
        self.reply_token = ""
        """The token of the channel's consumer of direct replies; empty without one."""
        self._reply_tag = ""
        self.handlers: Mapping[str, Callable[[Method], Later]] = {
            "channel.flow": self._flow, "basic.qos": self._qos, "basic.consume": self._consume, "basic.cancel": self._cancel,
            "basic.get": self._get, "basic.ack": self._ack, "basic.nack": self._nack, "basic.reject": self._nack,
            "basic.recover": self._recover, "basic.recover-async": self._recover,
        }  # fmt: skip

    def __len__(self) -> int:
        """The number of subscriptions: consumers, queues that basic.get took from, and cancelled consumers with unsettled
        messages."""
        return len(self.by_tag) + len(self._getters) + len(self._retired)

    def describe(self) -> dict[str, int]:
        """The consumers' part of a channel's JSON object. ``prefetch`` 0 is no limit."""
        return {
            "consumers": len(self.by_tag), "prefetch": self._prefetch, "channel_prefetch": self._channel_prefetch,
            "unacked": len(self._unacked),
        }  # fmt: skip

    def flush(self) -> None:
        """Carry out the collected acks."""
        if self._acked:
            acked, self._acked = self._acked, []
            for source, ids in by_source(acked):
                source.ack(ids)
            self._room_again()

    def close(self) -> None:
        """End all consumers; unsettled messages are ready again."""
        for consumer in list(self.by_tag.values()):
            self._drop(consumer)
        for subscription in (*self._getters.values(), *self._retired):
            subscription.close()
        self._getters.clear()
        self._retired.clear()
        self._unacked.take_all()
        self._drop_replies()

    def stop(self) -> None:
        """Stop deliveries; delivered messages may still be settled."""
        self._stopped = True

    # -- begin and end

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
        for consumer in self.by_tag.values():
            self._outlet.wake(consumer)

    def _consume(self, method: Method) -> Later:
        priority = consumer_priority(method["arguments"])
        queue, tag = self._queue_of(method), method["consumer_tag"] or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.by_tag or (tag == self._reply_tag and self.reply_token):
            raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", method.index)
        if queue == REPLY_TO:
            return self._consume_replies(method, tag)
        topic = self._topic_to_read(queue)
        self._outlet.check_subscriptions()
        consumer = Consumer(
            self._number, queue, tag, method["no_ack"], method["exclusive"], self._drop, self._told, self._activate,
            self._may_take, priority,
        )  # fmt: skip
        consumer.window = WINDOW if method["no_ack"] else self._prefetch or WINDOW
        if self._queues.is_stream(queue):
            return self._consume_stream(method, consumer, topic)
        if (offset := method["arguments"].get("x-stream-offset")) is not None:
            text = f"x-stream-offset {str(offset)[:40]!r}: queue '{queue}' is not a stream"
            raise AmqpError(NOT_IMPLEMENTED, text, method.index)
        if self._queues.attach(queue, consumer):
            try:
                self._subscribe(topic, consumer)
            except BaseException:
                self._queues.detach(queue, consumer)
                raise
        declared = self._queues.topology.queues.get(queue)
        if declared is not None and "x-dead-letter-exchange" in declared.arguments:
            consumer.delivery_limit = declared.arguments.get("x-delivery-limit")
            expiry = self._queues.expiries.of_topic(topic.name)
            consumer.is_over = None if expiry is None else expiry.is_over
        self._begin(method, consumer)
        return None

    def _topic_to_read(self, queue: str) -> Topic:
        """The topic of a queue that the client may read. Without the right it is not told whether there is one.

        Raises: AmqpError, RequestError."""
        self._outlet.rights.subscribe(self._queues.topic_name(queue))
        return self._queues.topic(queue, self._outlet)

    def _begin(self, method: Method, consumer: Consumer) -> None:
        self.by_tag[consumer.tag] = consumer
        if not method["no_wait"]:
            self._reply("basic.consume-ok", consumer_tag=consumer.tag)
        self._outlet.wake(consumer)

    def _consume_stream(self, method: Method, consumer: Consumer, topic: Topic) -> Later:
        """Begin a consumer that reads a stream. Raises: AmqpError, OSError."""
        offset = offset_of(method["arguments"])
        if not self._prefetch:
            text = f"consumer prefetch count is not set for stream queue '{consumer.queue}' in vhost '{self._queues.vhost}'"
            raise AmqpError(PRECONDITION_FAILED, text, method.index)
        position = position_of(topic, offset)
        consumer.priority = 0  # each has all
        self._queues.attach(consumer.queue, consumer)
        consumer.reader = StreamReader(topic, position, self._prefetch, lambda: self._outlet.wake(consumer))
        self._begin(method, consumer)
        return None

    def _subscribe(self, topic: Topic, consumer: Consumer) -> None:
        """Subscribe a consumer to a queue's topic. Raises: RequestError, OSError."""
        consumer.subscription = self._queues.subscribe(
            consumer.queue, topic, window=consumer.window, wake=lambda _: self._woken(consumer),
            ended=lambda _, code: self._ended(consumer),
        )  # fmt: skip

    def _activate(self, consumer: Consumer) -> bool:
        """Activate a consumer after the single active one of its queue is gone. Returns: False when the topic is gone."""
        try:
            topic = self._queues.topic(consumer.queue, self._outlet)
            if topic.deleted:
                raise NoSuchTopic(f"{topic.name} is being deleted")
            self._subscribe(topic, consumer)
        except (AmqpError, RequestError, OSError):
            self.by_tag.pop(consumer.tag, None)
            self._told(consumer)
            return False
        self._outlet.wake(consumer)
        return True

    def _may_take(self, consumer: Consumer) -> bool:
        """Let a consumer take messages, if it has credit. Returns: whether it does so soon."""
        subscription = consumer.subscription
        if subscription is None or subscription.closed or subscription.lessee.inflight >= subscription.lessee.window:
            return False
        return self.by_tag.get(consumer.tag) is consumer and self._room(consumer) > 0 and self._outlet.wake(consumer)

    def _woken(self, consumer: Consumer) -> bool:
        """Messages are ready. Returns: whether this consumer takes them soon; otherwise another one is woken."""
        if self.by_tag.get(consumer.tag) is consumer and self._outlet.wake(consumer) and self._room(consumer) > 0:
            return True
        if consumer.order is not None:
            consumer.order.pass_on()
        return False

    def _cancel(self, method: Method) -> Later:
        tag = method["consumer_tag"]
        consumer = self.by_tag.get(tag)
        if consumer is not None:
            self._drop(consumer)
        elif tag == self._reply_tag:
            self._drop_replies()
        if not method["no_wait"]:
            self._reply("basic.cancel-ok", consumer_tag=tag)
        return None

    def _ended(self, consumer: Consumer) -> None:
        """Handle the end of a queue's topic: another protocol has deleted it, or the broker shuts down."""
        if self.by_tag.get(consumer.tag) is consumer:
            self._told(consumer)
            self._drop(consumer)

    def _told(self, consumer: Consumer) -> None:
        """Tell the client that its consumer is gone, if it understands basic.cancel."""
        if self._outlet.is_told_of_cancels:
            self._reply("basic.cancel", consumer_tag=consumer.tag, no_wait=True)

    def _drop(self, consumer: Consumer) -> None:
        """End a consumer. The channel keeps its delivered messages, and their leases, until they are settled."""
        self.by_tag.pop(consumer.tag, None)
        if consumer.reader is not None:
            consumer.reader.close()
        if consumer.subscription is not None:
            self._retired.append(consumer.subscription)
            self._end_retired()
        self._queues.detach(consumer.queue, consumer)

    def _end_retired(self) -> None:
        for subscription in [each for each in self._retired if each.closed or not each.lessee.inflight]:
            self._retired.remove(subscription)
            subscription.close()

    # -- direct replies

    def _consume_replies(self, method: Method, tag: str) -> Later:
        if not method["no_ack"]:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge: consume with no_ack", method.index)
        if self.reply_token:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer already set", method.index)
        self._reply_tag = tag
        self.reply_token = self._queues.replies.add(self._reply_came)
        if not method["no_wait"]:
            self._reply("basic.consume-ok", consumer_tag=tag)
        return None

    def _drop_replies(self) -> None:
        self._queues.replies.discard(self.reply_token)
        self.reply_token = ""

    def _reply_came(self, envelope: Envelope, body: bytes) -> None:
        """Send a direct reply to the client, past all queues; a client that does not read gets none."""
        if not self.reply_token or self._outlet.is_crowded:
            return
        head = methods.encode(
            self._number, "basic.deliver", consumer_tag=self._reply_tag, delivery_tag=self._unacked.next_tag(),
            redelivered=False, exchange=envelope.exchange, routing_key=envelope.routing_key,
        )  # fmt: skip
        self._outlet.write(head, *content_frames(self._number, envelope.properties, body, self._outlet.frame_max))

    # -- delivering

    def _room(self, consumer: Consumer) -> int:
        """How many messages may be delivered to a consumer now, by the prefetch of its channel."""
        if self._stopped:
            return 0
        if not self._channel_prefetch or consumer.no_ack:
            return TAKE_MESSAGES
        return min(TAKE_MESSAGES, self._channel_prefetch - len(self._unacked))

    def deliver(self, consumer: Consumer) -> bool:
        """Write messages of a consumer. Returns: whether there may be more. Raises: OSError."""
        subscription = consumer.subscription
        if subscription is None and consumer.reader is not None and self.by_tag.get(consumer.tag) is consumer:
            return self._deliver_stream(consumer, consumer.reader)
        if subscription is None or self.by_tag.get(consumer.tag) is not consumer:
            return False  # cancelled, with messages that are not settled
        order = consumer.order
        if order is not None and order.must_wait(consumer):
            return False
        if (room := self._room(consumer)) <= 0:
            consumer.wake_others()  # an ack, or channel.flow, wakes this one
            return False
        delivery = subscription.take(TAKE_BYTES, room)
        if delivery is None:
            if order is not None and subscription.lessee.wants_room:
                order.pass_on()
            return False
        self._write(consumer, delivery)
        return True

    def _deliver_stream(self, consumer: Consumer, reader: StreamReader) -> bool:
        """Write messages of a stream to its consumer, as ``deliver`` does."""
        if reader.is_over:
            self._ended(consumer)
            return False
        if (room := self._room(consumer)) <= 0 or (found := reader.read(TAKE_BYTES, room)) is None:
            return False
        records, start, stop = found
        encoder, out = DeliveryFrames(self._number, consumer.tag, self._outlet.frame_max), list[bytes]()
        for row in range(start, stop):
            tag, (envelope, body) = self._unacked.next_tag(), stream_content_of(consumer.queue, records, row)
            out += encoder.encode_content(tag, envelope, body, redelivered=False)
            if not consumer.no_ack:
                self._unacked.add(tag, Unacked(consumer.queue, reader, records.ids[row], envelope.routing_key, 1))
        self._outlet.write(*out)
        if consumer.no_ack:
            self._outlet.when_taken(partial(self._taken, reader, ranges_of(records.ids[start:stop])))
        return True

    def _write(self, consumer: Consumer, delivery: Delivery) -> None:
        encoder = DeliveryFrames(self._number, consumer.tag, self._outlet.frame_max)
        source, ids, out, written = delivery.subscription.channel, delivery.records.ids, [], []
        for row in range(delivery.start, delivery.stop):
            if consumer.gives_up and (reason := consumer.reason_to_give_up(delivery, row)):
                envelope, _ = content_of(consumer.queue, delivery, row)
                gone = Unacked(consumer.queue, source, ids[row], envelope.routing_key, delivery.attempt)
                self._give_up([gone], reason)
                continue
            if consumer.no_ack:
                pieces, _ = encoder.encode(self._unacked.next_tag(), consumer.queue, delivery, row)
                written.append(ids[row])
            else:
                tag = self._unacked.next_tag()
                pieces, routing_key = encoder.encode(tag, consumer.queue, delivery, row)
                self._unacked.add(tag, Unacked(consumer.queue, source, ids[row], routing_key, delivery.attempt))
            out += pieces
        if out:
            self._outlet.write(*out)
        if written:  # what was given up is acked when its dead letter is stored
            self._outlet.when_taken(partial(self._taken, source, ranges_of(written)))

    def _taken(self, source: Any, ids: list[tuple[int, int]], _: None) -> None:
        """Ack messages of a ``no-ack`` consumer, once the socket has taken them."""
        source.ack(ids)
        self._end_retired()

    def _get(self, method: Method) -> Later:
        queue = self._queue_of(method)
        topic = self._topic_to_read(queue)
        self._queues.refuse_stream(queue, "basic.get")
        getter = self._getters.get(queue)
        if getter is None or getter.closed:
            self._outlet.check_subscriptions()
            getter = self._queues.subscribe(queue, topic, window=1, wake=lambda _: False, ended=lambda _, code: None)
            self._getters[queue] = getter
        self._queues.used(queue)
        if (expiry := self._queues.expiries.of_topic(topic.name)) is not None:
            expiry.look()
        delivery = getter.take_some(1, TAKE_BYTES)
        if delivery is None:
            self._reply("basic.get-empty")
            return None
        envelope, body = content_of(queue, delivery, delivery.start)
        tag, source, msg_id = self._unacked.next_tag(), getter.channel, delivery.first_id
        ready, _ = self._queues.counts(queue, topic)
        head = methods.encode(
            self._number, "basic.get-ok", delivery_tag=tag, redelivered=delivery.attempt > 1, exchange=envelope.exchange,
            routing_key=envelope.routing_key, message_count=min(ready, COUNT_MAX),
        )  # fmt: skip
        self._outlet.write(head, *content_frames(self._number, envelope.properties, body, self._outlet.frame_max))
        if method["no_ack"]:
            self._outlet.when_taken(partial(self._taken, source, [(msg_id, msg_id)]))
        else:
            self._unacked.add(tag, Unacked(queue, source, msg_id, envelope.routing_key, delivery.attempt))
        return None

    # -- settling

    def _settled(self, method: Method, *, multiple: bool) -> list[Unacked]:
        """Take the unacked messages that a command of the client settles.

        Raises: AmqpError (PRECONDITION_FAILED) for a tag that is not there.
        """
        tag = method["delivery_tag"]
        found = self._unacked.take(tag, multiple=multiple)
        if found is None:
            raise AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}", method.index)
        return found

    def _ack(self, method: Method) -> Later:
        found = self._settled(method, multiple=method["multiple"])
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
        """Settle messages for good: they go to the dead-letter exchange of their queue, if it has one."""
        lasting = []
        for message in messages:
            target = self._queues.dead_letter_target(message.queue, message.routing_key)
            if target is None:
                lasting.append(message)
            else:
                dead_letter_of(self._queues, message, target, reason)
        for source, ids in by_source(lasting):
            source.ack(ids)

    def _recover(self, method: Method) -> Later:
        if not method["requeue"]:
            raise AmqpError(NOT_IMPLEMENTED, "requeue=false", method.index)
        self._requeue(self._unacked.take_all())
        if method.name == "basic.recover":
            self._reply("basic.recover-ok")
        self._room_again()
        return None
