"""Retention by age and bytes, and together with acks. Contract: storage.md, "Retention"."""

import errno
import random

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.shares import one_in
from toymq_py.consumer_options import Start
from toymq_py.storage import retention
from toymq_py.storage.commit.space_guard import FREE_SPACE_VALID_S
from toymq_py.storage.segment import segment_name


def limited(**settings: object) -> BrokerRig:
    rig = BrokerRig()
    assert rig.change("create", "t", **{name: str(value) for name, value in settings.items()}) == "OK"
    return rig


# -- by a clock that was wrong

TEN_YEARS_S = 3650 * 86400


def test_one_publish_under_a_clock_ten_years_ahead_does_not_stop_retention_by_age() -> None:
    rig = limited(retain_max_age=3600_000)
    rig.clock.jump_wall(TEN_YEARS_S)
    rig.publish("t", b"ahead")
    rig.clock.jump_wall(-TEN_YEARS_S)
    for _ in range(3):
        rig.publish("t", b"after")
        rig.advance(1200)
    assert rig.broker.topics["t"].log.first_id == 2, "what was ahead is as old as what came behind it"
    rig.advance(3600)
    rig.advance(3600)
    assert rig.broker.topics["t"].log.first_id == 4


@pytest.mark.parametrize("restart", [False, True])
def test_what_nothing_was_stored_behind_ages_from_when_it_was_seen_to_be_ahead(restart: bool) -> None:
    rig = limited(retain_max_age=3600_000)
    rig.publish("t", b"before")
    rig.clock.jump_wall(TEN_YEARS_S)
    rig.publish("t", b"ahead")
    rig.clock.jump_wall(-TEN_YEARS_S)
    if restart:
        rig.reopen()
    rig.advance(3000)
    assert rig.broker.topics["t"].log.first_id == 0
    rig.advance(10_000)
    rig.advance(10_000)
    assert rig.broker.topics["t"].log.first_id == 2


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_was_behind_for_a_moment_removes_nothing_that_was_stored_before(restart: bool) -> None:
    """Found: after a boot with a clock ten years behind, unacked messages stored minutes before counted as ten years old."""
    rig = limited(retain_max_age=7 * 24 * 3600_000)
    rig.publish("t", b"right")
    rig.clock.jump_wall(-TEN_YEARS_S)
    rig.reopen()
    rig.publish("t", b"behind")
    rig.clock.jump_wall(TEN_YEARS_S)
    if restart:
        rig.reopen()
    rig.publish("t", b"right again")
    for _ in range(3):
        rig.advance(1200)
        rig.broker.topics["t"].retention.apply()
    assert rig.broker.topics["t"].log.first_id == 0
    rig.advance(8 * 86400)
    rig.broker.topics["t"].retention.apply()
    assert rig.broker.topics["t"].log.first_id == 3


def test_acked_segments_go_although_they_are_dated_ahead() -> None:
    rig = BrokerRig(retain_acked_for_ms=3600_000)
    rig.clock.jump_wall(TEN_YEARS_S)
    rig.publish("t", b"x" * 3000)
    rig.clock.jump_wall(-TEN_YEARS_S)
    for _ in range(3):
        rig.publish("t", b"x" * 3000)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 3)
    rig.advance(3000)
    assert rig.broker.topics["t"].log.first_id == 0
    rig.advance(1000)
    rig.advance(1000)
    assert rig.broker.topics["t"].log.first_id >= 3


# -- by acks


def test_acked_segments_go_when_the_offsets_that_say_so_are_on_disk() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    for n in range(6):
        rig.publish("t", b"%d" % n * 3000)
    topic = rig.broker.topic("t")
    subscription = rig.subscribe("t")
    assert len(rig.take(subscription)) == 6
    rig.ack("t", 0, 2, flush=False)
    assert topic.log.first_id == 0
    rig.flush("t")
    rig.loop.drain()
    assert topic.log.first_id == 3
    assert topic.log.messages() == 3
    assert [name for name in rig.files("t") if name.endswith(".log")] == [segment_name(n) for n in (3, 4, 5)]
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").log.first_id == 3
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [3, 4, 5]
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t", "new"))] == [3, 4, 5]


