"""One consumer of a topic with its deliveries, and the sessions and polls that take from it.

Contract: delivery.md, "mode", "Session gone", "Visibility timeout". Knows no wire and no topic. Belongs to the event loop.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from toymq_py.consumer import Consumer, Lessee
from toymq_py.consumer_options import Mode
from toymq_py.errors import ModeConflict
from toymq_py.failure import Failure
from toymq_py.names import TopicPattern
from toymq_py.records import IdRange, Records
from toymq_py.topic import lease_ends, settlement
from toymq_py.topic.delivered_ids import DeliveredIds
from toymq_py.topic.deliverer import ChannelContext, NoDelivery, ranges_of
from toymq_py.topic.deliverers import deliverer_for
from toymq_py.topic.resting import Resting
from toymq_py.topic.single_sessions import SingleSessions


@dataclass(frozen=True, slots=True)
class Delivery:
    """Leased records: rows ``start`` to ``stop`` of a run, all at the same attempt. Ids ascend, maybe with gaps."""

    subscription: "Subscription"  # of a pattern or a poll, the part that is the topic's
    records: Records
    start: int
    stop: int
    attempt: int
    size: int  # payload bytes, about

    def ranges(self, skip: int = 0) -> list[IdRange]:
        """The ids after the first ``skip``, as ranges."""
        return ranges_of(self.records.ids[self.start + skip : self.stop])

    def unsend(self, written: int = 0) -> None:
        """Return all but the first ``written`` messages uncounted: they never left the process."""
        self.without_records().unsend(written)

    def without_records(self) -> DeliveredIds:
        return DeliveredIds(self.subscription, self.records.ids, self.start, self.stop)

    @property
    def topic(self) -> str:
        return self.subscription.channel.context.topic

    @property
    def first_id(self) -> int:
        return self.records.ids[self.start]

    @property
    def last_id(self) -> int:
        return self.records.ids[self.stop - 1]

    def __len__(self) -> int:
        return self.stop - self.start


class Subscription(Lessee):
    """Lets a session take from one consumer of one topic. A pattern or a poll has one for each topic.

    ``wake`` is called when there may be messages to take, and returns whether the session will look soon; ``ended`` with a
    CLOSED code when the topic ends it. After ``close`` or ``ended`` it takes nothing and does nothing.
    """

    __slots__ = ("channel", "closed", "ended", "lessee", "mode", "paused", "visibility_s", "wake")
    pattern: ClassVar[TopicPattern | None] = None

    def __init__(
        self, channel: "Channel", *, mode: Mode | None, window: int, visibility_s: float | None,
        wake: Callable[["Subscription"], bool], ended: Callable[["Subscription", str], None], lessee: Lessee | None = None,
    ) -> None:  # fmt: skip
        """``mode``: None for a poll, whose leases end by their deadline alone. ``lessee``: the owner of the leases, whose
        window counts; by default the subscription."""
        Lessee.__init__(self, window)
        self.channel = channel
        self.mode = mode
        self.visibility_s = visibility_s
        self.wake = wake
        self.ended = ended
        self.lessee: Lessee = lessee or self
        self.closed = self.paused = False  # see ``pause``

    def pause(self, paused: bool) -> None:
        """Pause the deliveries of the session, or resume them (PAUSE, RESUME)."""
        self.paused = paused
        if self.channel.single is not None:
            self.channel.single.paused(self)

    @property
    def name(self) -> str:
        return self.channel.context.topic

    @property
    def consumer_name(self) -> str:
        return self.channel.consumer.name

    @property
    def active_in(self) -> tuple[str, ...]:
        """The topic, if this is the active session of mode=single; otherwise none."""
        single = self.channel.single
        return (self.name,) if single is not None and single.active is self else ()

    def on_capacity(self) -> None:
        self.wake(self)

    def take(self, max_bytes: int, max_count: int | None = None) -> Delivery | None:
        """Lease the next messages, redeliveries first: a share of what is ready, at least one message; None when there are none
        or the window is full. Raises: OSError when the log cannot be read."""
        lessee = self.lessee
        room = lessee.window - lessee.inflight
        if room <= 0 and not self.closed:
            lessee.wants_room = True
            return None
        return self.take_some(room if max_count is None else min(room, max_count), max_bytes)

    def take_some(self, max_count: int, max_bytes: int) -> Delivery | None:
        """As ``take``, with a given limit instead of the window."""
        if self.closed:
            return None
        channel = self.channel
        if (takers := channel.takers) > 1:
            max_count = min(max_count, max(channel.available() // takers, 1))
        return channel.take(self, max_count, max_bytes)

    def lend(self, lessee: Lessee, visibility_s: float | None, max_count: int, max_bytes: int) -> Delivery | None:
        """As ``take_some``, but for leases of another lessee than the subscription's."""
        if self.closed:
            return None
        taker = Subscription(
            self.channel, mode=self.mode, window=self.window, visibility_s=visibility_s, wake=self.wake, ended=self.ended,
            lessee=lessee,
        )  # fmt: skip
        return self.channel.take(taker, max_count, max_bytes, self)

    def unsend(self, first: int, last: int) -> None:
        """Return a delivery that never left the buffer, uncounted."""
        self.channel.unsend(self, first, last)

    def wake_others(self) -> None:
        """Wake another session or poll: this one was woken and cannot take now."""
        self.channel.wake_next()

    def close(self) -> None:
        """Close the subscription. Idempotent. Its inflight messages are ready again at once, except those of a poll."""
        if not self.closed:
            self.closed = True
            self.wake, self.ended = (lambda _: False), (lambda _, code: None)  # both may be a session's, as a cycle
            self.channel.detach(self)


