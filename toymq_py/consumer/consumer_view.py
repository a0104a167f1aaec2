"""Read-only view of one consumer's state: counts, positions, and the state of an id.

Changes nothing: ``Consumer`` does.
"""

from collections.abc import Callable, Iterable

from toymq_py.consumer.ack_set import AckSet
from toymq_py.consumer.failure_book import FailureBook
from toymq_py.consumer.id_set import IdSet
from toymq_py.consumer.key_lanes import KeyLanes
from toymq_py.consumer.lease_run import DELAYED, HELD, INFLIGHT, READY, Lessee
from toymq_py.consumer.lease_table import LeaseTable
from toymq_py.consumer.message_counts import MessageCounts
from toymq_py.consumer.priority_lanes import PriorityLanes
from toymq_py.records import IdRange


class ConsumerView:
    """Ack set, lease table and cursor of one consumer, with read-only queries. See ``Consumer`` for the invariants."""

    __slots__ = ("_acks", "_due", "_runs", "_scheduled", "_settled", "changes", "counted", "cursor", "failures", "has_acked",
                 "lanes", "maybe_delivered_below", "name", "priority_of", "since_ns", "start")  # fmt: skip

    def __init__(self, name: str, *, start: int, since_ns: int, scheduled: IdSet | None = None) -> None:
        """A consumer that has seen nothing; ids below ``start`` count as acked.

        Args:
            scheduled: ids of the topic that are not due; owned by the topic, read only here.
        """
        self.name = name
        self.start = start
        self.since_ns = since_ns
        self.cursor = start
        self.has_acked = False
        self.changes = self.counted = 0
        """The changes that a snapshot shows; and how many of ``outstanding`` a ``DeliveryBudget`` has counted."""
        self.failures: FailureBook | None = None
        """Failures that NACKs gave for messages that are not acked; None before the first."""
        self.lanes: KeyLanes | PriorityLanes | None = None
        """Order per key (``mode=keyed``) or by priority; None without. Messages that wait there are among the ids that fell
        due."""
        self.priority_of: Callable[[bytes], int] | None = None
        """Gives the priority of a message from its header block; None where all are alike."""
        self.maybe_delivered_below = 0
        """An ACK of an id below is accepted although no lease is known: the last deliveries before a kill are not on disk."""
        self._acks = AckSet(start)
        self._scheduled = IdSet() if scheduled is None else scheduled
        self._settled = IdSet()
        self._due = IdSet()
        self._runs = LeaseTable(self._scheduled, self._due)

    @property
    def floor(self) -> int:
        """The lowest id that is not acked."""
        return self._acks.floor

    @property
    def last_acked(self) -> int:
        """The id below the ack floor: -1 while id 0 is not acked. Meaningless unless ``has_acked``."""
        return self._acks.floor - 1

    def available(self, limit: int) -> int:
        """How many ids below ``limit`` could be leased now. Above the cursor, skipped and scheduled ids are counted, too."""
        return self._runs.messages(READY) + len(self._due) + max(limit - self.cursor, 0)

    def has_ready(self) -> bool:
        """Whether an id waits for redelivery, or fell due behind the cursor."""
        return self._runs.messages(READY) > 0 or len(self._due) > 0

    @property
    def outstanding(self) -> int:
        """Messages that were delivered and are neither acked nor dead letters: inflight, or waiting to be delivered again."""
        return self._runs.outstanding

    @property
    def redeliverable(self) -> int:
        """Messages that wait for redelivery."""
        return self._runs.messages(READY)

    @property
    def given_back(self) -> int:
        """The number of messages that were given back with a delay that is not over."""
        return self._runs.messages(DELAYED)

    def first_given_back(self) -> int | None:
        """The lowest id that was given back with a delay. Cost grows with the runs before it."""
        return next((run.first for run in self._runs if run.state is DELAYED), None) if self.given_back else None

    @property
    def retrying(self) -> int:
        """Messages that are not acked after a delivery that failed: a NACK, or a lease that ended. Not those on their way to
        the dead letters. Cost grows with the runs."""
        return self._runs.retrying()

    def next_unread(self, from_id: int, limit: int) -> IdRange | None:
        """The lowest range of ids from ``from_id`` on and below ``limit`` that are due and not acked, delivered or not."""
        while (gap := self._acks.next_gap(from_id, limit)) is not None:
            from_id = self._scheduled.next_out(gap[0])
            if from_id <= gap[1]:
                return from_id, self._scheduled.next_in(from_id, gap[1] + 1) - 1
        return None

    def is_suspect(self, msg_id: int | None) -> bool:
        """Whether a message's leases have ended several times without an answer, so that it may kill or hang its workers; False
        for None."""
        run = None if msg_id is None else self._runs.run_of(msg_id)
        return run is not None and run.is_suspect

    def first_ready(self) -> int | None:
        """The lowest id that waits for redelivery."""
        return self._runs.first_ready()

    def ready_range(self) -> IdRange | None:
        """The lowest range of ids that wait for redelivery with the same number of attempts."""
        first = self._runs.first_ready()
        run = None if first is None else self._runs.run_of(first)
        return None if run is None else (run.first, run.last)

    @property
    def acked_ranges(self) -> int:
        """How many ranges above the floor are acked."""
        return self._acks.range_count

    def is_due(self, msg_id: int) -> bool:
        """Whether the id is ready behind the cursor and was never delivered."""
        return msg_id in self._due

    def next_unacked(self, from_id: int, limit: int) -> IdRange | None:
        """The lowest range of ids from ``from_id`` on and below ``limit`` that are not acked."""
        return self._acks.next_gap(from_id, limit)

    def unacked(self, limit: int) -> int:
        """How many ids below ``limit`` are not acked, due or not."""
        return self._acks.open_below(limit)

    def has_acked_all(self, first: int, last: int) -> bool:
        """Whether every id of the range counts as acked."""
        return self._acks.next_open(first) > last

    def state_of(self, msg_id: int) -> tuple[str, int]:
        """The state of a message and its attempts, a present delivery included. The state is acked (also for dead letters),
        inflight, ready, scheduled, or dying, which is on its way to the dead letters. Assumes that the id was published."""
        if self._acks.overlaps(msg_id, msg_id):
            return "acked", 0
        run = self._runs.run_of(msg_id)
        if run is None:
            return ("scheduled" if msg_id in self._scheduled else "ready"), 0
        return {INFLIGHT: "inflight", HELD: "dying", READY: "ready", DELAYED: "scheduled"}[run.state], run.attempt

    def is_inflight(self, msg_id: int) -> bool:
        """Whether a message is leased."""
        run = self._runs.run_of(msg_id)
        return run is not None and run.state is INFLIGHT

    def has_delivered(self, first: int, last: int) -> bool:
        """Whether all messages of the range were delivered and ``ack`` would take them."""
        return self._runs.all_delivered(first, last)

    def maybe_delivered(self, msg_id: int) -> bool:
        """Whether ``ack`` would take the message because the broker may have delivered it before its restart."""
        run = self._runs.run_of(msg_id)
        return (
            msg_id < self.maybe_delivered_below
            and not self._acks.overlaps(msg_id, msg_id)
            and msg_id not in self._scheduled
            and (run is None or run.state is not HELD)
        )

    def is_held(self, msg_id: int) -> bool:
        """Whether the message waits to become a dead letter, or is being moved."""
        return bool(self._runs.held(msg_id, msg_id))

    def failed(self, msg_id: int) -> int:
        """How many failed attempts of the message count; 0 once it is acked."""
        run = self._runs.run_of(msg_id)
        return 0 if run is None else max(run.attempt - (run.state is INFLIGHT), 0)

    @property
    def inflight(self) -> int:
        """How many messages are leased, by all owners together. Messages that a priority order holds back do not count."""
        lanes = self.lanes
        return self._runs.messages(INFLIGHT) - (lanes.again if isinstance(lanes, PriorityLanes) else 0)

    def inflight_to(self, owner: Lessee) -> list[IdRange]:
        """The ids of this consumer that are inflight to an owner; ``owner.inflight`` counts those of all its consumers."""
        return self._runs.leased_to(owner)

    def expiring(self, now: float) -> list[IdRange]:
        """The ids whose leases have passed their deadline at ``now``."""
        return self._runs.expiring(now)

    def counts(self, next_id: int) -> MessageCounts:
        """Count messages by what they wait for. Assumes that no id at or above ``next_id`` was delivered."""
        inflight = self.inflight + self._runs.messages(HELD)
        scheduled = self.given_back + self._scheduled.count(self.floor, next_id - 1, self._settled)
        backlog = self._acks.open_below(next_id) - scheduled
        return MessageCounts(backlog - inflight, inflight, scheduled, backlog)

    def waiting(self, next_id: int) -> int:
        """The number of messages in the queue: neither acked, nor leased, nor published with a delay that is not over. Messages
        given back with a delay count. Assumes what ``counts`` assumes."""
        counts = self.counts(next_id)
        return counts.ready + self.given_back

    def most_attempted(self) -> tuple[int, int]:
        """The most attempts of a message that is not acked, a present delivery included, and the lowest id that has them; zeros
        for none."""
        return self._runs.most_attempted()

    def has_held(self) -> bool:
        """Whether messages wait to become dead letters, or are on their way."""
        return self._runs.messages(HELD) > 0

    def next_deadline(self) -> float | None:
        """When ``tick`` has work next; None when nothing waits for a time."""
        return self._runs.next_deadline()

    def leased_under(self, ranges: Iterable[IdRange], number: int | None) -> list[IdRange]:
        """The parts of the ranges that are leased by the lessee with that number; with None, by any lessee."""
        return self._runs.leased(ranges, number)

    def rejectable(self, ranges: Iterable[IdRange]) -> list[IdRange]:
        """The parts of the ranges that a NACK with ``dead`` makes dead letters."""
        return self._runs.rejectable(ranges)
