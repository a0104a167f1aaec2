"""From held messages to letters in the dead-letter topic. Contract: delivery.md, "Attempts"; ADR 0023."""

import errno
import logging

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.dead_letters import described, poisoned
from tests.support.fake_clock import EPOCH_NS
from toymq_py.consumer_options import Start
from toymq_py.failure import failure_of

MS = 1_000_000

WHY = {"toymq-reason", "toymq-error-type", "toymq-error", "toymq-traceback", "toymq-failed-at"}


def test_the_last_attempt_that_is_given_back_makes_a_dead_letter() -> None:
    rig = poisoned()
    rig.nack("t", 0, 0)
    assert rig.take(rig.sub) == [(0, 2)]
    rig.nack("t", 0, 0)
    assert rig.take(rig.sub) == [(0, 3)]
    assert "t.dlq" not in rig.broker.topics
    rig.clock.advance(1)
    assert rig.nack("t", 0, 0) == 1
    assert rig.take(rig.sub) == [], "not delivered a fourth time"
    since_ns = rig.broker.topic("t").consumers["c"].since_ns
    assert rig.records("t.dlq") == [
        (0, b"dlq:t:c:0:%d:%d" % (EPOCH_NS, since_ns), b"poison", {
            "toymq-origin-topic": "t",
            "toymq-origin-id": "0",
            "toymq-origin-key": "k",
            "toymq-consumer": "c",
            "toymq-attempts": "3",
            "toymq-reason": "max-attempts",
            "toymq-first-delivered": str(EPOCH_NS // MS),
            "toymq-last-delivered": str(EPOCH_NS // MS),
        })
    ]  # fmt: skip
    assert (described(rig)["last_acked"], described(rig)["backlog"]) == (0, 0)
    assert rig.broker.topic("t").describe()["dead_lettered_total"] == 1


def test_the_last_failure_that_was_told_is_in_the_letter_however_the_message_dies() -> None:
    rig = poisoned()
    rig.nack("t", 0, 0, reason="first", traceback="old")
    rig.take(rig.sub)
    rig.clock.advance(1)
    told_ms = rig.clock.wall_ns() // MS
    rig.nack("t", 0, 0, error_type="ValueError", error="no such template: x.html", traceback="line 1\nline 2")
    assert rig.take(rig.sub) == [(0, 3)]
    rig.advance(60)
    ((_, _, _, headers),) = rig.records("t.dlq")
    told = {name: text for name, text in headers.items() if name in WHY}
    assert told == {
        "toymq-reason": "max-attempts",
        "toymq-error-type": "ValueError",
        "toymq-error": "no such template: x.html",
        "toymq-traceback": '"line 1\\nline 2"',
        "toymq-failed-at": str(told_ms),
    }


def test_each_message_has_its_own_failure() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", *[b"x"] * 6)
    rig.take(rig.subscribe("t", window=6))
    rig.nack("t", 0, 1, reason="both")
    rig.nack("t", 2, 2, reason="third")
    rig.nack("t", 3, 3)
    rig.nack("t", 4, 9, dead=True, reason="given up")
    assert [headers["toymq-reason"] for *_, headers in rig.records("t.dlq")] == [
        "both", "both", "third", "max-attempts", "given up", "given up",
    ]  # fmt: skip
    assert rig.broker.topic("t").consumers["c"].failures is not None
    assert len(rig.broker.topic("t").consumers["c"].failures) == 0, "with the letter it is forgotten"


def test_what_was_acked_sought_or_never_leased_has_no_failure() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 4)
    sub = rig.subscribe("t", window=2)
    rig.take(sub)
    consumer = rig.broker.topic("t").consumers["c"]
    rig.nack("t", 0, 3, reason="bad")
    assert consumer.failures is not None
    assert [consumer.failures.find(msg_id) is not None for msg_id in range(4)] == [True, True, False, False]
    rig.take(sub)
    rig.ack("t", 0, 0)
    assert len(consumer.failures) == 1
    rig.broker.topic("t").seek("c", Start.parse("earliest"))
    assert consumer.failures is None
    assert rig.broker._services.failure_budget.bytes == 0


def test_the_name_under_which_a_client_numbers_its_publishes_is_no_origin_key() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x", key=b"~seq~abc-0")
    rig.take(rig.subscribe("t"))
    rig.nack("t", 0, 0, dead=True)
    assert "toymq-origin-key" not in rig.records("t.dlq")[0][3]


def test_the_longest_names_fit() -> None:
    rig = BrokerRig(max_attempts=1)
    topic, consumer = "t" * 196, "c" * 196
    rig.publish(topic, b"x", key=b"k" * 512)
    sub = rig.subscribe(topic, consumer)
    rig.take(sub)
    rig.nack(topic, 0, 0, consumer, reason="r" * 256)
    ((_, key, _, headers),) = rig.records(f"{topic}.dlq")
    assert len(key) <= 512
    assert headers["toymq-origin-key"] == "k" * 512
    rig.flush(topic)
    rig.reopen()
    assert len(rig.records(f"{topic}.dlq")) == 1, "its directory was found again"


def test_headers_of_the_message_are_kept_and_forged_ones_are_not() -> None:
    rig = BrokerRig(max_attempts=1)
    block = b"traceparent: 00-1\ntoymq-origin-key: forged\ntoymq-redrives: 7\ntoymq-reason: none"
    rig.broker.topic_or_new("t").publisher.publish([b""], [b"x"], [block])
    rig.loop.drain()
    rig.take(rig.subscribe("t"))
    rig.nack("t", 0, 0)
    ((*_, headers),) = rig.records("t.dlq")
    assert headers["traceparent"] == "00-1"
    assert headers["toymq-reason"] == "max-attempts"
    assert "toymq-origin-key" not in headers
    assert "toymq-redrives" not in headers


def test_delivery_times_unknown_after_a_restart_are_left_out() -> None:
    rig = poisoned(max_attempts=2)
    rig.flush("t")
    rig.reopen()
    sub = rig.subscribe("t")
    rig.clock.advance(5)
    assert rig.take(sub) == [(0, 2)]
    rig.nack("t", 0, 0)
    headers = rig.records("t.dlq")[0][3]
    assert "toymq-first-delivered" not in headers
    assert headers["toymq-last-delivered"] == str(rig.clock.wall_ns() // MS)


def test_a_full_disk_holds_the_message_and_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = poisoned(max_attempts=1)
    rig.disk.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="t.dlq")
    with caplog.at_level(logging.ERROR):
        rig.nack("t", 0, 0)
        rig.advance(20)
    assert rig.take(rig.sub) == []
    assert rig.ack("t", 0, 0) == 0, "an ACK does not count: it is dead already"
    assert rig.nack("t", 0, 0) == 0
    held = described(rig)
    assert (held["ready"], held["inflight"], held["scheduled"], held["backlog"]) == (0, 1, 0, 1)
    assert caplog.text.count("cannot be moved to the dead letters") == 1, "said once, however often it is tried"
    rig.disk.heal()
    rig.advance(31)
    assert len(rig.records("t.dlq")) == 1
    assert described(rig)["backlog"] == 0


def test_a_failed_log_holds_it_until_a_restart() -> None:
    rig = poisoned(max_attempts=1)
    rig.flush("t")
    rig.disk.fail("sync", 1, errno.EIO, path="t.dlq")
    rig.nack("t", 0, 0)
    rig.advance(100)
    assert described(rig)["backlog"] == 1
    rig.reopen()
    rig.loop.drain()
    assert len(rig.records("t.dlq")) == 1
    assert described(rig)["backlog"] == 0


def test_a_message_that_is_lost_or_cannot_be_read_becomes_no_letter() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"a" * 100, b"b" * 100, b"c" * 100)
    sub = rig.subscribe("t")
    rig.take(sub)
    rig.broker.topic("t").log.tail.clear()
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path="/t/")
    rig.nack("t", 0, 2)
    assert "t.dlq" not in rig.broker.topics
    assert described(rig)["backlog"] == 3, "EIO is not damage: they stay as they are"
    rig.disk.heal()
    rig.flush("t")
    rig.reopen()
    rig.loop.drain()
    assert len(rig.records("t.dlq")) == 3, "after a restart they can be read again"


