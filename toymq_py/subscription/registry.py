"""Attaches patterns and polls to topics, existing and new ones.

Contract: protocol.md, "SUB", "PULL". Belongs to the event loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from toymq_py.auth.holder import Holder, acting_token
from toymq_py.consumer_options import Mode, Start
from toymq_py.errors import ModeConflict, RequestError, TooManyConsumers
from toymq_py.names import TopicPattern
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.subscription.pattern_poll import PatternPoll, PollGroup
from toymq_py.subscription.pattern_subscription import MultiSubscription
from toymq_py.topic import Registration, Subscription, Topic

logger = logging.getLogger("toymq_py.subscription")

TOPICS_PER_TURN = 16
"""Topics that are attached or left in one piece: one to two milliseconds."""
NAMES_PER_TOPIC = 128
"""The number of names whose comparison with a pattern takes as long as attaching one topic."""
RETIRE_S = 5.0
"""How long after a group passed over a topic (TOO_MANY_CONSUMERS) new polls try it again, with a group of their own."""

_GroupName = tuple[str, str, Mode | None]
"""Pattern, consumer, and the mode that the polls ask for."""
Work = Callable[[int], int | None]
"""Attaches or leaves at most so many topics. Returns: how many, or None when all is done."""


class SubscriptionRegistry:
    """Attaches pattern subscriptions to the topics that match, now or later, and polls to theirs.

    A pattern over thousands of topics is attached and left in pieces, so that the loop is not held.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._patterns: dict[MultiSubscription, None] = {}
        self._groups: dict[_GroupName, PollGroup] = {}  # those that polls may join
        self._works: deque[tuple[Work, Holder | None]] = deque()  # what is left to do, and for which token
        self._due = False
        self._watchers: dict[Callable[[Topic], None], None] = {}

    def watch(self, made: Callable[[Topic], None]) -> Callable[[], object]:
        """Call ``made`` with every topic that is created. Returns: a function that stops these calls."""
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
        names = iter(list(topics))
        flushes = _PendingFlushes(subscription)
        self._in_pieces(partial(self._attach_some, subscription, pattern, names, topics, flushes))

    def poll(self, poll: PatternPoll, topics: Mapping[str, Topic]) -> None:
        """Let a poll join the group of the same pattern and consumer, or make the group and attach it."""
        key = (poll.name, poll.consumer_name, poll.mode)
        group = self._groups.get(key)
        if group is not None:
            group.join(poll)
            return
        group = self._groups[key] = PollGroup(poll.pattern, poll.consumer_name, poll.mode)
        group.join(poll)
        self.follow(group, topics)

    def retire(self, subscription: MultiSubscription) -> None:
        """Let no more polls join this group."""
        key = (subscription.name, subscription.consumer_name, subscription.poll_mode)
        if self._groups.get(key) is subscription:
            del self._groups[key]

    def _in_pieces(self, work: Work) -> None:
        """Do the first piece of ``work`` now, and the others in later passes of the loop. All unfinished work shares one piece
        a pass, so a thousand patterns hold the loop no longer than one."""
        if work(TOPICS_PER_TURN) is not None:
            self._works.append((work, acting_token.get()))
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if self._works and not self._due:
            self._due = True
            self._scheduler.soon(self._go_on)

    def _go_on(self) -> None:
        self._due = False
        left, works = TOPICS_PER_TURN, self._works
        try:
            while left > 0 and works:
                work, token = works.popleft()
                before = acting_token.set(token)
                try:
                    done = work(left)
                finally:
                    acting_token.reset(before)
                if done is not None:
                    left -= done
                    works.append((work, token))
        finally:
            self._go_on_soon()

    def _attach_some(
        self,
        subscription: MultiSubscription,
        pattern: TopicPattern,
        names: Iterator[str],
        topics: Mapping[str, Topic],
        flushes: "_PendingFlushes",
        limit: int,
    ) -> int | None:
        """Attach a subscription to up to ``limit`` more topics that match. Returns: how many, or None when all is done."""
        if subscription.closed:
            return None
        attached = seen = 0
        try:
            for name in names:
                seen += 1
                topic = topics.get(name)
                if topic is not None and not topic.deleted and name not in subscription.parts and pattern.matches(name):
                    self._attach(subscription, topic, subscription.start, flushes)
                    attached += 1
                if attached + seen // NAMES_PER_TOPIC >= limit:
                    return limit
        except (ModeConflict, OSError) as error:
            subscription.settle(error)
            return None
        flushes.all_asked()
        return None

    def _attach(
        self, subscription: MultiSubscription, topic: Topic, start: Start | None, flushes: "_PendingFlushes | None"
    ) -> None:
        try:
            registration = subscription.attach(topic, start)
        except TooManyConsumers as error:
            self._log_passed_over(subscription, error)
            self.later(RETIRE_S, lambda: self.retire(subscription))
            return
        if flushes is not None:
            flushes.ask(topic, registration)

    def attach_one(self, subscription: MultiSubscription, topic: Topic) -> None:
        """Attach a poll to a single topic. Raises: ModeConflict, TooManyConsumers, OSError."""
        flushes = _PendingFlushes(subscription)
        subscription.registry = self
        flushes.ask(topic, subscription.attach(topic, None))
        flushes.all_asked()

    def topic_made(self, topic: Topic) -> None:
        """Attach matching subscriptions to a new topic, from its first id on. Of several exclusive subscriptions of one
        consumer the newest gets the topic."""
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

    def are_of_patterns(self, topic: Topic) -> bool:
        """Whether all consumers of a topic are used only by pattern subscriptions, which would create them again."""
        attached = [(*channel.sessions, *channel.polls) for channel in topic.channels.values()]
        return all(
            parts and all(isinstance(part.lessee, MultiSubscription) and part.lessee.pattern is not None for part in parts)
            for parts in attached
        )

    def rejoin(self, topic: Topic, ended: Sequence[Subscription]) -> None:
        """Attach the pattern subscriptions among those that a seek has ended; they continue from the new position. After
        ``CLOSED`` of one topic a client could not ask for it again, since it is still subscribed to the pattern (ADR 0109)."""
        for part in ended:
            subscription = part.lessee
            if isinstance(subscription, MultiSubscription) and not subscription.closed:
                try:
                    subscription.attach_again(topic)
                except (ModeConflict, TooManyConsumers, OSError) as error:
                    self._log_passed_over(subscription, error)

    def _log_passed_over(self, subscription: MultiSubscription, error: Exception) -> None:
        logger.warning("consumer %s of %s passes over a topic: %s", subscription.consumer_name, subscription.name, error)

    def leave(self, subscription: MultiSubscription) -> None:
        """Detach the parts of a closed subscription, first the part with the one message that counts an attempt."""
        self._patterns.pop(subscription, None)
        self.retire(subscription)
        if subscription.order is not None and subscription.inflight:
            for name, part in subscription.parts.items():
                if part.channel.consumer.counts_loss_of(subscription):
                    subscription.parts.pop(name).close()
                    break
            subscription.late = subscription.counted = True
        self._in_pieces(partial(self._leave_some, subscription))

    def _leave_some(self, subscription: MultiSubscription, limit: int) -> int | None:
        """Detach up to ``limit`` parts of a closed subscription. Returns: how many, or None when all is done."""
        for name in list(islice(subscription.parts, limit)):
            subscription.parts.pop(name).close()
        return limit if subscription.parts else None

    def end_all(self, code: str) -> None:
        """End every pattern subscription and pattern poll with a CLOSED code; none of their messages counts an attempt."""
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
