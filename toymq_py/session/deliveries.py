"""The subscriptions of a session, and the deliveries of its last write.

Contract: delivery.md, "Sessions" and "Attempts". Messages are leased when the socket has room, so every leased message was
written, except for the last write.
"""

import logging
from array import array
from collections.abc import Callable
from functools import partial
from itertools import accumulate

from toymq_py.auth.quotas import Seat
from toymq_py.clock import Clock
from toymq_py.errors import AlreadySubscribed, NotSubscribed
from toymq_py.names import TopicPattern
from toymq_py.net.fair_queue import Runnable
from toymq_py.protocol import Frames, Held, encode_closed, encode_held, encode_messages
from toymq_py.session.replies import Replies
from toymq_py.subscription import AnyPoll, PatternSubscription
from toymq_py.topic import Channel, DeliveredIds, Delivery, Subscription

logger = logging.getLogger("toymq_py.session")

RETRY_S = 0.5
"""The delay before a failed read, for lack of a descriptor for example, is repeated."""


AnySubscription = Subscription | PatternSubscription


class Deliveries:
    """The subscriptions of one session, by topic or pattern.

    PAUSE sets ``paused``. A subscription delivers nothing before its ``OK`` is written. ``pull`` is the poll of a PULL that
    waits at the head of the replies.
    """

    __slots__ = (
        "_clock",
        "_last_write",
        "_later",
        "_ready",
        "_replies",
        "_runnable",
        "_seat",
        "_stalled",
        "_unconfirmed",
        "by_name",
        "paused",
        "pull",
    )  # fmt: skip

    def __init__(
        self,
        replies: Replies,
        place: Runnable,
        clock: Clock,
        later: Callable[[float, Callable[[], object]], object],
        seat: Seat | None = None,
    ) -> None:
        """``later`` is the loop's ``call_later``, ``seat`` the connection's share of the limits."""
        self.by_name: dict[str, AnySubscription] = {}
        self.paused = False
        self.pull: AnyPoll | None = None
        self._replies = replies
        self._runnable = place
        self._clock = clock
        self._later = later
        self._seat = seat
        self._ready: dict[AnySubscription, None] = {}
        self._unconfirmed: dict[AnySubscription, None] = {}  # an empty set has three times the bytes
        self._stalled = False
        self._last_write: list[tuple[DeliveredIds, int, array[int]]] = []

    def check_free(self, name: str, pattern: TopicPattern | None) -> None:
        """Check that no subscription of the session overlaps a new one: MSG names only the topic, so its subscription would be
        unclear. Raises: AlreadySubscribed."""
        other = self.by_name.get(name)
        if other is None:
            others = self.by_name.values()
            if pattern is not None:
                other = next((o for o in others if pattern.overlaps(o.pattern or o.name)), None)
            else:
                other = next((o for o in others if o.pattern is not None and o.pattern.matches(name)), None)
        if other is not None:
            raise AlreadySubscribed(f"this session is subscribed to {other.name} already")

    def add(self, subscription: AnySubscription) -> None:
        """Add a subscription, which delivers nothing before ``released``."""
        self.by_name[subscription.name] = subscription
        if self.paused:
            subscription.pause(True)
        self._unconfirmed[subscription] = None

    def subscribed(self, name: str, other: str, consumer: str) -> AnySubscription:
        """The session's subscription to ``name``. Two names mean all partitions of a topic (``orders`` and ``orders#*``):
        ``other`` is the second one. Raises: NotSubscribed."""
        found = self.by_name.get(name)
        if found is None and (of_other := self.by_name.get(other)) is not None and of_other.pattern is not None:
            found = of_other
        if found is None or found.consumer_name != consumer:
            raise NotSubscribed(f"this session is not subscribed to {name} as {consumer}")
        return found

    def held(self, command: Held, other: str) -> bytes:
        """The reply to HELD: how many messages a subscription holds. ``other``: see ``subscribed``. Raises: NotSubscribed."""
        found = self.subscribed(command.topic, other, command.consumer)
        if command.uncounted is not None:
            found.uncounted = command.uncounted
        for part in [found] if isinstance(found, Subscription) else found.parts.values():
            if found.inflight and (first := part.channel.consumer.first_of(found)) is not None:
                return encode_held(found.inflight, (part.name, first))
        return encode_held(found.inflight, None)

    def subscription_to(self, topic: str, consumer: str) -> Subscription | None:
        """The session's subscription to a topic as a consumer, which may be part of a subscription to a pattern."""
        found = self.by_name.get(topic)
        if not isinstance(found, Subscription):
            parts = [s.parts[topic] for s in self.by_name.values() if isinstance(s, PatternSubscription) and topic in s.parts]
            found = parts[0] if parts else None
        return found if found is not None and found.consumer_name == consumer else None

    def settles(self, channel: Channel) -> None:
        """Note that the session settles a message of a consumer, perhaps after its lease has ended: it does not hang, so with
        mode=single it may become active again."""
        if channel.single is not None:
            own = self.subscription_to(channel.context.topic, channel.consumer.name)
            if own is not None:
                own.lessee.late = False

    def inflight(self) -> list[Callable[[], bool]]:
        """For each id range that this session has leased, a function that returns whether all of it is acked."""
        parts: list[Subscription] = []
        for subscription in self.by_name.values():
            parts += [subscription] if isinstance(subscription, Subscription) else subscription.parts.values()
        consumers = [(part.channel.consumer, part.lessee) for part in parts]
        return [partial(consumer.has_acked_all, *ids) for consumer, lessee in consumers for ids in consumer.inflight_to(lessee)]

    def pause(self, paused: bool) -> None:
        """Pause the deliveries of all subscriptions, or resume them (PAUSE, RESUME)."""
        self.paused = paused
        for subscription in self.by_name.values():
            subscription.pause(paused)
        if paused:
            self._wake_others()

    def bytes_to_take(self, wanted_bytes: int) -> int:
        """How many bytes of messages to take: all, or ``floor_bytes`` while the token or address has used up its share."""
        return wanted_bytes if self._seat is None else self._seat.bytes_to_take(wanted_bytes)

    def check_room(self, size: int) -> None:
        """Check that a reply of ``size`` bytes fits into the client's share, and count it. Raises: QueueFull."""
        if self._seat is not None and size > self._seat.floor_bytes:
            if self._seat.over_its_share:
                raise self._seat.too_much()
            self._seat.settle(self._seat.held_bytes - self._seat.unread_bytes + size)  # until the session counts all it holds

    @property
    def stalled(self) -> bool:
        """Whether the socket is full."""
        return self._stalled

    def stall(self, stalled: bool) -> None:
        """Note that the socket is full, or has room again. When it is full, other sessions of the same consumers are woken."""
        self._stalled = stalled
        if stalled:
            self._wake_others()
            if self.pull is not None:
                self.pull.wake_others()

    def _wake_others(self) -> None:
        for subscription in self._ready:
            subscription.wake_others()

    def released(self, subscription: AnySubscription) -> None:
        """Begin to deliver: the ``OK`` of a subscription was written."""
        if subscription in self._unconfirmed:
            self._unconfirmed.pop(subscription, None)
            self.wake(subscription)

    def wake(self, subscription: AnySubscription) -> bool:
        """Wake the subscription: messages may be ready. Returns: whether this session takes them soon."""
        if subscription in self._unconfirmed:
            return False
        self._ready[subscription] = None
        self._runnable.wake()
        return not (self._stalled or self.paused)

    def drop(self, subscription: AnySubscription) -> None:
        """Close a subscription: its leased messages become ready again."""
        self._forget(subscription)
        subscription.close()

    def ended(self, subscription: Subscription, code: str) -> None:
        """Push CLOSED for a subscription that the topic ended, after the OK of its SUB and after all deliveries."""
        self._closed(subscription, subscription.name, code)

    def pattern_ended(self, subscription: PatternSubscription, name: str, code: str) -> None:
        """As ``ended``, for one topic of a subscription to a pattern; with the pattern as ``name``, for the whole
        subscription."""
        self._closed(subscription, name, code)

    def _closed(self, subscription: AnySubscription, name: str, code: str) -> None:
        push = encode_closed(name, subscription.consumer_name, code)
        if subscription in self._unconfirmed:
            self._replies.add(push)
            self._runnable.wake()
        else:
            self._replies.push(push)
        if name == subscription.name:
            self._forget(subscription)

    def _forget(self, subscription: AnySubscription) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]
        self._ready.pop(subscription, None)
        self._unconfirmed.pop(subscription, None)

    def close(self) -> None:
        """Close all subscriptions: the connection is gone."""
        self._ready.clear()
        for subscription in self.by_name.values():
            subscription.close()
        self.by_name.clear()

    @property
    def ready(self) -> bool:
        """Whether there may be messages to deliver."""
        return bool(self._ready) and not self.paused

    def take(self, out: list[bytes], slice_end: float, room: int) -> None:
        """Append about ``room`` bytes of deliveries to the write ``out``, round-robin over the subscriptions.

        Stops at ``slice_end``, but not before the first delivery. From a consumer that other sessions share, one delivery is
        taken.
        """
        size = sum(map(len, out))
        tried = False
        shared: list[AnySubscription] = []
        while self._ready and room > 0 and not (tried and self._clock.monotonic() > slice_end):
            tried = True
            subscription = next(iter(self._ready))
            del self._ready[subscription]
            try:
                delivery = subscription.take(room)
            except OSError as error:
                logger.error("cannot read %s, trying again: %s", subscription.name, error)  # noqa: TRY400 (one line)
                self._later(RETRY_S, partial(self.wake, subscription))
                continue
            if delivery is None:
                continue
            if delivery.subscription.channel.takers > 1:
                shared.append(subscription)
            else:
                self._ready[subscription] = None  # behind the others
            frames = encode_delivery(delivery)
            out += frames.pieces
            sent = self.add_to_write(delivery, frames, size)
            size += sent
            room -= sent
        for subscription in shared:
            self._ready[subscription] = None

    def add_to_write(self, delivery: Delivery, frames: Frames, begin: int) -> int:
        """Remember that the frames of a delivery begin at byte ``begin`` of the write. Returns: their size in bytes."""
        self._last_write.append((delivery.without_records(), begin, frames.sizes()))
        return sum(map(len, frames.pieces))

    def begin_write(self) -> None:
        """Begin a new write: the socket has taken the previous one completely."""
        if self._last_write:
            self._last_write = []

    def give_back(self, taken_bytes: int) -> None:
        """Give back the messages of the last write that are not complete within its first ``taken_bytes``; no attempt is
        counted."""
        for delivered, begin, sizes in self._last_write:
            ends = accumulate(sizes, initial=begin)
            next(ends)
            delivered.unsend(sum(end <= taken_bytes for end in ends))


def encode_delivery(delivery: Delivery) -> Frames:
    """Encode MSG frames. First attempts are encoded once for all subscribers."""
    records, topic = delivery.records, delivery.topic
    if delivery.attempt == 1:
        frames: Frames | None = records.memo
        if frames is None:
            frames = records.memo = encode_messages(topic, records, 1)
        return frames.part(delivery.start, delivery.stop) if delivery.stop - delivery.start < len(records) else frames
    part = slice(delivery.start, delivery.stop)
    again = type(records)(
        records.ids[part], records.ts_ns[part], records.keys[part], records.payloads[part],
        None if records.headers is None else records.headers[part],
    )  # fmt: skip
    return encode_messages(topic, again, delivery.attempt)
