"""Workers of one shared consumer against a row per message: sessions, patterns and polls that come, stall, go and are killed.

What has to hold: no message is with two workers inside one visibility time, none is lost, windows are kept, attempts count
what was delivered, and whoever could take something is told: when none has a reason to look any more, nothing is left that
one of them could take.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.broker_rig import BrokerRig
from tests.support.shares import examples
from toymq_py.consumer_options import Mode
from toymq_py.subscription import PatternSubscription, Poll
from toymq_py.topic import Delivery, Subscription

TOPICS = ("a.x", "a.y")
VISIBILITY_S = 30.0
TAKE_BYTES = 1 << 20


@dataclass(eq=False)
class Row:
    """One message of one topic."""

    holder: "Worker | None" = None
    deadline: float = 0.0
    delayed_until: float = 0.0
    attempts: int = 0
    delivered: bool = False
    acked: bool = False
    turn: int = 0
    """Of all deliveries, which it was."""
    losses: int = 0
    """How often it was lost with a session of a pattern since it was settled or the broker killed."""
    behind: bool = False
    """Its holder had it when a time-out counted an attempt of what stood before it."""

    def lose(self, counts: bool) -> None:
        """Note that the message loses its lease without a NACK. ``counts``: whether the delivery counts as an attempt."""
        self.attempts -= not counts
        self.holder = None

    def settle(self) -> None:
        """Note that the message is acked, or given back with a NACK."""
        self.losses = 0
        if self.holder is not None:
            self.holder.late = False
            self.holder = None


class Worker:
    """A session that is told when to look. ``stalled``: its socket takes no more; ``late``: it has let a lease end, and has
    settled nothing since; ``counted``: since then one counted, or was excused."""

    late = counted = False
    expired_at = 0.0
    excuses = excused = 0
    hangs_on: tuple[str, int] | None = None

    def excuse(self, one: tuple[str, int]) -> bool:
        """Return whether a lost lease is excused, because the message at which the worker hangs is another one. Otherwise the
        worker hangs at this message from now on."""
        if self.late and self.excused < self.excuses and one != self.hangs_on:
            self.excused += 1
            return True
        self.excuses, self.excused, self.hangs_on = 2 * self.excuses if self.late and self.counted else 4, 0, one
        return False

    def __init__(self, rig: BrokerRig, name: str, window: int, mode: Mode) -> None:
        self.name = name
        self.window = window
        self.hungry = True
        self.stalled = False
        self.hold: Subscription | PatternSubscription
        if "*" in name:
            self.hold = rig.follow(name, window=window, mode=mode, wake=self.woken)
        else:
            self.hold = rig.subscribe(name, window=window, mode=mode, wake=self.woken)

    def woken(self, _: object) -> bool:
        self.hungry = True
        return not self.stalled

    def take(self) -> list[Delivery]:
        delivery = self.hold.take(TAKE_BYTES)
        self.hungry = delivery is not None
        return [] if delivery is None else [delivery]


class Poller(Worker):
    """A poll that waits, and takes once."""

    def __init__(self, rig: BrokerRig, name: str, max_count: int, mode: Mode) -> None:
        self.name = name
        self.window = max_count
        self.hungry = True
        self.stalled = False
        self.poll: Poll = rig.poll(name, visibility_s=VISIBILITY_S, wake=lambda: self.woken(None), mode=mode)

    def take(self) -> list[Delivery]:
        taken = self.poll.take(self.window, TAKE_BYTES)
        self.hungry = False
        return taken


class SharedMachine(RuleBasedStateMachine):
    """``seen`` counts what happened, and the test asks for enough of each."""

    seen: ClassVar[Counter[str]] = Counter()
    mode: Mode = "shared"
    at = st.integers(0, 99)
    names = st.sampled_from([*TOPICS, "a.*"])

    @initialize()
    def begin(self) -> None:
        self.rig = BrokerRig(**self.options())
        self.rows: dict[tuple[str, int], Row] = {}
        self.workers: list[Worker] = []
        self.turn = 0
        self.join("a.x", 2)
        self.join("a.*", 3)

    def options(self) -> dict[str, int]:
        return {"max_attempts": 1000}  # what expires again and again is another test's

    @property
    def now(self) -> float:
        return self.rig.clock.monotonic()

    def ready(self, topic: str) -> list[Row]:
        """Return the messages that could be taken now."""
        rows = [row for (of, _), row in self.rows.items() if of == topic]
        return [row for row in rows if not row.acked and row.holder is None and row.delayed_until <= self.now]

    def pick(self, at: int, rows: list[tuple[str, int]]) -> tuple[str, int] | None:
        return rows[at % len(rows)] if rows else None

    # -- rules

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def publish(self, topic: str, count: int) -> None:
        (outcome,) = self.rig.publish(topic, *[b"x"] * count)
        for n in range(count):
            self.rows[topic, outcome.first_id + n] = Row()

    @rule(name=names, window=st.integers(1, 4))
    def join(self, name: str, window: int) -> None:
        if len(self.workers) < 5:
            self.workers.append(Worker(self.rig, name, window, self.mode))

    @rule(name=names, max_count=st.integers(1, 4))
    def poll(self, name: str, max_count: int) -> None:
        if len(self.workers) < 6:
            self.workers.append(Poller(self.rig, name, max_count, self.mode))

    @rule(at=at)
    def look(self, at: int) -> None:
        hungry = [worker for worker in self.workers if worker.hungry and not worker.stalled]
        if hungry:
            self.take(hungry[at % len(hungry)])

    def take(self, worker: Worker) -> None:
        deliveries = worker.take()
        taken = [self.rows[each.topic, msg_id] for each in deliveries for msg_id in each.records.ids[each.start : each.stop]]
        if "*" in worker.name and any(row.losses > 1 for row in taken):
            assert len(taken) == 1, "what came back again and again without an answer comes alone"
            self.seen["alone"] += 1
        for delivery in deliveries:
            assert not self.rests(worker, delivery.topic, -0.1), "others work, and come to what it lost"
            for msg_id in delivery.records.ids[delivery.start : delivery.stop]:
                row = self.rows[delivery.topic, msg_id]
                self.check_delivery(delivery.topic, msg_id)
                assert not row.acked, f"{delivery.topic} {msg_id} was acked"
                assert row.holder is None, f"{delivery.topic} {msg_id} is with another worker"
                assert row.delayed_until <= self.now, f"{delivery.topic} {msg_id} comes before its backoff is over"
                row.attempts += 1
                row.delivered = True
                assert delivery.attempt == row.attempts, f"{delivery.topic} {msg_id}"
                row.holder, row.deadline = worker, self.now + VISIBILITY_S
                row.turn, row.behind = self.turn, False
                self.turn += 1
        if isinstance(worker, Poller) and deliveries:
            assert sum(map(len, deliveries)) <= worker.window
            self.seen["polled"] += 1
            worker.poll.close()
            self.workers.remove(worker)
        self.seen["redelivered"] += any(delivery.attempt > 1 for delivery in deliveries)

    def check_delivery(self, topic: str, msg_id: int) -> None:
        """Check the further promises of the delivery mode, such as order."""

    @rule(at=at)
    def stall(self, at: int) -> None:
        if not self.workers:  # the last was a poll
            return
        worker = self.workers[at % len(self.workers)]
        if not isinstance(worker, Poller):
            worker.stalled = not worker.stalled
            if worker.stalled and worker.hungry:
                worker.hold.wake_others()

    @rule(at=at, topic=st.sampled_from(TOPICS), how=st.sampled_from(["leave", "stall", "look"]))
    def break_a_promise(self, at: int, topic: str, how: str) -> None:
        """Publish one message while all workers are idle; a worker that was notified leaves, stalls, or takes from another
        topic first."""
        self.settle()
        self.publish(topic, 1)
        told = [worker for worker in self.workers if worker.hungry and not worker.stalled]
        if told and how == "look":
            self.publish(TOPICS[topic == TOPICS[0]], 1)
            self.look(at)
        elif told:
            index = self.workers.index(told[at % len(told)])
            self.leave(index) if how == "leave" else self.stall(index)
        self.settle()

    @rule(at=at)
    def leave(self, at: int) -> None:
        if len(self.workers) < 2:
            return
        worker = self.workers.pop(at % len(self.workers))
        if isinstance(worker, Poller):
            worker.poll.close()
            return
        worker.hold.close()
        held = [key for key, row in self.rows.items() if row.holder is worker]
        for key in held:
            self.rows[key].losses += "*" in worker.name
        if worker.late and worker.counted:  # what it hangs on has counted
            for key in held:
                self.rows[key].lose(counts=False)
        else:
            self.lose(held)
        self.seen["given back by the dead"] += len(held)

    def lose(self, keys: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """End the leases of these messages. Returns: those for which this counts as an attempt, at most one of each worker (ADR
        0053, 0256)."""
        counting = [self.counts(worker) for worker in {self.rows[key].holder: None for key in keys}]
        for key in keys:
            self.rows[key].lose(key in counting)
        return [key for key in keys if key in counting]

    def counts(self, worker: Worker | None) -> tuple[str, int] | None:
        """Return the message that a worker is most likely handling: the one that it got first. Messages that it got behind a
        counted one do not count while it hangs."""
        late = worker is not None and worker.late
        held = [key for key, row in self.rows.items() if row.holder is worker and not (late and row.behind)]
        return min(held, key=lambda key: self.rows[key].turn, default=None)

    @rule(topic=st.sampled_from(TOPICS))
    def lose_again(self, topic: str) -> None:
        """Let two sessions of the pattern, one after the other, take messages and leave."""
        self.publish(topic, 2)
        for _ in range(2):
            if len(self.workers) < 5:
                self.workers.append(worker := Worker(self.rig, "a.*", 4, self.mode))
                for _ in range(4):
                    self.take(worker)
                self.leave(self.workers.index(worker))

    @rule(at=at)
    def ack(self, at: int) -> None:
        """Ack a delivered message, from any session: the ack counts whatever became of the lease."""
        chosen = self.pick(at, [key for key, row in self.rows.items() if row.delivered and not row.acked])
        if chosen is not None:
            row = self.rows[chosen]
            row.settle()
            row.acked = True
            assert self.rig.ack(chosen[0], chosen[1], chosen[1], flush=False) == 1

    @rule(at=at, delay=st.sampled_from([0.0, 5.0]))
    def nack(self, at: int, delay: float) -> None:
        chosen = self.pick(at, [key for key, row in self.rows.items() if row.holder is not None])
        if chosen is not None:
            topic, msg_id = chosen
            row = self.rows[chosen]
            row.settle()
            row.delayed_until = self.now + delay
            assert self.rig.broker.topic(topic).nack("c", [(msg_id, msg_id)], delay) == 1

    @rule(at=at)
    def touch(self, at: int) -> None:
        """Renew a lease from its own session. A worker that hung has then reached what it got later."""
        chosen = self.pick(at, [key for key, row in self.rows.items() if row.holder is not None])
        if chosen is not None:
            row = self.rows[chosen]
            row.deadline = self.now + VISIBILITY_S
            assert row.holder is not None
            if row.holder.late and row.holder.counted and not row.behind:
                row.holder.late = False
                self.seen["came to it"] += 1
            assert self.rig.broker.topic(chosen[0]).touch("c", [(chosen[1], chosen[1])], VISIBILITY_S) == 1

    @rule(seconds=st.sampled_from([1, 5, 31]))
    def advance(self, seconds: int) -> None:
        self.rig.advance(seconds)
        due = [key for key, row in self.rows.items() if row.holder is not None and row.deadline <= self.now]
        would = {key: holder for key in due if (holder := self.rows[key].holder) and self.counts(holder) == key}
        for key in due:
            if (holder := self.rows[key].holder) and not holder.late:
                holder.counted, holder.excuses, holder.excused = False, 0, 0
        excused = {key for key, holder in would.items() if holder.excuse(key)}
        for holder in would.values():
            holder.counted = True
        self.seen["excused"] += len(excused)
        counted = set(would.values())
        before = {key: self.rows[key].holder for key in due}
        late = set(before.values())
        self.seen["expired"] += len(due)
        for key in due:  # all in one tick
            self.rows[key].lose(counts=key in would and key not in excused)
        for row in self.rows.values():
            row.behind = row.behind and not (row.holder in late and row.holder is not None and not row.holder.late)
        for worker in late:
            assert worker is not None
            worker.late = True
            worker.expired_at = max(self.rows[key].deadline for key in due if before[key] is worker)
        for row in self.rows.values():
            row.behind = row.behind or row.holder in counted

    @rule(topic=st.sampled_from(TOPICS), leases=st.integers(2, 3), several=st.booleans(), at=at)
    def hang_alone(self, topic: str, leases: int, several: bool, at: int) -> None:
        """Let a lone worker lose leases: it gets other messages instead of those it lost, and renews one in the end."""
        self.join("a.*" if several else topic, 4)
        while len(self.workers) > 1:
            self.leave(0)
        for _ in range(leases if self.workers else 0):
            self.publish(topic, 2)
            self.settle()
            self.advance(31)
        self.settle()
        self.touch(at)

    @rule(topic=st.sampled_from(TOPICS))
    def let_expire(self, topic: str) -> None:
        """Let all leases of the topic end, so that their messages are delivered again."""
        self.settle()
        self.publish(topic, 1)
        self.settle()
        self.advance(31)
        self.settle()

    @rule(at=at, really=st.integers(0, 4).map(lambda n: n > 2))
    def kill(self, at: int, really: bool) -> None:
        """Kill the broker. Its offsets are on the disk by then: acks that a kill may lose are another test's."""
        if not really:
            return
        for topic in TOPICS:
            if topic in self.rig.broker.topics:
                self.rig.flush(topic)
        self.rig.reopen()
        self.lose([key for key, row in self.rows.items() if row.holder is not None])
        for row in self.rows.values():
            row.delivered, row.delayed_until, row.losses = row.attempts > 0, 0.0, 0
        self.workers.clear()
        self.join(["a.x", "a.*"][at % 2], 3)
        self.seen["killed"] += 1

    @rule()
    def settle(self) -> None:
        """Let each worker that was notified take messages, until none has a reason to look."""
        while hungry := [worker for worker in self.workers if worker.hungry and not worker.stalled]:
            self.take(hungry[0])
        for worker in self.workers:
            if worker.stalled:
                continue
            held = sum(row.holder is worker for row in self.rows.values())
            for topic in TOPICS if "*" in worker.name else [worker.name]:
                waits = (held > 0 and self.comes_alone(worker)) or self.rests(worker, topic, 0.1)
                assert held >= worker.window or waits or not self.ready(topic), f"{worker.name} was not told of {topic}"
        self.seen["settled"] += 1

    def rests(self, worker: Worker, topic: str, slack_s: float) -> bool:
        """Whether a worker gets nothing, because it let leases end while other workers go on."""
        names = (topic, "a.*")
        others = [each for each in self.workers if each.name in names and each is not worker and not isinstance(each, Poller)]
        return worker.late and self.now < worker.expired_at + VISIBILITY_S + slack_s and not all(each.late for each in others)

    def comes_alone(self, worker: Worker) -> bool:
        """Whether a worker gets nothing as long as it holds what it has."""
        consumers = [topic.consumers["c"] for topic in self.rig.broker.topics.values() if "c" in topic.consumers]
        if isinstance(worker.hold, Subscription):
            return False
        return worker.hold._alone or any(consumer.is_suspect(consumer.first_ready()) for consumer in consumers)

    # -- what always holds

    @invariant()
    def the_books_agree(self) -> None:
        held = Counter(row.holder for row in self.rows.values() if row.holder is not None)
        for worker in self.workers:
            if not isinstance(worker, Poller):
                assert worker.hold.inflight == held[worker] <= worker.window
        for name, topic in self.rig.broker.topics.items():
            rows = [row for (of, _), row in self.rows.items() if of == name]
            consumer = topic.consumers.get("c")
            if consumer is not None:
                backlog = sum(not row.acked for row in rows)
                assert consumer.unacked(len(rows)) == backlog, "nothing is lost, and nothing acked by itself"
                assert consumer.inflight == sum(row.holder is not None for row in rows)


@pytest.mark.hypothesis
def test_workers_of_a_shared_consumer() -> None:
    SharedMachine.seen.clear()
    bounded = settings(max_examples=examples(100), stateful_step_count=40, derandomize=True, deadline=None, database=None)
    run_state_machine_as_test(SharedMachine, settings=bounded)
    rare = {what: n for what, n in SharedMachine.seen.items() if n < examples(3)}
    assert len(SharedMachine.seen) == 9, f"expected all nine, saw {SharedMachine.seen}"
    assert not rare, f"expected each {examples(3)} times or more, saw {rare}"
