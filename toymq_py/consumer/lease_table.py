"""The leases of one consumer: runs of ids that were delivered and are not acked, with deadlines and redeliveries.

Knows neither acks, nor the cursor, nor the disk; reads no clock: ``now`` and deadlines are passed in. Contract: delivery.md,
"Runs, not rows".

    new ─────── lease ──────▶ INFLIGHT ◀──────────── take_ready ──────────── READY
                              INFLIGHT ── give_back, release, tick, postpone(0) ──▶ READY
                              INFLIGHT ── postpone ──▶ DELAYED ────── tick ───────▶ READY
    any ─────── remove ─────▶ gone (acked)

A run that would become READY with ``max_attempts`` attempts, or is rejected (``give_up``), becomes HELD: it waits to be
stored as a dead letter. ``take_held`` hands it to the mover, ``unhold`` takes it back, ``remove`` ends it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import count
from math import inf
from operator import attrgetter
from typing import Final

from toymq_py.consumer.id_set import IdSet
from toymq_py.consumer.lazy_heap import LazyHeap
from toymq_py.consumer.lease_run import (
    DELAYED,
    HELD,
    INFLIGHT,
    MOVING,
    OUT_OF_ATTEMPTS,
    READY,
    REJECTED,
    SUSPECTS_MAX,
    AttemptRange,
    Delivered,
    HeldRange,
    LeaseRun,
    Lessee,
    first_run_by_lessee,
)
from toymq_py.consumer.run_list import RunList
from toymq_py.records import IdRange

_SINGLY_FACTOR: Final = 64  # fewer than one changed run in so many: look each up, else one pass
ANY: Final = 0  # what ``remove`` takes out
DELIVERED: Final = 1
STORED: Final = 2


class LeaseTable(RunList):
    """Runs of delivered ids that are not acked. Each run stands in exactly one of three heaps. Owned by one ``Consumer``.

    Ensures: READY runs stand in a heap by first id, HELD ones that are not moving in another one, all others in a heap by
    deadline; no READY run has ``max_attempts`` attempts (0: any number); the totals by state and by lessee agree with the
    runs; the heaps hold at most twice the runs plus 64 entries each after every call.
    """

    __slots__ = ("_deadlines", "_held", "_ready", "_waiting", "freed", "max_attempts")

    def __init__(self, *waiting: IdSet) -> None:
        """``waiting``: sets of unacked ids that are in no run, as scheduled ids are; read only."""
        RunList.__init__(self)
        tickets = count()
        self._waiting = waiting
        self.max_attempts = 0
        self._ready = LazyHeap(attrgetter("first"), tickets)
        self._deadlines = LazyHeap(attrgetter("deadline"), tickets)
        self._held = LazyHeap(attrgetter("first"), tickets)
        self.freed: list[Lessee] = []
        """Lessees whose window has room again after they asked for it; the reader clears the list."""

    # -- deliveries

    def lease(self, owner: Lessee, first: int, last: int, deadline: float, now: float | None = None) -> None:
        """Lease ids above every run in the table: their first delivery, at ``now``."""
        turn = self._count_lease(owner, first, last, last + 1 - first)
        delivered: Delivered = None if now is None else (now, now)
        if self._runs:
            newest = self._runs[-1]
            if newest.accepts(first, INFLIGHT, owner, deadline, deadline, 1, turn) and not newest.spared:
                newest.extend(last, deadline, deadline, delivered)
                return
        run = LeaseRun(first, last, INFLIGHT, owner, deadline, 1, turn)
        run.delivered = delivered
        self._firsts.append(first)
        self._runs.append(run)
        self._deadlines.push(run)

    def lease_each(self, owner: Lessee, ids: list[int], deadline: float, now: float | None = None) -> None:
        """Lease ascending ids that stand in no run, anywhere among the runs: their first delivery, at ``now``."""
        runs, firsts = self._runs, self._firsts
        delivered: Delivered = None if now is None else (now, now)
        turn = self._count_lease(owner, ids[0], ids[-1], len(ids))
        low = at = bisect_left(firsts, ids[0])
        added: list[LeaseRun] = []  # replaces runs low to at - 1: one copy, where each insert would move the rest
        before = runs[at - 1] if at else None
        for each in ids:
            i = bisect_left(firsts, each, at)
            if i > at:
                added += runs[at:i]
                before, at = runs[i - 1], i
            if before is not None and not before.spared and before.accepts(each, INFLIGHT, owner, deadline, deadline, 1, turn):
                before.extend(each, deadline, deadline, delivered)
                continue
            before = LeaseRun(each, each, INFLIGHT, owner, deadline, 1, turn)
            before.delivered = delivered
            added.append(before)
            self._deadlines.push(before)
        runs[low:at] = added
        firsts[low:at] = [run.first for run in added]

    def append_ready(self, first: int, last: int, attempt: int) -> None:
        """Enter ids above every run in the table as ready for redelivery, after a restart."""
        run = LeaseRun(first, last, READY, None, 0.0, attempt)
        self._firsts.append(first)
        self._runs.append(run)
        self._ready.push(run)
        self._totals[READY] += last + 1 - first

    def next_deadline(self) -> float | None:
        """When ``tick`` has work next; None when no run waits for a time."""
        return None if (run := self._deadlines.top()) is None or run.deadline == inf else run.deadline

    def first_ready(self) -> int | None:
        """The lowest id that is READY."""
        return None if (run := self._ready.top()) is None else run.first

    def take_ready(
        self, owner: Lessee, max_count: int, deadline: float, max_runs: int | None = None, now: float | None = None
    ) -> list[AttemptRange]:
        """Lease up to ``max_count`` ready ids, lowest first, from at most ``max_runs`` runs. They are delivered at ``now``.

        Returns: (first, last, attempt with this delivery counted) of each run.
        """
        taken: list[AttemptRange] = []
        runs, firsts = self._runs, self._firsts
        while max_count > 0 and len(taken) != max_runs and (run := self._ready.top()) is not None:
            first = run.first
            last = min(run.last, first + max_count - 1)
            whole = last == run.last
            attempt = run.attempt + 1
            taken.append((first, last, attempt))
            max_count -= last + 1 - first
            self._totals[READY] -= last + 1 - first
            turn = self._count_lease(owner, first, last, last + 1 - first)
            i = bisect_left(firsts, first)
            before = runs[i - 1] if i else None
            began = now if attempt == 1 else None if run.delivered is None else run.delivered[0]
            delivered: Delivered = None if now is None else (began, now)
            if whole:
                self._ready.pop()
            else:  # what is left keeps its heap entry, which top() puts right
                run.first = firsts[i] = last + 1
            if before is not None and before.spared == run.spared and before.losses == run.losses and before.accepts(
                first, INFLIGHT, owner, deadline, deadline, attempt, turn
            ):
                before.extend(last, deadline, deadline, delivered)
                if whole:
                    run.retire()
                    del runs[i], firsts[i]
            elif whole:
                run.state, run.owner, run.attempt = INFLIGHT, owner, attempt
                run.deadline = run.earliest = deadline
                run.turn, run.delivered = turn, delivered
                self._deadlines.push(run)
            else:
                lease = LeaseRun(first, last, INFLIGHT, owner, deadline, attempt, turn)
                lease.delivered, lease.losses, lease.spared = delivered, run.losses, run.spared
                runs.insert(i, lease)
                firsts.insert(i, first)
                self._deadlines.push(lease)
        self._trim()
        return taken

    # -- returns

    def give_back(self, owner: Lessee | None, first: int, last: int) -> int:
        """Return leases that were never written; if ``owner`` is None, leases of any lessee whose application had none of them.
        They are READY, with one attempt less. Returns: how many ids."""
        i, j = self._carve(first, last)
        returned = 0
        for run in self._runs[i:j]:
            if run.state is INFLIGHT and (owner is None or run.owner is owner):
                returned += run.last + 1 - run.first
                if owner is None:
                    run.spare()
                elif run.deadline != inf:  # else it was held, uncounted
                    run.attempt -= 1
                    run.delivered = None  # the time of the delivery before was overwritten
                self._to_ready(run)
        self._settle(i, j)
        return returned

    def hold(self, owner: Lessee, first: int, last: int) -> None:
        """Lease the READY ids of the range to ``owner`` without a deadline, uncounted."""
        i, j = self._carve(first, last)
        for run in self._runs[i:j]:
            if run.state is READY:
                messages = run.last + 1 - run.first
                self._totals[READY] -= messages
                self._parked += messages
                run.turn = self._count_lease(owner, run.first, run.last, messages)
                run.state, run.owner = INFLIGHT, owner
                run.deadline = run.earliest = inf
                run.ticket = None
        self._settle(i, j)

    def release(self, owner: Lessee) -> int:
        """End all leases of a lost session: READY. After ``has_counted`` none counts an attempt. Returns: how many ids."""
        before, left = owner.inflight, SUSPECTS_MAX
        for first, last in self.leased_to(owner) if owner.order is not None and not owner.uncounted else ():
            i, j = self._carve(first, min(last, first + left - 1))
            left -= sum(run.lost() for run in self._runs[i:j])
        self._return([r for r in self._runs if r.state is INFLIGHT and r.owner is owner] if before else [], None)
        return before - owner.inflight

    def postpone(self, first: int, last: int, now: float, delay_s: Callable[[int], float]) -> int:
        """End the leases in the range: DELAYED by ``delay_s(attempt)``, READY when that is 0, HELD when out of attempts.
        Returns: how many ids."""
        i, j = self._carve(first, last)
        postponed = 0
        for run in self._leases_of(i, j):
            postponed += run.last + 1 - run.first
            delay = delay_s(run.attempt)
            run.answered()
            run.losses = 0
            if self._to_ready(run) and delay > 0:
                self._totals[READY] -= run.last + 1 - run.first
                self._totals[DELAYED] += run.last + 1 - run.first
                run.state = DELAYED
                run.deadline = run.earliest = now + delay
        self._settle(i, j)
        return postponed

    def touch(self, first: int, last: int, deadline: float) -> int:
        """Move the deadline of the leases in the range, forward or back. Returns: how many ids."""
        (i, j), touched = self._carve(first, last), 0
        for run in self._leases_of(i, j):
            touched += run.last + 1 - run.first
            run.renewed()
            if deadline < run.deadline:
                run.ticket = None  # its entry would come too late
            run.deadline = run.earliest = deadline
        self._settle(i, j)
        return touched

    def tick(self, now: float) -> bool:
        """End the leases and delays that are due: they are READY. Returns: whether there were any."""
        due: list[LeaseRun] = []
        while (run := self._deadlines.top()) is not None and run.deadline <= now:
            due.append(run)
            self._deadlines.pop()
        self._return(due, now)
        return bool(due)

    # -- dead letters

    def give_up(self, first: int, last: int) -> int:
        """Make leases in the range HELD, and delivered ids that wait there for redelivery. Returns: how many ids."""
        (i, j), given_up = self._carve(first, last), 0
        for run in self._rejectable_of(i, j):
            given_up += (messages := run.last + 1 - run.first)
            run.answered()
            self._discount(run, messages)
            self._to_held(run)
            run.losses = 0
            run.reason = REJECTED
        self._settle(i, j)
        return given_up

    def limit_attempts(self, max_attempts: int) -> None:
        """Set ``max_attempts`` (0: no limit); READY runs with this many attempts become HELD."""
        self.max_attempts = max_attempts
        if max_attempts:
            for run in self._runs:
                if run.state is READY and run.attempt >= max_attempts:
                    self._totals[READY] -= run.last + 1 - run.first
                    self._to_held(run)
            self._settle(0, len(self._runs))

    def take_held(self, max_count: int) -> list[HeldRange]:
        """Take up to ``max_count`` HELD ids, lowest first. They are MOVING until ``unhold`` or ``remove``."""
        taken: list[HeldRange] = []
        while max_count > 0 and (run := self._held.top()) is not None:
            if run.last + 1 - run.first > max_count:
                self._split(self._index(run.first), run.first + max_count)
            self._held.pop()
            run.owner = MOVING
            max_count -= run.last + 1 - run.first
            taken.append(HeldRange(run.first, run.last, run.attempt, run.reason, run.delivered))
        return taken

    def unhold(self, first: int, last: int) -> None:
        """Make MOVING ids in the range HELD again: they were not stored."""
        i, j = self._carve(first, last)
        for run in self._runs[i:j]:
            if run.state is HELD:
                run.owner = None
        self._settle(i, j)

    # -- removal

    def remove(self, first: int, last: int, which: int = ANY) -> list[IdRange]:
        """Take ids out: ``ANY``, the ``DELIVERED`` that are not HELD, or those that were ``STORED`` as dead letters (MOVING).

        Returns: the removed ids as spans. A span also covers ids that left the table before, unless they are waiting: these are
        acked already, and one span for many runs keeps the ack set's work linear.
        """
        if last < first:
            return []
        i = self._index(first)
        j = bisect_right(self._firsts, last)
        spans: list[IdRange] = []
        kept: list[LeaseRun] = []
        span_first: int | None = None  # of the span that is still growing, up to span_last
        span_last = 0
        for run in self._runs[i:j]:
            if which != ANY and (
                ((run.attempt == 0 and not run.spared) or run.state is HELD)
                if which == DELIVERED
                else run.owner is not MOVING
            ):
                kept.append(run)
                if span_first is not None:
                    spans.append((span_first, span_last))
                    span_first = None
                continue
            low = run.first if run.first >= first else first
            if span_first is None:
                span_first = low
            elif low > span_last + 1 and any(ids.next_in(span_last + 1, low) < low for ids in self._waiting):
                spans.append((span_first, span_last))
                span_first = low
            span_last = run.last if run.last <= last else last
            run.answered()
            self._discount(run, span_last + 1 - low)
            if run.first < low:
                kept.append(run)
                if run.last > span_last:
                    kept.append(rest := run.tail(span_last + 1))
                    self._enqueue(rest)
                run.last = low - 1
            elif run.last > span_last:
                kept.append(run)
                run.first = span_last + 1
            else:
                run.retire()
        if span_first is not None:
            spans.append((span_first, span_last))
        if spans:
            self._runs[i:j] = kept
            self._firsts[i:j] = [run.first for run in kept]
            self._trim()
        return spans

    def disown(self) -> None:
        """Remove these leases from their lessees' delivery orders: they will not be settled, so none may count as the first."""
        for run in self._runs:
            if run.owner is not None and run.owner.order is not None:
                run.owner.order.settled(run.turn, run.last + 1 - run.first)
                run.turn = 0

    def clear(self) -> None:
        """Remove every id, also from the counts of the lessees."""
        for run in self._runs:
            self._discount(run, run.last + 1 - run.first)
            run.retire()
        self._runs.clear()
        self._firsts.clear()
        self._trim()

    # -- inside

    def _carve(self, first: int, last: int) -> tuple[int, int]:
        """Split runs at the edges, so that runs i to j - 1 are exactly the range. Assumes that ``_settle(i, j)`` follows, which
        joins unchanged neighbours again."""
        if last < first:
            return 0, 0
        i = self._index(first)
        if i < len(self._runs) and self._runs[i].first < first:
            self._split(i, first)
            i += 1
        j = bisect_right(self._firsts, last)
        if j > i and self._runs[j - 1].last > last:
            self._split(j - 1, last + 1)
        return i, j

    def _split(self, i: int, at: int) -> None:
        run = self._runs[i]
        rest = run.tail(at)
        run.last = at - 1
        self._runs.insert(i + 1, rest)
        self._firsts.insert(i + 1, at)
        self._enqueue(rest)

    def _return(self, changed: list[LeaseRun], now: float | None) -> None:
        """Make timed runs READY: a few by looking each up, many with one pass. Of all leases that a lessee holds, only the one
        that it got first can count an attempt, if ``Lessee.counts`` and ``timed_out`` say so."""
        firsts = first_run_by_lessee(changed)
        kept, lowest = {owner: owner.inflight for owner in firsts}, dict[Lessee, int]()
        for run in changed:
            if run.state is INFLIGHT and (owner := run.owner) is not None:
                kept[owner] -= run.last + 1 - run.first
                lowest[owner] = min(lowest.get(owner, run.first), run.first)
                if firsts[owner] is not run:
                    run.spare()
        held = self._firsts_of({owner for owner, more in kept.items() if more})
        for owner, run in firsts.items():
            i = self._index(run.first)
            if now is not None:
                owner.expired, owner.expired_at = lowest[owner], now
            counts = held.get(owner, run) is run and owner.counts(self, run)
            if not (counts and not owner.has_counted if now is None else owner.timed_out(self, run.first, counts)):
                run.spare()
                continue
            if run.last > run.first:
                self._split(i, run.first + 1)
                self._runs[i + 1].spare()
                changed.append(self._runs[i + 1])
        for run in changed:
            self._to_ready(run)
        if len(changed) * _SINGLY_FACTOR > len(self._runs):
            self._settle(0, len(self._runs))
        else:
            for run in changed:
                i = self._index(run.first)  # of what has absorbed it, when it is already gone
                self._settle(i, i + 1)

    def _to_ready(self, run: LeaseRun) -> bool:
        """Make a timed run READY, or HELD when it is out of attempts. Assumes that ``_settle`` follows and gives it its heap
        entry. Returns: whether it is READY."""
        self._discount(run, run.last + 1 - run.first)
        if 0 < self.max_attempts <= run.attempt:
            self._to_held(run)
            return False
        self._totals[READY] += run.last + 1 - run.first
        run.end_lease(READY)
        return True

    def _to_held(self, run: LeaseRun) -> None:
        """Make a run HELD that the totals no longer count. Assumes that ``_settle`` follows."""
        self._totals[HELD] += run.last + 1 - run.first
        run.end_lease(HELD)
        run.reason = OUT_OF_ATTEMPTS
        run.deadline = run.earliest = inf  # alike: neighbours may join

    def _settle(self, i: int, j: int) -> None:
        """Join neighbours around runs i to j - 1 where possible, and give every run its heap entry."""
        if i == j:
            return
        low = max(i - 1, 0)
        span = self._runs[low : j + 1]
        kept = span[:1]
        for run in span[1:]:
            left = kept[-1]
            if left.reason == run.reason and left.spared == run.spared and left.losses == run.losses and left.accepts(
                run.first, run.state, run.owner, run.earliest, run.deadline, run.attempt, run.turn
            ):
                left.extend(run.last, run.earliest, run.deadline, run.delivered)
                run.retire()
            else:
                kept.append(run)
        if len(kept) < len(span):
            self._runs[low : j + 1] = kept
            self._firsts[low : j + 1] = [run.first for run in kept]
        for run in kept:
            if run.ticket is None:
                self._enqueue(run)
        self._trim()

    def _enqueue(self, run: LeaseRun) -> None:
        if run.state is not HELD:
            (self._ready if run.state is READY else self._deadlines).push(run)
        elif run.owner is None:
            self._held.push(run)

    def _trim(self) -> None:
        self._ready.trim(len(self._runs))
        self._deadlines.trim(len(self._runs))
        self._held.trim(len(self._runs))

    def _count_lease(self, owner: Lessee, first: int, last: int, messages: int) -> int:
        """Count leased messages for their lessee. Returns: the turn of the delivery."""
        self._totals[INFLIGHT] += messages
        owner.inflight += messages
        return owner.got(self, first, last, messages)

    def _discount(self, run: LeaseRun, messages: int) -> None:
        self._totals[run.state] -= messages
        if run.state is INFLIGHT:
            owner = run.owner
            assert owner is not None, "an inflight run has an owner"
            owner.inflight -= messages
            if owner.order is not None:
                owner.order.settled(run.turn, messages)
            if run.deadline == inf:
                self._parked -= messages
            if owner.wants_room:
                owner.wants_room = False
                self.freed.append(owner)
