"""The effect of a commit on a topic. Contract: storage.md, "Append and group commit"."""

import errno

from tests.support.broker_rig import BrokerRig


def test_the_next_commit_tells_each_waiter_once() -> None:
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    told: list[str] = []
    topic.when_committed(lambda: told.append("stays"))
    withdraw = topic.when_committed(lambda: told.append("goes"))
    withdraw()
    rig.publish("t", b"1")
    rig.publish("t", b"2")
    assert told == ["stays"]


def test_a_waiter_may_wait_again() -> None:
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    told: list[int] = []

    def committed() -> None:
        told.append(topic.next_id)
        topic.when_committed(committed)

    topic.when_committed(committed)
    rig.publish("t", b"1")
    rig.publish("t", b"2")
    assert told == [1, 2]


def test_a_deleted_topic_tells_its_waiters() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    told: list[bool] = []
    topic = rig.broker.topic("t")
    topic.when_committed(lambda: told.append(topic.deleted))
    rig.delete("t")
    assert told == [True]


def test_commits_are_counted_and_failures_are_not() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1", b"2")
    rig.disk.fail("pwrite", 1, errno.ENOSPC, path=".log")
    rig.publish("t", b"refused")
    metrics = rig.broker.metrics
    assert (metrics.publish_total, metrics.publish_seconds.count, metrics.fsync_seconds.count) == (2, 2, 1)


def test_only_idle_consumers_are_woken() -> None:
    rig = BrokerRig()
    idle, busy = rig.subscribe("t", "idle"), rig.subscribe("t", "busy")
    assert rig.take(idle) == []
    rig.publish("t", b"1")
    assert rig.woken == [idle]
    assert rig.take(busy) == [(0, 1)]