def test_many_at_once_share_their_syncs() -> None:
    rig = BrokerRig(segment_bytes=64 << 20)
    count = 20_000
    rig.publish("t", *[b"x"] * count)
    sub = rig.subscribe("t", window=count)
    assert len(rig.take(sub)) == count
    before = rig.broker.metrics.fsync_seconds.count
    assert rig.nack("t", 0, count, dead=True) == count
    syncs = rig.broker.metrics.fsync_seconds.count - before
    assert [h["toymq-origin-id"] for *_, h in rig.records("t.dlq")] == [str(n) for n in range(count)]
    assert syncs <= count // 200, "a slice has one sync"


def test_every_second_one_costs_no_sync_of_its_own() -> None:
    rig = BrokerRig(segment_bytes=64 << 20)
    rig.publish("t", *[b"x"] * 2000)
    rig.take(rig.subscribe("t", window=2000))
    for msg_id in range(0, 2000, 2):
        rig.broker.topic("t").nack("c", [(msg_id, msg_id)], None, dead=True, failure=failure_of("even"))
    before = rig.broker.metrics.fsync_seconds.count
    rig.loop.drain()
    assert len(rig.records("t.dlq")) == 1000
    assert rig.broker.metrics.fsync_seconds.count - before <= 5
    assert described(rig)["inflight"] == 1000


def test_large_messages_are_moved_one_by_one() -> None:
    rig = BrokerRig(segment_bytes=64 << 20)
    rig.publish("t", *[b"x" * (1 << 20)] * 3)
    rig.take(rig.subscribe("t"))
    before = rig.broker.metrics.fsync_seconds.count
    rig.nack("t", 0, 2, dead=True)
    assert rig.broker.metrics.fsync_seconds.count - before == 3
    assert [len(payload) for _, _, payload, _ in rig.records("t.dlq")] == [1 << 20] * 3


def test_a_letter_that_went_back_begins_anew() -> None:
    rig = poisoned()
    rig.nack("t", 0, 0, dead=True, reason="bad", error="worse", traceback="x")
    assert rig.redrive("t.dlq")[0] == 1
    (_, (_, _, _, headers)) = rig.records("t")
    assert not WHY & headers.keys()