def test_a_stuck_message_pins_one_segment() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    for n in range(6):
        rig.publish("t", b"%d" % n * 3000)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 1, 4)
    rig.loop.drain()
    topic = rig.broker.topic("t")
    assert [segment.base_id for segment in topic.log.segments] == [0, 5]
    assert topic.log.removed == [(1, 4)]
    assert (topic.log.first_id, topic.log.messages(), topic.state) == (0, 2, "ok")
    rig.reopen(power_cut=True)
    topic = rig.broker.topic("t")
    assert (topic.log.removed, topic.state) == ([(1, 4)], "ok"), "that is no hole"
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [0, 5]
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t", "new"))] == [0, 5]
    rig.broker.topic("t").seek("c", Start("earliest"))
    rig.flush("t")
    rig.reopen()
    assert rig.broker.topic("t").state == "ok", "nor after a consumer went back"


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_crash_while_segments_are_removed_is_no_loss(nth: int) -> None:
    for op in ("pwrite", "sync", "rename", "sync_dir", "unlink"):
        rig = BrokerRig(retain_acked_for_ms=0)
        for n in range(6):
            rig.publish("t", b"%d" % n * 3000)
        rig.take(rig.subscribe("t"))
        rig.broker.topic("t").ack("c", [(1, 4)])
        rig.disk.fail(op, nth, errno.EIO, sticky=True)  # from here on the disk is dead
        rig.broker.topic("t").flush_offsets(lambda error: None)
        rig.loop.advance(0)
        rig.loop.drain()
        rig.reopen(power_cut=True)
        topic = rig.broker.topic("t")
        assert topic.state == "ok"
        assert {msg_id for msg_id, _ in rig.take(rig.subscribe("t"))} >= {0, 5}


def test_an_active_segment_is_rolled_by_age_and_goes() -> None:
    rig = BrokerRig(retain_acked_for_ms=40_000)
    rig.publish("t", b"old")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    for _ in range(6):
        rig.advance(10)
    topic = rig.broker.topic("t")
    assert topic.log.first_id == 1
    assert topic.log.size_bytes == 0
    assert rig.publish("t", b"new")[0].first_id == 1


def test_a_low_disk_removes_what_is_acked_at_once() -> None:
    rig = BrokerRig(min_free_bytes=100_000)
    rig.disk.capacity_bytes = 10_000_000
    for n in range(4):
        rig.publish("t", b"%d" % n * 3000)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 3)
    assert rig.broker.topic("t").log.first_id == 0, "for a day"
    rig.disk.capacity_bytes = rig.disk.used_bytes + 90_000
    rig.advance(FREE_SPACE_VALID_S)
    outcome = rig.publish("t", b"x")[0]
    assert outcome.error is not None or outcome.commit.error is not None
    rig.loop.drain()
    assert rig.broker.topic("t").log.first_id >= 3


def test_a_low_disk_on_which_nobody_publishes_removes_what_is_acked() -> None:
    """Found: without publishes the space was never freed for another program that filled the disk, and the next publish was
    refused needlessly."""
    rig = BrokerRig(min_free_bytes=100_000)
    rig.disk.capacity_bytes = 10_000_000
    for n in range(4):
        rig.publish("t", b"%d" % n * 3000)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 3)
    rig.disk.capacity_bytes = rig.disk.used_bytes + 190_000
    rig.broker.check_directory()
    rig.advance(1)
    assert rig.broker.topic("t").log.first_id >= 3
    assert rig.publish("t", b"x")[0].error is None


def test_without_consumers_nothing_is_removed() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    for n in range(4):
        rig.publish("t", b"%d" % n * 3000)
    rig.advance(1000)
    assert rig.broker.topic("t").log.first_id == 0


# -- by age


