"""Messages on their way between topics and their dead-letter topics. Contract: delivery.md, "Attempts"."""


import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.dead_letters import described, poisoned
from toymq_py.errors import BadArgument, Forbidden, TooManyTopics


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
    assert len(rig.records("t.dlq")) == 1, "that one hung on what has counted"
    next_one = rig.subscribe("t", window=1)
    assert rig.take(next_one) == [(1, 1)]
    next_one.close()
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
