"""One hold on a consumer of many topics: a session's on those of a pattern, or a poll. And which topics those are.

Contract: delivery.md, "Window" (one over all topics, taken fairly in turn); protocol.md, "SUB", "PULL". Knows no wire and no
sessions. Belongs to the event loop.
"""

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from sys import maxsize

from toymq_py.consumer import Lessee
from toymq_py.errors import ModeConflict, NoSuchConsumer, NoSuchTopic, RequestError, TooManyConsumers
from toymq_py.model import Mode, Start, TopicPattern, is_pattern
from toymq_py.storage.scheduling import Scheduler
from toymq_py.topic.channel import Delivery, Registration, Subscription
from toymq_py.topic.topic import Topic

logger = logging.getLogger("toymq_py.topic")

TOPICS_PER_TURN = 32
"""Attached or left in one piece: one to two milliseconds."""
MESSAGES_PER_POLL = 4096
"""What one ``Poll.take`` returns at most, whatever it asks for: a hundred thousand of one byte would hold the loop."""
RETRY_S = 0.5
"""How soon a read that failed (no descriptor left, say) is tried again."""
RECORD_COST_BYTES = 64
"""What a message counts towards ``max_bytes`` of ``Poll.take`` beside its payload, about: its header line."""

Done = Callable[[OSError | RequestError | None], None]


class Following(Lessee, ABC):
    """One window over the parts (``Subscription``) that it has of each topic; it is the lessee of them all.

    A part stands in ``_hungry`` when there may be something to take of it. They are asked in turn, so that a take costs the
    same however many topics there are. In ``_promised`` stand those that were woken and said that they will look.
    """

    __slots__ = ("_hungry", "_promised", "_registering", "closed", "consumer_name", "followers", "matched", "mode", "name",
                 "parts", "pattern", "problem", "registered", "start", "visibility_s")  # fmt: skip

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
        """``name`` is the topic's, or the pattern's text; ``followers`` is set by whoever attaches it."""
        Lessee.__init__(self, window)
        self.name = name
        self.consumer_name = consumer_name
        self.pattern = pattern
        self.mode = mode
        self.visibility_s = visibility_s
        self.start = start
        self.parts: dict[str, Subscription] = {}
        """By topic."""
        self.matched = 0
        """How many topics it was attached to."""
        self.closed = False
        self.followers: Followers | None = None
        self.problem: OSError | RequestError | None = None
        """Why it cannot be registered, or why there is nothing more to come."""
        self.registered = False
        self._registering: list[Done] = []
        self._hungry: OrderedDict[Subscription, None] = OrderedDict()
        self._promised: dict[Subscription, None] = {}

    # -- its topics

    def attach(self, topic: Topic, start: Start | None) -> Registration:
        """Raises: ModeConflict, TooManyConsumers, OSError."""
        part, registration = topic.subscribe(
            self.consumer_name, start,
            mode=self.mode, window=self.window, visibility_s=self.visibility_s,
            wake=self._part_woken, ended=self._part_ended, lessee=self,
        )  # fmt: skip
        self.parts[topic.name] = part
        self.matched += 1
        self._adopted(part)
        if part.channel.available():
            self._hungry[part] = None
        else:
            part.channel.idle[part] = None
        return registration

    def _adopted(self, part: Subscription) -> None:
        """A part was added."""

    def _part_woken(self, part: Subscription) -> bool:
        self._hungry[part] = None
        if not self.woken():
            return False
        self._promised[part] = None
        return True

    def _next_hungry(self) -> Subscription:
        """Assumes that there is one."""
        part, _ = self._hungry.popitem(last=False)
        self._promised.pop(part, None)
        return part

    def _part_ended(self, part: Subscription, code: str) -> None:
        self._hungry.pop(part, None)
        self._promised.pop(part, None)
        if self.parts.get(part.name) is part:
            del self.parts[part.name]
        if not self.closed:
            self.part_lost(part, code)

    @abstractmethod
    def woken(self) -> bool:
        """There may be something to take. Returns: whether that is looked at soon."""

    @abstractmethod
    def part_lost(self, part: Subscription, code: str) -> None:
        """A topic ended its part."""

    @abstractmethod
    def end(self, code: str) -> None:
        """All of it is lost, for the reason of a CLOSED code."""

    def roomy(self) -> None:
        self.woken()

    def pass_on(self) -> None:
        """It was woken and cannot take now: others are woken for what is there."""
        promised, self._promised = self._promised, {}
        for part in promised:
            part.pass_on()

    def close(self) -> None:
        """The holder lets go. Idempotent. Leases of a subscription are ready again at once, but for very many topics, of which
        some follow within a moment."""
        if not self.closed:
            self.closed = True
            self._hungry.clear()
            self._promised.clear()
            if self.followers is not None:
                self.followers.leave(self)
            self.settle(None)

    # -- its registration

    def when_registered(self, done: Done) -> None:
        """Have ``done`` called, maybe at once, when every topic is attached and every new consumer is on stable storage
        (ADR 0009), or when it is closed before; or with what went wrong: then it is of no use, and to be closed."""
        if self.registered:
            done(self.problem)
        else:
            self._registering.append(done)

    def settle(self, problem: OSError | RequestError | None) -> None:
        """Its registration ended so. Called by ``Followers``."""
        if not self.registered:
            self.registered = True
            self.problem = problem or self.problem
            waiting, self._registering = self._registering, []
            for done in waiting:
                done(problem)


