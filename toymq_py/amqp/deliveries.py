"""Deliveries of one AMQP channel: its consumers, and the messages that it has not acked.

Contract: amqp.md, "Model" (basic.consume, qos, get). A lease lasts as long as its connection: RabbitMQ's clients renew none.
Belongs to the event loop.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from toymq_py.amqp import fields, frames, properties
from toymq_py.amqp.frames import BODY, END_BYTE, HEADER, METHOD, body_frames
from toymq_py.amqp.properties import envelope_of
from toymq_py.amqp.queue_consumers import QueueConsumers
from toymq_py.amqp.streams import StreamReader
from toymq_py.amqp.timestamp import Long
from toymq_py.records import Records
from toymq_py.topic import Channel as TopicChannel
from toymq_py.topic import Delivery, Subscription
from toymq_py.topic.deliverer import ranges_of

WINDOW = 1024
"""Unacked messages of a consumer whose prefetch is unlimited."""

_FRAME = struct.Struct(">BHI")
_DELIVER = struct.Struct(">HH")
_TAG = struct.Struct(">QB")
_CONTENT = struct.Struct(">HHQ")


class Unacked(NamedTuple):
    """A delivered message that the client has not settled."""

    queue: str
    source: "TopicChannel | StreamReader"
    msg_id: int
    routing_key: str
    attempt: int


@dataclass(eq=False)
class Consumer:
    """One basic.consume: takes messages from a queue until it is cancelled."""

    channel: int
    queue: str
    tag: str
    no_ack: bool
    is_exclusive: bool
    on_dropped: Callable[["Consumer"], None]
    on_told: Callable[["Consumer"], None]
    on_activated: Callable[["Consumer"], bool]
    on_woken: Callable[["Consumer"], bool]
    priority: int = 0
    window: int = WINDOW
    order: QueueConsumers | None = None
    """The order of the queue's consumers, where they have different priorities: it is asked before a message is taken."""
    subscription: Subscription | None = None
    reader: StreamReader | None = None
    """The reader of a stream, in place of the subscription."""
    delivery_limit: int | None = None
    """Number of attempts after which a message goes to the dead-letter exchange; None where the topic counts."""
    is_over: Callable[[Delivery, int], bool] | None = None
    """Whether a message has expired; None where the topic drops expired messages."""

    def activate(self) -> bool:
        """Let the consumer take messages from now on. Returns: False when its topic is gone; the client was told."""
        return self.on_activated(self)

    def wake(self) -> bool:
        """Tell the consumer that messages are ready. Returns: whether it takes some soon."""
        return self.on_woken(self)

    def drop(self) -> None:
        """Drop the consumer: its queue is being deleted."""
        self.on_dropped(self)

    def tell(self) -> None:
        """Tell the client that the queue is gone."""
        self.on_told(self)

    @property
    def gives_up(self) -> bool:
        """Whether some messages, such as expired ones, go to a dead-letter exchange instead of the client."""
        return self.delivery_limit is not None or self.is_over is not None

    def reason_to_give_up(self, delivery: Delivery, row: int) -> str | None:
        """Why a message goes to the dead-letter exchange, in RabbitMQ's words; None if it is to be delivered."""
        if self.delivery_limit is not None and delivery.attempt > self.delivery_limit + 1:
            return "delivery_limit"
        return "expired" if self.is_over is not None and self.is_over(delivery, row) else None

    def wake_others(self) -> None:
        """Wake another consumer of the queue: this one was woken and cannot take now."""
        if self.subscription is not None:
            self.subscription.wake_others()
        if self.order is not None:
            self.order.pass_on()


