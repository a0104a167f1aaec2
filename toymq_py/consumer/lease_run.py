"""A run: neighbouring ids that were delivered and share state, deadline, owner and attempt.

Pure state, changed only by the table that holds it. Contract: delivery.md, "Runs, not rows".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final

from toymq_py.consumer.delivery_order import DeliveryOrder
from toymq_py.consumer.excuses import Excuses

AttemptRange = tuple[int, int, int]
"""First id, last id, attempts that count."""

LOSSES_MIN: Final = 2
"""A message that came back so often without an answer is delivered alone to a lessee of several topics. Once is an accident."""
SUSPECTS_MAX: Final = 4
"""The number of a topic's messages that a lost session is assumed to have worked on. It had not begun the ones behind them."""

MERGE_SLACK_S: Final = 0.005
"""Neighbours whose deadlines lie closer than this become one run, due with the latest of them.

Half of the 10 ms that delivery.md allows between a deadline and its effect; it turns 100,000
single deliveries a second into 200 runs a second."""


class RunState(IntEnum):
    """State of the ids of a run. The value is the index into the totals of the table."""

    READY = 0
    INFLIGHT = 1
    DELAYED = 2
    HELD = 3


# module globals: read on every operation, and an enum's members are slower to reach
READY: Final = RunState.READY
INFLIGHT: Final = RunState.INFLIGHT
DELAYED: Final = RunState.DELAYED
HELD: Final = RunState.HELD

OUT_OF_ATTEMPTS: Final = "max-attempts"
"""The reason of a dead letter without another one."""
REJECTED: Final = "rejected"
"""The reason of the dead letter of a message that a NACK with ``dead`` gave up."""

Delivered = tuple[float | None, float] | None
"""When the first and the last delivery were, on the monotonic clock. None for an unknown time, as after a restart."""


@dataclass(frozen=True, slots=True)
class HeldRange:
    """A range of ids that wait to become dead letters, with the same attempt, reason and delivery times.

    ``delivered``: see ``Delivered``.
    """

    first: int
    last: int
    attempt: int
    reason: str
    delivered: Delivered


