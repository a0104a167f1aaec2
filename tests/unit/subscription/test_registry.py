"""Patterns and polls. Contract: delivery.md, "Window"; protocol.md, SUB and PULL; ADR 0020."""

import errno
import logging
from collections.abc import Callable

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.errors import ModeConflict, NoSuchConsumer, NoSuchTopic, RequestError, ShuttingDown, TooManyConsumers
from toymq_py.model import EARLIEST, TopicPattern
from toymq_py.subscription import PatternSubscription
from toymq_py.subscription.patterns import RETRY_S
from toymq_py.subscription.polls import MESSAGES_PER_POLL
from toymq_py.subscription.registry import TOPICS_PER_TURN

TAKE_BYTES = 1 << 20


def consumers(rig: BrokerRig, topic: str) -> list[str]:
    return sorted(rig.broker.topic(topic).consumers)


# -- patterns


def test_topics_in_turn_under_one_window() -> None:
    rig = BrokerRig()
    for name in ("a.x", "a.y", "b"):
        rig.publish(name, b"1", b"2")
        rig.publish(name, b"3", b"4")
    subscription = rig.follow("a.*", window=5)
    assert sorted(subscription.parts) == ["a.x", "a.y"]
    taken = []
    while (delivery := subscription.take(1)) is not None:
        taken += rig.shown(delivery)
    assert taken == ["a.x 0-0 x1", "a.y 0-0 x1", "a.x 1-1 x1", "a.y 1-1 x1", "a.x 2-2 x1"]
    assert (subscription.inflight, subscription.wants_room) == (5, True)
    assert consumers(rig, "b") == []
    rig.ack("a.y", 0, 1)
    assert rig.shown(subscription.take(1), subscription.take(1), subscription.take(1)) == ["a.y 2-2 x1", "a.x 3-3 x1"]


def test_room_in_one_topic_wakes_for_another() -> None:
    rig = BrokerRig()
    woken: list[bool] = []
    subscription = rig.follow("a.*", window=1, wake=lambda _: woken.append(True) or True)  # type: ignore[func-returns-value]
    rig.publish("a.x", b"1")
    assert rig.shown(subscription.take(TAKE_BYTES), subscription.take(TAKE_BYTES)) == ["a.x 0-0 x1"]
    woken.clear()
    rig.publish("a.y", b"2")
    assert woken == [], "there is no room, so whoever else takes from a.y is asked"
    rig.ack("a.x", 0, 0)
    assert woken == [True]
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["a.y 0-0 x1"]


def test_a_full_window_leaves_a_topic_to_others() -> None:
    """Woken for one topic, it fills its window from another before it looks there."""
    rig = BrokerRig()
    other = rig.subscribe("a.y", mode="shared")
    subscription = rig.follow("a.*", window=1, mode="shared")
    assert rig.take(subscription) == []
    assert other.take(TAKE_BYTES) is None
    rig.publish("a.x", b"1")
    rig.publish("a.y", b"2")
    assert rig.woken == [], "a.y woke the pattern, which was idle longer, and had promised nothing yet"
    assert rig.take(subscription) == [(0, 1)]
    assert rig.woken == [other]
    assert rig.shown(other.take(TAKE_BYTES)) == ["a.y 0-0 x1"]


def test_a_topic_that_comes_later_starts_at_its_first_id_whatever_start_says() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"old")
    subscription = rig.follow("a.*", start="latest")
    assert rig.take(subscription) == []
    assert subscription.matched == 1
    rig.publish("a.y", b"new")
    rig.publish("a.y.z", b"other")
    rig.publish("a.dlq", b"dead")
    assert rig.shown(subscription.take(TAKE_BYTES), subscription.take(TAKE_BYTES)) == ["a.y 0-0 x1"]


