"""Messages that nobody can process, and the way back. Contract: delivery.md, "Attempts"."""

import errno
import logging

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.fake_clock import EPOCH_NS
from toymq_py.errors import BadArgument, Forbidden, NoSuchTopic, ShuttingDown, TooManyTopics
from toymq_py.failure import failure_of
from toymq_py.model import Start

MS = 1_000_000


def poisoned(**options: int) -> BrokerRig:
    """A topic of which message 0 was delivered once to "c", and is inflight to ``rig.sub``."""
    rig = BrokerRig(**{"max_attempts": 3} | options)
    rig.publish("t", b"poison", key=b"k")
    rig.sub = rig.subscribe("t")
    assert rig.take(rig.sub) == [(0, 1)]
    return rig


def described(rig: BrokerRig, topic: str = "t") -> dict[str, int]:
    (consumer,) = rig.broker.topic(topic).describe()["consumers"]
    return consumer


# -- to the dead letters


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


def test_any_way_back_counts() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", *[b"x"] * 4)
    first = rig.subscribe("t", visibility_s=5, window=1)
    assert rig.take(first) == [(0, 1)]
    rig.advance(6)
    assert [h["toymq-origin-id"] for *_, h in rig.records("t.dlq")] == ["0"], "the time-out"
    assert rig.take(first) == [(1, 1)]
    first.close()
    rig.loop.drain()
    assert [h["toymq-origin-id"] for *_, h in rig.records("t.dlq")] == ["0", "1"], "the session that is gone"
    second = rig.subscribe("t", window=1)
    assert rig.take(second) == [(2, 1)]
    rig.flush("t")
    rig.reopen()
    rig.loop.drain()
    assert [h["toymq-origin-id"] for *_, h in rig.records("t.dlq")] == ["0", "1", "2"], "the restart"
    assert rig.take(rig.subscribe("t")) == [(3, 1)]


def test_a_nack_with_a_delay_does_not_delay_the_end() -> None:
    rig = poisoned(max_attempts=1)
    rig.nack("t", 0, 0, delay_s=3600.0, reason="late")
    assert rig.records("t.dlq")[0][3]["toymq-reason"] == "late"


def test_an_attempt_that_was_never_written_does_not_count() -> None:
    rig = poisoned(max_attempts=1)
    rig.sub.unsend(0, 0)
    rig.sub.close()
    rig.loop.drain()
    assert "t.dlq" not in rig.broker.topics
    assert rig.take(rig.subscribe("t")) == [(0, 1)]


def test_dead_at_once() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 6)
    sub = rig.subscribe("t", window=4)
    assert rig.take(sub) == [(n, 1) for n in range(4)]
    assert rig.nack("t", 1, 2, dead=True, reason="poison") == 2
    assert rig.nack("t", 3, 9, dead=True) == 1, "what is not inflight is left alone"
    letters = rig.records("t.dlq")
    assert [(h["toymq-origin-id"], h["toymq-reason"], h["toymq-attempts"]) for *_, h in letters] == [
        ("1", "poison", "1"), ("2", "poison", "1"), ("3", "rejected", "1"),
    ]  # fmt: skip
    assert rig.ack("t", 0, 5) == 1
    assert rig.take(sub) == [(4, 1), (5, 1)]


# -- why


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


WHY = {"toymq-reason", "toymq-error-type", "toymq-error", "toymq-traceback", "toymq-failed-at"}


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


def test_a_letter_that_went_back_begins_anew() -> None:
    rig = poisoned()
    rig.nack("t", 0, 0, dead=True, reason="bad", error="worse", traceback="x")
    assert rig.redrive("t.dlq")[0] == 1
    (_, (_, _, _, headers)) = rig.records("t")
    assert not WHY & headers.keys()


def test_the_name_under_which_a_client_numbers_its_publishes_is_no_origin_key() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x", key=b"~seq~abc-0")
    rig.take(rig.subscribe("t"))
    rig.nack("t", 0, 0, dead=True)
    assert "toymq-origin-key" not in rig.records("t.dlq")[0][3]


def test_zero_is_for_ever_and_settings_change_it() -> None:
    rig = poisoned(max_attempts=0)
    for attempt in range(2, 40):
        rig.nack("t", 0, 0)
        assert rig.take(rig.sub) == [(0, attempt)]
    assert rig.change("configure", "t", max_attempts="30") == "OK"
    assert "t.dlq" not in rig.broker.topics, "what is inflight has its chance"
    rig.nack("t", 0, 0)
    assert len(rig.records("t.dlq")) == 1
    rig.publish("u", b"x")
    sub = rig.subscribe("u")
    for attempt in range(1, 6):
        assert rig.take(sub) == [(0, attempt)]
        rig.nack("u", 0, 0)
    assert rig.change("configure", "u", max_attempts="5") == "OK"
    rig.loop.drain()
    assert rig.take(sub) == [], "what is ready and has no attempt left goes at once"
    assert len(rig.records("u.dlq")) == 1


