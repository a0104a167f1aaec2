"""Where a topic's consumers begin, and where they are moved. Contract: delivery.md."""

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import Start
from toymq_py.errors import NoSuchConsumer, OutOfRange, TooManyConsumers


def test_seek_forward_back_and_out_of_range() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 5)
    topic = rig.broker.topic("t")
    subscription = rig.subscribe("t")
    assert len(rig.take(subscription)) == 5
    rig.ack("t", 0, 4)
    assert topic.seek("c", Start("id", 2)) == 2
    assert rig.ended == ["SEEK"]
    assert subscription.take(100) is None, "an ended subscription takes nothing"
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [2, 3, 4]
    assert topic.seek("c", Start("latest")) == 5
    assert rig.take(rig.subscribe("t")) == []
    with pytest.raises(NoSuchConsumer, match=r"t has no consumer neu: it has c$"):
        topic.seek("neu", Start("id", 4), creates=False)
    assert list(topic.consumers) == ["c"], "a misspelled consumer would hold every message from then on"
    assert topic.seek("new", Start("id", 4)) == 4, "SEEK makes a consumer"
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t", "new"))] == [4]
    for target in (6, 1 << 60):
        with pytest.raises(OutOfRange, match=rf"^0 is the first id of t, 5 the next: {target} is outside$"):
            topic.seek("c", Start("id", target))
    with pytest.raises(NoSuchConsumer):
        topic.forget("unknown")


def test_a_new_consumer_starts_where_it_says() -> None:
    rig = BrokerRig()
    for n in range(4):
        rig.publish("t", b"%d" % n)
        rig.clock.advance(1)
    at_ms = rig.clock.wall_ns() // 1_000_000 - 2500

    def first(name: str, start: str) -> list[int]:
        return [msg_id for msg_id, _ in rig.take(rig.subscribe("t", name, start=start))][:1]

    assert first("a", "earliest") == [0]
    assert first("b", "2") == [2]
    assert first("c", "latest") == []
    assert first("d", "999") == [], "beyond the end is the end"
    assert first("e", f"@{at_ms}") == [2]
    assert first("f", "@0") == [0]


def test_the_limit_of_attempts_is_that_of_all_consumers_and_of_those_that_come() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    topic = rig.broker.topic("t")
    rig.subscribe("t", "known")
    topic.registry.limit_attempts(3)
    rig.subscribe("t", "new")
    last = {name: [consumer.is_last(at) for at in (2, 3)] for name, consumer in topic.consumers.items()}
    assert last == {"known": [False, True], "new": [False, True]}


def test_one_that_could_not_be_stored_is_removed_unless_others_take_from_it() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    topic = rig.broker.topic("t")
    first = rig.subscribe("t", mode="shared")
    second = rig.subscribe("t", mode="shared")
    first.close()
    topic.registry.withdraw(first.channel)
    assert list(topic.consumers) == ["c"]
    second.close()
    topic.registry.withdraw(first.channel)
    assert list(topic.consumers) == []
    topic.registry.withdraw(first.channel)  # twice changes nothing


def test_a_seek_makes_no_consumer_beyond_the_limit() -> None:
    rig = BrokerRig(max_consumers=1)
    rig.publish("t", b"x")
    topic = rig.broker.topic("t")
    topic.seek("a", Start("earliest"))
    with pytest.raises(TooManyConsumers):
        topic.seek("b", Start("earliest"))
    assert list(topic.consumers) == ["a"]
