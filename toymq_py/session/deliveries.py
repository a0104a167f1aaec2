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
from toymq_py.protocol import encode_closed, encode_messages
from toymq_py.session.replies import WRITE_BYTES, Replies
from toymq_py.session.turns import Place
from toymq_py.topic import Delivery, Subscription

logger = logging.getLogger("toymq_py.session")

RETRY_S = 0.5
"""How soon a read that failed (no descriptor left, say) is tried again."""


class Deliveries:
    """The subscriptions of one session, by topic.

    ``paused`` holds all of them. A subscription is silent until its own ``OK`` has been written: no MSG comes before it.
    """

    __slots__ = ("_clock", "_hungry", "_last_write", "_later", "_place", "_replies", "_silent", "by_topic", "paused")

    def __init__(
        self,
        replies: Replies,
        place: Place,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """``later`` is the loop's ``call_later``."""
        self.by_topic: dict[str, Subscription] = {}
        self.paused = False
        self._replies = replies
        self._place = place
        self._clock = clock
        self._later = later
        self._hungry: dict[Subscription, None] = {}
        self._silent: set[Subscription] = set()
        self._last_write: list[tuple[Subscription, int, int, array[int]]] = []

    def add(self, subscription: Subscription) -> None:
        """A new subscription, silent until ``released``."""
        self.by_topic[subscription.topic.name] = subscription
        subscription.paused = self.paused
        self._silent.add(subscription)

    def pause(self, paused: bool) -> None:
        """PAUSE and RESUME."""
        self.paused = paused
        for subscription in self.by_topic.values():
            subscription.paused = paused

    def released(self, subscription: Subscription) -> None:
        """Its ``OK`` was written: it begins to deliver."""
        if subscription in self._silent:
            self._silent.discard(subscription)
            self.wake(subscription)

    def wake(self, subscription: Subscription) -> None:
        """There may be something to take."""
        if subscription not in self._silent:
            self._hungry[subscription] = None
            self._place.wake()

    def drop(self, subscription: Subscription) -> None:
        """UNSUB: what is inflight goes back."""
        self._forget(subscription)
        self._silent.discard(subscription)
        subscription.close()

    def ended(self, subscription: Subscription, code: str) -> None:
        """The topic ended it: CLOSED, behind the OK of its SUB and behind all that was delivered."""
        self._forget(subscription)
        push = encode_closed(subscription.topic.name, subscription.consumer.name, code)
        if subscription in self._silent:
            self._silent.discard(subscription)
            self._replies.add(push)
            self._place.wake()
        else:
            self._replies.push(push)

    def _forget(self, subscription: Subscription) -> None:
        name = subscription.topic.name
        if self.by_topic.get(name) is subscription:
            del self.by_topic[name]
        self._hungry.pop(subscription, None)

    def close(self) -> None:
        """The connection is gone."""
        for subscription in self.by_topic.values():
            subscription.close()
        self.by_topic.clear()
        self._hungry.clear()

    @property
    def hungry(self) -> bool:
        """Whether there may be something to take."""
        return bool(self._hungry) and not self.paused

    def take(self, out: list[bytes], slice_end: float) -> None:
        """Add deliveries to a write that begins with ``out``, the subscriptions in turn, until it is large or the slice is
        over; one at least."""
        room = WRITE_BYTES
        size = sum(map(len, out))
        tried = False
        while self._hungry and room > 0 and not (tried and self._clock.monotonic() > slice_end):
            tried = True
            subscription = next(iter(self._hungry))
            del self._hungry[subscription]
            try:
                delivery = subscription.take(room)
            except OSError:
                logger.exception("cannot read %s", subscription.topic.name)
                self._later(RETRY_S, partial(self.wake, subscription))
                continue
            if delivery is None:
                continue
            self._hungry[subscription] = None  # behind the others
            frames = _encode(subscription.topic.name, delivery)
            out += frames
            sizes = array("L", map(len, frames))
            self._last_write.append((subscription, delivery.first_id, size, sizes))
            sent = sum(sizes)
            size += sent
            room -= sent

    def begin_write(self) -> None:
        """The write before was taken by the socket."""
        if self._last_write:
            self._last_write = []

    def give_back(self, taken_bytes: int) -> None:
        """The connection ended when the socket had taken so many bytes of the last write: what it did not take whole goes back
        uncounted."""
        for subscription, first_id, begin, sizes in self._last_write:
            ends = accumulate(sizes, initial=begin)
            next(ends)
            whole = sum(end <= taken_bytes for end in ends)
            if whole < len(sizes):
                subscription.unsend(first_id + whole, first_id + len(sizes) - 1)


def _encode(topic: str, delivery: Delivery) -> list[bytes]:
    """MSG frames; a run's first attempts are encoded once and shared by all subscribers."""
    records = delivery.records
    if delivery.attempt == 1:
        frames: list[bytes] | None = records.memo
        if frames is None:
            frames = records.memo = encode_messages(topic, records, 1)
        return frames[delivery.start : delivery.stop] if delivery.stop - delivery.start < len(frames) else frames
    part = slice(delivery.start, delivery.stop)
    again = type(records)(
        records.ids[part], records.ts_ns[part], records.keys[part], records.payloads[part],
        None if records.headers is None else records.headers[part],
    )  # fmt: skip
    return encode_messages(topic, again, delivery.attempt)