def test_dead_letters_have_no_dead_letters() -> None:
    rig = poisoned(max_attempts=1)
    rig.nack("t", 0, 0)
    sub = rig.subscribe("t.dlq")
    for attempt in range(1, 30):
        assert rig.take(sub) == [(0, attempt)]
        rig.nack("t.dlq", 0, 0)
    with pytest.raises(BadArgument, match="no dead-letter topic of its own"):
        rig.nack("t.dlq", 0, 0, dead=True)
    assert rig.change("configure", "t.dlq", max_attempts="5") == "BAD_ARGUMENT"
    assert rig.change("create", "u.dlq", max_attempts="5") == "BAD_ARGUMENT"
    assert rig.change("configure", "t.dlq", visibility="5") == "OK"
    with pytest.raises(Forbidden):
        rig.broker.topic_to_publish("t.dlq")


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


def test_times_that_nobody_knows_after_a_restart_are_left_out() -> None:
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


# -- when it cannot be stored


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


def test_the_limit_of_topics_does_not_hold_dead_letters_back() -> None:
    rig = poisoned(max_attempts=1, max_topics=1)
    rig.nack("t", 0, 0)
    assert len(rig.records("t.dlq")) == 1


def test_a_dead_letter_topic_takes_no_other_topic_its_place() -> None:
    rig = poisoned(max_attempts=1, max_topics=2)
    rig.nack("t", 0, 0)
    rig.publish("b", b"")
    with pytest.raises(TooManyTopics, match="there are 2 topics"):
        rig.publish("c", b"")
    rig.delete("t")
    with pytest.raises(TooManyTopics):
        rig.publish("c", b"")  # letters whose origin went are a topic like others
    rig.delete("t.dlq")
    rig.publish("c", b"")
    with pytest.raises(TooManyTopics):
        rig.publish("d", b"")


def test_a_restart_counts_dead_letter_topics_the_same() -> None:
    rig = poisoned(max_attempts=1, max_topics=2)
    rig.nack("t", 0, 0)
    rig.reopen()
    rig.publish("b", b"")
    with pytest.raises(TooManyTopics):
        rig.publish("c", b"")


def test_names_of_letters_of_letters_count() -> None:
    rig = poisoned(max_attempts=1, max_topics=2)
    rig.nack("t", 0, 0)
    rig.subscribe("t.dlq.dlq")
    with pytest.raises(TooManyTopics):
        rig.subscribe("t.dlq.dlq.dlq")


def test_a_topic_or_consumer_that_goes_takes_what_it_holds_with_it() -> None:
    rig = poisoned(max_attempts=1)
    rig.broker.topic("t").nack("c", [(0, 0)], 0.0)  # held, and not moved yet
    rig.broker.topic("t").forget("c")
    rig.loop.drain()
    assert "t.dlq" not in rig.broker.topics
    rig.take(rig.subscribe("t"))
    rig.broker.topic("t").nack("c", [(0, 0)], 0.0)
    rig.delete("t")
    rig.loop.drain()
    assert "t.dlq" not in rig.broker.topics


# -- many


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


def test_shutdown_stores_what_is_due_first() -> None:
    rig = BrokerRig(segment_bytes=64 << 20)
    rig.publish("t", *[b"x"] * 2000)
    rig.take(rig.subscribe("t", window=2000))
    rig.broker.topic("t").nack("c", [(0, 1999)], None, dead=True)
    done: list[int] = []
    rig.broker.stop_deliveries()
    rig.broker.finish(lambda: done.append(len(rig.records("t.dlq"))))
    rig.loop.advance(0)
    assert done == [2000]
    rig.reopen()
    assert described(rig)["backlog"] == 0


# -- back


def dead(count: int = 1, **options: int) -> BrokerRig:
    """Of consumer "c"; consumer "other" has acked everything."""
    rig = BrokerRig(**{"max_attempts": 1} | options)
    rig.broker.topic_or_new("t").publisher.publish(
        [b"k%d" % n for n in range(count)], [b"p%d" % n for n in range(count)], [b"a: %d\n" % n for n in range(count)]
    )
    rig.loop.drain()
    rig.sub, rig.other = rig.subscribe("t", window=count), rig.subscribe("t", "other", window=count)
    assert len(rig.take(rig.sub)) == len(rig.take(rig.other)) == count
    rig.ack("t", 0, count - 1, "other")
    rig.nack("t", 0, count - 1)
    assert len(rig.records("t.dlq")) == count
    return rig


