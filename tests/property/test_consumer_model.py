"""The consumer against a model with one row per id: any sequence of operations and restarts, and ids that are not due yet."""

import json
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.consumer_model import Model, Row
from tests.support.shares import examples
from toymq_py.consumer import Consumer, ConsumerSnapshot, DeliveryPolicy, IdSet, MessageCounts
from toymq_py.consumer.lease_run import DELAYED, HELD, INFLIGHT, MERGE_SLACK_S, MOVING, READY, Lessee

POLICY = DeliveryPolicy(nack_backoff_min_s=1.0, nack_backoff_max_s=8.0)
A, B = Lessee(100), Lessee(100)
SPAN = 32  # ids beyond the base that a run looks at: small, so that operations meet
BASES = st.sampled_from([0, 1, 5, 2**63])


class ConsumerMachine(RuleBasedStateMachine):
    """Ids of the machine count from ``base``; deadlines are whole seconds, so that none merge
    unless they are equal (merging has its own tests).

    Rules are drawn alike, and a few of them wipe the table: those act only now and then, and
    ranges are short, or else the machine would mostly look at an empty table. ``seen`` counts
    the steps at which something worth testing was there, and the test asks for enough of them.
    """

    seen: ClassVar[Counter[str]] = Counter()

    spans = st.tuples(st.integers(0, SPAN - 1), st.integers(0, 7)).map(
        lambda t: (t[0], min(t[0] + t[1], SPAN - 1))
    )
    ranges = st.lists(spans, min_size=1, max_size=3)
    now_and_then = st.integers(0, 9).map(lambda n: n == 9)
    owners = st.sampled_from([A, B])
    visibility = st.integers(1, 4).map(float)

    @initialize(base=BASES, start=st.integers(0, 6))
    def begin(self, base: int, start: int) -> None:
        self.base, self.now = base, 0.0
        A.inflight = B.inflight = A.mark = B.mark = 0
        A.late = B.late = False
        self.scheduled = IdSet()
        self.real = Consumer("c", start=base + start, since_ns=1, scheduled=self.scheduled)
        self.model = Model(start, SPAN)
        self.shown = (self.real.changes, self.real.snapshot())
        self.take_fresh(A, 6, 0, 2.0)
        self.take_fresh(B, 6, 1, 3.0)

    def ids(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(first + self.base, last + self.base) for first, last in ranges]

    @rule(owner=owners, width=st.integers(1, 6), hole=st.integers(0, 2), lease=visibility)
    def take_fresh(self, owner: Lessee, width: int, hole: int, lease: float) -> None:
        fresh = self.real.next_fresh(self.base + SPAN)
        if fresh is None:
            assert self.model.cursor() == SPAN
            return
        first, last = fresh[0] - self.base, fresh[1] - self.base
        assert first == self.model.cursor()
        assert all(self.model.rows[i].state == "fresh" and not self.model.rows[i].scheduled for i in range(first, last + 1))
        after = self.model.rows.get(last + 1)
        assert after is None or after.state == "acked" or after.scheduled
        self.model.skip(first, (taken := min(first + hole, last)) - 1)
        last = min(taken + width - 1, last)
        for row in self.model.pick(taken, last, "fresh"):
            row.attempt = 1
            row.become("inflight", owner, self.now + lease)
        self.real.take_fresh(owner, taken + self.base, last + self.base, self.now + lease)

    @rule(width=st.integers(1, 2))
    def publish_with_delay(self, width: int) -> None:
        """Add the next ids as delayed messages: a topic schedules a record before a worker can take it."""
        first = max(self.real.cursor - self.base, self.model.cursor())
        for i in range(first, min(first + width, SPAN)):
            if self.model.rows[i].state == "fresh":
                self.model.rows[i].scheduled = True
                self.scheduled.add(i + self.base)

    @rule(owner=owners, width=st.integers(1, 2), lease=visibility, wait=st.booleans())
    def publish_with_delay_and_take_what_is_behind(self, owner: Lessee, width: int, lease: float, wait: bool) -> None:
        self.publish_with_delay(width)
        self.take_fresh(owner, 1, 0, lease)
        if not wait:
            self.fall_due((0, SPAN - 1))

    @rule(span=st.tuples(st.integers(0, SPAN - 1), st.integers(0, SPAN)))
    def fall_due(self, span: tuple[int, int]) -> None:
        due = [i for i in range(span[0], min(sum(span) + 1, SPAN)) if self.model.rows[i].scheduled]
        for i in due:
            self.model.rows[i].scheduled = False
            self.scheduled.discard(i + self.base)
            if self.model.rows[i].state == "fresh" and i < self.real.cursor - self.base:
                self.model.rows[i].become("ready")
        self.real.fall_due([i + self.base for i in due])

    @rule(owner=owners, max_count=st.integers(0, 9), lease=visibility)
    def take_ready(self, owner: Lessee, max_count: int, lease: float) -> None:
        want = [(i, r) for i, r in self.model.rows.items() if r.state == "ready"][:max_count]
        for _, row in want:
            row.attempt += 1
            row.become("inflight", owner, self.now + lease)
        flat: list[tuple[int, int]] = []
        while len(flat) < max_count:  # as a topic does
            left = max_count - len(flat)
            if due := self.real.due(left):
                self.real.take_due(owner, due, self.now + lease)
                flat += [(i - self.base, 1) for i in due]
            elif got := self.real.take_ready(owner, left, self.now + lease, max_runs=1):
                flat += [(i - self.base, n) for a, b, n in got for i in range(a, b + 1)]
            else:
                break
        assert flat == [(i, row.attempt) for i, row in want]

    @rule(owner=owners, max_count=st.integers(1, 9), lease=visibility)
    def deliver_again(self, owner: Lessee, max_count: int, lease: float) -> None:
        self.release(A if owner is B else B)
        self.take_ready(owner, max_count, lease)

    @rule(ranges=ranges)
    def ack(self, ranges: list[tuple[int, int]]) -> None:
        want = sum(self.model.ack(*r) for r in ranges)
        assert self.real.ack(self.ids(ranges)) == want
        assert self.real.has_acked or not want

    @rule(really=now_and_then)
    def ack_everything(self, really: bool) -> None:
        if not really:
            return
        assert self.real.ack([(0, 2**64 - 1)]) == self.model.ack(0, SPAN - 1)

    @rule(ranges=ranges, delay=st.sampled_from([None, 0.0, 1.0, 3.0]))
    def nack(self, ranges: list[tuple[int, int]], delay: float | None) -> None:
        want = 0
        for first, last in ranges:
            for row in self.model.pick(first, last, "inflight"):
                rest = POLICY.backoff_s(row.attempt) if delay is None else delay
                self.model.settle(row)
                self.model.return_(row)
                if row.state != "held" and rest:
                    row.become("delayed", None, self.now + rest)
                want += 1
        assert self.real.nack(self.ids(ranges), self.now, delay, POLICY) == want

    @rule(ranges=st.lists(spans, min_size=1, max_size=1))
    def give_up(self, ranges: list[tuple[int, int]]) -> None:
        want = 0
        for first, last in ranges:
            for row in self.model.pick(first, last, "inflight", "ready", "delayed"):
                if not row.attempt:
                    continue
                self.model.settle(row)
                row.become("held")
                row.reason = "rejected"
                want += 1
        assert self.real.give_up(self.ids(ranges)) == want

    @rule(max_attempts=st.sampled_from([0, 2, 3]))
    def limit_attempts(self, max_attempts: int) -> None:
        self.real.limit_attempts(max_attempts)
        self.model.max_attempts = max_attempts
        for row in self.model.pick(0, SPAN - 1, "ready"):
            self.model.return_(row)

    @rule(max_count=st.integers(1, 9))
    def take_held(self, max_count: int) -> None:
        rows = self.model.rows.items()
        want = [(i, r) for i, r in rows if r.state == "held" and r.owner is None][:max_count]
        for _, row in want:
            row.owner = MOVING
        got = self.real.take_held(max_count)
        flat = [(i - self.base, it.attempt, it.reason) for it in got for i in range(it.first, it.last + 1)]
        assert flat == [(i, row.attempt, row.reason) for i, row in want]

    @rule(span=spans)
    def unhold(self, span: tuple[int, int]) -> None:
        for row in self.model.pick(*span, "held"):
            row.owner = None
        self.real.unhold(*self.ids([span])[0])

    @rule(span=spans)
    def ack_dead_lettered(self, span: tuple[int, int]) -> None:
        moving = [row for row in self.model.pick(*span, "held") if row.owner is MOVING]
        for row in moving:
            row.become("acked")
        assert self.real.ack_dead_lettered(*self.ids([span])[0]) == len(moving)

    @rule(ranges=ranges, lease=visibility)
    def touch(self, ranges: list[tuple[int, int]], lease: float) -> None:
        want = 0
        for first, last in ranges:
            for row in self.model.pick(first, last, "inflight"):
                self.model.touch(row, self.now + lease)
                want += 1
        assert self.real.touch(self.ids(ranges), self.now + lease) == want

    @rule(owner=owners, span=spans)
    def unsend(self, owner: Lessee, span: tuple[int, int]) -> None:
        for row in self.model.pick(*span, "inflight"):
            if row.owner == owner:
                row.attempt -= 1
                self.model.return_(row)
        self.real.unsend(owner, *self.ids([span])[0])

    @rule(owner=owners, width=st.integers(1, 3))
    def never_written(self, owner: Lessee, width: int) -> None:
        if (cursor := self.model.cursor()) < SPAN:
            self.take_fresh(owner, width, 0, 1.0)
            self.unsend(owner, (cursor, min(cursor + width, SPAN) - 1))

    @rule(owner=owners)
    def release(self, owner: Lessee) -> None:
        mine = [r for r in self.model.pick(0, SPAN - 1, "inflight") if r.owner == owner]
        hung = self.model.has_counted(owner)
        if not hung:
            self.model.count_first(mine)
        for row in mine:
            if hung:
                row.spare()
            self.model.return_(row)
        assert self.real.release(owner) == len(mine)

    @rule(owner=owners)
    def release_uncounted(self, owner: Lessee) -> None:
        mine = [r for r in self.model.pick(0, SPAN - 1, "inflight") if r.owner == owner]
        for row in mine:
            row.spare()
            self.model.return_(row)
        owner.uncounted = True
        try:
            assert self.real.release(owner) == len(mine)
        finally:
            owner.uncounted = False

    @rule(ranges=ranges)
    def return_uncounted(self, ranges: list[tuple[int, int]]) -> None:
        want = 0
        for first, last in ranges:
            for row in self.model.pick(first, last, "inflight"):
                row.spare()
                self.model.return_(row)
                want += 1
        assert self.real.return_uncounted(self.ids(ranges)) == want

    @rule(at=st.integers(0, SPAN - 1), width=st.integers(1, 2))
    def skip(self, at: int, width: int) -> None:
        span = (at, min(at + width, SPAN) - 1)
        self.model.skip(*span)
        self.real.skip(*self.ids([span])[0])

    @rule(step=st.integers(0, 3))
    def tick(self, step: int) -> None:
        self.now += step
        assert self.real.tick(self.now) == self.model.tick(self.now)

    @rule(first=st.integers(0, 4), really=now_and_then)
    def drop_below(self, first: int, really: bool) -> None:
        if not really:
            return
        first = min(self.model.floor() + first, SPAN)
        assert self.real.drop_below(self.base + first) == self.model.skip(0, first - 1)

    @rule(to=st.integers(0, SPAN), really=now_and_then)
    def seek(self, to: int, really: bool) -> None:
        if not really:
            return
        kept = self.model
        self.model = Model(
            to, SPAN, kept.rows, max_attempts=kept.max_attempts, late=kept.late, hung=kept.hung, life=kept.life
        )  # fmt: skip
        self.real.seek(self.base + to, 2)
        assert not self.real.has_acked

    @rule(earlier=st.integers(0, SPAN))
    def restart(self, earlier: int) -> None:
        before = self.real.snapshot()
        value = json.loads(json.dumps(before.to_json(), default=list))
        snapshot = ConsumerSnapshot.from_json(value)
        assert snapshot == before
        self.real, changed = Consumer.restore("c", snapshot, 0, self.base + SPAN, self.scheduled)
        assert not changed
        assert self.real.maybe_delivered_below == self.base + SPAN
        self.real.maybe_delivered_below = self.base + earlier  # as if the rest had been published since
        self.model.maybe_below = earlier
        assert self.real.snapshot() == before, "nothing is lost on the way"
        self.model.restart()
        A.inflight = B.inflight = 0
        self.limit_attempts(self.model.max_attempts)
        self.shown = (self.real.changes, before)

    @rule(low=st.integers(-3, 3), high=st.integers(-3, 3), really=now_and_then)
    def restart_with_another_log(self, low: int, high: int, really: bool) -> None:
        if not really:
            return
        first = max(self.model.floor() + low, 0)
        cut = (min(first, SPAN), min(max(self.model.cursor() + high, first), SPAN))
        first_id, next_id = self.base + cut[0], self.base + cut[1]
        rows = self.model.rows
        start = self.real.start - self.base
        snapshot = self.real.snapshot()
        leases = self.model.pick(0, SPAN - 1, "inflight")
        self.model.count_first(leases)
        for row in leases:
            row.become("ready")
        beyond = any(r.state == "acked" or r.attempt for i, r in rows.items() if i >= cut[1])
        lost = any(r.state != "acked" for i, r in rows.items() if i < cut[0])
        self.scheduled.discard_range(next_id, self.base + SPAN)
        self.model.maybe_below = cut[1]
        self.real, changed = Consumer.restore("c", snapshot, first_id, next_id, self.scheduled)
        assert changed == (lost or beyond or start > cut[1])
        self.model.skip(0, cut[0] - 1)
        for i in range(cut[1], SPAN):
            rows[i] = Row()
        self.model.restart()
        A.inflight = B.inflight = 0
        self.limit_attempts(self.model.max_attempts)
        self.shown = (self.real.changes, self.real.snapshot())

    @invariant()
    def every_id_is_in_its_place(self) -> None:
        real, base, rows = self.real, self.base, self.model.rows
        floor, cursor = real.floor - base, real.cursor - base
        assert floor == self.model.floor()
        assert cursor <= self.model.cursor()
        found: dict[int, tuple[object, ...]] = dict.fromkeys(range(floor), ("acked",))
        for first, last in real._acks.ranges():
            for i in range(first - base, last - base + 1):
                assert i not in found, f"id {i} acked twice"
                found[i] = ("acked",)
        for run in real._runs:
            for i in range(run.first - base, run.last - base + 1):
                assert i not in found, f"id {i} in two places"
                assert i < cursor, f"id {i} in a run above the cursor"
                deadline = run.deadline if run.state in (INFLIGHT, DELAYED) else 0.0
                found[i] = (run.state.name.lower(), run.owner, deadline, run.attempt)
                assert run.state is not HELD or run.reason == rows[i].reason
        for i in (msg_id - base for msg_id in real._due):
            assert i not in found, f"id {i} in two places"
            assert i < cursor, f"id {i} due above the cursor"
            found[i] = ("ready", None, 0.0, 0)
        for i in range(cursor):
            assert i in found or rows[i].scheduled, f"id {i} was passed over"
        for i, row in rows.items():
            deadline = row.deadline if row.state in ("inflight", "delayed") else 0.0
            live = (row.state, row.owner, deadline, row.attempt)
            want = None if row.state == "fresh" else ("acked",) if row.state == "acked" else live
            assert found.get(i) == want, f"id {i}"

    @invariant()
    def the_books_agree(self) -> None:
        real, rows = self.real, list(self.model.rows.values())
        number = {s: sum(r.state == s for r in rows) for s in ("ready", "inflight", "delayed", "held")}
        timed = [r.deadline for r in rows if r.state in ("inflight", "delayed")]
        backlog = sum(r.state != "acked" for r in rows)
        self.seen.update(state for state, n in number.items() if n)
        self.seen["redelivered"] += any(r.attempt > 1 for r in rows)
        self.seen["given back uncounted"] += any(r.state == "ready" and not r.attempt for r in rows)
        self.seen["acked above a gap"] += bool(real._acks.ranges())
        self.seen["five runs or more"] += len(real._runs) >= 5
        inflight = number["inflight"] + number["held"]
        scheduled = number["delayed"] + sum(r.scheduled and r.state == "fresh" for r in rows)
        self.seen["scheduled"] += scheduled > number["delayed"]
        self.seen["due behind the cursor"] += bool(real._due)
        want = MessageCounts(backlog - inflight - scheduled, inflight, scheduled, backlog - scheduled)
        assert real.counts(self.base + SPAN) == want
        assert real.has_ready() == bool(number["ready"])
        assert real.has_held() == bool(number["held"])
        assert real.inflight == number["inflight"]
        assert real.next_deadline() == min(timed, default=None)
        for owner in (A, B):
            want_owned = sum(r.state == "inflight" and r.owner == owner for r in rows)
            assert owner.inflight == want_owned
            assert sum(last + 1 - first for first, last in real.inflight_to(owner)) == want_owned

    @invariant()
    def the_table_is_sound(self) -> None:
        table = self.real._runs
        runs = list(table)
        assert table._firsts == [run.first for run in runs]
        heaps = ((table._ready, {READY}), (table._deadlines, {INFLIGHT, DELAYED}), (table._held, {HELD}))
        for heap, states in heaps:
            live = [run for _, ticket, run in heap._entries if run.ticket == ticket]
            here = [r.first for r in runs if r.state in states and r.owner is not MOVING]
            assert sorted(r.first for r in live) == here
            assert len(heap) <= 2 * len(runs) + 64
            rank = (lambda r: r.deadline) if heap is table._deadlines else (lambda r: r.first)
            assert all(e[0] <= rank(e[2]) for e in heap._entries if e[2].ticket == e[1])

    @invariant()
    def changes_tell_when_a_flush_is_due(self) -> None:
        changes, snapshot = self.shown
        now = self.real.snapshot()
        assert (now == snapshot) or self.real.changes != changes
        self.shown = (self.real.changes, now)