class UnackedMessages:
    """The unacked messages of a channel by delivery tag, ascending."""

    def __init__(self) -> None:
        self._by_tag: dict[int, Unacked] = {}
        self._last_tag = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    def next_tag(self) -> int:
        """A tag for a delivery; call ``add`` if the delivery needs an ack."""
        self._last_tag += 1
        return self._last_tag

    def add(self, tag: int, unacked: Unacked) -> None:
        self._by_tag[tag] = unacked

    def take(self, tag: int, *, multiple: bool) -> list[Unacked] | None:
        """Settle a tag, or all tags up to it; 0 means all. Returns: None for an unknown tag."""
        if not multiple:
            found = self._by_tag.pop(tag, None)
            return None if found is None else [found]
        if tag and tag > self._last_tag:
            return None
        taken: list[Unacked] = []
        for each in list(self._up_to(tag)):
            taken.append(self._by_tag.pop(each))
        return taken

    def _up_to(self, tag: int) -> Iterator[int]:
        for each in self._by_tag:
            if tag and each > tag:
                return
            yield each

    def take_all(self) -> list[Unacked]:
        found = list(self._by_tag.values())
        self._by_tag.clear()
        return found


def by_source(messages: list[Unacked]) -> Iterator[tuple[TopicChannel | StreamReader, list[tuple[int, int]]]]:
    """Group settled messages by the consumer or stream reader that leased them, as id ranges."""
    ids: dict[TopicChannel | StreamReader, list[int]] = {}
    for message in messages:
        ids.setdefault(message.source, []).append(message.msg_id)
    for source, found in ids.items():
        yield source, ranges_of(sorted(found))


class DeliveryFrames:
    """Encodes the messages of one consumer."""

    def __init__(self, channel: int, tag: str, frame_max: int) -> None:
        self._channel = channel
        self._head = _DELIVER.pack(60, 60) + fields.shortstr(tag)
        self._frame_max = frame_max

    def encode(self, tag: int, queue: str, delivery: Delivery, row: int) -> tuple[list[bytes], str]:
        """The frames that deliver one message, and its routing key."""
        envelope, body = content_of(queue, delivery, row)
        return self.encode_content(tag, envelope, body, redelivered=delivery.attempt > 1), envelope.routing_key

    def encode_content(self, tag: int, envelope: properties.Envelope, body: bytes, *, redelivered: bool) -> list[bytes]:
        """The frames that deliver a message, from its properties and body."""
        rest = _TAG.pack(tag, redelivered) + fields.shortstr(envelope.exchange) + fields.shortstr(envelope.routing_key)
        channel, size = self._channel, len(self._head) + len(rest)
        return [
            _FRAME.pack(METHOD, channel, size), self._head, rest, END_BYTE,
            *content_frames(channel, envelope.properties, body, self._frame_max),
        ]  # fmt: skip


def content_of(queue: str, delivery: Delivery, row: int) -> tuple[properties.Envelope, bytes]:
    """The content of a delivered message: properties as published, and its body."""
    records = delivery.records
    block = b"" if records.headers is None else records.headers[row]
    envelope = envelope_of(queue, block)
    if delivery.attempt > 1:
        found = properties.decode(envelope.properties)
        found["headers"] = {**found.get("headers", {}), "x-delivery-count": delivery.attempt - 1}
        envelope = envelope._replace(properties=properties.encode(found))
    return envelope, records.payloads[row]


def stream_content_of(queue: str, records: Records, row: int) -> tuple[properties.Envelope, bytes]:
    """The content of a message of a stream: properties as published, and its offset."""
    envelope = envelope_of(queue, b"" if records.headers is None else records.headers[row])
    found = properties.decode(envelope.properties)
    found["headers"] = {**found.get("headers", {}), "x-stream-offset": Long(records.ids[row])}
    return envelope._replace(properties=properties.encode(found)), records.payloads[row]


def content_frames(channel: int, raw_properties: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """The header and body frames of a content."""
    size = len(raw_properties) + _CONTENT.size
    head = [_FRAME.pack(HEADER, channel, size), _CONTENT.pack(60, 0, len(body)), raw_properties, END_BYTE]
    if len(body) <= frame_max - frames.OVERHEAD:
        return [*head, _FRAME.pack(BODY, channel, len(body)), body, END_BYTE] if body else head
    return head + body_frames(channel, body, frame_max)