@pytest.mark.parametrize("made", ["create", "publish", "subscribe", "poll"])
def test_every_way_that_makes_a_topic_tells_the_patterns(made: str) -> None:
    rig = BrokerRig()
    subscription = rig.follow("a.*")
    if made == "create":
        assert rig.change("create", "a.x") == "OK"
    elif made == "publish":
        rig.publish("a.x", b"1")
    elif made == "subscribe":
        rig.subscribe("a.x", "other")
    else:
        rig.poll("a.x", "other").close()
    assert list(subscription.parts) == ["a.x"]
    assert "c" in consumers(rig, "a.x")
    subscription.close()
    rig.publish("a.y", b"1")
    assert consumers(rig, "a.y") == []


def test_a_deleted_topic_is_lost_and_attached_again_when_it_comes_back() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.publish("a.y", b"1")
    subscription = rig.follow("a.*")
    rig.take(subscription)
    assert subscription.inflight == 2
    assert rig.delete("a.x") == 1
    assert (rig.ended, subscription.inflight) == (["a.x DELETED"], 1)
    rig.publish("a.x", b"2")
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["a.x 0-0 x1"]


def test_one_topic_is_taken_over_or_moved_and_the_rest_stays() -> None:
    rig = BrokerRig()
    for name in ("a.x", "a.y", "a.z"):
        rig.publish(name, b"1")
    subscription = rig.follow("a.*")
    rig.take(subscription)
    newer = rig.subscribe("a.x")
    assert rig.take(newer) == [(0, 2)]
    rig.broker.topic("a.y").seek("c", EARLIEST)
    assert rig.ended == ["a.x TAKEN_OVER", "a.y SEEK"]
    assert (list(subscription.parts), subscription.inflight, subscription.closed) == (["a.z"], 1, False)


def test_the_same_pattern_takes_over_the_whole() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.publish("a.y", b"1")
    old = rig.follow("a.*")
    rig.take(old)
    new = rig.follow("a.*")
    assert (rig.ended, old.closed) == (["a.* TAKEN_OVER"], True)
    assert sorted(rig.take(new)) == [(0, 2), (0, 2)]
    rig.publish("a.z", b"1")
    assert (list(old.parts), "a.z" in new.parts) == ([], True)


def test_of_two_exclusive_patterns_of_a_consumer_the_newer_has_a_new_topic() -> None:
    rig = BrokerRig()
    older, newer = rig.follow("a.*"), rig.follow("*.x")
    rig.publish("a.x", b"1")
    assert (list(older.parts), list(newer.parts), rig.ended) == ([], ["a.x"], [])


def test_shared_patterns_compete_on_each_topic() -> None:
    rig = BrokerRig()
    one, two = rig.follow("a.*", mode="shared"), rig.follow("*.x", mode="shared")
    rig.publish("a.x", b"1", b"2", b"3", b"4")
    assert rig.shown(one.take(TAKE_BYTES), two.take(TAKE_BYTES)) == ["a.x 0-1 x1", "a.x 2-2 x1"]
    one.close()
    assert sorted(rig.take(two)) == [(0, 2), (1, 1), (3, 1)]


def test_the_other_mode_on_one_topic_refuses_the_pattern() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    worker = rig.subscribe("a.y", mode="shared")
    with pytest.raises(ModeConflict, match=r"a\.y"):
        rig.follow("a.*")
    assert not worker.closed