class Lessee:
    """The owner of leases: a subscription to one topic or to a pattern, or one poll.

    Attributes:
        inflight: its leased messages in all lease tables, which keep the count; ``window``: how many it wants at most.
        wants_room: set by a lessee without room; a table that frees some clears it, and puts the lessee into ``freed``.
        uncounted: its application has none of its messages, or hangs on one of another process, so none of them counts an
            attempt (ADR 0088, 0262).
        late: one of its leases has passed its deadline, and it has settled nothing since: other lessees are served first.
        number: by which its NACKs and TOUCHes name it, so that they do not hit another lessee's leases; 0: none (ADR 0087).
        active: in how many topics it is the active session of mode=single (ADR 0186).
        settles: it acks at once what it takes, so a consumer's limit of unacked messages does not hold it up (ADR 0234).
        order: the order in which it got its messages of several topics; None with one topic (ADR 0256).
        counted: while it is late: one of its time-outs has counted an attempt, or would have but for ``excuses``.
        mark: what was delivered before that time-out has a lower turn.
        turn, highest: with one topic: the turn of what it gets now, and the last id that it got.
        expired, expired_at: the lowest id of the leases that were the last to pass their deadline, and when (monotonic).
    """

    __slots__ = ("active", "counted", "excuses", "expired", "expired_at", "highest", "inflight", "late", "mark", "number",
                 "order", "settles", "turn", "uncounted", "wants_room", "window")  # fmt: skip

    def __init__(self, window: int) -> None:
        self.active = 0
        self.counted = False
        self.excuses: Excuses | None = None
        self.expired = 0
        self.expired_at = 0.0
        self.highest = 0
        self.inflight = 0
        self.late = False
        self.mark = 0
        self.number = 0
        self.order: DeliveryOrder | None = None
        self.settles = False
        self.turn = 0
        self.uncounted = False
        self.wants_room = False
        self.window = window

    def got(self, table: object, first: int, last: int, messages: int) -> int:
        """Note that the lessee got messages of a lease table, with ascending ids. Returns: their turn; within a turn, the ids
        are in the order of delivery."""
        if self.order is not None:
            return self.order.delivered(table, first, last, messages)
        if first < self.highest:
            self.turn += 1
        self.highest = last
        return self.turn

    def rank(self, run: "LeaseRun") -> tuple[bool, int, int]:
        """A sort key of runs in the order in which the application comes to their messages; messages that were delivered behind
        one that it hangs on come last."""
        return self.late and run.turn < self.mark, run.turn, run.first

    def counts_in(self, table: object) -> bool:
        """When this subscription or poll is lost, one of its messages counts an attempt: the one it got first. Whether that is
        of this topic's table. Assumes that the lessee holds messages of the table."""
        if self.order is None:
            return True
        return self.order.first(self.mark if self.late else 0) is table

    def counts(self, table: object, run: "LeaseRun") -> bool:
        """As ``counts_in``, for one run. A late lessee hangs on the message that was counted, so messages that it got behind
        that one count no attempt."""
        return not (self.uncounted or (self.late and run.turn < self.mark)) and self.counts_in(table)

    def timed_out(self, table: object, msg_id: int, counts: bool) -> bool:
        """Note that leases of the lessee have passed their deadline, first that of ``msg_id``. ``counts``: whether this would
        count an attempt without ``excuses``. Returns: whether it counts."""
        if not self.late:
            self.counted, self.mark, self.excuses = False, 0, None
        self.late = True
        if not counts:
            return False
        self.counted = True
        if self.order is None:
            self.turn += 1
        self.mark = self.turn if self.order is None else self.order.end_turn()
        self.excuses = self.excuses or Excuses()
        return self.excuses.counts(table, msg_id)

    @property
    def has_counted(self) -> bool:
        """Whether the lessee hangs on a message that has counted an attempt, so that its loss counts none."""
        return self.late and self.counted

    def works_again(self) -> None:
        """Note that a late lessee works again: it settled a message, or renewed the lease of one that it got after the
        time-out."""

    def on_capacity(self) -> None:
        """Called by the channel when there is room after ``wants_room``."""


MOVING: Final = Lessee(0)
"""Owner of HELD runs while they are being stored as dead letters."""


