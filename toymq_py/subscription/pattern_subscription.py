"""A session's subscription of a pattern: one window over a consumer of many topics.

Contract: delivery.md, "Window" (one over all topics, taken fairly in turn); protocol.md, "SUB". Knows no wire and no sessions.
Belongs to the event loop.
"""

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Protocol

from toymq_py.callbacks import call_all
from toymq_py.consumer import DeliveryOrder, Lessee
from toymq_py.consumer_options import Mode, Start
from toymq_py.errors import RequestError
from toymq_py.names import TopicPattern
from toymq_py.topic import Delivery, Registration, Subscription, Topic

logger = logging.getLogger("toymq_py.subscription")

ALONE_S = 0.25
"""How long at most a message whose leases ended several times without an answer is delivered alone, and how long it waits
before that for unsettled messages. A client may settle messages only by the hundred."""
RETRY_S = 0.5
"""The delay before a read that failed (no descriptor left, say) is tried again."""

Done = Callable[[OSError | RequestError | None], None]


class Registry(Protocol):
    """The methods of ``SubscriptionRegistry`` that a subscription calls."""

    def leave(self, subscription: "MultiSubscription") -> None:
        """Detach the parts of a closed subscription."""

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call ``call`` after ``delay_s`` seconds."""

    def retire(self, subscription: "MultiSubscription") -> None:
        """Let no more polls join this group."""


class MultiSubscription(Lessee, ABC):
    """One window over a consumer of several topics. It has a part (``Subscription``) for each topic, and owns the leases of all
    parts.

    A part is in ``_takeable`` when there may be messages to take from it. Parts are asked in turn, so that a take costs the
    same however many topics there are. ``_promised`` has the parts that were woken and whose messages will be taken soon.
    """

    __slots__ = ("_promised", "_registering", "_takeable", "closed", "consumer_name", "matched", "mode", "name",
                 "parts", "pattern", "poll_mode", "problem", "registered", "registry", "start", "visibility_s")  # fmt: skip

    def __init__(
        self,
        name: str,
        consumer_name: str,
        *,
        pattern: TopicPattern | None,
        mode: Mode | None,
        window: int,
        visibility_s: float | None,
        start: Start | None,
    ) -> None:
        """``name``: of the topic, or the pattern's text; see ``SubscriptionRegistry``."""
        Lessee.__init__(self, window)
        self.name = name
        self.consumer_name = consumer_name
        self.pattern = pattern
        self.mode = mode
        self.poll_mode: Mode | None = None
        """The mode that a poll asks for."""
        self.visibility_s = visibility_s
        self.start = start
        self.parts: dict[str, Subscription] = {}
        """The subscriptions of the parts, by topic."""
        self.matched = 0
        """The number of topics that it was attached to."""
        self.closed = False
        self.registry: Registry | None = None
        """The registry that attached it, and sets this."""
        self.problem: OSError | RequestError | None = None
        """Why it cannot be registered, or why no more messages come."""
        self.registered = False
        self._registering: list[Done] = []
        self._takeable: OrderedDict[Subscription, None] = OrderedDict()
        self._promised: dict[Subscription, None] = {}

    # -- its topics

    @property
    def active_in(self) -> tuple[str, ...]:
        """The topics with mode=single in which this is the active session."""
        return tuple(chain.from_iterable(part.active_in for part in self.parts.values()))

    def attach(self, topic: Topic, start: Start | None) -> Registration:
        """Add a part for a topic. Raises: ModeConflict, TooManyConsumers, OSError."""
        part, registration = topic.subscribe(
            self.consumer_name, start,
            mode=self.mode, poll_mode=self.poll_mode, window=self.window, visibility_s=self.visibility_s,
            wake=self._part_woken, ended=self._part_ended, lessee=self,
        )  # fmt: skip
        self.parts[topic.name] = part
        self.matched += 1
        self._on_part_added(part)
        if part.channel.available():
            self._takeable[part] = None
        else:
            part.channel.idle[part] = None
        return registration

    @property
    def is_examining(self) -> bool:
        """Whether a topic's damaged segment is being examined: the messages behind the damage come soon, and ``on_messages`` is
        called then."""
        parts = self.parts.values()
        seldom = next((part.channel.context.metrics.channels_examining for part in parts), 0)  # of all topics
        return bool(seldom) and any(part.channel.is_examining for part in parts)

    def attach_again(self, topic: Topic) -> None:
        """Attach a topic again after a SEEK of its consumer, which ended the part. Ready messages are taken from now on."""
        self.attach(topic, None)
        self.matched -= 1
        if (part := self.parts[topic.name]) in self._takeable:
            self._part_woken(part)

    def _on_part_added(self, part: Subscription) -> None:
        """Hook for a subclass: a part was added."""

    def _part_woken(self, part: Subscription) -> bool:
        self._takeable[part] = None
        if not self.on_messages():
            return False
        self._promised[part] = None
        return True

    def _next_takeable(self) -> Subscription:
        """Remove and return the next part that may have messages. Assumes that there is one."""
        part, _ = self._takeable.popitem(last=False)
        self._promised.pop(part, None)
        return part

    def _part_ended(self, part: Subscription, code: str) -> None:
        self._takeable.pop(part, None)
        self._promised.pop(part, None)
        if self.parts.get(part.name) is part:
            del self.parts[part.name]
        if not self.closed:
            self.on_part_ended(part, code)

    @abstractmethod
    def on_messages(self) -> bool:
        """Wake the subscription: messages may be ready. Returns: whether it takes them soon."""

    @abstractmethod
    def on_part_ended(self, part: Subscription, code: str) -> None:
        """Handle that a topic has ended its part, with a CLOSED code."""

    @abstractmethod
    def end(self, code: str) -> None:
        """End the whole subscription with a CLOSED code."""

    def works_again(self) -> None:
        for part in self.parts.values():
            part.channel.wake_rested()

    def on_capacity(self) -> None:
        self.on_messages()

    def wake_others(self) -> None:
        """Wake other sessions or polls of the consumer: this subscription was woken and cannot take now."""
        promised, self._promised = self._promised, {}
        for part in promised:
            part.wake_others()

    def close(self) -> None:
        """Close the subscription. Idempotent. Its leased messages are ready again, except those of a poll: at once, or within a
        moment when there are very many topics."""
        if not self.closed:
            self.closed = True
            self._takeable.clear()
            self._promised.clear()
            if self.registry is not None:
                self.registry.leave(self)
            self.settle(None)

    # -- its registration

    def when_registered(self, done: Done) -> None:
        """Call ``done``, maybe at once, when every topic is attached and every new consumer is on stable storage (ADR 0009), or
        when the subscription is closed before. After an error it is useless and must be closed."""
        if self.registered:
            done(self.problem)
        else:
            self._registering.append(done)

    def settle(self, problem: OSError | RequestError | None) -> None:
        """End the wait of ``when_registered``. ``problem`` is the error, None after success. Called by
        ``SubscriptionRegistry``."""
        if not self.registered:
            self.registered = True
            self.problem = problem or self.problem
            waiting, self._registering = self._registering, []
            call_all(waiting, problem)


