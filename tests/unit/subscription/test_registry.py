"""Which patterns are attached to which topics. Contract: delivery.md, "Window"; protocol.md, SUB and PULL; ADR 0020."""

import errno
import logging
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.errors import ModeConflict, TooManyConsumers
from toymq_py.names import TopicPattern
from toymq_py.subscription import PatternSubscription
from toymq_py.subscription.registry import TOPICS_PER_TURN
from toymq_py.topic import Delivery

TAKE_BYTES = 1 << 20


def consumers(rig: BrokerRig, topic: str) -> list[str]:
    return sorted(rig.broker.topic(topic).consumers)


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


def test_the_same_pattern_takes_over_the_whole() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1")
    rig.publish("a.y", b"1")
    old = rig.follow("a.*")
    rig.take(old)
    new = rig.follow("a.*")
    assert (rig.ended, old.closed) == (["a.* TAKEN_OVER"], True)
    assert sorted(rig.take(new)) == [(0, 1), (0, 2)], "of a whole that is taken over, one message counts"
    rig.publish("a.z", b"1")
    assert (list(old.parts), "a.z" in new.parts) == ([], True)


def work(rig: BrokerRig, way: str, poison: tuple[str, int]) -> bool:
    """Run one worker: it takes messages as it has room, and acks one after the other until it dies or hangs. Returns: whether
    it did."""
    session, held = None if way == "poll" else rig.follow("a.*", window=20), deque[tuple[str, int]]()
    while True:
        taken: list[Delivery | None] = []
        if session is not None:
            while (delivery := session.take(TAKE_BYTES)) is not None:
                taken.append(delivery)
        elif not held:
            poll = rig.poll("a.*")
            taken += poll.take(20, TAKE_BYTES)
            poll.close()
        held += [(one.topic, msg_id) for one in taken if one is not None for first, last in one.ranges()
                 for msg_id in range(first, last + 1)]  # fmt: skip
        if not held or held[0] == poison:
            if way != "session":
                rig.advance(31)
            if session is not None:
                session.close()
            return bool(held)
        topic, msg_id = held.popleft()
        rig.ack(topic, msg_id, msg_id, flush=False)


@pytest.mark.parametrize("poison", [("a.p", 0), ("a.p", 5), ("a.r", 5)])
@pytest.mark.parametrize("way", ["session", "time-out", "poll"])
def test_poison_of_one_topic_takes_nothing_of_the_others_along(way: str, poison: tuple[str, int]) -> None:
    """Found: the lowest message of each topic counted an attempt with it: two of three dead letters were healthy."""
    rig = BrokerRig(max_attempts=4)
    topics = ("a.p", "a.q", "a.r")
    for topic in topics:
        rig.publish(topic, *[b"x"] * 40)
    losses = sum(work(rig, way, poison) for _ in range(20))
    letters = {name: topic.log.committed_id for name, topic in rig.broker.topics.items() if name.endswith(".dlq")}
    assert (letters, losses) == ({f"{poison[0]}.dlq": 1}, 4)
    assert not any(rig.broker.topic(topic).describe()["consumers"][0]["backlog"] for topic in topics)


@pytest.mark.parametrize("way", ["session", "time-out", "poll"])
def test_poison_that_comes_ahead_of_what_had_been_delivered_before_is_what_counts(way: str) -> None:
    """Found by an attack: a worker died with its window. The messages that it had not begun were first delivered before the
    poison, so they counted in its place, and came behind it each time: 40 of 40 healthy messages became dead letters, and the
    poison did not."""
    rig = BrokerRig(max_attempts=4)
    for topic in ("a.q", "a.r"):
        rig.publish(topic, *[b"x"] * 20)
    first = rig.follow("a.*", window=50)
    while first.take(TAKE_BYTES) is not None:
        rig.advance(0.01)
    first.close()
    rig.publish("a.p", b"poison")
    losses = sum(work(rig, way, ("a.p", 0)) for _ in range(20))
    letters = {name: topic.log.committed_id for name, topic in rig.broker.topics.items() if name.endswith(".dlq")}
    assert letters == {"a.p.dlq": 1}
    assert 4 <= losses <= 5, "one more where it hangs: its session counts nothing then"
    assert not any(rig.broker.topic(topic).describe()["consumers"][0]["backlog"] for topic in ("a.q", "a.r"))


def work_at_once(rig: BrokerRig, poison: tuple[str, int], fresh: Iterator[str]) -> bool:
    """Run a worker with ten handlers of four ticks each; poison kills it in the third. Returns: whether it did."""
    session, held = rig.follow("a.*", window=10), dict[tuple[str, int], int]()
    while True:
        for topic in islice(fresh, 2):
            rig.publish(topic, b"new")
        while (delivery := session.take(TAKE_BYTES)) is not None:
            for first, last in delivery.ranges():
                held |= {(delivery.topic, msg_id): 4 for msg_id in range(first, last + 1)}
        if not held or held.get(poison) == 2:
            session.close()
            return bool(held)
        rig.advance(0.005)
        held = {one: left - 1 for one, left in held.items()}
        for topic, msg_id in [one for one, left in held.items() if not left]:
            del held[topic, msg_id]
            rig.ack(topic, msg_id, msg_id, flush=False)