class Channel:
    """One consumer of a topic: joins its state with the log and with the sessions and polls that take from it.

    ``idle`` has the takers that found nothing, the longest idle first: each new message wakes one of them, so they are served
    in turn, and a thousand do not wake for one message. One whose lease has ended by its deadline comes last: its handler may
    hang. Does not know its topic: see ``ChannelContext``.
    """

    __slots__ = ("_arm", "_deliverer", "_held", "acked_total", "closed", "consumer", "context", "held_up", "idle", "instead",
                 "mode", "polls", "redelivered_total", "resting", "sessions", "single")  # fmt: skip

    def __init__(
        self, context: ChannelContext, consumer: Consumer, *, arm: Callable[["Channel", float], None],
        held: Callable[["Channel"], None],
    ) -> None:  # fmt: skip
        """``arm`` has ``due`` called at a monotonic time, in seconds; ``held`` is told that messages wait for the dead-letter
        topic."""
        self.context = context
        self.consumer = consumer
        self.mode: Mode = "exclusive"
        """The mode of the sessions, else of the last one or of the last PULL with a mode. Stored. PULL: a shared consumer."""
        self.sessions: dict[Subscription, None] = {}
        self.polls: dict[Subscription, None] = {}
        self.idle: OrderedDict[Subscription, None] = OrderedDict()
        self.resting = Resting(self.sessions)
        self.held_up: dict[Subscription, None] = {}
        """Subscriptions whose next message comes alone. They look again when anything was taken or settled."""
        self.closed = False  # the consumer was deleted
        self.acked_total = self.redelivered_total = 0  # since the start of the broker
        self.single: SingleSessions[Subscription] | None = None  # with mode=single
        self.instead: Callable[[Subscription, int, int, Subscription | None], Delivery | None] | None = None  # of take
        self._arm = arm
        self._held = held
        self._deliverer = deliverer_for(self.mode, context, consumer, self.notify_ready)

    # -- takers

    @property
    def takers(self) -> int:
        """Sessions and polls that share the messages."""
        return 1 if self.single is not None and self.sessions else len(self.sessions) + len(self.polls)

    @property
    def is_examining(self) -> bool:
        """Whether an empty take is not final: damage is being examined, or see ``instead``. Its caller is woken afterwards."""
        return self.instead is not None or self._deliverer.is_examining

    def attach(
        self, *, mode: Mode | None, window: int, visibility_s: float | None, wake: Callable[[Subscription], bool],
        ended: Callable[[Subscription, str], None], lessee: Lessee | None, poll_mode: Mode | None,
    ) -> Subscription:  # fmt: skip
        """Attach a session, or a poll (``mode`` None); see ``Topic.subscribe``. Raises: ModeConflict."""
        if (wanted := mode or poll_mode) is not None:
            if self.sessions and self.mode != wanted:
                remedy = f"subscribe with mode={self.mode}, or as another consumer"
                raise ModeConflict(f"{self.consumer.name} on {self.context.topic} is consumed with mode={self.mode}: {remedy}")
            if wanted != self.mode:
                self.context.changed()
            self.set_mode(wanted)
        subscription = Subscription(
            self, mode=mode, window=window, visibility_s=visibility_s, wake=wake, ended=ended, lessee=lessee
        )
        (self.polls if mode is None else self.sessions)[subscription] = None
        self._count_takers(1)
        if self.single is not None and mode is not None:
            self.single.came(subscription)
            self.arm()
        return subscription

    def set_mode(self, mode: Mode) -> None:
        if mode == "exclusive":
            self.end_sessions("TAKEN_OVER")
        if mode != self.mode:
            self.mode = mode
            self.single = None
            if mode == "single":
                self.single = SingleSessions(self.context, self.consumer, self.sessions, self.idle, self.available, self.head)
            self._deliverer = deliverer_for(mode, self.context, self.consumer, self.notify_ready)
            self.wake_next()  # whether there is room is not known to a new one before it has looked

    def prioritize(self, priority_of: Callable[[bytes], int]) -> None:
        """Deliver by priority, read from header blocks, where the mode does not order keys."""
        self.consumer.priority_of = priority_of
        self._deliverer = deliverer_for(self.mode, self.context, self.consumer, self.notify_ready)
        self.wake_next()

    def detach(self, subscription: Subscription) -> None:
        """Remove a closed subscription. The leases of a session end, attempts kept; those of a poll stay."""
        self.idle.pop(subscription, None)
        self.held_up.pop(subscription, None)
        self.resting.forget(subscription)
        self._count_takers(-1)
        if subscription.mode is None:
            del self.polls[subscription]
        else:
            del self.sessions[subscription]
            lease_ends.leave(self.consumer, self.context, subscription.lessee)
            if self.single is not None:
                self.single.gone(subscription)
        self.notify_ready()

    def _count_takers(self, change: int) -> None:
        self.context.takers += change
        self.context.log.tail.enable(self.context.takers > 0)

    def end_sessions(self, code: str) -> list[Subscription]:
        """End all sessions with a CLOSED code; polls stay. Returns: those that were ended."""
        ending = list(self.sessions)
        for subscription in ending:
            self._end(subscription, code)
        return ending

    def end_all(self, code: str) -> None:
        """End all sessions and polls with a CLOSED code, for good. No message counts an attempt for that (ADR 0088)."""
        for subscription in (*self.sessions, *self.polls):
            lessee = subscription.lessee  # it may have other topics, and goes on
            before, lessee.uncounted = lessee.uncounted, True
            self._end(subscription, code)
            lessee.uncounted = before
        self.consumer.disown()
        if self.closed or self.context.topic_deleted:
            self._deliverer.close()

    def close(self, code: str) -> None:
        """End all sessions and polls for good, with a CLOSED code: the consumer is deleted."""
        self.closed = True
        self.end_all(code)

    def _end(self, subscription: Subscription, code: str) -> None:
        if not subscription.closed:
            ended = subscription.ended
            subscription.close()
            ended(subscription, code)

    # -- waking

    def available(self) -> int:
        """Approximately how many messages could be taken now."""
        return self._deliverer.available()

    def head(self) -> int | None:
        """The lowest id that could be taken now."""
        return self._deliverer.head()

    def wake(self, messages: int) -> None:
        """Wake sessions and polls for messages that became ready. One that cannot take now is passed over, and looks later."""
        idle = self.idle
        if self.single is not None and self.sessions:
            if messages > 0:
                self.single.wake()
                self.arm()
            return
        while messages > 0 and idle:
            subscription = next(iter(idle))
            if subscription.lessee.late:
                subscription = next((each for each in idle if not each.lessee.late), subscription)
            del idle[subscription]
            messages -= subscription.wake(subscription)

    def _let_go(self) -> None:
        held_up, self.held_up = self.held_up, {}
        for subscription in held_up:
            subscription.wake(subscription)

    def wake_next(self) -> None:
        """Wake sessions and polls for ready messages."""
        if self.idle:
            self.wake(self.available())

    def wake_rested(self) -> None:
        """Wake sessions whose rest is over."""
        if self.resting:
            self.resting.wake(self.context.clock.monotonic())

    def notify_ready(self) -> None:
        """Wake sessions and polls: messages became ready again, or leases ended."""
        late = self._notify_room()
        if not self.closed:
            self.wake_next()
            self._notify_held()
        for lessee in late:
            lessee.on_capacity()

    def _notify_room(self) -> list[Lessee]:
        """Tell the lessees that have room again. Returns: the late ones, to be told last."""
        self.wake_rested()
        if self.held_up:
            self._let_go()
        if self.single is not None:
            self.single.look()
        if self._deliverer.has_room_again():
            self.wake_next()
        freed = self.consumer.take_freed()
        for lessee in freed:
            if not lessee.late:
                lessee.on_capacity()
        return [lessee for lessee in freed if lessee.late] if freed else freed

    def limit_attempts(self, max_attempts: int) -> None:
        """Apply ``max_attempts`` of the topic; 0 for no limit."""
        self.consumer.limit_attempts(max_attempts)
        self._notify_held()

    def _notify_held(self) -> None:
        if self.consumer.has_held():
            self._held(self)

    # -- leases

    def take(
        self, subscription: Subscription, room: int, max_bytes: int, waiting: Subscription | None = None
    ) -> Delivery | None:
        """Lease messages; see ``Subscription.take_some``. After None the caller, or ``waiting``, is woken for the next."""
        if self.instead is not None:
            return self.instead(subscription, room, max_bytes, waiting)
        context, single = self.context, self.single
        if single is not None and self.sessions and not single.may_take(waiting or subscription):
            if subscription.mode is None:
                self.idle[waiting or subscription] = None
            return None
        own_s = subscription.visibility_s
        visibility_s = context.policy.visibility_s if own_s is None else own_s
        now = context.clock.monotonic()
        if subscription.lessee.late and single is None and (until_s := self.resting.rests(subscription, now, visibility_s)):
            self._arm(self, until_s)
            self.wake_next()  # another one may have been passed over for it
            return None
        if now >= context.permit.until_s:
            context.permit.wait(self.notify_ready)
            self.idle[waiting or subscription] = None
            return None
        rows = self._deliverer.take(
            subscription.lessee, now + visibility_s, now, room, max_bytes, patient=subscription.mode is None
        )
        if isinstance(rows, NoDelivery):
            if rows is NoDelivery.OTHERS_FIRST:
                context.scheduler.soon((waiting or subscription).on_capacity)
            else:
                self.idle[waiting or subscription] = None
            return None
        records, start, stop, attempt, size = rows
        if self.held_up:
            self._let_go()
        self.arm()
        context.changed()
        context.metrics.deliver_total += stop - start
        if attempt > 1:
            context.metrics.redeliver_total += stop - start
            self.redelivered_total += stop - start
        return Delivery(subscription, records, start, stop, attempt, size)

    def unsend(self, subscription: Subscription, first: int, last: int) -> None:
        """Return messages that never left the process, uncounted."""
        self.consumer.unsend(subscription.lessee, first, last)
        self.context.changed()
        self.notify_ready()

    def ack(self, ids: Sequence[IdRange], *, unseen: bool = False) -> int:
        """Ack messages; see ``Topic.ack``."""
        consumer = self.consumer
        return self._acked(consumer.ack_unseen(ids, self.context.log.committed_id) if unseen else consumer.ack(ids))

    def ack_each(self, ids: Sequence[int]) -> list[int]:
        """Ack each of these ids, as one change of the offsets; see ``settlement.ack_each``."""
        counts = settlement.ack_each(self.consumer, ids)
        self._acked(sum(counts))
        return counts

    def _acked(self, count: int) -> int:
        if count:
            self.context.metrics.ack_total += count
            self.acked_total += count
            self.context.changed()
            self._notify_room()
        return count

    def settle_each(self, ids: Sequence[int], lease: int | None, settle: settlement.Settle, *, dead: bool = False) -> list[int]:
        """Settle each of these ids; see ``settlement.settle_each``. ``settle`` is one of the methods below."""
        return settlement.settle_each(self.consumer, ids, lease, settle, dead=dead)

    def leased_under(self, ids: Sequence[IdRange], number: int | None) -> Sequence[IdRange]:
        """Those of the ids that are leased to the subscription or poll with this number; with None, all ids."""
        return ids if number is None else self.consumer.leased_under(ids, number)

    def return_uncounted(self, ids: Sequence[IdRange]) -> int:
        """End leases of messages that no application had: no attempt (ADR 0088). Returns: how many were inflight."""
        return self._given_back(self.consumer.return_uncounted(ids))

    def _given_back(self, count: int) -> int:
        if count:
            self.context.metrics.nack_total += count
            self.context.changed()
            self.arm()
            self.notify_ready()
        return count

    def nack(
        self, ids: Sequence[IdRange], delay_s: float | None, *, dead: bool = False, failure: Failure | None = None
    ) -> int:
        """End leases without an ack; see ``Topic.nack``."""
        count = settlement.nack(self.consumer, self.context, ids, delay_s, dead=dead, failure=failure)
        if count and self.single is not None and not dead:
            self.single.given_back(min(ids)[0])
        return self._given_back(count)

    def touch(self, ids: Sequence[IdRange], visibility_s: float | None) -> int:
        """Restart the visibility timeout of leases; see ``Topic.touch``."""
        lease_s = self.context.policy.visibility_s if visibility_s is None else visibility_s
        if count := self.consumer.touch(ids, self.context.clock.monotonic() + lease_s):
            self.arm()
            self.wake_rested()
        return count

    def ack_dead_lettered(self, first: int, last: int) -> None:
        """Ack messages of the range that are dead letters on stable storage now."""
        self.context.dead_lettered_total += self.consumer.ack_dead_lettered(first, last)
        self.context.changed()
        self._notify_room()

    def skip_held_without_record(self, first: int, last: int) -> None:
        """Ack held messages that have no record. Those that the disk refuses to give (EIO) stay until a restart."""
        if not self.context.log.is_unreadable(first):
            self.consumer.skip(first, last)
            self.context.changed()

    def arm(self) -> None:
        """Have ``due`` called when the next lease or backoff ends, or at ``SingleSessions.next_look``."""
        if (deadline := self.consumer.next_deadline()) is None and self.single is not None:
            deadline = self.single.next_look()
        if deadline is not None:
            self._arm(self, deadline)

    def due(self, now: float) -> None:
        """End leases and backoffs that are due."""
        if not self.closed:
            if lease_ends.tick(self.consumer, self.context, now, self.single):
                self.context.changed()
                self.notify_ready()
            else:
                self.wake_rested()
            self.arm()
