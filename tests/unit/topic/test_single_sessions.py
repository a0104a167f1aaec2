"""mode=single with sessions that hang: their leases time out, or they take nothing. ADR 0264."""

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.subscription import PatternSubscription
from toymq_py.topic import Subscription


def rig_with(partitions: int, messages: int = 1) -> BrokerRig:
    rig = BrokerRig()
    for number in range(partitions):
        rig.publish(f"t.{number}", *(b"%d" % at for at in range(messages)))
    return rig


def active_in(*sessions: PatternSubscription) -> list[int]:
    """Return in how many topics each session is active, and check the counts."""
    assert [session.active for session in sessions] == [len(session.active_in) for session in sessions]
    return [session.active for session in sessions]


def work(rig: BrokerRig, session: PatternSubscription) -> list[str]:
    """Let a session ack what it takes, until there is no more. Returns: the topics."""
    done = []
    while (delivery := session.take(1 << 20)) is not None:
        done += rig.shown(delivery)
        rig.ack(delivery.topic, delivery.first_id, delivery.last_id, flush=False)
    return done


def test_one_that_hangs_loses_the_topic_with_its_leases() -> None:
    """Found by a blind attack: the session kept the topic for ever, and its messages became dead letters beside an idle
    session."""
    rig = rig_with(1, messages=3)
    assert rig.change("configure", "t.0", max_attempts="3") == "OK"
    hung, works = (rig.subscribe("t.0", mode="single") for _ in range(2))
    assert rig.take(hung) == [(0, 1), (1, 1), (2, 1)]
    assert rig.take(works) == []
    rig.woken.clear()
    rig.advance(31)
    assert rig.woken == [works], "it is told at once"
    assert rig.take(hung) == []
    assert rig.take(works) == [(0, 2), (1, 1), (2, 1)]
    assert (works.active, hung.active) == (1, 0)
    rig.ack("t.0", 0, 2)
    assert rig.numbers("t.0")["dead_lettered_total"] == 0


def test_what_is_leased_yet_is_settled_before_the_other_one_gets_more() -> None:
    rig = rig_with(1, messages=3)
    hung, works = (rig.subscribe("t.0", mode="single") for _ in range(2))
    assert rig.take(hung) == [(0, 1), (1, 1), (2, 1)]
    rig.advance(20)
    rig.broker.topic("t.0").touch("c", [(0, 0)], 30.0)
    rig.advance(11)
    assert (rig.take(hung), rig.take(works)) == ([], []), "no two have messages of the topic at once"
    rig.ack("t.0", 0, 0)
    assert rig.take(works) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("others", [0, 1])
def test_what_is_behind_a_message_that_timed_out_comes_again_behind_it(others: int) -> None:
    """Found by a blind attack: a handler that drops messages whose lease is over (TOUCH is answered 0), and goes on with later
    deliveries, acked those before the first one, 6 of 6 times."""
    rig = rig_with(1)
    hung, *works = (rig.subscribe("t.0", mode="single") for _ in range(1 + others))
    assert rig.take(hung) == [(0, 1)]
    rig.advance(20)
    rig.publish("t.0", b"later", b"behind")
    assert rig.take(hung) == [(1, 1), (2, 1)]
    rig.advance(11)
    assert rig.take([hung, *works][-1]) == [(0, 2), (1, 1), (2, 1)]


def test_a_message_that_hangs_each_goes_round_and_ends() -> None:
    """Each session hangs on it for one lease, one after the other: no lease is taken away before it has ended."""
    rig = rig_with(1)
    rig.change("configure", "t.0", max_attempts="4")
    sessions = [rig.subscribe("t.0", mode="single") for _ in range(2)]
    for attempt in range(1, 5):
        taken = [rig.take(session) for session in sessions]
        assert taken == ([[(0, attempt)], []] if attempt % 2 else [[], [(0, attempt)]])
        for _ in range(2):
            rig.advance(10)
            assert [rig.take(session) for session in sessions] == [[], []]
        rig.advance(11)
    assert rig.numbers("t.0")["dead_lettered_total"] == 1


def test_one_that_hangs_on_one_topic_gets_no_more_of_the_others() -> None:
    """Found: with a window of 1 the session lost one partition each visibility timeout, and kept eight for four minutes."""
    rig = rig_with(8)
    hung = rig.follow("t.*", mode="single", window=1)
    assert len(rig.take(hung)) == 1
    works = rig.follow("t.*", mode="single", window=1)
    assert len(work(rig, works)) in (3, 4), "in one of its topics the other one has a message"
    rig.advance(31)
    assert rig.take(hung) == []
    assert len(work(rig, works)) in (4, 5)
    assert active_in(hung, works) == [0, 8]


def test_one_that_takes_nothing_any_more_loses_what_it_does_not_hold() -> None:
    """The session's socket is full: it holds messages of one topic, and none of the others, so there no lease could end."""
    rig = rig_with(6)
    hung, works = (rig.follow("t.*", mode="single") for _ in range(2))
    assert hung.take(1 << 20) is not None
    assert len(work(rig, works)) == 3
    for _ in range(2):
        rig.advance(31)
    assert len(work(rig, works)) == 3
    assert active_in(hung, works) == [0, 6]


def all_hang() -> tuple[BrokerRig, list[Subscription]]:
    """Return three sessions after 90 s, in which each had message 0 for its time; the first one has its turn again, and message
    1 is ready in 10 s."""
    rig = rig_with(1, messages=2)
    sessions = [rig.subscribe("t.0", mode="single", window=window) for window in (2, 1, 1)]
    assert len(rig.take(sessions[0])) == 2
    rig.nack("t.0", 1, 1, delay_s=100)
    for at, session in enumerate(sessions):
        assert at == 0 or rig.take(session) == [(0, at + 1)]
        rig.advance(30)
    return rig, sessions


