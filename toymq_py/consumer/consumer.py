"""State of one consumer of one topic: leases, acks and cursor.

Joins the ack set, the lease table and the cursor, and alone changes them together. Knows neither sessions, nor records, nor
files. Contracts: delivery.md; storage.md, "offsets.json".
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

from toymq_py.consumer.ack_set import AckSet
from toymq_py.consumer.common_acks import CommonAcks, WatchedAcks
from toymq_py.consumer.consumer_view import ConsumerView
from toymq_py.consumer.delivery_policy import DeliveryPolicy
from toymq_py.consumer.failure_book import Failed, FailureBook, FailureBudget
from toymq_py.consumer.id_set import IdSet
from toymq_py.consumer.lease_run import HELD, AttemptRange, HeldRange, Lessee
from toymq_py.consumer.lease_table import DELIVERED, STORED
from toymq_py.consumer_snapshot import ConsumerSnapshot
from toymq_py.id_rows import IdRows
from toymq_py.records import MSG_ID_MAX, IdRange


class Consumer(ConsumerView):
    """The state of one consumer on one topic. Touched only by the event loop, through its topic.

    With ack floor F (``floor``) and cursor C (``cursor``, the lowest id that was neither delivered nor skipped):
    - F <= C, and neither F nor C is acked;
    - every id in [F, C) is in exactly one place: the acked ranges, a run, the scheduled ids, or the ids that fell due behind
      the cursor; these were never delivered, and are ready or wait for their key (``lanes``);
    - at or above C there are no runs, but maybe acked ranges: ids skipped ahead of their turn;
    - an id at or above F that is scheduled and also acked or in a run is settled: nothing happens when it falls due. Skipped
      ids become so, and others after a restart with a wall clock that was set back.

    ``changes`` counts the changes that a snapshot shows: not leases and deadlines.
    """

    __slots__ = ()

    # -- delivery

    def next_fresh(self, limit: int) -> IdRange | None:
        """The lowest range of ids below ``limit`` that are due and were neither delivered nor skipped."""
        if self._scheduled:
            self._pass_scheduled(limit)
        if self.cursor >= limit:
            return None
        until = self._acks.open_until(self.cursor, limit)
        if self._scheduled:
            until = self._scheduled.next_in(self.cursor, until)
        return self.cursor, until - 1

    def _pass_scheduled(self, limit: int) -> None:
        """Move the cursor over ids that are not due: once due they are ready, behind the cursor."""
        cursor = self.cursor
        while cursor < limit and (after := self._scheduled.next_out(cursor)) > cursor:
            cursor = self._acks.next_open(after)
        self.cursor = cursor

    def take_fresh(self, owner: Lessee, first: int, last: int, deadline: float, now: float | None = None) -> None:
        """Lease ids of ``next_fresh`` to ``owner`` at ``now``; those between the cursor and ``first`` count as acked.

        Raises: ValueError when ids of the range were delivered or skipped before.
        """
        if last < first or first < self.cursor or self._acks.overlaps(first, last):
            raise ValueError(f"ids {first} to {last} are not fresh, the cursor is {self.cursor}")
        if first > self.cursor:
            self._skip(self.cursor, first - 1)
        self._runs.lease(owner, first, last, deadline, now)
        self.cursor = self._acks.next_open(last + 1)
        self.changes += 1

    def take_ready(
        self, owner: Lessee, max_count: int, deadline: float, max_runs: int | None = None, now: float | None = None
    ) -> list[AttemptRange]:
        """Lease up to ``max_count`` ids that wait for redelivery, lowest first, of at most ``max_runs`` runs. Assumes that
        ``due`` returns none. Returns: (first, last, attempt) of each run, with this delivery counted.
        """
        taken = self._runs.take_ready(owner, max_count, deadline, max_runs, now)
        if taken:
            self.changes += 1
        return taken

    def due(self, max_count: int) -> list[int]:
        """Ids that fell due behind the cursor and were never delivered, lowest first; only those below the lowest id that waits
        for redelivery."""
        if not self._due:
            return []
        again = self._runs.first_ready()
        return self._due.lowest(max_count, MSG_ID_MAX + 1 if again is None else again)

    def take_due(self, owner: Lessee, ids: list[int], deadline: float, now: float | None = None) -> None:
        """Lease ids that ``due`` has just returned: its first ones, in the same order."""
        self._due.discard_range(ids[0], ids[-1])
        self._runs.lease_each(owner, ids, deadline, now)
        self.changes += 1

    def pass_over(self, last: int) -> None:
        """Move the cursor behind ``last``. The ids that it passes, those of ``next_unread``, become ready behind the cursor."""
        while self.cursor <= last and (span := self.next_unread(self.cursor, last + 1)) is not None:
            self._due.add_range(*span)
            self.cursor = span[1] + 1
        self.cursor = self._acks.next_open(max(self.cursor, last + 1))

    def take_each(self, owner: Lessee, ids: list[int], deadline: float, now: float) -> None:
        """Lease ids for which ``is_due`` holds, in ascending order."""
        self._due.discard_each(ids)
        self._runs.lease_each(owner, ids, deadline, now)
        self.changes += 1

    def fall_due(self, ids: Iterable[int]) -> None:
        """End the schedule of these ids: those behind the cursor are ready at once."""
        floor, cursor, settled, due = self.floor, self.cursor, self._settled, self._due
        for msg_id in ids:
            if floor <= msg_id < cursor and not (settled and settled.discard(msg_id)):
                due.add(msg_id)
                if self.lanes is not None and msg_id < self.lanes.scanned:
                    self.lanes.late.add(msg_id)

    def skip(self, first: int, last: int) -> int:
        """Ack ids whatever their state, since their records are lost or expired; above the cursor, too. Returns: how many were
        not acked before."""
        self._runs.remove(first, last)
        skipped = self._skip(first, last)
        if skipped:
            self.cursor = self._acks.next_open(self.cursor)
            self.changes += 1
        return skipped

    def expire(self, first: int, last: int) -> int:
        """Ack expired records, except those that are inflight or on their way to the dead letters. Returns: how many were not
        acked before."""
        expired = 0
        for busy_first, busy_last in [*self._runs.busy(first, last), (last + 1, last + 1)]:
            if first < busy_first:
                expired += self.skip(first, busy_first - 1)
            first = busy_last + 1
        return expired

    def _skip(self, first: int, last: int) -> int:
        """Ack ids that are in no run. Returns: how many were not acked before."""
        if self._due:
            self._due.discard_range(first, last)
        if self._scheduled:
            self._settled.copy_range(self._scheduled, max(first, self.floor), last)
        return self._add_acked(first, last)

    def _add_acked(self, first: int, last: int) -> int:
        if self.failures is not None:
            self.failures.discard(first, last)
        if self.lanes is not None:
            self.lanes.acked(first, last)
        return self._acks.add(first, last)

    def drop_below(self, first_id: int) -> int:
        """Ack the ids below ``first_id``, which retention removed. Returns: how many were not acked before."""
        self._runs.remove(self.floor, first_id - 1)
        self._settled.discard_range(0, first_id - 1)
        dropped = self._skip(self.floor, first_id - 1)
        self.cursor = self._acks.next_open(self.cursor)
        if dropped or first_id > self.start:
            self.start = max(self.start, first_id)
            self.changes += 1
        return dropped

    # -- acks and returns

    def unsend(self, owner: Lessee, first: int, last: int) -> None:
        """Return leases of ``owner`` that never left the process: they are ready again and not counted."""
        if self._runs.give_back(owner, first, last):
            self.changes += 1

    def hold(self, owner: Lessee, first: int, last: int) -> None:
        """Lease the ready ids of the range without a deadline, uncounted, since their records cannot be read now."""
        self._runs.hold(owner, first, last)

    def return_uncounted(self, ranges: Iterable[IdRange]) -> int:
        """End leases of messages that no application had: they are ready again, and that delivery is no attempt. Returns: how
        many messages."""
        returned = sum(self._runs.give_back(None, first, last) for first, last in ranges)
        self.changes += returned > 0
        return returned

    def release(self, owner: Lessee) -> int:
        """End all leases of an owner that is gone. Only the message that it got first, of all its topics, counts an attempt;
        none does when the owner is ``uncounted`` or ``has_counted``. Returns: how many messages."""
        released = self._runs.release(owner)
        if owner.uncounted or owner.late or owner.order is not None:  # else a snapshot has what a kill would have counted
            self.changes += released > 0
        return released

    def counts_loss_of(self, owner: Lessee) -> bool:
        """Whether this consumer has the message that counts an attempt if the owner is lost: one of all that it holds, over all
        consumers."""
        return not owner.has_counted and owner.counts_in(self._runs)

    def first_of(self, owner: Lessee) -> int | None:
        """The message that an owner's application most likely works on, of all that the owner holds; None when another consumer
        has it. Assumes that the owner holds some messages of this one."""
        here = owner.order is None or owner.order.first() is self._runs
        return self._runs.first_of(owner) if here else None

    def disown(self) -> None:
        """Note that the topic has ended: from now on, its messages do not decide which other message of their lessee counts an
        attempt."""
        self._runs.disown()

    def ack(self, ranges: Iterable[IdRange]) -> int:
        """Ack ids that were delivered, even if their lease ended, or that the broker may have delivered before its restart (ADR
        0052). Returns: how many were not acked before."""
        taken = 0
        for first, last in ranges:
            before = taken
            for span_first, span_last in self._runs.remove(first, last, DELIVERED):
                taken += self._add_acked(span_first, span_last)
            if first < self.maybe_delivered_below and taken - before <= last - first:
                taken += self._ack_earlier(first, min(last, self.maybe_delivered_below - 1))
        if taken:
            self.has_acked = True
            self.changes += 1
        return taken

    def _ack_earlier(self, first: int, last: int) -> int:
        """Ack ids that the broker may have delivered before its restart: those of the range that are due (ADR 0283). Looks only
        where such ids can be, since a range may pass many that are acked or not due."""
        if first <= self.cursor:
            self._pass_scheduled(last + 1)
        spans = self._runs.not_held(first, last) + self._due.spans(first, last)
        taken = 0
        for at, end in [*spans, (max(first, self.cursor), last)]:
            while (span := self.next_unread(at, end + 1)) is not None:
                taken += self.skip(*span)
                at = span[1] + 1
        return taken

    def ack_unseen(self, ranges: Iterable[IdRange], limit: int) -> int:
        """Ack ids below ``limit`` that the client has read from the log, delivered or not, except those on their way to the
        dead letters. Returns: how many were not acked before."""
        taken = 0
        for first, last in ranges:
            last = min(last, limit - 1)
            for held_first, held_last in [*self._runs.held(first, last), (last + 1, last + 1)]:
                if first < held_first:
                    taken += self.skip(first, held_first - 1)
                first = held_last + 1
        if taken:
            self.has_acked = True
        return taken

    def note_failure(self, ranges: Iterable[IdRange], failed: Failed, budget: FailureBudget, *, dead: bool = False) -> None:
        """Store the failure that a NACK reports, for the leased messages of the ranges or, with ``dead``, for those that
        ``give_up`` takes. Call it before ``nack`` or ``give_up``."""
        if self.failures is None:
            self.failures = FailureBook(budget)
        for span in self._runs.rejectable(ranges) if dead else self._runs.leased(ranges):
            self.failures.add(*span, failed)

    def nack(self, ranges: Iterable[IdRange], now: float, delay_s: float | None, policy: DeliveryPolicy) -> int:
        """End leases. They are ready again after ``delay_s``, by default the backoff of the policy; those out of attempts are
        held. Returns: how many messages."""

        def delay_of(attempt: int) -> float:
            return policy.backoff_s(attempt) if delay_s is None else delay_s

        returned = sum(self._runs.postpone(first, last, now, delay_of) for first, last in ranges)
        self.changes += returned > 0
        return returned

    def touch(self, ranges: Iterable[IdRange], deadline: float) -> int:
        """Move the deadline of the leases in the ranges. Returns: how many messages."""
        return sum(self._runs.touch(first, last, deadline) for first, last in ranges)

    def tick(self, now: float) -> bool:
        """End the leases and backoffs that are due at ``now``. Returns: whether a message became ready."""
        if self._runs.tick(now):
            self.changes += 1
            return True
        return False

    # -- dead letters

    def limit_attempts(self, max_attempts: int) -> None:
        """Set after how many failed attempts a message is held for the dead-letter topic, not delivered again; 0: no limit."""
        self._runs.limit_attempts(max_attempts)

    def is_last(self, attempt: int) -> bool:
        """Whether the message goes to the dead letters if this attempt fails."""
        return 0 < self._runs.max_attempts <= attempt

    def give_up(self, ranges: Iterable[IdRange]) -> int:
        """Hold messages for the dead letters at once, whatever their attempts: leased ones, and those that were delivered and
        wait to be delivered again. Returns: how many."""
        given_up = sum(self._runs.give_up(first, last) for first, last in ranges)
        self.changes += given_up > 0
        return given_up

    def take_held(self, max_count: int) -> list[HeldRange]:
        """Hand over held messages, lowest ids first, to be stored as dead letters; each once, until ``unhold``."""
        return self._runs.take_held(max_count)

    def unhold(self, first: int, last: int) -> None:
        """Take back messages that were handed over and not stored: they are held again."""
        self._runs.unhold(first, last)

    def ack_dead_lettered(self, first: int, last: int) -> int:
        """Ack messages that were handed over and are dead letters on stable storage now. Returns: how many."""
        before = self._runs.messages(HELD)
        for span in self._runs.remove(first, last, STORED):
            self._add_acked(*span)
        buried = before - self._runs.messages(HELD)
        if buried:
            self.has_acked = True
            self.changes += 1
        return buried

    # -- questions that change something

    @staticmethod
    def track_common_acks(consumers: "Sequence[Consumer]") -> CommonAcks:
        """Keep the set of ids that all of these consumers have acked, until one of them seeks or is untracked."""
        common = CommonAcks()
        for consumer in consumers:
            consumer._acks = WatchedAcks(consumer._acks, common.added)
        common.track([consumer._acks for consumer in consumers])
        return common

    def untrack(self) -> None:
        """Leave the ``CommonAcks`` of which this consumer is a member."""
        acks = AckSet(self.floor)
        acks.take_over(self._acks)
        self._acks = acks

    def take_freed(self) -> list[Lessee]:
        """Return the lessees that had no room (``wants_room``) and have got some since the last call."""
        freed = self._runs.freed
        if freed:
            self._runs.freed = []
        return freed

    def first_due(self, limit: int, *, given_back: bool = False) -> list[int]:
        """The lowest id of each kind that is due, unacked and below ``limit``: delivered ones, those that fell due behind the
        cursor, and those never delivered. With ``given_back``, messages that wait for a delayed redelivery count as due."""
        delivered, fresh = self._runs.first_due(given_back=given_back), self.next_fresh(limit)
        due = [] if delivered is None else [delivered]
        due += self._due.lowest(1, limit)
        return due if fresh is None else [*due, fresh[0]]

    # -- seeks and restarts

    def seek(self, target: int, since_ns: int) -> None:
        """Move the cursor and forget deliveries and acks: all ids below ``target`` count as acked, the others are fresh."""
        self.start = self.cursor = target
        self.since_ns = since_ns
        self.has_acked = False
        self.maybe_delivered_below = 0
        self.changes += 1
        self._acks = AckSet(target)
        self._settled.clear()
        self._due.clear()
        self.failures = None
        self._runs.clear()
        if self.lanes is not None:
            self.lanes.clear(target)

    def snapshot(self) -> ConsumerSnapshot:
        """The state that survives a restart: no leases, no deadlines."""
        attempts = self._runs.attempts()
        acked_above = self._acks.ranges()
        has_acked = self.has_acked and self.floor > 0  # below 0 there is no last_acked to write
        if not has_acked and self.floor > self.start:
            acked_above = IdRows(2, [(array("Q", (self.start,)), array("Q", (self.floor - 1,))), *acked_above.blocks])
        return ConsumerSnapshot(
            since_ns=self.since_ns,
            start=self.start,
            has_acked=has_acked,
            last_acked=self.last_acked if has_acked else 0,
            acked_above=acked_above,
            attempts=attempts,
        )

    @classmethod
    def restore(
        cls, name: str, snapshot: ConsumerSnapshot, first_id: int, next_id: int, scheduled: IdSet | None = None
    ) -> tuple["Consumer", bool]:
        """Make a consumer from its snapshot, without leases, cut to the ids that the log holds.

        Ids with attempts in the snapshot are ready again, with these. Unacked ids without attempts below the highest of them
        are ready with attempt 0, unless they are scheduled. Unacked ids above it stay fresh, also between acked ranges.

        Returns: the consumer, and whether the cut changed anything: ids below ``first_id`` that were not acked, or a position,
        range or attempt beyond ``next_id``. A start or floor raised over acked ids is no change: retention does that.
        """
        old_floor = snapshot.floor
        acks = AckSet.restore(old_floor, snapshot.acked_above, MSG_ID_MAX + 1)
        lost = acks.open_below(min(first_id, next_id)) > 0
        ends = [rows.blocks[-1][1][-1] + 1 for rows in (snapshot.acked_above, snapshot.attempts) if rows]
        beyond = max(snapshot.start, old_floor, *ends)
        if beyond > next_id:
            acks = AckSet.restore(min(max(old_floor, first_id), next_id), snapshot.acked_above, next_id)
        else:
            acks.add(acks.floor, min(first_id, next_id) - 1)

        start = min(max(snapshot.start, first_id), next_id)
        consumer = cls(name, start=start, since_ns=snapshot.since_ns, scheduled=scheduled)
        consumer._acks = acks
        consumer.has_acked = snapshot.has_acked and acks.floor > 0
        consumer.maybe_delivered_below = next_id
        position = acks.floor
        for first, last, n in snapshot.attempts:
            first, last = max(first, position), min(last, next_id - 1)
            if first <= last:
                consumer._restore_undelivered(position, first)
                consumer._runs.append_ready(first, last, n)
                position = last + 1
        consumer.cursor = acks.next_open(position)
        if consumer._scheduled:
            consumer._settle()
        return consumer, lost or beyond > next_id

    def _restore_undelivered(self, position: int, limit: int) -> None:
        """Make the unacked ids from ``position`` up to ``limit`` ready, with attempt 0."""
        while (position := self._acks.next_open(position)) < limit:
            until = self._acks.open_until(position, limit)
            self._due.add_range(position, until - 1)
            position = until

    def _settle(self) -> None:
        """Take scheduled ids out of the ready ids, unless they were acked or delivered before the restart."""
        scheduled, settled, floor = self._scheduled, self._settled, self.floor
        self._due.discard_all(scheduled, floor, self.cursor)
        spans = chain(self._acks.ranges(), ((run.first, run.last) for run in self._runs))
        for first, last in spans:
            if scheduled.next_in(first, last + 1) <= last:
                settled.copy_range(scheduled, first, last)