@pytest.mark.parametrize("poison", [("a.0", 0), ("a.3", 4), ("a.7", 2)])
def test_poison_among_ten_handlers_comes_to_an_end_while_messages_keep_coming(poison: tuple[str, int]) -> None:
    """Found: fresh messages of other topics, different each time, counted in its place: 586 losses, and no end."""
    rig = BrokerRig(max_attempts=4)
    topics = [f"a.{number}" for number in range(8)]
    for topic in topics:
        rig.publish(topic, *[b"x"] * 6)
    fresh = iter(topics * 200)
    losses = 0
    while work_at_once(rig, poison, fresh):
        losses += 1
    letters = {name: topic.log.committed_id for name, topic in rig.broker.topics.items() if name.endswith(".dlq")}
    assert letters == {f"{poison[0]}.dlq": 1}
    assert losses <= 4 * 4, "some count a healthy message, until what was lost twice comes alone"


def work_and_hang(rig: BrokerRig, poisons: set[tuple[str, int]], leases: int) -> bool:
    """Run a worker that takes as it has room, and hangs for some leases on poison: the first three messages that any worker
    handles. Returns: whether it did."""
    session, held = rig.follow("a.*", window=1000), deque[tuple[str, int]]()
    while True:
        while (one := session.take(TAKE_BYTES)) is not None:
            held += [(one.topic, msg_id) for first, last in one.ranges() for msg_id in range(first, last + 1)]
        if not held:
            return False
        if len(poisons) < 3:
            poisons.add(held[0])
        if held[0] in poisons:
            break
        topic, msg_id = held.popleft()
        rig.ack(topic, msg_id, msg_id, flush=False)
    for _ in range(leases):
        rig.advance(31)
        while session.take(TAKE_BYTES) is not None:
            pass
    session.close()
    return True


@pytest.mark.parametrize("leases", [1, 2, 4])
@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_what_comes_to_a_worker_that_hangs_for_several_leases_does_not_die_with_its_poison(leases: int, deaths: int) -> None:
    """Found by an attack: when the first lease of a worker that hangs ended, new messages came into its window, and each
    further lease counted one of them."""
    rig = BrokerRig(max_attempts=3)
    topics = [f"a.{number}" for number in range(8)]
    for topic in topics:
        rig.publish(topic, *[b"x"] * 5)
    for _ in range(deaths):
        session = rig.follow("a.*", window=1000)
        while session.take(TAKE_BYTES) is not None:
            pass
        session.close()
    poisons, hangs = set[tuple[str, int]](), 0
    while work_and_hang(rig, poisons, leases):
        hangs += 1
    letters = Counter({name: topic.log.committed_id for name, topic in rig.broker.topics.items() if name.endswith(".dlq")})
    assert letters == Counter(f"{topic}.dlq" for topic, _ in poisons)
    assert hangs <= 3 * 3
    assert not any(rig.broker.topic(topic).describe()["consumers"][0]["backlog"] for topic in topics)


def test_a_topic_of_a_pattern_that_is_deleted_leaves_the_others_counting() -> None:
    """Found: after the deletion the loss of the whole subscription counted no attempt."""
    rig = BrokerRig()
    rig.publish("a.x", b"1", b"2")
    rig.publish("a.y", b"1", b"2")
    old = rig.follow("a.*")
    rig.take(old)
    rig.broker.delete("a.x", lambda count, error: None)
    rig.loop.advance(1)
    old.close()
    assert rig.take(rig.follow("a.*")) == [(0, 2), (1, 1)]


def test_a_poll_counts_in_another_topic_when_the_first_is_deleted() -> None:
    rig = BrokerRig()
    rig.publish("a.x", b"1", b"2")
    rig.publish("a.y", b"1", b"2")
    poll = rig.poll("a.*")
    assert rig.shown(*poll.take(10, TAKE_BYTES)) == ["a.x 0-1 x1", "a.y 0-1 x1"]
    poll.close()
    rig.broker.delete("a.x", lambda count, error: None)
    rig.advance(31)
    assert rig.shown(*rig.poll("a.*").take(10, TAKE_BYTES)) == ["a.y 0-0 x2", "a.y 1-1 x1"]


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


def test_many_patterns_at_a_time_are_attached_in_the_same_pieces_as_one() -> None:
    """Found by an attack: each pattern attached its own piece in every pass of the loop, and other clients waited for the
    sum."""
    rig = BrokerRig()
    count, patterns = 3 * TOPICS_PER_TURN, 20
    for n in range(count):
        rig.broker.topic_or_new(f"a.{n}")
    polls = [rig.broker.poll("a.*", f"c{n}", wake=lambda: True) for n in range(patterns)]
    turns: list[int] = []

    def attached() -> int:
        return sum(len(topic.channels) for topic in rig.broker.topics.values())

    go_on = rig.broker._subscriptions._go_on

    def counted() -> None:
        before = attached()
        go_on()
        turns.append(attached() - before)

    rig.broker._subscriptions._go_on = counted  # type: ignore[method-assign]
    rig.loop.advance(1)
    assert attached() == count * patterns
    assert max(turns) <= TOPICS_PER_TURN
    assert all(poll.group is not None and poll.group.registered for poll in polls)


def test_patterns_that_come_and_go_leave_no_work_behind() -> None:
    rig = BrokerRig()
    for n in range(3 * TOPICS_PER_TURN):
        rig.broker.topic_or_new(f"a.{n}")
    for _ in range(100):
        rig.broker.poll("a.*", "c", wake=lambda: True).close()
    rig.broker._subscriptions._go_on()
    assert not rig.broker._subscriptions._works