class PatternSubscription(MultiSubscription):
    """Subscription of a session to a pattern: a ``Subscription`` over all topics that match, now or later.

    ``wake`` and ``ended`` are as in ``Subscription``; ``ended`` gets the name that was lost, one topic's or the pattern's.
    """

    __slots__ = ("_alone", "_apart_until_s", "_ended", "_wake", "paused")

    def __init__(
        self,
        pattern: TopicPattern,
        consumer_name: str,
        *,
        mode: Mode,
        window: int,
        visibility_s: float | None,
        start: Start | None,
        wake: Callable[["PatternSubscription"], bool],
        ended: Callable[["PatternSubscription", str, str], None],
    ) -> None:
        MultiSubscription.__init__(
            self, pattern.text, consumer_name, pattern=pattern, mode=mode, window=window, visibility_s=visibility_s, start=start
        )
        self.order = DeliveryOrder()
        self._alone = False  # what it got last came back again and again without an answer
        self._apart_until_s = 0.0  # so long nothing comes beside that, or it waits for that; 0: there is no such thing
        self._wake = wake
        self._ended = ended
        self.paused = False

    def pause(self, paused: bool) -> None:
        """Pause the deliveries of the session, or resume them (PAUSE, RESUME)."""
        self.paused = paused
        for part in self.parts.values():
            part.pause(paused)

    def _on_part_added(self, part: Subscription) -> None:
        if self.paused:
            part.pause(True)

    def on_messages(self) -> bool:
        if self.inflight >= self.window:
            self.wants_room = True
            return False
        return self._wake(self)

    def on_part_ended(self, part: Subscription, code: str) -> None:
        self._ended(self, part.name, code)

    def end(self, code: str) -> None:
        if not self.closed:
            self.close()
            self._ended(self, self.name, code)

    def take(self, max_bytes: int) -> Delivery | None:
        """Lease the next messages of a topic, in turn; see ``Subscription.take``. A topic that cannot be read is logged and
        tried again after a moment, while the others go on. A message whose leases have ended several times without an answer is
        delivered alone (ADR 0265)."""
        hungry = self._takeable
        while hungry:
            room, part = self.window - self.inflight, next(iter(hungry))
            consumer = part.channel.consumer
            is_suspect = consumer.is_suspect(consumer.first_ready())
            if room <= 0 or (self.inflight and (is_suspect or self._alone) and self._keeps_apart(part)):
                if is_suspect:
                    part.channel.held_up[part] = None
                self.wants_room = True
                self.wake_others()
                return None
            self._next_takeable()
            self._alone, self._apart_until_s = is_suspect, 0.0
            try:
                delivery = part.take_some(room, max_bytes)
            except OSError:
                logger.exception("cannot read %s", part.name)
                if self.registry is not None:
                    self.registry.later(RETRY_S, partial(self._retry, part))
                continue
            if delivery is not None:
                hungry[part] = None
                return delivery
        return None

    def _keeps_apart(self, part: Subscription) -> bool:
        """Whether a message has to wait, because it or the last one taken is to be delivered alone. This holds for ``ALONE_S``
        at most; then the subscription is woken."""
        now = part.channel.context.clock.monotonic()
        if not self._apart_until_s:
            self._apart_until_s = now + ALONE_S
            if self.registry is not None:
                self.registry.later(ALONE_S, self._look)
        return now < self._apart_until_s

    def _look(self) -> None:
        if not self.closed:
            self.on_messages()

    def _retry(self, part: Subscription) -> None:
        if not part.closed:
            self._part_woken(part)
