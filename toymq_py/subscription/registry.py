"""Attaches patterns and polls to topics, existing and new ones.

Contract: protocol.md, "SUB", "PULL". Belongs to the event loop.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from toymq_py.consumer_options import Start
from toymq_py.errors import ModeConflict, RequestError, TooManyConsumers
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.subscription.pattern_subscription import MultiSubscription
from toymq_py.topic import Registration, Topic

logger = logging.getLogger("toymq_py.subscription")

TOPICS_PER_TURN = 32
"""Attached or left in one piece: one to two milliseconds."""


class SubscriptionRegistry:
    """Attaches pattern subscriptions to the topics that match, now or later, and polls to theirs.

    A pattern over thousands of topics is attached and left in pieces, so that the loop is not held.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._patterns: dict[MultiSubscription, None] = {}
        self._watchers: dict[Callable[[Topic], None], None] = {}

    def watch(self, made: Callable[[Topic], None]) -> Callable[[], object]:
        """Call ``made`` with every topic that is created. Returns: what ends that."""
        self._watchers[made] = None
        return lambda: self._watchers.pop(made, None)

    def follow(self, subscription: MultiSubscription, topics: Mapping[str, Topic]) -> None:
        """Attach a subscription to all topics that match: now, or within a moment when they are many; see
        ``when_registered``."""
        pattern = subscription.pattern
        assert pattern is not None
        subscription.registry = self
        if subscription.mode == "exclusive":
            same = (subscription.name, subscription.consumer_name, subscription.mode)
            for older in [other for other in self._patterns if (other.name, other.consumer_name, other.mode) == same]:
                older.end("TAKEN_OVER")
        self._patterns[subscription] = None
        names = iter([name for name in topics if pattern.matches(name)])
        self._attach_some(subscription, names, topics, _PendingFlushes(subscription))

    def _attach_some(
        self,
        subscription: MultiSubscription,
        names: Iterator[str],
        topics: Mapping[str, Topic],
        flushes: "_PendingFlushes",
    ) -> None:
        if subscription.closed:
            return
        part = list(islice(names, TOPICS_PER_TURN))
        try:
            for name in part:
                topic = topics.get(name)
                if topic is not None and not topic.deleted and name not in subscription.parts:
                    self._attach(subscription, topic, subscription.start, flushes)
        except (ModeConflict, OSError) as error:
            subscription.settle(error)
            return
        if len(part) == TOPICS_PER_TURN:
            self._scheduler.soon(lambda: self._attach_some(subscription, names, topics, flushes))
        else:
            flushes.all_asked()

    def _attach(
        self, subscription: MultiSubscription, topic: Topic, start: Start | None, flushes: "_PendingFlushes | None"
    ) -> None:
        try:
            registration = subscription.attach(topic, start)
        except TooManyConsumers as error:
            self._log_passed_over(subscription, error)
            return
        if flushes is not None:
            flushes.ask(topic, registration)

    def attach_one(self, subscription: MultiSubscription, topic: Topic) -> None:
        """Attach a poll to a single topic. Raises: TooManyConsumers, OSError."""
        flushes = _PendingFlushes(subscription)
        subscription.registry = self
        flushes.ask(topic, subscription.attach(topic, None))
        flushes.all_asked()

    def topic_made(self, topic: Topic) -> None:
        """Attach matching subscriptions to a new topic, from its first id on. Of exclusive ones of the same consumer the newest
        gets it."""
        taken: set[str] = set()
        for subscription in reversed(list(self._patterns)):
            pattern = subscription.pattern
            if pattern is None or not pattern.matches(topic.name):
                continue
            if subscription.mode == "exclusive":
                if subscription.consumer_name in taken:
                    continue
                taken.add(subscription.consumer_name)
            try:
                self._attach(subscription, topic, None, None)
            except (ModeConflict, OSError) as error:
                self._log_passed_over(subscription, error)
        for made in list(self._watchers):
            made(topic)

    def _log_passed_over(self, subscription: MultiSubscription, error: Exception) -> None:
        logger.warning("consumer %s of %s passes over a topic: %s", subscription.consumer_name, subscription.name, error)

    def leave(self, subscription: MultiSubscription) -> None:
        """Detach the parts of a closed subscription."""
        self._patterns.pop(subscription, None)
        self._leave_some(subscription)

    def _leave_some(self, subscription: MultiSubscription) -> None:
        for name in list(islice(subscription.parts, TOPICS_PER_TURN)):
            subscription.parts.pop(name).close()
        if subscription.parts:
            self._scheduler.soon(lambda: self._leave_some(subscription))

    def end_all(self, code: str) -> None:
        """End every pattern subscription and pattern poll with a CLOSED code; none of what they hold counts an attempt."""
        for subscription in list(self._patterns):
            subscription.uncounted = True
            subscription.end(code)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._scheduler.later(delay_s, call)


class _PendingFlushes:
    """Flushes that a subscription waits for before it is answered: one for each topic on which its consumer is new."""

    __slots__ = ("_asked", "_open", "_subscription")

    def __init__(self, subscription: MultiSubscription) -> None:
        self._subscription = subscription
        self._open = 0
        self._asked = False

    def ask(self, topic: Topic, registration: Registration) -> None:
        part = self._subscription.parts[topic.name]

        def registered(error: OSError | RequestError | None) -> None:
            self._open -= 1
            if isinstance(error, OSError):  # another error says that the topic is gone, and the part with it
                self._subscription.parts.pop(topic.name, None)
                self._subscription.settle(error)
            self._settle_when_done()

        self._open += 1
        topic.when_registered(part, registration, registered)

    def all_asked(self) -> None:
        self._asked = True
        self._settle_when_done()

    def _settle_when_done(self) -> None:
        if self._asked and not self._open:
            self._subscription.settle(None)
