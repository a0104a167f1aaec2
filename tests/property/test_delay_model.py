"""delay and ttl against a model with one row per message: publishes, deliveries, acks, moves, kills and power cuts.

Time goes in steps of 10 ms, and everything falls due or expires between two steps.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.broker_rig import BrokerRig
from tests.support.shares import examples
from toymq_py.consumer_options import Start
from toymq_py.topic import Subscription

STEP_S = 0.01
NAMES = ("a", "b")


@dataclass
class Reader:
    """One consumer. Ids below ``start`` count as acked."""

    acked: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    inflight: set[int] = field(default_factory=set)
    expired: int = 0
    maybe_below: int = 0


class DelayMachine(RuleBasedStateMachine):
    seen: ClassVar[Counter[str]] = Counter()
    steps = st.none() | st.integers(1, 12)
    readers_named = st.sampled_from(NAMES)

    @initialize()
    def begin(self) -> None:
        self.rig = BrokerRig()
        self.now = 0
        self.due_at: list[int] = []
        self.expires_at: list[int | None] = []
        self.readers = {name: Reader() for name in NAMES}
        self._subscribe()

    def _subscribe(self) -> None:
        self.subscriptions: dict[str, Subscription] = {
            name: self.rig.subscribe("t", name, window=10_000, visibility_s=1e6) for name in NAMES
        }

    @rule(count=st.integers(1, 4), delay=steps, ttl=steps, size=st.sampled_from([1, 400]))
    def publish(self, count: int, delay: int | None, ttl: int | None, size: int) -> None:
        """Publish messages, some of them so large that segments are sealed."""
        delays, ttls = (None if n is None else [10 * n - 5] * count for n in (delay, ttl))
        publisher = self.rig.broker.topic_or_new("t").publisher
        publisher.publish([b""] * count, [b"x" * size] * count, None, delays, ttls)
        self.rig.loop.drain()
        self.due_at += [self.now + (delay or 0)] * count
        self.expires_at += [None if ttl is None else self.now + ttl] * count

    @rule(name=readers_named, delay=st.integers(1, 3), ttl=st.none() | st.integers(1, 6))
    def publish_one_that_waits_and_one_that_does_not(self, name: str, delay: int, ttl: int | None) -> None:
        self.publish(1, delay, ttl, 1)
        self.publish(1, None, None, 1)
        self.take(name)
        self.pass_time(delay)
        self.take(name)

    @rule(steps=st.integers(1, 6))
    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.advance(STEP_S)
        self.now += steps

    @rule(name=readers_named)
    def take(self, name: str) -> None:
        """Take all ready messages; expired ones are dropped on the way."""
        reader = self.readers[name]
        ready = {i for i in self._open(reader) if i not in reader.inflight and (i in reader.delivered or self._is_due(i))}
        over = {i for i in ready if (at := self.expires_at[i]) is not None and at <= self.now}
        taken = [msg_id for msg_id, _ in self.rig.take(self.subscriptions[name])]
        assert set(taken) == ready - over
        assert len(taken) == len(set(taken))
        first = [msg_id for msg_id in taken if msg_id not in reader.delivered]
        assert first == sorted(first), "by id"
        self.seen["expired"] += bool(over)
        self.seen["delivered late, below others"] += bool(reader.delivered and first and min(first) < max(reader.delivered))
        reader.acked |= over
        reader.expired += len(over)
        reader.inflight |= set(taken)
        reader.delivered |= set(taken)

    @rule(name=readers_named, first=st.integers(0, 30), width=st.integers(0, 12))
    def ack(self, name: str, first: int, width: int) -> None:
        reader = self.readers[name]
        done = {i for i in reader.delivered - reader.acked if first <= i <= first + width}
        earlier = range(first, min(first + width + 1, reader.maybe_below))
        done |= set(filter(self._is_due, earlier)) - reader.acked  # ADR 0283: those that are not due drop out
        assert self.rig.ack("t", first, first + width, name) == len(done)
        reader.acked |= done
        reader.inflight -= done

    @rule(name=readers_named, at=st.integers(0, 40), really=st.integers(0, 4))
    def seek(self, name: str, at: int, really: int) -> None:
        if really:
            return
        at = min(at, len(self.due_at))
        self.rig.broker.topic_or_new("t").seek(name, Start("id", at))
        self.rig.flush("t")
        self.readers[name] = Reader(set(range(at)), expired=self.readers[name].expired)
        self.subscriptions[name] = self.rig.subscribe("t", name, window=10_000, visibility_s=1e6)

    @rule(power_cut=st.booleans(), down=st.integers(0, 5))
    def restart(self, power_cut: bool, down: int) -> None:
        self.rig.flush("t")
        self.seen["restarted with some scheduled"] += bool(self._scheduled(self.readers["a"]))
        self.rig.clock.advance(down * STEP_S)
        self.now += down
        self.rig.reopen(power_cut=power_cut)
        for reader in self.readers.values():
            reader.inflight.clear()
            reader.maybe_below = len(self.due_at)
            reader.expired = 0
        self._subscribe()

    def _is_due(self, msg_id: int) -> bool:
        return self.due_at[msg_id] <= self.now

    def _open(self, reader: Reader) -> set[int]:
        return set(range(len(self.due_at))) - reader.acked

    def _scheduled(self, reader: Reader) -> set[int]:
        return {i for i in self._open(reader) - reader.delivered if not self._is_due(i)}

    @invariant()
    def the_numbers_are_those_of_the_model(self) -> None:
        if not hasattr(self, "rig"):
            return
        described = self.rig.broker.topic_or_new("t").describe()
        assert described["expired_total"] == sum(reader.expired for reader in self.readers.values())
        for found in described["consumers"]:
            reader = self.readers[found["consumer"]]
            open_ids, scheduled = self._open(reader), self._scheduled(reader)
            due = len(open_ids) - len(scheduled)
            want = (due - len(reader.inflight), len(reader.inflight), len(scheduled), due)
            assert tuple(found[name] for name in ("ready", "inflight", "scheduled", "backlog")) == want
        waits = self.rig.broker.topic_or_new("t").delays.schedule.ids
        assert set(waits) == {i for i in range(len(self.due_at)) if not self._is_due(i)}


@pytest.mark.hypothesis
def test_delay_and_ttl_do_what_the_model_does() -> None:
    DelayMachine.seen.clear()
    bounded = settings(max_examples=examples(80, 2), stateful_step_count=40, derandomize=True, deadline=None, database=None)
    run_state_machine_as_test(DelayMachine, settings=bounded)
    rare = {what: n for what, n in DelayMachine.seen.items() if n < examples(10)}
    assert len(DelayMachine.seen) == 3, f"expected all three, saw {DelayMachine.seen}"
    assert not rare, f"expected each in {examples(10)} steps or more, saw {rare}"