@pytest.mark.parametrize("consumed", [False, True])
def test_what_is_too_old_goes_acked_or_not(consumed: bool) -> None:
    rig = limited(retain_max_age=40_000)
    subscription = rig.subscribe("t") if consumed else None
    for n in range(3):
        rig.publish("t", b"%d" % n * 3000)
    if subscription is not None:
        assert len(rig.take(subscription)) == 3
        rig.ack("t", 1, 1)
    rig.advance(39)
    topic = rig.broker.topic("t")
    assert topic.log.messages() == 3
    for _ in range(3):
        rig.advance(6)
    assert (topic.log.messages(), topic.log.first_id, topic.state) == (0, 3, "ok"), "the active one, too, on a quiet topic"
    assert rig.segment_files("t") == [segment_name(3)]
    assert topic.retention.dropped_total == (2 if consumed else 3)
    assert rig.publish("t", b"new")[0].first_id == 3
    if subscription is not None:
        assert rig.ack("t", 0, 2) == 0
        assert rig.take(subscription) == [(3, 1)]
        assert rig.ended == []
    rig.reopen(power_cut=True)
    assert (rig.broker.topic("t").log.first_id, rig.broker.topic("t").offsets.problem) == (3, None)


def test_age_is_looked_at_after_a_restart_without_a_publish() -> None:
    rig = limited(retain_max_age=40_000)
    rig.publish("t", b"a")
    rig.reopen()
    for _ in range(6):
        rig.advance(10)
    assert rig.broker.topic("t").log.messages() == 0


def test_an_age_that_is_set_later_holds_at_once() -> None:
    rig = BrokerRig()
    for n in range(3):
        rig.publish("t", b"%d" % n * 3000)
    rig.clock.advance(100)
    assert rig.change("configure", "t", retain_max_age="50000") == "OK"
    rig.advance(2)
    assert rig.broker.topic("t").log.messages() == 0
    assert rig.numbers("t")["settings"] == {"retain_max_age": 50_000}


def test_a_segment_with_a_delayed_message_stays() -> None:
    rig = limited()
    for n in range(4):
        rig.publish("t", b"%d" % n * 3000)
    topic = rig.broker.topic("t")
    topic.log.segments[0].newest_deliver_at_ns = rig.clock.wall_ns() + 60_000_000_000
    assert rig.change("configure", "t", retain_max_age="10000", retain_max_bytes="1") == "OK"
    rig.advance(20)
    assert [segment.base_id for segment in topic.log.segments] == [0, 4]
    assert (topic.log.removed, topic.log.messages(), topic.state) == ([(1, 3)], 1, "ok")
    rig.advance(45)
    assert [segment.base_id for segment in topic.log.segments] == [4], "until its time has come"


def test_messages_behind_a_removed_range_are_counted_once() -> None:
    """A later consumer has no backlog of removed messages."""
    rig = limited(retain_max_age=10_000)
    rig.publish("t", b"0" * 3000)
    topic = rig.broker.topic("t")
    topic.log.segments[0].newest_deliver_at_ns = rig.clock.wall_ns() + 60_000_000_000
    for n in range(1, 4):
        rig.publish("t", b"%d" % n * 3000)
    rig.advance(20)
    rig.subscribe("t", "late").close()
    consumer = rig.numbers("t")["consumers"]["late"]
    assert (consumer["backlog"], rig.numbers("t")["messages"]) == (1, 1)
    assert rig.numbers("t")["removed"] == topic.log.removed == [(1, 3)]


# -- by bytes


def test_no_more_than_so_many_bytes_are_kept() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    assert rig.change("create", "t", retain_max_bytes=str(1 << 20)) == "OK"
    subscription = rig.subscribe("t", window=10_000)
    topic = rig.broker.topic("t")
    for _ in range(300):
        rig.publish("t", bytes(10_000))
        rig.take(subscription)
        rig.loop.advance(0.01)
        assert topic.log.size_bytes <= 1 << 20
        assert rig.disk.used_bytes <= (1 << 20) + 100_000
    assert topic.log.size_bytes > 700_000, "and not much less"
    assert topic.retention.dropped_total == topic.log.first_id
    assert rig.numbers("t")["consumers"]["c"]["backlog"] == topic.log.messages()


def test_a_size_that_is_set_later_holds_at_once() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    for _ in range(50):
        rig.publish("t", bytes(10_000))
    topic = rig.broker.topic("t")
    assert (len(topic.log.segments), topic.log.messages()) == (1, 50)
    assert rig.change("configure", "t", retain_max_bytes="300000") == "OK"
    rig.advance(2)
    assert topic.log.messages() == 0, "a segment goes whole, and this one was above the size"
    for _ in range(50):
        rig.publish("t", bytes(10_000))
        rig.loop.advance(0.01)
    assert 200_000 < topic.log.size_bytes <= 300_000
    assert rig.change("configure", "t", retain_max_bytes="default") == "OK"
    for _ in range(50):
        rig.publish("t", bytes(10_000))
    assert topic.log.size_bytes > 500_000


