"""What a session's subscriptions deliver, and what becomes of it when the connection ends.

Contract: delivery.md, "Sessions" and "Attempts". Deliveries are taken at the moment there is room in the socket, so what was
leased was written, except for the last write.
"""

import logging
from array import array
from collections.abc import Callable
from functools import partial
from itertools import accumulate

from toymq_py.clock import Clock
from toymq_py.errors import AlreadySubscribed
from toymq_py.names import TopicPattern
from toymq_py.protocol import Frames, encode_closed, encode_messages
from toymq_py.session.fair_queue import Runnable
from toymq_py.session.replies import Replies
from toymq_py.subscription import PatternSubscription, Poll
from toymq_py.topic import Delivery, Subscription

logger = logging.getLogger("toymq_py.session")

RETRY_S = 0.5
"""How soon a read that failed (no descriptor left, say) is tried again."""


Subscribed = Subscription | PatternSubscription


class Deliveries:
    """The subscriptions of one session, by topic or pattern.

    ``paused`` holds all of them. A subscription is silent until its own ``OK`` has been written: no MSG comes before it.
    ``pull`` is the poll of a PULL that stands first among the replies and waits.
    """

    __slots__ = (
        "_clock",
        "_hungry",
        "_last_write",
        "_later",
        "_replies",
        "_runnable",
        "_silent",
        "_stalled",
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
    ) -> None:
        """``later`` is the loop's ``call_later``."""
        self.by_name: dict[str, Subscribed] = {}
        self.paused = False
        self.pull: Poll | None = None
        self._replies = replies
        self._runnable = place
        self._clock = clock
        self._later = later
        self._hungry: dict[Subscribed, None] = {}
        self._silent: dict[Subscribed, None] = {}  # an empty set has three times the bytes
        self._stalled = False
        self._last_write: list[tuple[Delivery, int, array[int]]] = []

    def check_free(self, name: str, pattern: TopicPattern | None) -> None:
        """``name`` is a topic's or the pattern's. Raises: AlreadySubscribed when MSG could not tell which one it is for."""
        other = self.by_name.get(name)
        if other is None:
            others = self.by_name.values()
            if pattern is not None:
                other = next((o for o in others if pattern.overlaps(o.pattern or o.name)), None)
            else:
                other = next((o for o in others if o.pattern is not None and o.pattern.matches(name)), None)
        if other is not None:
            raise AlreadySubscribed(f"this session is subscribed to {other.name} already")

    def add(self, subscription: Subscribed) -> None:
        """A new subscription, silent until ``released``."""
        self.by_name[subscription.name] = subscription
        subscription.paused = self.paused
        self._silent[subscription] = None

    def part_of(self, topic: str, consumer: str) -> Subscription | None:
        """The session's own hold on a consumer of a topic, if it has one."""
        found = self.by_name.get(topic)
        if not isinstance(found, Subscription):
            parts = [s.parts[topic] for s in self.by_name.values() if isinstance(s, PatternSubscription) and topic in s.parts]
            found = parts[0] if parts else None
        return found if found is not None and found.consumer_name == consumer else None

    def inflight(self) -> list[Callable[[], bool]]:
        """For each range that is inflight to this session's subscriptions: a call that returns whether all of it is acked."""
        parts: list[Subscription] = []
        for subscription in self.by_name.values():
            parts += [subscription] if isinstance(subscription, Subscription) else subscription.parts.values()
        consumers = [(part.channel.consumer, part.lessee) for part in parts]
        return [partial(consumer.has_acked_all, *ids) for consumer, lessee in consumers for ids in consumer.inflight_to(lessee)]

    def pause(self, paused: bool) -> None:
        """PAUSE and RESUME."""
        self.paused = paused
        for subscription in self.by_name.values():
            subscription.paused = paused
        if paused:
            self._pass_on()

    @property
    def stalled(self) -> bool:
        """The socket takes no more."""
        return self._stalled

    def stall(self, stalled: bool) -> None:
        """The socket takes no more, or again. What was to be taken now is left to other sessions of the same consumer."""
        self._stalled = stalled
        if stalled:
            self._pass_on()
            if self.pull is not None:
                self.pull.pass_on()

    def _pass_on(self) -> None:
        for subscription in self._hungry:
            subscription.pass_on()

    def released(self, subscription: Subscribed) -> None:
        """Its ``OK`` was written: it begins to deliver."""
        if subscription in self._silent:
            self._silent.pop(subscription, None)
            self.wake(subscription)

    def wake(self, subscription: Subscribed) -> bool:
        """Wake the subscription: messages may be ready. Returns: whether it is taken soon, unless someone else does."""
        if subscription in self._silent:
            return False
        self._hungry[subscription] = None
        self._runnable.wake()
        return not (self._stalled or self.paused)

    def drop(self, subscription: Subscribed) -> None:
        """UNSUB: what is inflight goes back."""
        self._forget(subscription)
        subscription.close()

    def ended(self, subscription: Subscription, code: str) -> None:
        """The topic ended it: CLOSED, behind the OK of its SUB and behind all that was delivered."""
        self._lost(subscription, subscription.name, code)

    def pattern_ended(self, subscription: PatternSubscription, name: str, code: str) -> None:
        """The same of one of a pattern's topics, or with the pattern's name of all of it."""
        self._lost(subscription, name, code)

    def _lost(self, subscription: Subscribed, name: str, code: str) -> None:
        push = encode_closed(name, subscription.consumer_name, code)
        if subscription in self._silent:
            self._replies.add(push)
            self._runnable.wake()
        else:
            self._replies.push(push)
        if name == subscription.name:
            self._forget(subscription)

    def _forget(self, subscription: Subscribed) -> None:
        if self.by_name.get(subscription.name) is subscription:
            del self.by_name[subscription.name]
        self._hungry.pop(subscription, None)
        self._silent.pop(subscription, None)

    def close(self) -> None:
        """The connection is gone."""
        self._hungry.clear()
        for subscription in self.by_name.values():
            subscription.close()
        self.by_name.clear()

    @property
    def hungry(self) -> bool:
        """Whether there may be something to take."""
        return bool(self._hungry) and not self.paused

    def take(self, out: list[bytes], slice_end: float, room: int) -> None:
        """Add about ``room`` bytes of deliveries to a write that begins with ``out``, the subscriptions in turn, until
        ``slice_end``; one at least. Of a consumer that other sessions take from, one piece."""
        size = sum(map(len, out))
        tried = False
        shared: list[Subscribed] = []
        while self._hungry and room > 0 and not (tried and self._clock.monotonic() > slice_end):
            tried = True
            subscription = next(iter(self._hungry))
            del self._hungry[subscription]
            try:
                delivery = subscription.take(room)
            except OSError:
                logger.exception("cannot read %s", subscription.name)
                self._later(RETRY_S, partial(self.wake, subscription))
                continue
            if delivery is None:
                continue
            if delivery.subscription.channel.takers > 1:
                shared.append(subscription)
            else:
                self._hungry[subscription] = None  # behind the others
            frames = encode_delivery(delivery)
            out += frames.pieces
            sent = self.wrote(delivery, frames, size)
            size += sent
            room -= sent
        for subscription in shared:
            self._hungry[subscription] = None

    def wrote(self, delivery: Delivery, frames: Frames, begin: int) -> int:
        """Its frames are part of the write that is being made, from this byte on. Returns: their size."""
        self._last_write.append((delivery, begin, frames.sizes()))
        return sum(map(len, frames.pieces))

    def begin_write(self) -> None:
        """The write before was taken by the socket."""
        if self._last_write:
            self._last_write = []

    def give_back(self, taken_bytes: int) -> None:
        """The connection ended when the socket had taken so many bytes of the last write: what it did not take whole goes back
        uncounted."""
        for delivery, begin, sizes in self._last_write:
            ends = accumulate(sizes, initial=begin)
            next(ends)
            delivery.unsend(sum(end <= taken_bytes for end in ends))


def encode_delivery(delivery: Delivery) -> Frames:
    """MSG frames; a run's first attempts are encoded once and shared by all subscribers."""
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