class PatternSubscription(Following):
    """A session's subscription of a pattern: ``Subscription`` over all topics that match, those to come included.

    ``wake`` and ``ended`` are as in ``Subscription``; ``ended`` gets the name that was lost, one topic's or the pattern's.
    """

    __slots__ = ("_ended", "_paused", "_wake")

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
        Following.__init__(
            self, pattern.text, consumer_name, pattern=pattern, mode=mode, window=window, visibility_s=visibility_s, start=start
        )
        self._wake = wake
        self._ended = ended
        self._paused = False

    @property
    def paused(self) -> bool:
        """Its session holds its deliveries (PAUSE)."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        for part in self.parts.values():
            part.paused = paused

    def _adopted(self, part: Subscription) -> None:
        part.paused = self._paused

    def woken(self) -> bool:
        if self.inflight >= self.window:
            self.wants_room = True
            return False
        return self._wake(self)

    def part_lost(self, part: Subscription, code: str) -> None:
        self._ended(self, part.name, code)

    def end(self, code: str) -> None:
        if not self.closed:
            self.close()
            self._ended(self, self.name, code)

    def take(self, max_bytes: int) -> Delivery | None:
        """See ``Subscription.take``. A topic that cannot be read (logged) is tried again after a moment, and harms no other."""
        hungry = self._hungry
        while hungry:
            room = self.window - self.inflight
            if room <= 0:
                self.wants_room = True
                self.pass_on()
                return None
            part = self._next_hungry()
            try:
                delivery = part.take_some(room, max_bytes)
            except OSError:
                logger.exception("cannot read %s", part.name)
                if self.followers is not None:
                    self.followers.later(RETRY_S, partial(self._look_again, part))
                continue
            if delivery is not None:
                hungry[part] = None
                return delivery
        return None

    def _look_again(self, part: Subscription) -> None:
        if not part.closed:
            self._part_woken(part)


class Poll(Following):
    """A look for messages without a session: leases them at once, or is woken when there is something to lease.

    Its leases end by their deadline alone, never with the poll; ``close`` gives nothing back. What was taken and did not
    get out can be given back uncounted with ``delivery.subscription.unsend`` of each of ``delivery.ranges()``.
    Made by ``Broker.poll``; take nothing before ``when_registered`` said None. It belongs to whoever made it and must be
    closed.
    """

    __slots__ = ("_wake",)

    def __init__(self, name: str, consumer_name: str, *, visibility_s: float | None, wake: Callable[[], bool]) -> None:
        pattern = TopicPattern(name) if is_pattern(name) else None
        Following.__init__(
            self, name, consumer_name, pattern=pattern, mode=None, window=maxsize, visibility_s=visibility_s, start=None
        )
        self._wake = wake

    def woken(self) -> bool:
        return self._wake()

    def part_lost(self, part: Subscription, code: str) -> None:
        if self.pattern is None:
            if code == "SHUTTING_DOWN":
                self.close()
            elif part.channel.context.topic_deleted:
                self.problem = NoSuchTopic(f"{self.name} was deleted")
            else:
                self.problem = NoSuchConsumer(f"{self.consumer_name} on {self.name} was deleted")
        self._wake()

    def end(self, code: str) -> None:
        if not self.closed:
            self.close()
            self._wake()

    def take(self, max_count: int, max_bytes: int) -> list[Delivery]:
        """Lease what is ready now, redeliveries first, the topics in turn: at most ``max_count`` messages, and about
        ``max_bytes``, but one message at least. [] when there is nothing: ``wake`` is called when that may have changed. Where
        others take from the same consumer, no more than the share of one.

        Raises: OSError when a log cannot be read, and nothing was taken; NoSuchTopic, NoSuchConsumer when it was deleted
            meanwhile.
        """
        if self.problem is not None:
            raise self.problem
        taken: list[Delivery] = []
        again: list[Subscription] = []
        max_count = min(max_count, MESSAGES_PER_POLL)
        while self._hungry and max_count > 0 and max_bytes > 0:
            part = self._next_hungry()
            try:
                delivery = part.take_some(max_count, max_bytes)
            except OSError:
                again.append(part)
                if not taken:
                    raise
                break
            if delivery is None:
                continue
            taken.append(delivery)
            max_count -= len(delivery)
            max_bytes -= delivery.size + RECORD_COST_BYTES * len(delivery)
            if part.channel.takers > 1:
                again.append(part)
            else:
                self._hungry[part] = None
        for part in again:
            self._hungry[part] = None
        return taken


class Followers:
    """Everything that follows a pattern, and tells it of topics that come. Polls of one topic are attached here, too.

    A pattern over thousands of topics is attached and left in pieces, so that the loop is not held.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._patterns: dict[Following, None] = {}
        self._watchers: dict[Callable[[Topic], None], None] = {}

    def watch(self, made: Callable[[Topic], None]) -> Callable[[], object]:
        """Have ``made`` called with every topic that appears. Returns: what ends that."""
        self._watchers[made] = None
        return lambda: self._watchers.pop(made, None)

    def follow(self, following: Following, topics: Mapping[str, Topic]) -> None:
        """Attach it to all topics that match, now or, when there are many, within a moment; see ``when_registered``."""
        pattern = following.pattern
        assert pattern is not None
        following.followers = self
        if following.mode == "exclusive":
            same = (following.name, following.consumer_name, following.mode)
            for older in [other for other in self._patterns if (other.name, other.consumer_name, other.mode) == same]:
                older.end("TAKEN_OVER")
        self._patterns[following] = None
        names = iter([name for name in topics if pattern.matches(name)])
        self._attach_some(following, names, topics, _Registering(following))

    def _attach_some(
        self, following: Following, names: Iterator[str], topics: Mapping[str, Topic], registering: "_Registering"
    ) -> None:
        if following.closed:
            return
        part = list(islice(names, TOPICS_PER_TURN))
        try:
            for name in part:
                topic = topics.get(name)
                if topic is not None and not topic.deleted and name not in following.parts:
                    self._attach(following, topic, following.start, registering)
        except (ModeConflict, OSError) as error:
            following.settle(error)
            return
        if len(part) == TOPICS_PER_TURN:
            self._scheduler.soon(lambda: self._attach_some(following, names, topics, registering))
        else:
            registering.all_asked()

    def _attach(self, following: Following, topic: Topic, start: Start | None, registering: "_Registering | None") -> None:
        try:
            registration = following.attach(topic, start)
        except TooManyConsumers as error:
            logger.warning("consumer %s of %s passes over a topic: %s", following.consumer_name, following.name, error)
            return
        if registering is not None:
            registering.ask(topic, registration)

    def attach_one(self, following: Following, topic: Topic) -> None:
        """A poll of a plain topic. Raises: TooManyConsumers, OSError."""
        registering = _Registering(following)
        following.followers = self
        registering.ask(topic, following.attach(topic, None))
        registering.all_asked()

    def topic_made(self, topic: Topic) -> None:
        """A topic appeared: whoever follows a pattern that it matches begins at its first id. Of exclusive ones that are one
        consumer, the newest has it."""
        taken: set[str] = set()
        for following in reversed(list(self._patterns)):
            pattern = following.pattern
            if pattern is None or not pattern.matches(topic.name):
                continue
            if following.mode == "exclusive":
                if following.consumer_name in taken:
                    continue
                taken.add(following.consumer_name)
            try:
                self._attach(following, topic, None, None)
            except (ModeConflict, OSError) as error:
                logger.warning("consumer %s of %s passes over a topic: %s", following.consumer_name, following.name, error)
        for made in list(self._watchers):
            made(topic)

    def leave(self, following: Following) -> None:
        """It is closed: its parts are detached."""
        self._patterns.pop(following, None)
        self._leave_some(following)

    def _leave_some(self, following: Following) -> None:
        for name in list(islice(following.parts, TOPICS_PER_TURN)):
            following.parts.pop(name).close()
        if following.parts:
            self._scheduler.soon(lambda: self._leave_some(following))

    def end_all(self, code: str) -> None:
        """Every pattern's subscription and poll ends with a CLOSED code."""
        for following in list(self._patterns):
            following.end(code)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._scheduler.later(delay_s, call)


class _Registering:
    """What a following owes the disk before it is answered: one flush per topic on which its consumer is new."""

    __slots__ = ("_asked", "_following", "_open")

    def __init__(self, following: Following) -> None:
        self._following = following
        self._open = 0
        self._asked = False

    def ask(self, topic: Topic, registration: Registration) -> None:
        if registration is Registration.KNOWN:
            return

        def flushed(error: OSError | RequestError | None) -> None:
            self._open -= 1
            if isinstance(error, OSError) and registration is Registration.NEW_AHEAD:
                self._withdraw(topic)
                self._following.settle(error)
            self._settle_when_done()

        self._open += 1
        topic.flush_offsets(flushed)

    def all_asked(self) -> None:
        self._asked = True
        self._settle_when_done()

    def _withdraw(self, topic: Topic) -> None:
        part = self._following.parts.pop(topic.name, None)
        if part is not None:
            part.close()
            topic.withdraw(part)

    def _settle_when_done(self) -> None:
        if self._asked and not self._open:
            self._following.settle(None)