def test_a_topic_with_too_many_consumers_does_not_break_the_others(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig(max_consumers=1)
    rig.subscribe("a.x", "other")
    rig.publish("a.y", b"1")
    with caplog.at_level(logging.WARNING):
        subscription = rig.follow("a.*")
    assert list(subscription.parts) == ["a.y"]
    assert caplog.text.count("there are 1 consumers of a.x") == 1
    with pytest.raises(TooManyConsumers):
        rig.poll("a.x")


def test_thousands_of_topics_are_attached_and_left_in_pieces() -> None:
    rig = BrokerRig()
    count = 3 * TOPICS_PER_TURN
    for n in range(count):
        rig.broker.topic_or_new(f"a.{n}")
    subscription = PatternSubscription(
        TopicPattern("a.*"), "c", mode="exclusive", window=9, visibility_s=None, start=None,
        wake=lambda _: True, ended=lambda *_: None,
    )  # fmt: skip
    rig.broker.follow(subscription)
    assert len(subscription.parts) == TOPICS_PER_TURN
    assert not subscription.registered
    rig.loop.advance(1)
    assert (len(subscription.parts), subscription.registered) == (count, True)
    subscription.close()
    assert len(subscription.parts) == count - TOPICS_PER_TURN
    rig.loop.drain()
    assert subscription.parts == {}
    assert not any(channel.sessions for topic in rig.broker.topics.values() for channel in topic.channels.values())


def test_it_is_registered_when_its_new_consumers_are_on_the_disk() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.publish("a.y", b"1")
    rig.follow("a.*")
    rig.reopen(power_cut=True)
    assert [consumers(rig, name) for name in ("a.x", "a.y")] == [["c"], ["c"]]


def test_a_start_that_cannot_be_stored_refuses_the_pattern_and_leaves_nothing() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.disk.fail("rename", 1, errno.EIO, path="a.x")
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        rig.follow("a.*", start="latest")
    assert consumers(rig, "a.x") == []


def test_a_topic_that_cannot_be_read_harms_no_other_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.publish("a.y", b"2")
    rig.reopen()
    subscription = rig.follow("a.*")
    rig.disk.fail("pread", 1, errno.ENOMEM, path="a.x")
    assert rig.shown(subscription.take(TAKE_BYTES), subscription.take(TAKE_BYTES)) == ["a.y 0-0 x1"]
    assert "cannot read a.x" in caplog.text
    rig.loop.advance(RETRY_S)
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["a.x 0-0 x1"]


def test_shutting_down_ends_a_pattern_by_its_own_name() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.follow("a.*")
    rig.subscribe("b")
    rig.broker.stop_deliveries()
    assert sorted(rig.ended) == ["SHUTTING_DOWN", "a.* SHUTTING_DOWN"]


# -- polls


def test_a_poll_takes_what_there_is_and_its_leases_outlive_it() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1", b"2", b"3")
    poll = rig.poll("t", visibility_s=10)
    assert rig.shown(*poll.take(2, TAKE_BYTES)) == ["t 0-1 x1"]
    poll.close()
    poll = rig.poll("t")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 2-2 x1"]
    poll.close()
    rig.advance(10.1)
    assert rig.shown(*rig.poll("t").take(9, TAKE_BYTES)) == ["t 0-0 x2", "t 1-1 x1"], "the lowest counts"
    assert rig.ack("t", 0, 1) == 2


def test_a_poll_is_bounded_in_messages_and_bytes_but_takes_one() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    rig.publish("t", *[bytes(1000)] * 20)
    assert sum(map(len, rig.poll("t").take(99, 5000))) == 5
    assert sum(map(len, rig.poll("t").take(99, 1))) == 1
    rig.publish("u", *[b""] * (MESSAGES_PER_POLL + 1))
    assert sum(map(len, rig.poll("u").take(10**6, TAKE_BYTES))) == MESSAGES_PER_POLL


def test_polls_that_wait_are_served_in_order() -> None:
    rig = BrokerRig()
    order: list[int] = []

    def waker(n: int) -> Callable[[], bool]:
        return lambda: order.append(n) or True  # type: ignore[func-returns-value]

    polls = [rig.poll("t", wake=waker(n)) for n in range(3)]
    assert [poll.take(1, TAKE_BYTES) for poll in polls] == [[], [], []]
    for n in range(3):
        rig.publish("t", b"x")
        assert order == list(range(n + 1)), "one message, one poll"
        assert rig.shown(*polls[n].take(9, TAKE_BYTES)) == [f"t {n}-{n} x1"]


def test_nothing_is_lost_when_a_poll_that_was_woken_goes_away() -> None:
    rig = BrokerRig()
    order: list[str] = []
    gone = rig.poll("t", wake=lambda: order.append("gone") or True)  # type: ignore[func-returns-value]
    stays = rig.poll("t", wake=lambda: order.append("stays") or True)  # type: ignore[func-returns-value]
    assert gone.take(9, TAKE_BYTES) == stays.take(9, TAKE_BYTES) == []
    rig.publish("t", b"x")
    gone.close()
    assert order == ["gone", "stays"]
    assert rig.shown(*stays.take(9, TAKE_BYTES)) == ["t 0-0 x1"], "and no attempt was counted"


def test_what_a_poll_took_and_did_not_send_goes_back_uncounted() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1", b"2")
    poll = rig.poll("t")
    (delivery,) = poll.take(9, TAKE_BYTES)
    poll.close()
    delivery.subscription.unsend(1, 1)
    assert rig.shown(*rig.poll("t").take(9, TAKE_BYTES)) == ["t 1-1 x1"]


def test_a_poll_takes_over_from_nobody_and_a_session_not_from_it() -> None:
    rig = BrokerRig()
    alone = rig.subscribe("t")
    poll = rig.poll("t")
    assert poll.take(9, TAKE_BYTES) == []
    rig.subscribe("t")
    assert (alone.closed, poll.closed, poll.problem) == (True, False, None)
    rig.publish("t", b"1", b"2")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 0-0 x1"]
    for mode in ("exclusive", "shared"):
        rig.poll("made", f"by-poll-{mode}").close()
        rig.subscribe("made", f"by-poll-{mode}", mode=mode)  # type: ignore[arg-type]


def test_a_consumer_that_a_poll_made_is_shared_and_on_the_disk() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    rig.poll("t").close()
    (found,) = rig.broker.topic("t").describe()["consumers"]
    assert (found["mode"], found["sessions"]) == ("shared", 0)
    rig.reopen(power_cut=True)
    assert consumers(rig, "t") == ["c"]


def test_a_disk_that_refuses_the_registration_does_not_refuse_the_poll() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    rig.disk.fail("rename", 1, errno.ENOSPC, path="/t/")
    assert rig.shown(*rig.poll("t").take(9, TAKE_BYTES)) == ["t 0-0 x1"]


def test_a_poll_goes_on_over_a_seek() -> None:
    rig = BrokerRig()
    rig.publish("t", b"1")
    poll = rig.poll("t")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 0-0 x1"]
    assert poll.take(9, TAKE_BYTES) == []
    rig.broker.topic("t").seek("c", EARLIEST)
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["t 0-0 x1"]


@pytest.mark.parametrize("error", [NoSuchTopic, NoSuchConsumer])
def test_what_a_poll_waits_for_is_deleted(error: type[RequestError]) -> None:
    rig = BrokerRig()
    woken: list[bool] = []
    poll = rig.poll("t", wake=lambda: woken.append(True) or True)  # type: ignore[func-returns-value]
    assert poll.take(9, TAKE_BYTES) == []
    if error is NoSuchTopic:
        rig.delete("t")
    else:
        rig.broker.topic("t").forget("c")
    assert woken == [True]
    with pytest.raises(error):
        poll.take(9, TAKE_BYTES)


def test_a_poll_of_a_pattern_hears_of_new_topics_and_shares_with_others() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1", b"2", b"3", b"4")
    woken: list[bool] = []
    poll = rig.poll("a.*", wake=lambda: woken.append(True) or True)  # type: ignore[func-returns-value]
    other = rig.poll("a.x")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.x 0-1 x1"], "half of it is another's"
    other.close()
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.x 2-3 x1"]
    assert poll.take(9, TAKE_BYTES) == []
    woken.clear()
    rig.publish("a.y", b"1")
    assert woken == [True]
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.y 0-0 x1"]
    rig.delete("a.y")
    assert poll.take(9, TAKE_BYTES) == [], "one topic less, and no error"


def test_shutting_down_ends_polls_and_refuses_new_ones() -> None:
    rig = BrokerRig()
    woken: list[str] = []
    one = rig.poll("t", wake=lambda: woken.append("t") or True)  # type: ignore[func-returns-value]
    many = rig.poll("a.*", wake=lambda: woken.append("a.*") or True)  # type: ignore[func-returns-value]
    rig.broker.stop_deliveries()
    assert sorted(woken) == ["a.*", "t"]
    assert (one.closed, one.take(9, TAKE_BYTES), many.closed) == (True, [], True)
    with pytest.raises(ShuttingDown):
        rig.poll("t")
