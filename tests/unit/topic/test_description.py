"""The numbers of DESCRIBE. Contract: protocol.md, "JSON shapes"."""

from tests.support.broker_rig import BrokerRig


def test_describe_is_exact() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 6)
    subscription = rig.subscribe("t", window=4)
    assert len(rig.take(subscription)) == 4
    topic = rig.broker.topic("t")
    topic.nack("c", [(3, 3)], 60)
    rig.ack("t", 0, 1)
    rig.clock.advance(5)
    (consumer,) = topic.describe()["consumers"]
    assert consumer == {
        "consumer": "c", "mode": "exclusive", "has_acked": True, "last_acked": 1, "ready": 2, "inflight": 1, "scheduled": 1,
        "backlog": 3, "retrying": 1, "oldest_unacked_age_s": 5.0, "sessions": 1, "attached": True, "paused": False,
        "attempts_max": 1, "attempts_max_id": 2, "acked_total": 2, "redelivered_total": 0,
    }  # fmt: skip
    stats = rig.broker.stats()
    assert (stats["publish_total"], stats["deliver_total"], stats["ack_total"], stats["nack_total"]) == (6, 4, 2, 1)
    assert stats["time_ms"] == rig.clock.wall_ns() // 1_000_000
    assert stats["limits"]["max_topics"] == rig.broker.options.max_topics
    assert stats["disk_low"] is False
    assert [described["topic"] for described in rig.broker.describe(None)] == ["t"]


def test_the_message_that_was_delivered_most_often_is_told() -> None:
    rig = BrokerRig(max_attempts=0)
    rig.publish("t", *[b"x"] * 3)
    subscription = rig.subscribe("t")

    def told() -> tuple[int, int | None]:
        (consumer,) = rig.broker.topic("t").describe()["consumers"]
        return consumer["attempts_max"], consumer["attempts_max_id"]

    assert told() == (0, None)
    rig.take(subscription)
    assert told() == (1, 0)
    for attempt in range(2, 150):
        rig.broker.topic("t").nack("c", [(1, 1)], 0)
        assert [msg_id for msg_id, _ in rig.take(subscription)] == [1]
        assert told() == (attempt, 1)
    assert rig.broker.topic("t").describe()["consumers"][0]["redelivered_total"] == 148
    rig.flush("t")
    rig.reopen()
    assert told()[1] == 1, "after a restart, too"
    rig.take(rig.subscribe("t"))
    rig.ack("t", 1, 1)
    assert told()[1] == 0
    assert rig.broker.stats()["limits"]["max_attempts"] == 0


def test_a_topic_without_a_consumer_has_a_backlog_of_what_is_due() -> None:
    """Found by trials: without a consumer, reminders due in the next hour counted as a backlog and raised an alert."""
    rig = BrokerRig()
    rig.publish("t", b"now")
    rig.broker.topic("t").publish([b""] * 2, [b"a", b"b"], None, [3600_000] * 2)
    rig.loop.drain()

    def told() -> tuple[int, int]:
        described = rig.broker.topic("t").describe()
        return described["backlog"], described["scheduled"]

    assert told() == (1, 2)
    rig.broker.topic("t").context.is_stream = True
    assert told() == (0, 2), "nothing waits in a stream"
    rig.broker.topic("t").context.is_stream = False
    rig.reopen()
    assert told() == (1, 2), "after a restart, too"
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    assert told() == (0, 2), "that of the consumer with the most"
    rig.advance(3601)
    assert told() == (2, 0)


def test_the_backlog_of_dead_letters_is_what_did_not_go_back() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.take(rig.subscribe("t"))
    rig.nack("t", 0, 1, dead=True)
    rig.advance(1)
    assert rig.broker.topic("t.dlq").describe()["backlog"] == 2
    assert rig.redrive("t.dlq", max_count=1) == (1, None)
    assert rig.broker.topic("t.dlq").describe()["backlog"] == 1