def test_redrive_brings_a_letter_back_once_for_the_consumer_that_failed_it() -> None:
    rig = dead()
    letter_ts = rig.broker.topic("t.dlq").log.last_ts_ns
    assert rig.redrive("t.dlq") == (1, None)
    assert rig.records("t")[1:] == [
        (1, b"redrive:t.dlq:0:%d" % letter_ts, b"p0", {
            "a": "0", "toymq-origin-key": "k0", "toymq-redrives": "1", "toymq-redrive-consumer": "c",
        })
    ]  # fmt: skip
    assert described_all(rig) == {"c": 1, "other": 0}
    assert rig.take(rig.other) == []
    assert rig.take(rig.sub) == [(1, 1)]
    assert rig.redrive("t.dlq") == (0, None), "once"
    assert rig.broker.topic("t.dlq").describe()["redriven"] == [(0, 0)]
    assert rig.broker.topic("t.dlq").describe()["consumers"] == []
    assert rig.broker.topic("t.dlq").describe()["redriven_total"] == 1
    rig.nack("t", 1, 1)
    again = rig.records("t.dlq")[1][3]
    assert (again["toymq-redrives"], again["toymq-origin-key"], again["toymq-origin-id"]) == ("1", "k0", "1")
    assert "toymq-redrive-consumer" not in again
    assert rig.redrive("t.dlq") == (1, None)
    assert rig.records("t")[2][3]["toymq-redrives"] == "2"


def described_all(rig: BrokerRig) -> dict[str, int]:
    return {it["consumer"]: it["backlog"] for it in rig.broker.topic("t").describe()["consumers"]}


def test_others_never_see_it_whatever_happens_between() -> None:
    rig = dead(3)
    rig.publish("t", b"plain")
    assert rig.redrive("t.dlq") == (3, None)
    rig.publish("t", b"plain")
    rig.reopen()
    assert described_all(rig) == {"c": 5, "other": 2}
    assert rig.take(rig.subscribe("t", "new")) == [(n, 1) for n in (0, 1, 2, 3, 7)], "one that is new"
    rig.broker.topic("t").seek("other", Start("id", 4))
    other = rig.subscribe("t", "other")
    assert rig.take(other) == [(7, 1)], "one that goes back"
    assert rig.take(rig.subscribe("t")) == [(3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]


def test_some_of_them() -> None:
    rig = dead(6)
    assert rig.redrive("t.dlq", [(1, 2), (5, 9)]) == (3, None)
    assert [p for _, _, p, _ in rig.records("t")[6:]] == [b"p1", b"p2", b"p5"]
    assert rig.broker.topic("t.dlq").describe()["redriven"] == [(1, 2), (5, 5)]
    assert rig.redrive("t.dlq", [(1, 3)]) == (1, None)
    assert rig.redrive("t.dlq", max_count=1) == (1, None)
    assert rig.redrive("t.dlq", max_count=9) == (1, None)
    assert sorted(p for _, _, p, _ in rig.records("t")[6:]) == [b"p%d" % n for n in range(6)]
    assert rig.redrive("t.dlq", [(50, 60)]) == (0, None)


def test_many_go_back_a_slice_at_a_time() -> None:
    rig = dead(10_000, segment_bytes=64 << 20)
    before = rig.broker.metrics.fsync_seconds.count
    assert rig.redrive("t.dlq") == (10_000, None)
    assert rig.broker.metrics.fsync_seconds.count - before <= 50
    assert len(rig.take(rig.subscribe("t", window=20_000))) == 10_000


def test_a_topic_that_was_deleted_is_made_anew() -> None:
    rig = dead()
    rig.delete("t")
    assert rig.redrive("t.dlq") == (1, None)
    assert [p for _, _, p, _ in rig.records("t")] == [b"p0"]
    assert rig.take(rig.subscribe("t", "other")) == []
    assert rig.take(rig.subscribe("t")) == [(0, 1)]


def test_what_cannot_be_redriven_says_so() -> None:
    rig = dead()
    with pytest.raises(NoSuchTopic):
        rig.redrive("u.dlq")
    with pytest.raises(BadArgument, match="not a dead-letter topic"):
        rig.redrive("t")
    rig.disk.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="/t/")
    assert rig.redrive("t.dlq") == (0, "DISK_FULL")
    rig.disk.heal()
    assert rig.redrive("t.dlq") == (1, None)
    rig.broker.finish(lambda: None)
    with pytest.raises(ShuttingDown):
        rig.redrive("t.dlq")


def test_two_at_once_bring_each_back_once() -> None:
    rig = dead(600)
    counts: list[int] = []
    for _ in range(2):
        rig.broker.redrive("t.dlq", None, None, lambda count, error: counts.append(count))
    rig.loop.advance(0)
    assert counts == [600, 0]
    assert len(rig.records("t")) == 1200


def test_letters_that_went_back_pin_nothing_where_somebody_consumes_them() -> None:
    rig = dead(40, segment_bytes=4096, retain_acked_for_ms=0)
    rig.redrive("t.dlq", [(39, 39)])
    rig.take(rig.subscribe("t.dlq", "audit"))
    rig.ack("t.dlq", 0, 38, "audit")
    rig.advance(5)
    first_id = rig.broker.topic("t.dlq").log.first_id
    assert first_id > 0, "acked by all consumers"
    rig = dead(40, segment_bytes=4096, retain_acked_for_ms=0)
    rig.redrive("t.dlq", [(39, 39)])
    rig.advance(5)
    assert rig.broker.topic("t.dlq").log.first_id == 0, "nobody has seen them, and they did not go back"
    rig.redrive("t.dlq")
    rig.advance(5)
    assert rig.broker.topic("t.dlq").log.first_id > 0, "all went back"
