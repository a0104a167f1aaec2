"""Deliveries that meet unreadable or damaged records. Contract: storage.md, "Recovery"."""

import errno

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.storage.segment import segment_name

FIRST = segment_name(0)


def test_records_that_the_disk_refuses_stay_unacked_and_come_after_a_restart() -> None:
    rig = BrokerRig()
    for n in range(6):
        rig.publish("t", b"%d" % n * 1500)
    rig.reopen()
    subscription = rig.subscribe("t")
    second = rig.broker.topic("t").log.segments[1].base_id
    third = rig.broker.topic("t").log.segments[2].base_id
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path=segment_name(second))
    readable = [msg_id for msg_id in range(6) if not second <= msg_id < third]
    assert [msg_id for msg_id, _ in rig.take(subscription)] == readable
    assert rig.ack("t", 0, 5) == len(readable), "what was not delivered is not acked"
    assert rig.broker.topic("t").state == "degraded"
    assert rig.broker.topic("t").describe()["consumers"][0]["backlog"] == third - second
    rig.reopen()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == list(range(second, third))


def test_records_found_damaged_count_as_acked_for_all_consumers() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b" * 50, b"c")
    one = rig.subscribe("t", "one", visibility_s=5)
    assert len(rig.take(one)) == 3
    two = rig.subscribe("t", "two")
    rig.disk.open(f"{DIR}/topics/t/{FIRST}").pwrite(b"\xff", 31 + 60)
    rig.broker.topic("t").log.tail.clear()
    assert rig.take(two) == [(0, 1), (2, 1)]
    rig.advance(6)
    assert rig.take(one) == [(0, 2), (2, 1)], "the redelivery passes it too"
    for name in ("one", "two"):
        rig.ack("t", 0, 2, name)
    assert [consumer["backlog"] for consumer in rig.broker.topic("t").describe()["consumers"]] == [0, 0]


def test_a_redelivery_may_meet_the_damage_first() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"%d" % n * 50 for n in range(5)])
    subscription = rig.subscribe("t", visibility_s=5)
    assert len(rig.take(subscription)) == 5
    rig.broker.topic("t").log.tail.clear()
    for position in (80 + 50, 160 + 50):
        rig.disk.open(f"{DIR}/topics/t/{FIRST}").pwrite(b"\xff", position)
    rig.advance(6)
    assert [msg_id for msg_id, _ in rig.take(subscription)] == [0, 3, 4]


def test_a_consumer_with_max_unacked_deliveries_gets_no_new_messages_until_there_is_room() -> None:
    rig = BrokerRig(max_unacked=4)
    rig.publish("t", *[b"x"] * 9)
    woken: list[object] = []
    one = rig.subscribe("t", window=100, mode="shared", wake=lambda it: woken.append(it) is None)
    two = rig.subscribe("t", window=100, mode="shared", wake=lambda it: woken.append(it) is None)
    assert [msg_id for msg_id, _ in rig.take(one)] == [0, 1, 2, 3]
    assert rig.take(two) == []
    assert rig.broker.metrics.limits_reached["unacked"] == 1
    rig.nack("t", 1, 1, delay_s=60.0)
    assert rig.take(two) == [], "a message that waits to come again counts"
    rig.nack("t", 2, 2, delay_s=0.0)
    assert rig.take(two) == [(2, 2)], "what was delivered comes again, and nothing else"
    woken.clear()
    rig.ack("t", 0, 0)
    assert woken
    assert rig.take(two) == [(4, 1)]
    rig.ack("t", 2, 4)
    assert [msg_id for msg_id, _ in rig.take(one)] == [5, 6, 7]


def test_messages_that_the_disk_refuses_do_not_count_as_unacked() -> None:
    rig = BrokerRig(max_unacked=4)
    for n in range(6):
        rig.publish("t", b"%d" % n * 1500)
    rig.reopen()
    second, third = (segment.base_id for segment in rig.broker.topic("t").log.segments[1:3])
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path=segment_name(second))
    subscription = rig.subscribe("t", window=100)
    taken: list[int] = []
    while ids := [msg_id for msg_id, _ in rig.take(subscription)]:
        taken += ids
        for msg_id in ids:
            rig.ack("t", msg_id, msg_id)
    assert taken == [msg_id for msg_id in range(6) if not second <= msg_id < third]
