"""A message that waited in a window is handed out only while its lease is still this client's. ADR 0092."""

import random

import pytest

from toymq.confirmation import confirmation
from toymq.delivery_window import CONFIRM_S, Feed
from toymq.message import parse_ranges
from toymq_py.errors import ConnectionLost
from toymq_py.protocol import MessagePush, OkReply, Subscribe

TOPICS = ("a", "b")


def push(topic: str, msg_id: int, attempt: int = 1) -> MessagePush:
    return MessagePush(topic, msg_id, attempt, 0, b"", b"", b"x")


def feed_of(*pushes: MessagePush, at: float = 0.0) -> Feed:
    feed = Feed(Subscribe("*", "c"), lambda: None)
    feed.subscribed()
    for one in pushes:
        feed.came(at)
        feed.arrive(one)
    return feed


def run(feed: Feed, ours: set[tuple[str, int]], lease: int | None = 7, at: float = 100.0) -> int:
    """Answer as a broker that has leased these messages to this client. Returns: how many TOUCH it got."""
    count = 0
    for asked in confirmation(feed, lease, lambda: at):
        assert asked
        for slot in asked:
            count += 1
            verb, topic, consumer, ids, option = slot.frame().decode().split()
            assert (verb, consumer, option) == ("TOUCH", "c", "lease=7")
            asked_ids = [msg_id for first, last in parse_ranges(ids) for msg_id in range(first, last + 1)]
            slot.answered(OkReply(sum((topic, msg_id) in ours for msg_id in asked_ids)))
    return count


def drain(feed: Feed) -> list[tuple[str, int]]:
    taken = []
    while (one := feed.take()) is not None:
        taken.append((one.topic, one.msg_id))
    return taken


@pytest.mark.parametrize("seed", range(50))
def test_what_another_worker_has_is_not_handed_out_and_the_rest_is_in_order(seed: int) -> None:
    rng = random.Random(seed)
    places = [(topic, msg_id) for topic in TOPICS for msg_id in sorted(rng.sample(range(60), rng.randrange(1, 30)))]
    rng.shuffle(places)
    attempts = {place: rng.choice([1, 1, 2]) for place in places}
    feed = feed_of(*(push(*place, attempts[place]) for place in places))
    if rng.random() < 0.5:  # some came twice
        for place in rng.sample(places, len(places) // 2):
            feed.arrive(push(*place, 3))
    waiting = feed.waiting()
    ours = {place for place in places if rng.random() < rng.choice([0.0, 0.5, 1.0])}
    count = run(feed, ours)
    doubtful = {topic for topic in TOPICS if any(place[0] == topic and place not in ours for place in places)}
    assert count <= len(TOPICS) + sum(place[0] in doubtful for place in waiting)
    assert drain(feed) == [place for place in waiting if place in ours]


def test_it_is_asked_when_something_has_waited() -> None:
    feed = feed_of()
    assert not feed.is_stale(1000.0), "nothing waits"
    feed = feed_of(push("a", 0), at=100.0)
    assert (feed.is_stale(100.0 + CONFIRM_S), feed.is_stale(100.1 + CONFIRM_S)) == (False, True)
    assert run(feed, {("a", 0)}, at=200.0) == 1
    assert (feed.is_stale(200.0), feed.is_stale(201.0)) == (False, True), "the leases began anew"
    feed.kept_s = 30.0
    assert (feed.is_stale(215.0), feed.is_stale(215.1)) == (False, True), "auto_extend renews them, if nothing holds it up"


def test_what_comes_behind_the_answer_is_ours_and_what_came_before_it_is_not() -> None:
    """A delivery that arrived before the answer lay unread in the socket, and has gone to another worker since."""
    feed = feed_of(push("a", 0), push("a", 1), push("a", 2))
    steps = confirmation(feed, 7, lambda: 100.0)
    (slot,) = next(steps)
    feed.arrive(push("a", 0, 2))
    slot.answered(OkReply(1))
    singles = next(steps)
    feed.arrive(push("a", 1, 2))
    for single in singles:
        msg_id = int(single.frame().split()[3])
        single.answered(OkReply(1 if msg_id == 2 else 0))
    feed.arrive(push("a", 1, 3))
    assert list(steps) == []
    assert sorted(drain(feed)) == [("a", 1), ("a", 2)]


def test_what_came_while_it_was_asked_is_as_old_as_it_was() -> None:
    feed = feed_of(push("a", 0), at=90.0)
    steps = confirmation(feed, 7, lambda: 100.0)
    (slot,) = next(steps)
    feed.came(50.0)
    feed.arrive(push("a", 1))
    slot.answered(OkReply(1))
    assert list(steps) == []
    assert feed.is_stale(100.0)


def test_a_broker_that_knows_no_numbers_is_not_asked() -> None:
    feed = feed_of(push("a", 0))
    assert run(feed, set(), lease=None) == 0
    assert not feed.is_stale(100.0)
    assert drain(feed) == [("a", 0)]


def test_a_connection_that_is_lost_meanwhile_drops_nothing() -> None:
    feed = feed_of(push("a", 0))
    for asked in confirmation(feed, 7, lambda: 100.0):
        asked[0].failed(ConnectionLost("gone"))
    assert drain(feed) == [("a", 0)]
