"""One window over the topics of a pattern. Contract: delivery.md, "Window"; protocol.md, SUB."""

import errno

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import EARLIEST, Mode, Start
from toymq_py.subscription import PatternSubscription
from toymq_py.subscription.pattern_subscription import ALONE_S, RETRY_S

TAKE_BYTES = 1 << 20


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
    assert sorted(rig.broker.topic("b").consumers) == []
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
    """A subscription that is notified for one topic may fill its window from another one first."""
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
    assert (list(subscription.parts), subscription.inflight, subscription.closed) == (["a.z", "a.y"], 1, False)
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["a.y 0-0 x1"], "it goes on from the new position"


@pytest.mark.parametrize("count", [1, 2])
def test_a_topic_goes_on_from_where_its_consumer_was_moved(count: int) -> None:
    """Found: after a SEEK on one topic it delivered nothing more until the session subscribed again, which it cannot do for one
    topic."""
    rig = BrokerRig()
    for name in ("a.x", "a.y"):
        rig.publish(name, b"1", b"2")
    mode: Mode = "exclusive" if count == 1 else "shared"
    woken: list[PatternSubscription] = []
    subscriptions = [rig.follow("a.*", mode=mode, wake=lambda each: woken.append(each) is None) for _ in range(count)]

    def taken() -> list[str]:
        return sorted(shown for each in subscriptions for _ in range(3) for shown in rig.shown(each.take(TAKE_BYTES)))

    assert len(taken()) == 2 * count
    for target, expected in ((EARLIEST, [0, 1]), (Start("id", 1), [1]), (Start("latest"), [])):
        woken.clear()
        rig.broker.topic("a.x").seek("c", target)
        assert woken or not expected
        assert [list(each.parts) for each in subscriptions] == [["a.y", "a.x"]] * count
        assert [each.matched for each in subscriptions] == [2] * count, "SUB is answered with the topics, not with the moves"
        if count == 1:
            assert taken() == [f"a.x {expected[0]}-{expected[-1]} x1" for _ in expected[:1]]
        else:
            assert taken() == [f"a.x {msg_id}-{msg_id} x1" for msg_id in expected]
    rig.publish("a.x", b"3")
    assert taken() == ["a.x 2-2 x1"]


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


def lost_twice(rig: BrokerRig, *topics: str) -> None:
    for topic in topics:
        rig.publish(topic, b"1")
    for _ in range(2):
        session = rig.follow("a.*", mode="shared")
        while session.take(TAKE_BYTES) is not None:
            pass
        session.close()


def test_what_came_back_twice_without_an_answer_comes_alone() -> None:
    """With other messages at the same time, it would not be known which of them kills the application."""
    rig = BrokerRig()
    lost_twice(rig, "a.x", "a.y")
    rig.publish("a.z", b"1")
    session = rig.follow("a.*", mode="shared")
    assert rig.shown(session.take(TAKE_BYTES), session.take(TAKE_BYTES)) == ["a.x 0-0 x3"]
    assert session.wants_room
    rig.ack("a.x", 0, 0)
    assert rig.shown(session.take(TAKE_BYTES), session.take(TAKE_BYTES)) == ["a.y 0-0 x1"]
    rig.ack("a.y", 0, 0)
    rig.publish("a.x", b"2")
    assert sorted(rig.shown(session.take(TAKE_BYTES), session.take(TAKE_BYTES))) == ["a.x 1-1 x1", "a.z 0-0 x1"]


def test_a_session_waits_for_it_with_what_it_has_and_looks_again_when_another_one_takes_it() -> None:
    rig = BrokerRig()
    woken: list[PatternSubscription] = []
    rig.publish("a.w", b"1")
    busy = rig.follow("a.*", mode="shared", wake=lambda one: woken.append(one) or True)  # type: ignore[func-returns-value]
    assert rig.shown(busy.take(TAKE_BYTES)) == ["a.w 0-0 x1"]
    lost_twice(rig, "a.x")
    rig.publish("a.x", b"2")
    assert busy.take(TAKE_BYTES) is None
    other = rig.subscribe("a.x", mode="shared", window=1)
    woken.clear()
    assert rig.shown(other.take(TAKE_BYTES)) == ["a.x 0-0 x3"]
    assert woken == [busy]
    assert rig.shown(busy.take(TAKE_BYTES)) == ["a.x 1-1 x1"]


def test_it_is_alone_and_waited_for_a_moment_only() -> None:
    """Found by an attack: a job of an hour that was lost twice blocked all others of its worker for an hour, and a client that
    acks fifty at a time got nothing more."""
    rig = BrokerRig()
    woken: list[PatternSubscription] = []
    lost_twice(rig, "a.x", "a.y")
    rig.publish("a.z", b"1")
    session = rig.follow("a.*", mode="shared", wake=lambda one: woken.append(one) or True)  # type: ignore[func-returns-value]
    for came in (["a.x 0-0 x3"], ["a.y 0-0 x1"], ["a.z 0-0 x1"]):
        assert rig.shown(session.take(TAKE_BYTES), session.take(TAKE_BYTES)) == came
        woken.clear()
        rig.advance(ALONE_S)
        assert (woken == [session]) is (came != ["a.z 0-0 x1"])


def test_a_poll_has_nothing_beside_it() -> None:
    rig = BrokerRig()
    lost_twice(rig, "a.x", "a.y")
    rig.publish("a.z", b"1", b"2")
    poll, more = rig.poll("a.*"), rig.poll("a.*")
    assert rig.shown(*poll.take(9, TAKE_BYTES)) == ["a.x 0-0 x3"]
    assert rig.shown(*more.take(9, TAKE_BYTES)) == ["a.y 0-0 x1"]
