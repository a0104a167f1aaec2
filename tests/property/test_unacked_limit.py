"""Consumers at ``max_unacked``, in each order of delivery, against a row per message.

What has to hold beside what holds without: no new message is delivered while so many are with the client or wait to come again,
those that were delivered come again meanwhile, and sessions and polls are woken when there is room.
"""

from collections import Counter
from itertools import takewhile
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.test_keyed_consumers import KeyedMachine
from tests.property.test_priority_consumers import PriorityMachine
from tests.property.test_shared_consumers import Row, SharedMachine
from tests.support.shares import examples

MAX_UNACKED = 3


class Limited(SharedMachine):
    """New messages count as ready only while the consumer is below ``max_unacked``."""

    seen: ClassVar[Counter[str]] = Counter()

    def options(self) -> dict[str, int]:
        return {**super().options(), "max_unacked": MAX_UNACKED}

    def is_full(self, topic: str) -> bool:
        found = self.rig.broker.topics.get(topic)
        consumer = None if found is None else found.consumers.get("c")
        return consumer is not None and consumer.outstanding >= MAX_UNACKED

    def ready(self, topic: str) -> list[Row]:
        ready = super().ready(topic)
        if not self.is_full(topic):
            return ready
        self.seen["full"] += 1
        return [row for row in ready if row.delivered]

    def check_delivery(self, topic: str, msg_id: int) -> None:
        super().check_delivery(topic, msg_id)
        self.seen["again while full"] += self.is_full(topic) and self.rows[topic, msg_id].delivered


class LimitedShared(Limited):
    def check_delivery(self, topic: str, msg_id: int) -> None:
        super().check_delivery(topic, msg_id)
        delivered = sum(row.delivered and not row.acked for (of, _), row in self.rows.items() if of == topic)
        assert self.rows[topic, msg_id].delivered or delivered < MAX_UNACKED, "a new one beyond the limit"


class LimitedKeyed(Limited, KeyedMachine):
    pass


class LimitedPriority(Limited, PriorityMachine):
    is_delivered = False

    def check_delivery(self, topic: str, msg_id: int) -> None:
        self.is_delivered = True  # what is full now was not before
        super().check_delivery(topic, msg_id)
        self.is_delivered = False
        self.seen["again while full"] += self.is_full(topic) and self.rows[topic, msg_id].delivered

    def is_full(self, topic: str) -> bool:
        return not self.is_delivered and super().is_full(topic)

    def ready(self, topic: str) -> list[Row]:
        """Return the ready messages; while the consumer is full, only redeliveries that no new message would go before."""
        ready = SharedMachine.ready(self, topic)
        if not self.is_full(topic):
            return ready
        self.seen["full"] += 1
        order = sorted(
            (-self.priorities[of, msg_id], msg_id) for (of, msg_id), row in self.rows.items()
            if of == topic and any(row is one for one in ready)
        )  # fmt: skip
        return list(takewhile(lambda row: row.delivered, [self.rows[topic, msg_id] for _, msg_id in order]))


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [LimitedShared, LimitedKeyed, LimitedPriority])
def test_a_consumer_at_its_limit_gets_what_comes_again_and_goes_on_with_room(machine: type[Limited]) -> None:
    machine.seen.clear()
    bounded = settings(max_examples=examples(60), stateful_step_count=40, derandomize=True, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=bounded)
    assert min(machine.seen["full"], machine.seen["again while full"]) >= examples(3), f"saw {machine.seen}"