# -- both with acks


def test_what_is_acked_and_dropped_is_counted_for_what_was_not_acked() -> None:
    rig = limited(retain_max_age=1_000, retain_acked_for=0)
    one, two = rig.subscribe("t", "one"), rig.subscribe("t", "two")
    for n in range(4):
        rig.publish("t", b"%d" % n * 3000)
    assert len(rig.take(one)) == len(rig.take(two)) == 4
    rig.ack("t", 0, 3, "one")
    rig.ack("t", 0, 1, "two")
    rig.loop.drain()
    topic = rig.broker.topic("t")
    assert (topic.log.first_id, topic.retention.dropped_total) == (2, 0)
    rig.advance(5)
    assert (topic.log.first_id, topic.retention.dropped_total) == (4, 2)
    assert [consumer["backlog"] for consumer in rig.numbers("t")["consumers"].values()] == [0, 0]


@one_in(6)
def test_disk_use_of_a_topic_that_is_consumed_stays_bounded_for_an_hour(share: int) -> None:
    """A message is published every second and acked with a lag, while one consumer of another topic is stuck on a message."""
    rig = BrokerRig(retain_acked_for_ms=60_000, max_attempts=0)
    rig.disk._tracing = False
    busy, stuck = rig.subscribe("t"), rig.subscribe("other")
    rng = random.Random(5)
    used = []
    for second in range(3600 // share):
        rig.publish("t", bytes(rng.randrange(2000)))
        rig.publish("other", bytes(500))
        for name, subscription in (("t", busy), ("other", stuck)):
            for msg_id, _ in rig.take(subscription):
                if name == "t" or msg_id:
                    rig.broker.topic(name).ack("c", [(msg_id, msg_id)])
        rig.advance(1)
        used.append(rig.disk.used_bytes)
        assert second < 300 or used[-1] < 400_000, f"after {second} s"
    assert max(used[1800 // share :]) < 1.5 * max(used[: 600 // share]), "it does not grow"
    other = rig.broker.topic("other").log
    assert (other.first_id, len(other.segments) < 40) == (0, True), "the stuck message pins its segment and no other"
    assert rig.broker.topic("t").retention.dropped_total == rig.broker.topic("other").retention.dropped_total == 0


# -- crashes


@pytest.mark.parametrize("op", ["pwrite", "sync", "rename", "sync_dir", "unlink"])
def test_a_crash_while_old_segments_go_brings_back_all_or_nothing_of_each(op: str) -> None:
    for nth in range(1, 20):
        rig = limited(retain_max_age=10_000)
        rig.subscribe("t").close()
        for n in range(4):
            rig.publish("t", b"%d" % n * 3000)
        rig.flush("t")
        rig.clock.advance(20)
        fault = rig.disk.fail(op, nth, errno.EIO, sticky=True)
        rig.broker.topic("t").retention.apply()
        rig.loop.advance(0)
        for seed in range(3):
            after = BrokerRig(disk=rig.disk.peek_crash(random.Random(seed)))
            topic = after.broker.topic("t")
            assert topic.state == "ok"
            for _ in range(5):
                after.advance(10)
            assert (topic.log.messages(), topic.log.committed_id, after.segment_files("t")) == (0, 4, [segment_name(4)])
            assert after.numbers("t")["consumers"]["c"]["backlog"] == 0
        if not fault.fired:
            break
    else:
        pytest.fail("more steps than were looked at")


def test_offsets_that_fail_for_a_while_delay_the_unlinking() -> None:
    rig = limited(retain_max_age=10_000)
    for n in range(3):
        rig.publish("t", b"%d" % n * 3000)
    fault = rig.disk.fail("rename", 1, errno.EIO, sticky=True, path="offsets")
    rig.advance(20)
    assert fault.fired
    assert rig.broker.topic("t").log.messages() == 0
    assert segment_name(0) in rig.segment_files("t"), "nothing on disk says that it may go"
    rig.disk.heal()
    rig.advance(3)
    assert rig.segment_files("t") == [segment_name(3)]


# -- by expiry


def passing(ttls_ms: list[int | None], **options: int) -> BrokerRig:
    """Return a broker with one message to a segment, one for each ttl and one more; "c" takes none."""
    rig = BrokerRig(**{"retain_acked_for_ms": 20_000} | options)
    rig.subscribe("t").close()
    for ttl_ms in (*ttls_ms, 3_600_000):
        rig.broker.topic("t").publisher.publish([b""], [b"x" * 3000], None, None, None if ttl_ms is None else [ttl_ms])
        rig.loop.drain()
    return rig


@pytest.mark.parametrize("restart", ["none", "sidecars", "scan"])
def test_a_segment_that_expired_as_a_whole_goes_without_a_session(restart: str) -> None:
    rig = passing([5_000, 30_000, None, 5_000])
    rig.advance(1)
    if restart == "scan":
        for name in rig.files("t"):
            if name.endswith(".idx"):
                rig.disk.unlink(f"{DIR}/topics/t/{name}")
    if restart != "none":
        rig.reopen()
    rig.advance(5)
    rig.advance(5)
    topic = rig.broker.topic("t")
    assert (topic.context.expired_total, topic.consumers["c"].floor, topic.log.first_id) == (2, 1, 0), "acked, and kept as such"
    for _ in range(4):
        rig.advance(10)
    assert rig.segment_files("t")[:2] == [segment_name(2), segment_name(4)], "what never expires stays"
    assert (topic.log.first_id, topic.log.removed) == (2, [(3, 3)])
    assert topic.context.expired_total == 3
    assert topic.retention.dropped_total == 0
    assert rig.take(rig.subscribe("t")) == [(2, 1), (4, 1)]
    rig.reopen(power_cut=True)
    assert (rig.broker.topic("t").log.lost, rig.broker.topic("t").log.first_id) == ([], 2)


def test_what_expired_while_inflight_stays_until_its_lease_ends() -> None:
    rig = BrokerRig(retain_acked_for_ms=0, max_attempts=2)
    publisher = rig.broker.topic_or_new("t").publisher
    publisher.publish([b""] * 4, [b"x" * 800] * 4, None, None, [5_000] * 4)
    rig.publish("t", b"x" * 3000)
    sub = rig.subscribe("t", window=3, visibility_s=60)
    assert len(rig.take(sub)) == 3
    rig.nack("t", 1, 1, dead=True)
    rig.nack("t", 2, 2, delay_s=3600.0)
    for _ in range(3):
        rig.advance(10)
    topic = rig.broker.topic("t")
    assert topic.context.expired_total == 2, "that rests after a nack, and that no session took"
    assert topic.log.first_id == 0
    assert len(rig.records("t.dlq")) == 1
    assert rig.ack("t", 0, 0) == 1, "the work was done"
    rig.advance(10)
    assert topic.log.first_id == 4


def test_what_expired_while_inflight_goes_when_its_lease_ends_without_an_ack() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    rig.broker.topic_or_new("t").publisher.publish([b""], [b"x" * 3000], None, None, [5_000])
    rig.publish("t", b"x" * 3000)
    rig.take(rig.subscribe("t", window=1, visibility_s=30))
    rig.advance(29)
    assert rig.broker.topic("t").context.expired_total == 0
    for _ in range(3):
        rig.advance(11)
    assert (rig.broker.topic("t").context.expired_total, rig.broker.topic("t").log.first_id) == (1, 1)


def test_a_check_that_takes_long_rests_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 16,000 segments, 1 TB, each write of the offsets had all of them looked at, for 45 ms."""
    rig = limited(retain_max_age=3600_000)
    rig.publish("t", *[b"." * 1000] * 60)
    subscription = rig.subscribe("t", window=1)
    checks = 0

    def date(segments: object, now_ns: int) -> None:
        nonlocal checks
        checks += 1
        rig.clock.advance(0.05)
    monkeypatch.setattr(retention, "date", date)
    for msg_id in range(20):
        assert rig.take(subscription) == [(msg_id, 1)]
        rig.ack("t", msg_id, msg_id)
        rig.advance(0.1)
    assert checks == 1, "in two seconds, of which one took 50 ms"
    rig.advance(3)
    assert checks == 2
