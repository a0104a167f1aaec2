"""Workers of one consumer with mode=keyed against a row per message: as those of a shared one, and in the order of each key.

What has to hold beside that: of a key one message at a time is with a worker, and per key the order of the acks is that of the
ids, for any schedule of joins, leaves, acks, nacks, timeouts and kills; what is known of waiting messages is bounded.
"""

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.property.test_shared_consumers import TOPICS, Row, SharedMachine
from tests.support.shares import examples
from toymq_py.consumer_options import Mode


class KeyedMachine(SharedMachine):
    """Publishes with group keys; "" stands for a message without one."""

    seen: ClassVar[Counter[str]] = Counter()
    mode: Mode = "keyed"

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[tuple[str, int], str] = {}

    def before(self, topic: str, msg_id: int) -> list[Row]:
        """Unacked messages of the same key with lower ids."""
        key = self.keys[topic, msg_id]
        return [
            row for (of, other), row in self.rows.items()
            if key and of == topic and other < msg_id and self.keys[of, other] == key and not row.acked
        ]  # fmt: skip

    def ready(self, topic: str) -> list[Row]:
        ready = super().ready(topic)
        return [row for (of, msg_id), row in self.rows.items() if of == topic and row in ready and not self.before(of, msg_id)]

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def publish(self, topic: str, count: int) -> None:
        self.publish_keys(topic, ["K", "", "L", "K", "M"][:count])

    @rule(topic=st.sampled_from(TOPICS), keys=st.lists(st.sampled_from(["", "K", "L", "M"]), min_size=1, max_size=6))
    def publish_keys(self, topic: str, keys: list[str]) -> None:
        for key in keys:
            (outcome,) = self.rig.publish(topic, b"x", headers=f"toymq-group: {key}\n".encode() if key else None)
            self.rows[topic, outcome.first_id] = Row()
            self.keys[topic, outcome.first_id] = key

    def check_delivery(self, topic: str, msg_id: int) -> None:
        assert not self.before(topic, msg_id), f"{topic} {msg_id} comes before another of its key is acked"
        self.seen["ordered"] += bool(self.keys[topic, msg_id] and msg_id)

    @rule(at=SharedMachine.at)
    def ack(self, at: int) -> None:
        for (topic, msg_id), row in self.rows.items():
            assert not row.delivered or row.acked or not self.before(topic, msg_id), "an ack now would be out of order"
        super().ack(at)

    @rule(at=SharedMachine.at)
    def reject(self, at: int) -> None:
        """Reject a message: a dead message lets the next one of its key go on."""
        chosen = self.pick(at, [key for key, row in self.rows.items() if row.holder is not None])
        if chosen is not None:
            topic, msg_id = chosen
            assert self.rig.broker.topic(topic).nack("c", [(msg_id, msg_id)], None, dead=True) == 1
            self.rig.advance(0)
            self.rows[chosen].settle()
            self.rows[chosen].acked = True
            self.seen["rejected"] += 1

    @rule()
    def settle(self) -> None:
        self.rig.loop.drain()
        super().settle()

    @invariant()
    def what_is_known_is_bounded(self) -> None:
        for topic in self.rig.broker.topics.values():
            if (consumer := topic.consumers.get("c")) is not None and consumer.lanes is not None:
                begun = [row for (of, _), row in self.rows.items() if of == topic.name and not row.acked]
                delivered = sum(row.attempts > 0 or row.delivered for row in begun)
                lanes = consumer.lanes
                assert lanes.keys <= delivered + len(lanes.free) + len(lanes.turns)
                assert len(lanes.free) + len(lanes.turns) + lanes.waiting <= len(begun)


@pytest.mark.hypothesis
def test_workers_of_a_keyed_consumer() -> None:
    KeyedMachine.seen.clear()
    bounded = settings(max_examples=examples(70), stateful_step_count=40, derandomize=True, deadline=None, database=None)
    run_state_machine_as_test(KeyedMachine, settings=bounded)
    rare = {what: n for what, n in KeyedMachine.seen.items() if n < examples(3)}
    assert len(KeyedMachine.seen) == 11, f"expected all eleven, saw {KeyedMachine.seen}"
    assert not rare, f"expected each {examples(3)} times or more, saw {rare}"
