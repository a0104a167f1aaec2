"""How many messages may be delivered but unacked. Source: docs/security.md, "Limits"."""

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import EARLIEST
from toymq_py.topic import delivery_budget
from toymq_py.topic.delivery_budget import BYTES_OF_MEMORY, DeliveryBudget


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> BrokerRig:
    """Return a broker with memory for 16 unacked messages beyond two of each consumer."""
    monkeypatch.setattr(delivery_budget, "FLOOR", 2)
    rig = BrokerRig()
    rig.broker.quotas.limit_memory(16 * BYTES_OF_MEMORY)
    rig.publish("t", *[b"x"] * 20)
    return rig


def budget_of(rig: BrokerRig) -> DeliveryBudget:
    return rig.broker.topic("t").context.budget


def test_a_consumer_that_has_what_memory_allows_leaves_the_others_a_few_each(rig: BrokerRig) -> None:
    one, two = rig.subscribe("t", "one"), rig.subscribe("t", "two")
    assert len(rig.take(one)) == 16
    assert [msg_id for msg_id, _ in rig.take(two)] == [0, 1]
    assert rig.broker.metrics.limits_reached["unacked"] == 2


def test_consumers_that_wait_are_woken_when_another_one_has_settled_an_eighth(rig: BrokerRig) -> None:
    woken: list[str] = []
    one = rig.subscribe("t", "one")
    two = rig.subscribe("t", "two", wake=lambda _: woken.append("two") is None)
    rig.take(one)
    rig.take(two)
    woken.clear()
    rig.ack("t", 0, 2, "one")
    rig.loop.advance(0)
    assert woken == []
    rig.ack("t", 3, 3, "one")
    rig.loop.advance(0)
    assert woken == ["two"]
    assert [msg_id for msg_id, _ in rig.take(two)] == [2, 3]


@pytest.mark.parametrize("end", ["forgotten", "deleted", "sought", "acked", "gone"])
def test_what_ends_gives_back_what_it_counted(rig: BrokerRig, end: str) -> None:
    subscription = rig.subscribe("t", "one")
    rig.take(subscription)
    budget = budget_of(rig)
    assert budget.total == 16
    topic = rig.broker.topic("t")
    if end == "forgotten":
        topic.forget("one")
    elif end == "deleted":
        topic.begin_delete()
    elif end == "sought":
        topic.seek("one", EARLIEST)
    elif end == "acked":
        rig.ack("t", 0, 15, "one")
    else:
        subscription.close()
        rig.ack("t", 0, 15, "one")
    assert budget.total == 0


def test_without_a_limit_of_memory_only_that_of_a_consumer_holds() -> None:
    rig = BrokerRig(max_unacked=3000)
    rig.publish("t", *[b"x"] * 4000)
    assert len(rig.take(rig.subscribe("t", "one", window=5000))) == 3000
    assert budget_of(rig).total_max == 0
