"""How the parts of a topic work together: its settings reach each of them, and its state is the worst of theirs. Contract:
delivery.md."""

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import NoSuchConsumer, StorageFailed

SET = TopicSettings(
    visibility=7000, nack_backoff_min=100, nack_backoff_max=900, ttl=5000, retain_acked_for=3000, dedupe_keys=12,
    max_attempts=2, backlog_max_messages=1,
)  # fmt: skip


def in_force(rig: BrokerRig, name: str) -> list[object]:
    """Return the settings that the parts use."""
    topic = rig.broker.topic(name)
    policy = topic.context.policy
    return [
        policy.visibility_s, policy.nack_backoff_min_s, policy.nack_backoff_max_s, topic.publisher.ttl_ms,
        topic.retention.retain_acked_for_ms, topic.retention.keys_wanted, topic.channel("c").consumer.is_last(2),
        topic.publisher.limit is not None,
    ]  # fmt: skip


def test_settings_reach_each_part_at_once_and_after_a_restart() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.subscribe("t")
    before = in_force(rig, "t")
    rig.broker.topic("t").flush_offsets(lambda error: None)
    rig.broker.configure("t", {name: str(value) for name, value in SET.to_json().items()}, lambda error: None)
    rig.loop.advance(1)
    assert in_force(rig, "t") == [7.0, 0.1, 0.9, 5000, 3000, 12, True, True]
    rig.reopen()
    assert in_force(rig, "t") == [7.0, 0.1, 0.9, 5000, 3000, 12, True, True]
    rig.broker.configure("t", dict.fromkeys(SET.to_json(), "default"), lambda error: None)
    rig.loop.advance(1)
    assert in_force(rig, "t") == before


def test_a_topic_is_unused_until_it_has_a_record_or_a_consumer() -> None:
    rig = BrokerRig()
    assert rig.broker.topic_or_new("a").unused
    rig.publish("a", b"x")
    assert not rig.broker.topic("a").unused
    assert rig.broker.topic_or_new("b").unused
    rig.subscribe("b")
    assert not rig.broker.topic("b").unused


def test_the_state_is_that_of_the_worst_part() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    topic = rig.broker.topic("t")
    assert topic.state == "ok"
    topic.distrust_settings("they are damaged")
    assert (topic.state, topic.describe()["settings_problem"]) == ("degraded", "they are damaged")
    topic.committer.failed = StorageFailed("the disk is gone")
    assert topic.state == "failed"


def test_an_unknown_consumer_is_refused_with_those_that_are_there() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.subscribe("t", "billing")
    with pytest.raises(NoSuchConsumer, match=r"^t has no consumer biling: it has billing$"):
        rig.broker.topic("t").channel("biling")
    assert rig.broker.topic("t").ack("reader", ((0, 0),), unseen=True) == 1, "what was read from the log makes one"
    assert list(rig.broker.topic("t").consumers) == ["billing", "reader"]
