"""REDRIVE: dead letters go back to their topic. Contract: delivery.md, "Attempts"; ADR 0023."""

import errno

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.dead_letters import dead
from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument, NoSuchTopic, ShuttingDown


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


def test_redriven_letters_pin_nothing_where_a_consumer_acks_them() -> None:
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
    assert rig.broker.topic("t.dlq").log.first_id == 0, "no consumer has seen them, and they did not go back"
    rig.redrive("t.dlq")
    rig.advance(5)
    assert rig.broker.topic("t.dlq").log.first_id > 0, "all went back"