def actives(rig: BrokerRig, sessions: list[Subscription], count: int) -> list[int]:
    """Return which session has its turn after 10 s, 20 s and so on; a successor that waits does not have it."""
    found = []
    for _ in range(count):
        rig.advance(10)
        single = rig.broker.topic("t.0").channel("c").single
        assert single is not None
        found += [at for at, session in enumerate(sessions) if session is single.taker]
    return found


def test_where_all_hang_and_take_nothing_each_has_a_visibility_timeout() -> None:
    rig, sessions = all_hang()
    assert actives(rig, sessions, 9) == [0, 0, 1, 1, 1, 2, 2, 2, 0]


def test_where_all_hang_one_that_takes_something_has_the_time_of_its_lease() -> None:
    rig, sessions = all_hang()
    assert actives(rig, sessions, 2) == [0, 0]
    assert rig.shown(sessions[0].take_some(1, 1 << 20)) == ["t.0 0-0 x4"]
    assert actives(rig, sessions, 3) == [0, 0, 1]


def test_a_paused_one_loses_what_times_out_and_gets_nothing_of_one_that_hangs() -> None:
    rig = rig_with(2)
    first, second = (rig.follow("t.*", mode="single") for _ in range(2))
    first.pause(True)
    assert len(rig.take(second)) == 2
    rig.advance(31)
    assert active_in(first, second) == [0, 2]
    first.pause(False)
    assert rig.take(second) == []
    assert len(rig.take(first)) == 2
    first.pause(True)
    third = rig.follow("t.*", mode="single")
    rig.advance(31)
    assert active_in(first, second, third) == [0, 0, 2]


def test_what_is_behind_the_lowest_of_several_that_timed_out_comes_again_behind_it() -> None:
    """The message that came first, and counts, may have a higher id: delayed ones with lower ids came after it."""
    rig = BrokerRig()
    rig.broker.topic_or_new("t.0").publisher.publish([b""] * 3, [b"x"] * 3, [b""] * 3, delays_ms=[5_000, 8_000, 0])
    rig.loop.drain()
    session = rig.subscribe("t.0", mode="single", window=3)
    assert rig.take(session) == [(2, 1)]
    rig.advance(5)
    assert rig.take(session) == [(0, 1)]
    rig.broker.topic("t.0").touch("c", [(2, 2)], 30.0)
    rig.advance(3)
    assert rig.take(session) == [(1, 1)]
    rig.advance(28)
    assert rig.take(session) == [(0, 1), (1, 1), (2, 2)], "2 was in hand; 1 was leased still"


def test_what_is_behind_a_message_that_is_given_back_waits_as_long() -> None:
    """Found by a blind attack: one NACK broke the order, even with a window of 1, as the next message was delivered before the
    redelivery."""
    rig = rig_with(1, messages=4)
    first, second = (rig.subscribe("t.0", mode="single", window=3) for _ in range(2))
    assert rig.take(first) == [(0, 1), (1, 1), (2, 1)]
    rig.nack("t.0", 1, 1, delay_s=3)
    assert rig.take(first) == []
    rig.ack("t.0", 0, 0)
    assert rig.take(first) == []
    first.close()
    assert rig.take(second) == []
    rig.woken.clear()
    rig.advance(3)
    assert rig.woken == [second]
    assert rig.take(second) == [(1, 2), (2, 1), (3, 1)]


def test_one_that_is_paused_hands_over_and_has_its_share_again_when_it_goes_on() -> None:
    """Found by a blind attack: the paused session's topics stood still until RESUME, while another session worked."""
    rig = rig_with(2, messages=2)
    first, second = (rig.follow("t.*", mode="single", window=1) for _ in range(2))
    assert rig.shown(first.take(1 << 20)) == ["t.1 0-0 x1"]
    first.pause(True)
    assert (first.active, second.active) == (0, 2), "of the topic of what it has another one is the heir"
    assert work(rig, second) == ["t.0 0-0 x1", "t.0 1-1 x1"]
    rig.ack("t.1", 0, 0, flush=False)
    assert work(rig, second) == ["t.1 1-1 x1"]
    assert active_in(first, second) == [0, 2]
    second.pause(True)
    assert active_in(first, second) == [0, 2], "no other one could"
    first.pause(False)
    assert active_in(first, second) == [2, 0]
    second.pause(False)
    assert active_in(first, second) == [1, 1]
    rig.publish("t.0", b"x")
    rig.publish("t.1", b"x")
    assert sorted(work(rig, first) + work(rig, second)) == ["t.0 2-2 x1", "t.1 2-2 x1"]


def late_ack(rig: BrokerRig, session: PatternSubscription, name: str) -> None:
    """Ack message 0 as ``Deliveries.settles`` does for a late session."""
    session.late = False
    rig.ack(name, 0, 0)


def test_one_that_settles_something_again_has_its_share_again() -> None:
    rig = rig_with(4)
    slow, works = (rig.follow("t.*", mode="single") for _ in range(2))
    assert len(rig.take(slow)) == 2
    held = slow.active_in
    rig.advance(31)
    work(rig, works)
    assert active_in(slow, works) == [0, 4]
    late_ack(rig, slow, held[0])
    for number in range(4):
        rig.publish(f"t.{number}", b"next")
    for _ in range(2):
        work(rig, works)
        work(rig, slow)
    assert active_in(slow, works) == [2, 2]


def test_a_topic_without_messages_stays_where_it_is() -> None:
    rig = rig_with(2)
    hung, works = (rig.follow("t.*", mode="single") for _ in range(2))
    work(rig, hung)
    work(rig, works)
    hung.late = True
    rig.advance(100)
    assert active_in(hung, works) == [1, 1]