@pytest.mark.hypothesis
def test_the_consumer_does_what_the_model_does() -> None:
    ConsumerMachine.seen.clear()
    bounded = settings(
        max_examples=examples(240), stateful_step_count=50, derandomize=True, deadline=None, database=None
    )
    run_state_machine_as_test(ConsumerMachine, settings=bounded)
    rare = {what: n for what, n in ConsumerMachine.seen.items() if n < examples(120)}
    assert len(ConsumerMachine.seen) == 10, f"expected all ten, saw {ConsumerMachine.seen}"
    assert not rare, f"expected each in {examples(120)} steps or more, saw {rare}"


@settings(max_examples=examples(200), derandomize=True, deadline=None, database=None)
@given(
    gaps_us=st.lists(st.integers(-6_000, 6_000), min_size=1, max_size=40),
    acked=st.sets(st.integers(0, 39)),
)
@example(gaps_us=[0, 5000], acked=set())
def test_merged_deadlines_are_late_by_less_than_the_slack_and_never_early(
    gaps_us: list[int], acked: set[int]
) -> None:
    """Deliveries whose deadlines lie close together, some of which are then acked."""
    it = Consumer("c", start=0, since_ns=0)
    deadlines: list[float] = []
    at = 30.0
    for i, gap in enumerate(gaps_us):
        at += gap / 1e6
        deadlines.append(at)
        it.take_fresh(A, i, i, at)
    for i in acked:
        it.ack([(i, i)])
    waiting = set(range(len(deadlines))) - acked
    while (due := it.next_deadline()) is not None:
        assert it.tick(due)
        ready = {i for a, b, _ in it.take_ready(B, 99, 1e9) for i in range(a, b + 1)}
        assert all(0 <= due - deadlines[i] < MERGE_SLACK_S for i in ready)  # a sum would be rounded in another way
        it.ack([(i, i) for i in ready])
        waiting -= ready
    assert not waiting
