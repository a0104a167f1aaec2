"""Consumers with priorities. Any schedule: tests/property/test_priority_consumers.py. The header block is the priority here."""

import errno

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer import priority_lanes
from toymq_py.consumer_options import Start
from toymq_py.storage.segment import segment_name
from toymq_py.topic import Subscription, priority_deliverer


def publish(rig: BrokerRig, *priorities: int) -> None:
    """Publish one message for each priority; 0 is no header block."""
    for priority in priorities:
        rig.publish("t", b"x", headers=b"%d" % priority if priority else None)


def ranked(rig: BrokerRig, window: int = 100, visibility_s: float = 30) -> Subscription:
    subscription = rig.subscribe("t", mode="shared", window=window, visibility_s=visibility_s)
    if subscription.channel.consumer.priority_of is None:
        subscription.channel.prioritize(int)
    return subscription


def ids(rig: BrokerRig, subscription: Subscription) -> list[int]:
    return [msg_id for msg_id, _ in rig.take(subscription)]


def test_what_is_ready_comes_by_priority() -> None:
    rig = BrokerRig()
    publish(rig, 1, 0, 9, 1, 9)
    one = ranked(rig)
    assert ids(rig, one) == [2, 4, 0, 3, 1]
    publish(rig, 3)
    assert ids(rig, one) == [5]


def test_a_long_backlog_is_looked_at_before_the_first_comes() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 20_000)
    publish(rig, 5)
    one = ranked(rig, window=2)
    found: list[int] = []
    for _ in range(50):
        found += ids(rig, one)
        rig.loop.drain()
    assert found == [20_000, 0]


def test_redeliveries_keep_their_priority_and_their_attempts() -> None:
    rig = BrokerRig()
    publish(rig, 1, 2, 1)
    one = ranked(rig, window=1)
    assert rig.take(one) == [(1, 1)]
    rig.nack("t", 1, 1)
    publish(rig, 7)
    assert rig.take(one) == [(3, 1)]
    rig.ack("t", 3, 3)
    assert rig.take(one) == [(1, 2)], "before those below it"
    rig.ack("t", 1, 1)
    assert rig.take(one) == [(0, 1)]
    rig.nack("t", 0, 0)
    assert one.channel.available() == 2
    assert rig.take(one) == [(0, 2)], "the lower id of two that are alike"


def test_a_kill_and_a_power_cut_leave_the_order() -> None:
    rig = BrokerRig()
    publish(rig, 1, 5, 3, 5)
    one = ranked(rig, window=1)
    assert ids(rig, one) == [1]
    rig.ack("t", 1, 1)
    assert ids(rig, one) == [3]
    rig.reopen()
    assert ids(rig, ranked(rig)) == [3, 2, 0]
    rig.reopen(power_cut=True)
    publish(rig, 4)
    assert ids(rig, ranked(rig)) == [3, 4, 2, 0]


def test_an_expired_message_is_passed_over() -> None:
    rig = BrokerRig()
    rig.broker.topic_or_new("t").publisher.publish([b""] * 2, [b"x"] * 2, [b"5"] * 2, ttls_ms=[1000, 60_000])
    rig.loop.drain()
    publish(rig, 1)
    rig.advance(2)
    assert ids(rig, ranked(rig)) == [1, 2]


def test_what_falls_due_has_its_place() -> None:
    rig = BrokerRig()
    one = ranked(rig, window=1)
    rig.broker.topic_or_new("t").publisher.publish([b""], [b"x"], [b"5"], delays_ms=[1000])
    rig.loop.drain()
    publish(rig, 1, 1, 9)
    assert ids(rig, one) == [3]
    rig.advance(2)
    rig.ack("t", 3, 3)
    assert ids(rig, one) == [0]
    rig.ack("t", 0, 0)
    assert ids(rig, one) == [1]


def test_a_purge_and_a_seek_forget_the_order() -> None:
    rig = BrokerRig()
    publish(rig, 1, 5, 3)
    one = ranked(rig, window=1)
    assert ids(rig, one) == [1]
    rig.broker.topic("t").purge(lambda count, error: None)
    rig.loop.drain()
    assert one.channel.available() == 0
    publish(rig, 2, 8)
    rig.advance(0)
    assert ids(rig, ranked(rig)) == [4, 3]
    rig.broker.topic("t").seek("c", Start.parse("3"))
    assert ids(rig, ranked(rig)) == [4, 3]


def test_records_that_the_disk_refuses_hold_up_no_others() -> None:
    rig = BrokerRig(segment_bytes=4096)
    for priority in (1, 2, 1, 2, 1, 2):
        rig.publish("t", b"x" * 1500, headers=b"%d" % priority)
    rig.reopen()
    one = ranked(rig)
    segments = rig.broker.topic("t").log.segments
    second, third = segments[1].base_id, segments[2].base_id
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path=segment_name(second))
    found = ids(rig, one)
    readable = [msg_id for msg_id in (1, 3, 5, 0, 2, 4) if not second <= msg_id < third]
    assert found == readable
    for msg_id in found:
        rig.ack("t", msg_id, msg_id)
    assert rig.broker.topic("t").describe()["consumers"][0]["backlog"] == third - second


def test_another_mode_takes_what_waits_for_its_turn() -> None:
    rig = BrokerRig()
    publish(rig, 1, 5, 3)
    one = ranked(rig, window=3)
    ids(rig, one)
    rig.nack("t", 0, 2)
    two = ranked(rig, window=1)
    one.close()
    assert ids(rig, two) == [1]
    two.close()
    keyed = rig.subscribe("t", mode="keyed")
    assert sorted(ids(rig, keyed)) == [0, 1, 2]
    keyed.close()
    assert ids(rig, ranked(rig)) == [1, 2, 0]


def test_beyond_what_is_looked_at_the_order_is_that_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_lanes, "AHEAD_MAX", 512)
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 1000)
    publish(rig, 9)
    one = ranked(rig, window=1000)
    found = ids(rig, one)
    assert sorted(found) == list(range(1000)) or 1000 in found
    assert found.index(1000) > 400 if 1000 in found else True
    rig.ack("t", 0, 999)
    assert sorted([*found, *ids(rig, one)]) == list(range(1001))


def test_too_many_redeliveries_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_lanes, "AGAIN_MAX", 3)
    rig = BrokerRig()
    publish(rig, *[1] * 10)
    one = ranked(rig)
    assert ids(rig, one) == list(range(10))
    for msg_id in range(10):
        rig.nack("t", msg_id, msg_id)
    publish(rig, 9)
    found = ids(rig, one)
    assert sorted(found) == list(range(11))


def test_many_acks_out_of_order_make_it_the_order_of_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_deliverer, "ACKED_RANGES_MAX", 2)
    rig = BrokerRig()
    publish(rig, *[0, 5] * 6)
    one = ranked(rig, window=1)
    order = []
    for _ in range(12):
        (found,) = ids(rig, one)
        order.append(found)
        rig.ack("t", found, found)
    assert order[:3] == [1, 3, 5]
    assert order[3] == 0
    assert sorted(order) == list(range(12))
