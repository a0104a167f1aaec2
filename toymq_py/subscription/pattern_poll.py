"""PULLs of a pattern: all of one consumer and pattern share one subscription to each topic.

Contract: protocol.md, "PULL"; delivery.md; ADR 0102. Knows no wire and no sessions. Belongs to the event loop.

    PatternPoll ─┐
    PatternPoll ─┼─ PollGroup ─┬─ Subscription (topic a.x)      a poll costs the same however many topics there are,
    PatternPoll ─┘             └─ Subscription (topic a.y)      a topic the same however many polls wait
"""

from collections import OrderedDict
from collections.abc import Callable
from sys import maxsize

from toymq_py.consumer import DeliveryOrder, Lessee
from toymq_py.consumer_options import Mode
from toymq_py.errors import RequestError
from toymq_py.names import TopicPattern
from toymq_py.subscription.pattern_subscription import Done, MultiSubscription
from toymq_py.subscription.poll import Poll, Taking
from toymq_py.topic import Delivery, Subscription

PART_COST_BYTES = 512
"""About the memory of one topic's part of a group, in bytes, with its entries in tables."""


class PatternPoll(Lessee):
    """One PULL of a pattern; used like ``Poll``."""

    __slots__ = ("_registering", "_wake", "closed", "consumer_name", "group", "mode", "name", "on_cost", "pattern",
                 "visibility_s")  # fmt: skip

    def __init__(
        self, pattern: TopicPattern, consumer_name: str, *, visibility_s: float | None, wake: Callable[[], bool],
        mode: Mode | None,
    ) -> None:  # fmt: skip
        Lessee.__init__(self, maxsize)
        self.order = DeliveryOrder()
        self.pattern = pattern
        self.name = pattern.text
        self.consumer_name = consumer_name
        self.visibility_s = visibility_s
        self.mode = mode
        self.closed = False
        self.group: PollGroup | None = None
        """The group of the poll, which the registry sets."""
        self.on_cost: Callable[[int], None] = lambda size: None
        """Called with the bytes that the group takes: this poll's client is charged for the whole group."""
        self._wake = wake
        self._registering: list[Done] = []

    def wake(self) -> bool:
        """Tell the poll that messages may be ready. Returns: whether it will call ``take`` soon."""
        return self._wake()

    @property
    def problem(self) -> OSError | RequestError | None:
        """Why the group could not be registered; None without an error."""
        return None if self.group is None else self.group.problem

    @property
    def is_examining(self) -> bool:
        """Whether a topic's damage is being examined; see ``MultiSubscription.is_examining``."""
        return self.group is not None and self.group.is_examining

    def when_registered(self, done: Done) -> None:
        """Call ``done`` when the group's new consumers are on stable storage; see ``MultiSubscription.when_registered``."""
        if self.closed or (self.group is not None and self.group.registered):
            done(self.problem)
        else:
            self._registering.append(done)

    def settle(self) -> None:
        """Call what waits in ``when_registered``: the group's consumers are on stable storage, or this poll is closed."""
        waiting, self._registering = self._registering, []
        for done in waiting:
            done(self.problem)

    def take(self, max_count: int, max_bytes: int) -> list[Delivery]:
        """Lease ready messages of the matching topics; see ``Poll.take``."""
        return [] if self.closed or self.group is None else self.group.take(self, max_count, max_bytes)

    def wake_others(self) -> None:
        """Wake another poll or session of the consumer: this poll was woken and cannot take now."""
        if self.group is not None:
            self.group.pass_on(self)

    def close(self) -> None:
        """End the poll. Idempotent. Its leases end by their deadline."""
        if not self.closed:
            self.closed = True
            if self.group is not None:
                self.group.leave(self)
            self.settle()


class PollGroup(MultiSubscription):
    """The polls of one consumer on one pattern in one mode. They share one ``Subscription``, called a part, to each topic; the
    group ends with its last poll.

    ``_idle`` has the polls that found nothing, the longest idle first; ``_told`` those that were woken for messages and have
    not called ``take`` yet. Each poll has its own leases.
    """

    __slots__ = ("_idle", "_payer", "_polls", "_told")

    def __init__(self, pattern: TopicPattern, consumer_name: str, mode: Mode | None) -> None:
        MultiSubscription.__init__(
            self, pattern.text, consumer_name, pattern=pattern, mode=None, window=maxsize, visibility_s=None, start=None
        )
        self.poll_mode = mode
        self._polls: dict[PatternPoll, None] = {}
        self._idle: OrderedDict[PatternPoll, None] = OrderedDict()
        self._told: dict[PatternPoll, None] = {}
        self._payer: PatternPoll | None = None

    def join(self, poll: PatternPoll) -> None:
        """Add a poll."""
        self._polls[poll] = None
        poll.group = self

    def leave(self, poll: PatternPoll) -> None:
        """Remove a closed poll; another one is woken for messages that this one was woken for and did not take."""
        self._polls.pop(poll, None)
        self._idle.pop(poll, None)
        if not self._polls:
            self.close()
            return
        self.pass_on(poll)
        if poll is self._payer:
            self._charge()

    def _charge(self) -> None:
        self._payer = next(iter(self._polls), None) if not self.closed else None
        if self._payer is not None:
            self._payer.on_cost(PART_COST_BYTES * len(self.parts))

    def settle(self, problem: OSError | RequestError | None) -> None:
        settled = self.registered
        MultiSubscription.settle(self, problem)
        if problem is not None and self.registry is not None:
            self.registry.retire(self)
        if not settled:
            self._charge()
            for poll in list(self._polls):
                poll.settle()

    def on_messages(self) -> bool:
        while self._idle:
            poll, _ = self._idle.popitem(last=False)
            if poll.wake():
                self._told[poll] = None
                return True
        return False

    def pass_on(self, poll: PatternPoll) -> None:
        """Wake another poll of the group for messages that this poll was woken for and cannot take; if none is idle, another
        session or poll of the topics."""
        if poll in self._told:
            del self._told[poll]
            if not self.on_messages():
                self.wake_others()

    def on_part_ended(self, part: Subscription, code: str) -> None:
        if not part.channel.context.topic_deleted and self.registry is not None:
            self.registry.retire(self)  # its consumer was deleted there: a new PULL makes it anew

    def end(self, code: str) -> None:
        if not self.closed:
            polls = list(self._polls)
            self.close()
            for poll in polls:
                poll.close()
                poll.wake()

    def take(self, poll: PatternPoll, max_count: int, max_bytes: int) -> list[Delivery]:
        """Lease ready messages for one poll, its share of them at most; see ``Poll.take``. Raises: OSError."""
        if self.problem is not None:
            raise self.problem
        self._told.pop(poll, None)
        taking = Taking(max_count, max_bytes)

        def take(part: Subscription, count: int, size: int) -> Delivery | None:
            if (takers := part.channel.takers + len(self._polls) - 1) > 1:
                count = min(count, max(part.channel.available() // takers, 1))
            return part.lend(poll, poll.visibility_s, count, size)

        taken = taking.run(self._takeable, self._next_takeable, take, shared=len(self._polls) > 1, several=True)
        if not taken:
            self._idle[poll] = None
        elif self._idle and self._has_more():
            self.on_messages()  # more is there than one was told of
        return taken

    def _has_more(self) -> bool:
        """Whether any topic has ready messages. Topics that have none are marked as idle on the way."""
        while self._takeable:
            part = next(iter(self._takeable))
            if part.channel.available():
                return True
            del self._takeable[part]
            part.channel.idle[part] = None
        return False


AnyPoll = Poll | PatternPoll
"""A PULL of a topic or of a pattern."""
