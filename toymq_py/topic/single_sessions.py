"""The sessions of a channel with mode=single: wakes the one that may take, and replaces one that hangs.

Contract: delivery.md, "Visibility timeout"; ADR 0186, 0264. Belongs to the event loop.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol, Self, TypeVar

from toymq_py.consumer import Consumer, Lessee
from toymq_py.partitions import number_of
from toymq_py.topic.deliverer import ChannelContext
from toymq_py.topic.single_active import Session, SingleActive


class WokenSession(Session, Protocol):
    """What mode=single needs of a ``Subscription``."""

    visibility_s: float | None

    @property
    def wake(self) -> Callable[[Self], bool]: ...


S = TypeVar("S", bound=WokenSession)


class SingleSessions(SingleActive[S]):
    """The sessions of one channel with mode=single; ``attached`` and ``idle`` are the channel's own collections. Its methods
    note events, wake the session that may take from then on, and take the topic from a session that hangs."""

    __slots__ = ("_attached", "_available", "_consumer", "_context", "_head", "_idle", "_until_s")

    def __init__(
        self, context: ChannelContext, consumer: Consumer, attached: Collection[S], idle: OrderedDict[S, None],
        available: Callable[[], int], head: Callable[[], int | None],
    ) -> None:  # fmt: skip
        """``available`` returns about how many messages could be taken now; ``head`` returns the lowest id of them."""
        super().__init__(number_of(context.topic) or 0)
        self._context = context
        self._consumer = consumer
        self._attached = attached
        self._idle = idle
        self._available, self._head = available, head
        self._until_s = 0.0  # how long one that hangs, and takes nothing, has its turn where all hang

    def came(self, session: S) -> None:
        """Note that a session attached; see ``SingleActive.joined``."""
        self.joined(session, self._attached)
        self.look()

    def gone(self, session: S) -> None:
        """Note that a session is gone; see ``SingleActive.left``."""
        self._begin(self.left(session, self._attached))

    def look(self) -> None:
        """Note that leases have ended: the heir may take over."""
        if self._hung:
            self.readmit(self._attached)
        self._begin(self.settle(self._consumer.inflight_to))

    def paused(self, session: S) -> None:
        """Handle PAUSE or RESUME: the session's messages of this topic are settled first; another one gets later ones."""
        if session.paused:
            if session is self.taker:
                self._pass_on(session, in_turn=False)
        elif session in self._hung:
            self.look()
        else:
            self.came(session)

    def wake(self) -> None:
        """Wake the active session: there are messages."""
        if self.taker in self._idle:
            self._begin(self.taker)

    def _begin(self, active: S | None) -> None:
        """Wake the session that is active from now on, if there is one."""
        if active is not None:
            self._idle.pop(active, None)
            active.wake(active)

    def may_take(self, session: object) -> bool:
        """Whether a session may take now; otherwise it is woken when it may. One that hangs may not if another session can.
        While a message waits for its redelivery after a NACK, messages behind it wait, too."""
        if session is self.taker and self.active is not None and self.active.lessee.late:
            self._pass_on(self.active, in_turn=False)
        taker = self.taker
        if taker is None or session is not taker:
            return False
        waits = self._consumer.first_given_back()
        if waits is not None and ((head := self._head()) is None or head > waits):
            self._idle[taker] = None
            return False
        return True

    def given_back(self, first: int) -> None:
        """Note that the active session gives back messages, the lowest of them ``first``. Messages that it has behind that are
        taken back, too, so that they come again in order."""
        if self.active is not None:
            self._take_what_is_behind(self.active.lessee, first)

    def tick(self, now: float) -> bool:
        """End due leases and backoffs, and take the topic from a session that hangs: at once if a lease of this topic has
        ended, otherwise if it takes nothing. Returns: see ``Consumer.tick``."""
        active = self.active
        held = 0 if active is None else active.lessee.inflight
        ended = self._consumer.tick(now)
        if active is not None and active.lessee.late:
            if lost := active.lessee.inflight < held:
                self._take_what_is_behind(active.lessee, active.lessee.expired)
            if lost or (self._available() and not self._consumer.inflight_to(active.lessee)):
                self._pass_on(active, in_turn=lost or now >= self._until_s)
        return ended

    def _take_what_is_behind(self, lessee: Lessee, msg_id: int) -> None:
        """Take back the messages behind ``msg_id``, which the session no longer has, so that they come again in order."""
        ranges = [(max(first, msg_id + 1), last) for first, last in self._consumer.inflight_to(lessee) if last > msg_id]
        self._consumer.return_uncounted(ranges)

    def _pass_on(self, active: S, *, in_turn: bool) -> None:
        if self.hand_over(self._attached, in_turn=in_turn):
            self._until_s = self._context.clock.monotonic() + self._visibility_s(active)
            self.look()

    def next_look(self) -> float | None:
        """When to call ``tick`` although no lease ends: the active session may take nothing of this topic, because it hangs on
        messages of other topics or does not read."""
        if self.active is None or len(self._attached) < 2 or not self._available():
            return None
        now = self._context.clock.monotonic()
        return self._until_s if self._until_s > now else now + self._visibility_s(self.active)

    def _visibility_s(self, session: S) -> float:
        return self._context.policy.visibility_s if session.visibility_s is None else session.visibility_s