class LeaseRun:
    """Ids ``first`` to ``last``, all in one state. Changed only by the ``LeaseTable`` that holds it.

    ``deadline`` is the latest and ``earliest`` the earliest of the deadlines that were merged into this run; both mean nothing
    while READY or HELD. ``attempt``: the attempts that count, a present delivery included; 0 when all were given back
    uncounted, ``spared`` when one of those had been written (ADR 0053). ``delivered`` has the times of the first and the last
    delivery, over all merged ids; None when it is not known. ``losses``: how often the leases ended without an answer, at most
    ``LOSSES_MIN``. ``turn``: of the delivery, see ``Lessee.got``. ``reason`` is why it is HELD. ``ticket`` names the one heap
    entry that stands for this run; None when there is none (yet, or any more).
    """

    __slots__ = ("attempt", "deadline", "delivered", "earliest", "first", "last", "losses", "owner", "reason", "spared",
                 "state", "ticket", "turn")  # fmt: skip

    def __init__(
        self,
        first: int,
        last: int,
        state: RunState,
        owner: Lessee | None,
        deadline: float,
        attempt: int,
        turn: int = 0,
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.owner = owner
        self.deadline = deadline
        self.earliest = deadline
        self.attempt = attempt
        self.delivered: Delivered = None
        self.losses = 0
        self.reason = OUT_OF_ATTEMPTS
        self.spared = False
        self.ticket: int | None = None
        self.turn = turn

    def tail(self, first: int) -> "LeaseRun":
        """A copy of the part from ``first`` on, without a heap entry."""
        run = LeaseRun(first, self.last, self.state, self.owner, self.deadline, self.attempt, self.turn)
        run.earliest = self.earliest
        run.delivered = self.delivered
        run.losses = self.losses
        run.reason = self.reason
        run.spared = self.spared
        return run

    @property
    def is_suspect(self) -> bool:
        """Whether the run's leases have ended several times without an answer: its message may kill or hang its workers."""
        return self.losses == LOSSES_MIN

    def lost(self) -> int:
        """Note that the run's lease ends without an answer. Returns: how many messages the run has."""
        if self.losses < LOSSES_MIN:
            self.losses += 1
        return self.last + 1 - self.first

    def renewed(self) -> None:
        """Note that a client renews the lease. If the lessee hangs, and got this message after the time-out, it works on this
        message now and hangs no more."""
        owner = self.owner
        if owner is not None and owner.has_counted and self.turn >= owner.mark:
            self.answered()

    def answered(self) -> None:
        """Note that a client settles the run or a part of it: so its lessee, if it has one, does not hang."""
        owner = self.owner
        if owner is not None and self.state is INFLIGHT and owner.late:
            owner.late = False
            owner.works_again()

    def spare(self) -> None:
        """Take back the count of this delivery: the message was in a buffer, and the application did not have it."""
        self.attempt -= 1
        self.spared = self.spared or self.attempt == 0

    def accepts(
        self,
        first: int,
        state: RunState,
        owner: Lessee | None,
        earliest: float,
        deadline: float,
        attempt: int,
        turn: int,
    ) -> bool:
        """Whether ids from ``first`` on, with these values, may become part of this run. Assumes that ``spared`` and ``losses``
        are equal.

        The whole spread of merged deadlines is limited, not the distance to the last one: otherwise a steady stream of messages
        would postpone the deadline of the first one for ever.
        """
        if self.last + 1 != first or self.state is not state or self.attempt != attempt:
            return False
        if state is READY:
            return True
        if self.owner is not owner or self.turn != turn:
            return False
        latest = max(self.deadline, deadline)
        earliest = min(self.earliest, earliest)
        return latest == earliest or latest - earliest < MERGE_SLACK_S

    def extend(
        self, last: int, earliest: float, deadline: float, delivered: Delivered
    ) -> None:
        """Extend the run by ids that ``accepts`` allowed.

        The later deadline counts: late by a little, never early.
        """
        self.last = last
        self.deadline = max(self.deadline, deadline)
        self.earliest = min(self.earliest, earliest)
        mine = self.delivered
        if mine is None or delivered is None:
            self.delivered = None
        elif mine is not delivered:
            first = None if mine[0] is None or delivered[0] is None else min(mine[0], delivered[0])
            self.delivered = (first, max(mine[1], delivered[1]))

    def end_lease(self, state: RunState) -> None:
        """End the lease: no lessee and no heap entry."""
        self.state = state
        self.owner = None
        self.turn = 0
        self.ticket = None

    def retire(self) -> None:
        """Mark the run as removed: its heap entry is stale, and must not keep a session alive."""
        self.ticket = None
        self.owner = None


def attempts_if_killed(runs: Sequence[LeaseRun], table: object = None) -> Iterator[AttemptRange]:
    """The attempts that would count if the broker were killed now, in id order. Of the messages inflight to a lessee only the
    one that it got first counts, if ``Lessee.counts`` allows it in this ``table``."""
    firsts = first_run_by_lessee(run for run in runs if run.deadline != inf)
    for run in runs:
        first, attempt = run.first, run.attempt
        if run.state is INFLIGHT and run.deadline != inf:
            if run.owner is not None and firsts[run.owner] is run and run.owner.counts(table, run):
                yield first, first, attempt
                first += 1
            attempt -= 1
        if attempt and first <= run.last:
            yield first, run.last, attempt


def first_run_by_lessee(runs: Iterable[LeaseRun]) -> dict[Lessee, LeaseRun]:
    """For each lessee, the inflight run that it got first."""
    firsts: dict[Lessee, LeaseRun] = {}
    for run in runs:
        if run.state is INFLIGHT and (owner := run.owner) is not None:
            known = firsts.get(owner)
            if known is None or owner.rank(run) < owner.rank(known):
                firsts[owner] = run
    return firsts
