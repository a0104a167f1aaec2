"""PULLs of a pattern, which share their places at its topics. What all polls have in common: ``test_poll.py``."""

import logging
from collections.abc import Callable

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.subscription import AnyPoll
from toymq_py.subscription.pattern_poll import PART_COST_BYTES

TAKE_BYTES = 1 << 20


def takers(rig: BrokerRig) -> list[int]:
    """Return the number of waiting places at each topic."""
    return [sum(channel.takers for channel in topic.channels.values()) for topic in rig.broker.topics.values()]


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    for n in range(40):
        rig.broker.topic_or_new(f"a.{n}")
    return rig


def test_a_poll_costs_the_same_however_many_topics_there_are(rig: BrokerRig) -> None:
    """Found by an attack: each of 20,000 pipelined PULLs had an object at each of 200 topics, a gigabyte for 300 KB of
    lines."""
    polls = [rig.poll("a.*") for _ in range(50)]
    assert takers(rig) == [1] * 40
    for poll in polls[:-1]:
        poll.close()
    assert takers(rig) == [1] * 40
    polls[-1].close()
    rig.loop.drain()
    assert takers(rig) == [0] * 40
    assert not rig.broker._subscriptions._groups, "nothing of it stays"


def test_what_a_group_holds_is_charged_to_one_of_its_polls_and_to_the_next_when_that_ends(rig: BrokerRig) -> None:
    charged: list[tuple[int, int]] = []
    polls = [rig.broker.poll("a.*", "c", wake=lambda: True) for _ in range(3)]
    for n, poll in enumerate(polls):
        poll.on_cost = lambda size, n=n: charged.append((n, size))  # type: ignore[union-attr, misc]
    rig.settle(polls[0])
    rig.loop.advance(1)
    whole = 40 * PART_COST_BYTES
    assert charged == [(0, whole)]
    polls[1].close()
    assert charged == [(0, whole)]
    polls[0].close()
    assert charged == [(0, whole), (2, whole)]


def test_polls_of_other_consumers_and_patterns_share_nothing(rig: BrokerRig) -> None:
    rig.poll("a.*", "c"), rig.poll("a.*", "d"), rig.poll("*.1", "c")
    assert [sum(channel.takers for channel in rig.broker.topic(name).channels.values()) for name in ("a.1", "a.2")] == [3, 2]


def woken_by(rig: BrokerRig, count: int, refusing: frozenset[int] = frozenset()) -> tuple[list[AnyPoll], list[int]]:
    """Return polls that found nothing and wait, and the numbers of those that are notified, in order."""
    told: list[int] = []

    def waker(n: int) -> Callable[[], bool]:
        return lambda: told.append(n) or n not in refusing  # type: ignore[func-returns-value]

    polls = [rig.poll("a.*", wake=waker(n)) for n in range(count)]
    assert [poll.take(1, TAKE_BYTES) for poll in polls] == [[] for _ in range(count)]
    return polls, told


def test_each_message_tells_one_poll_and_they_are_served_in_turn(rig: BrokerRig) -> None:
    polls, told = woken_by(rig, 3)
    for n in range(3):
        rig.publish(f"a.{n}", b"x")
        assert told == list(range(n + 1))
        assert rig.shown(*polls[n].take(9, TAKE_BYTES)) == [f"a.{n} 0-0 x1"]
        polls[n].close()


def test_many_messages_at_once_reach_every_poll_that_waits(rig: BrokerRig) -> None:
    polls, told = woken_by(rig, 3)
    rig.publish("a.7", *[b"x"] * 30)
    taken = []
    while told:
        taken += rig.shown(*polls[told.pop(0)].take(1, TAKE_BYTES))
    assert taken[:3] == ["a.7 0-0 x1", "a.7 1-1 x1", "a.7 2-2 x1"]


def test_what_a_poll_was_told_of_is_for_the_next_when_it_ends_or_cannot_take(rig: BrokerRig) -> None:
    polls, told = woken_by(rig, 4, refusing=frozenset((2,)))
    rig.publish("a.7", b"x")
    polls[0].close()
    assert told == [0, 1]
    polls[1].wake_others()
    assert told == [0, 1, 2, 3], "the third cannot take now"
    assert rig.shown(*polls[3].take(9, TAKE_BYTES)) == ["a.7 0-0 x1"], "and no attempt was counted"


def test_what_no_poll_of_the_group_can_take_is_for_other_takers(rig: BrokerRig) -> None:
    (poll,), told = woken_by(rig, 1)
    other = rig.subscribe("a.7", mode="shared")
    assert other.take(TAKE_BYTES) is None
    rig.publish("a.7", b"x")
    assert (told, rig.woken) == ([0], [])
    poll.wake_others()
    assert rig.woken == [other]


def test_polls_share_what_is_ready(rig: BrokerRig) -> None:
    one, two = rig.poll("a.*"), rig.poll("a.*")
    rig.publish("a.1", *[b"x"] * 8)
    assert rig.shown(*one.take(99, TAKE_BYTES)) == ["a.1 0-3 x1"], "half of it is the other's"
    assert rig.shown(*two.take(99, TAKE_BYTES)) == ["a.1 4-5 x1"]


def test_each_poll_has_its_own_leases(rig: BrokerRig) -> None:
    rig.publish("a.1", b"x")
    rig.publish("a.2", b"x")
    short, long = (rig.broker.poll("a.*", "c", visibility_s=seconds, wake=lambda: True) for seconds in (1, 60))
    short.number, long.number = 7, 8
    rig.settle(short)
    assert rig.shown(*short.take(1, TAKE_BYTES), *long.take(1, TAKE_BYTES)) == ["a.1 0-0 x1", "a.2 0-0 x1"]
    channel = rig.broker.topic("a.2").channel("c")
    assert (channel.leased_under([(0, 0)], 7), channel.leased_under([(0, 0)], 8)) == ([], [(0, 0)])
    short.close(), long.close()
    rig.advance(2)
    assert rig.shown(*rig.poll("a.*").take(9, TAKE_BYTES)) == ["a.1 0-0 x2"], "the other lease goes on"


def test_a_poll_after_a_consumer_was_deleted_makes_it_anew_beside_those_that_wait(rig: BrokerRig) -> None:
    waiting = rig.poll("a.*")
    assert waiting.take(1, TAKE_BYTES) == []
    rig.broker.topic("a.3").forget("c")
    assert "c" not in rig.broker.topic("a.3").consumers
    rig.poll("a.*")
    assert "c" in rig.broker.topic("a.3").consumers
    assert not waiting.closed


def test_a_topic_that_was_passed_over_is_tried_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig(max_consumers=1)
    rig.subscribe("a.x", "other")
    rig.publish("a.y", b"1")
    with caplog.at_level(logging.WARNING):
        rig.poll("a.*"), rig.poll("a.*")
    assert caplog.text.count("there are 1 consumers of a.x") == 1, "once for all that wait together"
    rig.broker.topic("a.x").forget("other")
    rig.poll("a.*")
    assert "c" not in rig.broker.topic("a.x").consumers
    rig.advance(6)
    rig.poll("a.*")
    assert "c" in rig.broker.topic("a.x").consumers


def test_a_poll_that_is_closed_before_it_is_registered_tells_so(rig: BrokerRig) -> None:
    poll = rig.broker.poll("a.*", "c", wake=lambda: True)
    told: list[object] = []
    poll.when_registered(told.append)
    poll.close()
    assert (told, poll.take(9, TAKE_BYTES)) == ([None], [])
