"""Careful start after several kills: the first attempts of a consumer are stored before they are delivered. ADR 0249.

Attempts are stored by the debouncer, up to 100 ms behind the delivery. A message that kills the broker sooner would never be
counted, and never become a dead letter. So where the last runs of the broker had no clean stop, an existing consumer begins
carefully for a moment: one message at a time, delivered when its attempt is on stable storage, and the next when it is settled.
Every run stores some progress, so the message that kills is counted in each, whatever comes before it. A lessee gets one
message at a time of all topics that begin like this: otherwise healthy messages of the others would count an attempt with it.
"""

from collections.abc import Callable, Iterable

from toymq_py.consumer import Lessee
from toymq_py.errors import RequestError
from toymq_py.topic.channel import Channel, Delivery, Subscription
from toymq_py.topic.topic import Topic

UNCLEAN_ENDS_MIN = 2
"""The number of unclean ends in a row that make a start careful: one kill is an accident."""
CAREFUL_S = 0.25
"""The longest careful time, from a consumer's first delivery on. A handler that is slower does not hold the others' messages
for longer."""
LOOK_S = 0.005
"""The time between two checks whether the delivered messages are settled."""


class CarefulStart:
    """The careful start of one consumer: delivers in place of its channel until it is over. Belongs to the event loop.

    It leases a message to itself and has the attempt stored; then it returns the lease, and the waiting session or poll gets
    its own.
    """

    __slots__ = ("_channel", "_ends_at", "_flush", "_has", "_leased", "_lessee", "_looks", "_stored")

    def __init__(
        self,
        channel: Channel,
        flush: Callable[[Callable[[OSError | RequestError | None], None]], None],
        has: dict[Lessee, "CarefulStart"],
    ) -> None:
        """``flush`` stores the state of the topic's consumers. ``has``: for each lessee, the careful start from which it got
        its last message."""
        self._channel = channel
        self._flush = flush
        self._has = has
        self._looks = False
        self._lessee = Lessee(1)
        self._ends_at: float | None = None
        self._leased: Delivery | None = None
        self._stored = False

    def take(
        self, subscription: Subscription, room: int, max_bytes: int, waiting: Subscription | None = None
    ) -> Delivery | None:
        """Lease the next message, once its attempt is stored; called in place of ``Channel.take``."""
        channel, lessee = self._channel, subscription.lessee
        if not self._looks:
            self._looks = True
            channel.context.metrics.channels_examining += 1
            self._look_later()
        other = self._has.get(lessee, self)
        if other is not self and other._occupies(lessee):
            channel.idle[waiting or subscription] = None
            return None
        if self._ends_at is None:
            self._ends_at = channel.context.clock.monotonic() + CAREFUL_S
        leased = self._still_leased()
        if leased is not None and self._stored:
            self._give_up(leased)
            if (delivery := self._take(subscription, max_bytes, waiting)) is not None:
                self._has[lessee] = self
            return delivery
        if channel.consumer.inflight:
            channel.idle[waiting or subscription] = None
            return None
        own = Subscription(
            channel, mode=subscription.mode, window=1, visibility_s=subscription.visibility_s, wake=subscription.wake,
            ended=subscription.ended, lessee=self._lessee,
        )  # fmt: skip
        self._leased, self._stored = self._take(own, max_bytes, waiting or subscription), False
        if self._leased is not None:
            self._uncount(self._leased)
            self._has[lessee] = self
            channel.idle[waiting or subscription] = None
            self._flush(self._is_stored)
        return None

    def _occupies(self, lessee: Lessee) -> bool:
        """Whether a lessee waits for a message of this consumer, or has one and has not settled it."""
        return self._still_leased() is not None or bool(self._channel.consumer.inflight_to(lessee))

    def _take(self, subscription: Subscription, max_bytes: int, waiting: Subscription | None) -> Delivery | None:
        channel = self._channel
        channel.instead = None
        try:
            return channel.take(subscription, 1, max_bytes, waiting)
        finally:
            channel.instead = self.take

    def _uncount(self, leased: Delivery) -> None:
        """Take back the attempt: the message is not delivered yet."""
        metrics = self._channel.context.metrics
        metrics.deliver_total -= len(leased)
        if leased.attempt > 1:
            metrics.redeliver_total -= len(leased)
            self._channel.redelivered_total -= len(leased)

    def _still_leased(self) -> Delivery | None:
        """The lease that this object has on a message; None without one, also when the message was settled meanwhile, by a
        client that had it before the restart."""
        if self._leased is not None and not self._channel.consumer.inflight_to(self._lessee):
            self._leased = None
        return self._leased

    def _give_up(self, leased: Delivery) -> None:
        self._leased = None
        self._channel.consumer.unsend(self._lessee, leased.first_id, leased.last_id)

    def _is_stored(self, error: OSError | RequestError | None) -> None:
        """Note that the attempt is stored, or cannot be: then the message is delivered all the same, since it must not wait for
        a full disk."""
        self._stored = True
        self._wake_one()

    def _wake_one(self) -> None:
        if self._leased is not None and self._stored and (idle := self._channel.idle):
            taker, _ = idle.popitem(last=False)
            taker.wake(taker)

    def _look_later(self) -> None:
        self._channel.context.scheduler.later(LOOK_S, self._look)

    def _look(self) -> None:
        channel = self._channel
        if channel.closed or channel.context.topic_deleted:
            self._end()
            return
        leased = self._still_leased()
        ends_at = self._ends_at
        if ends_at is None or channel.context.clock.monotonic() < ends_at or (leased is not None and not self._stored):
            self._look_later()
            self._wake_one()
            channel.wake_next()
            return
        channel.instead = None
        self._end()
        if leased is not None:
            self._give_up(leased)
        for taker in list(channel.idle):  # all: a poll that does not wait has waited for this
            if channel.idle.pop(taker, self) is None:
                taker.wake(taker)

    def _end(self) -> None:
        self._channel.context.metrics.channels_examining -= 1
        for lessee in [lessee for lessee, start in self._has.items() if start is self]:
            del self._has[lessee]


def begin_carefully(topics: Iterable[Topic], unclean_ends: int) -> None:
    """Let the consumers of opened topics begin carefully, if the broker's last ``unclean_ends`` runs, several in a row, had no
    clean stop."""
    if unclean_ends >= UNCLEAN_ENDS_MIN:
        has: dict[Lessee, CarefulStart] = {}
        for topic in topics:
            for channel in topic.channels.values():
                channel.instead = CarefulStart(channel, topic.flush_offsets, has).take
