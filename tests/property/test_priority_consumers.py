"""Workers of one consumer with priorities against a row per message: as those of a shared one, and the highest priority first.

What has to hold beside that, for any schedule of joins, leaves, acks, nacks, timeouts and kills: what is delivered has the
highest priority of what is ready, and of that the lowest id; nothing is forgotten by the order in memory.
"""

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.property.test_shared_consumers import TOPICS, Row, SharedMachine, Worker
from tests.support.shares import examples
from toymq_py.consumer import PriorityLanes


class PriorityMachine(SharedMachine):
    """Publishes with a digit as header block, which is the priority."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.priorities: dict[tuple[str, int], int] = {}
        self.goals: dict[str, int] = {}

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def publish(self, topic: str, count: int) -> None:
        self.publish_ranked(topic, [3, 0, 9, 3, 5][:count])

    @rule(topic=st.sampled_from(TOPICS), priorities=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def publish_ranked(self, topic: str, priorities: list[int]) -> None:
        before = len([row for of, row in self.rows if of == topic])
        for priority in priorities:
            (outcome,) = self.rig.publish(topic, b"x", headers=b"%d" % priority if priority else None)
            self.rows[topic, outcome.first_id] = Row()
            self.priorities[topic, outcome.first_id] = priority
        assert len([row for of, row in self.rows if of == topic]) == before + len(priorities)

    def take(self, worker: Worker) -> None:
        for topic in self.rig.broker.topics.values():
            channel = topic.channels.get("c")
            if channel is not None and channel.consumer.priority_of is None:
                channel.prioritize(int)
        self.goals = {name: topic.consumers["c"].lanes.goal for name, topic in self.rig.broker.topics.items()
                      if "c" in topic.consumers and isinstance(topic.consumers["c"].lanes, PriorityLanes)}  # fmt: skip
        super().take(worker)
        self.rig.loop.drain()
        while worker in self.workers and worker.hungry and not worker.stalled and self.is_looking_ahead():
            super().take(worker)
            self.rig.loop.drain()

    def is_looking_ahead(self) -> bool:
        """Whether a long search for the highest priority, or the take behind it, goes on in the next turn; what is published
        meanwhile counts from the turn after."""
        lanes = [topic.consumers["c"].lanes for topic in self.rig.broker.topics.values() if "c" in topic.consumers]
        return any(isinstance(one, PriorityLanes) and one.goal for one in lanes)

    def check_delivery(self, topic: str, msg_id: int) -> None:
        order = [
            (-self.priorities[of, other], other)
            for (of, other), row in self.rows.items()
            if of == topic and any(row is one for one in self.ready(topic))
            and other < (self.goals.get(topic) or other + 1)  # what came since a look began is for the next one
        ]
        assert (-self.priorities[topic, msg_id], msg_id) == min(order), "another one comes first"
        self.seen["out of the order of ids"] += any(other < msg_id for _, other in order)

    @rule(at=SharedMachine.at)
    def reorder(self, at: int) -> None:
        """Switch to another delivery mode and back: waiting messages are not lost."""
        self.settle()
        for topic in self.rig.broker.topics.values():
            if (channel := topic.channels.get("c")) is not None and channel.consumer.priority_of is not None:
                channel.prioritize(int)
        self.seen["reordered"] += 1

    @invariant()
    def what_is_known_is_bounded(self) -> None:
        for topic in self.rig.broker.topics.values():
            consumer = topic.consumers.get("c")
            if consumer is not None and isinstance(consumer.lanes, PriorityLanes):
                assert consumer.lanes.again <= sum(row.attempts > 0 or row.delivered for row in self.rows.values())


@pytest.mark.hypothesis
def test_workers_of_a_consumer_with_priorities() -> None:
    PriorityMachine.seen.clear()
    bounded = settings(max_examples=examples(140), stateful_step_count=40, derandomize=True, deadline=None, database=None)
    run_state_machine_as_test(PriorityMachine, settings=bounded)
    rare = {what: n for what, n in PriorityMachine.seen.items() if n < examples(2)}
    assert len(PriorityMachine.seen) == 11, f"expected all eleven, saw {PriorityMachine.seen}"
    assert not rare, f"expected each {examples(2)} times or more, saw {rare}"
