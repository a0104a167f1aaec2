"""mode=single: in each topic one session gets the messages, and another one takes over. ADR 0186."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer import Lessee
from toymq_py.errors import ModeConflict
from toymq_py.topic.single_active import SingleActive


@dataclass(eq=False)
class Session:
    lessee: Lessee = field(default_factory=lambda: Lessee(10))
    paused: bool = False


def test_the_one_that_takes_over_has_the_fewest_active_topics() -> None:
    single: SingleActive[Session] = SingleActive()
    busy, idle, gone = Session(), Session(), Session()
    busy.lessee.active, idle.lessee.active = 3, 1
    single.joined(gone, [gone])
    assert (single.taker, gone.lessee.active) == (gone, 1)
    assert single.left(busy, [gone, idle]) is None, "it was not active"
    assert single.left(gone, [busy, idle]) is idle
    assert (single.active, idle.lessee.active, gone.lessee.active) == (idle, 2, 0)
    assert single.left(idle, []) is None
    assert single.taker is None


def test_the_heir_waits_for_the_last_lease() -> None:
    single: SingleActive[Session] = SingleActive()
    old, new = Session(), Session()
    old.lessee.active = 2
    single.joined(old, [old])
    single.joined(new, [old, new])
    assert (single.active, single.heir, single.taker) == (old, new, None), "none gets anything meanwhile"
    assert (old.lessee.active, new.lessee.active) == (2, 1)
    assert single.settle(lambda lessee: lessee is old.lessee) is None
    assert single.settle(lambda lessee: False) is new
    assert single.taker is new


def test_an_heir_that_goes_leaves_the_topic_where_it_was() -> None:
    single: SingleActive[Session] = SingleActive()
    old, new = Session(), Session()
    old.lessee.active = 2
    single.joined(old, [old])
    single.joined(new, [old, new])
    assert single.left(new, [old]) is old
    assert (single.taker, old.lessee.active, new.lessee.active) == (old, 3, 0)
    single.joined(new, [old, new])
    assert single.left(old, [new]) is new, "the heir of one that goes"
    assert (single.taker, new.lessee.active) == (new, 1)


def attached(*late: bool) -> tuple[SingleActive[Session], list[Session]]:
    """Attach sessions, the first one active in five topics; ``late`` says which of them hang."""
    single: SingleActive[Session] = SingleActive()
    sessions = [Session() for _ in late]
    for session in sessions:
        single.joined(session, sessions)
    for session, is_late in zip(sessions, late, strict=True):
        session.lessee.late = is_late
    sessions[0].lessee.active = 5
    return single, sessions


def test_one_that_hangs_hands_over_to_the_one_with_the_fewest_that_does_not_hang_and_is_not_paused() -> None:
    single, sessions = attached(True, True, False, False, False)
    hung, _, paused, busy, idle = sessions
    paused.paused, busy.lessee.active = True, 1
    assert single.hand_over(sessions, in_turn=False)
    assert (single.active, single.heir, single.taker) == (hung, idle, None)
    assert [session.lessee.active for session in sessions] == [4, 0, 0, 1, 1]
    assert not single.hand_over(sessions, in_turn=True), "there is an heir already"
    assert single.settle(lambda lessee: False) is idle


def test_where_all_hang_each_has_its_turn() -> None:
    single, sessions = attached(True, True, True, True)
    sessions[2].paused = True
    turns = []
    for _ in range(4):
        assert not single.hand_over(sessions, in_turn=False), "it stays where it is"
        assert single.hand_over(sessions, in_turn=True)
        single.settle(lambda lessee: False)
        assert single.active is not None
        turns.append(sessions.index(single.active))
    assert turns == [1, 3, 0, 1]
    assert sum(session.lessee.active for session in sessions) == 5


def test_one_that_is_alone_or_beside_paused_ones_keeps_its_topic() -> None:
    single, sessions = attached(True, False)
    assert not single.hand_over(sessions[:1], in_turn=True)
    sessions[1].paused = True
    assert not single.hand_over(sessions, in_turn=True)
    assert (single.taker, sessions[0].lessee.active) == (sessions[0], 5)


def test_one_that_comes_takes_over_from_one_that_hangs() -> None:
    single, (hung,) = attached(True)
    hung.lessee.active, new = 1, Session()
    single.joined(new, [hung, new])
    assert (single.heir, hung.lessee.active, new.lessee.active) == (new, 0, 1)
    other, (active,) = attached(False)
    hung.lessee.active = 0
    other.joined(hung, [active, hung])
    assert other.taker is active, "one that hangs does not, in a topic that is new"


def test_what_one_leaves_goes_to_one_that_hangs_only_where_all_do() -> None:
    single, (gone, hung, works) = attached(False, True, False)
    works.lessee.active = 3
    assert single.left(gone, [hung, works]) is works
    assert single.left(works, [hung]) is hung


def test_one_that_hung_has_its_share_again_when_it_has_settled_something() -> None:
    single, sessions = attached(True, False)
    hung, works = sessions
    single.hand_over(sessions, in_turn=False)
    hung.lessee.active, works.lessee.active = 0, 5
    single.readmit(sessions)
    assert single.settle(lambda lessee: False) is works
    single.readmit(sessions)
    assert single.taker is works, "it hangs"
    hung.lessee.late = False
    single.readmit(sessions)
    assert (single.heir, hung.lessee.active, works.lessee.active) == (hung, 1, 4)
    single.left(hung, [works])
    works.lessee.active, hung.lessee.active = 5, 0
    single.readmit([works])
    assert single.taker is works


def shares(places: list[list[int]], sessions: int) -> list[int]:
    """Return the shares of sessions that come one after the other, to workers or groups with these partitions each."""
    total = [0] * sessions
    for numbers in places:
        mine = [Session() for _ in range(sessions)]
        singles: list[SingleActive[Session]] = [SingleActive(number) for number in numbers]
        for at, session in enumerate(mine):
            for single in singles:
                single.joined(session, mine[: at + 1])
                single.settle(lambda lessee: False)
        assert sum(session.lessee.active for session in mine) == len(numbers)
        each = [session.lessee.active for session in mine]
        assert max(each) - min(each) <= 1, "of one place they differ by one at most"
        total = [had + session.lessee.active for had, session in zip(total, mine, strict=True)]
    return total


def test_the_oldest_session_has_not_all_where_each_place_has_one_partition() -> None:
    eight = [[number] for number in range(8)]
    assert [shares(eight, count) for count in (1, 2, 3, 4)] == [[8], [4, 4], [3, 3, 2], [3, 1, 2, 2]]
    many = [[number] for number in range(60)]
    assert min(shares(many, 5)) >= 60 / 5 / 2


@pytest.mark.parametrize("count", range(2, 8))
@pytest.mark.parametrize("partitions", [1, 2, 5, 6, 10, 11, 12, 24, 37])
def test_in_one_place_shares_differ_by_one_at_most(partitions: int, count: int) -> None:
    """Found: of six partitions three sessions had 2, 1 and 3."""
    assert sum(shares([list(range(partitions))], count)) == partitions
    assert sum(shares([list(range(1, 2 * partitions, 2))], count)) == partitions, "as one of two places has them"


def test_over_a_few_places_with_many_partitions_shares_are_about_even() -> None:
    three = [list(range(at, 24, 3)) for at in range(3)]
    assert [shares(three, count) for count in (2, 3, 4)] == [[12, 12], [8, 9, 7], [6, 6, 6, 6]]
    two = [list(range(at, 12, 2)) for at in range(2)]
    assert [shares(two, count) for count in (2, 3, 4)] == [[6, 6], [4, 4, 4], [4, 3, 2, 3]]


@pytest.mark.parametrize("places", [[[0, 1, 2], [3, 4, 5]], [[0, 3, 4], [1, 2, 5]], [[0, 2, 4], [1, 3, 5]]])
def test_shares_over_two_places_differ_by_two_at_most(places: list[list[int]]) -> None:
    assert abs(max(shares(places, 2)) - min(shares(places, 2))) <= 2


def test_what_one_leaves_is_shared_by_equals_in_turn() -> None:
    eight: list[SingleActive[Session]] = [SingleActive(number) for number in range(8)]
    gone, *others = (Session() for _ in range(3))
    for single in eight:
        gone.lessee.active, others[0].lessee.active, others[1].lessee.active = 0, 0, 0  # of a place each
        single.joined(gone, [gone])
        single.left(gone, others)
    assert [others.index(single.active) for single in eight if single.active is not None] == [0, 1] * 4


def rig_with(partitions: int, messages: int = 3) -> BrokerRig:
    rig = BrokerRig()
    for number in range(partitions):
        rig.publish(f"t.{number}", *(b"%d" % at for at in range(messages)))
    return rig


def topics_of(rig: BrokerRig, session: Any) -> set[str]:
    """Return the topics in which a session is active, as their consumers and the session agree."""
    found = set()
    for name, topic in rig.broker.topics.items():
        single = topic.channel("c").single
        assert single is not None
        if single.active is not None and single.active.lessee is session:
            found.add(name)
    assert set(session.active_in) == found
    return found


def test_topics_are_shared_out_among_the_sessions() -> None:
    rig = rig_with(6, messages=0)
    sessions = [rig.follow("t.*", mode="single") for _ in range(3)]
    shares = [topics_of(rig, session) for session in sessions]
    assert sorted(map(len, shares)) == [2, 2, 2]
    assert set().union(*shares) == set(rig.broker.topics)
    sessions[0].close()
    shares = [topics_of(rig, session) for session in sessions]
    assert list(map(len, shares)) == [0, 3, 3]
    sessions[2].close()
    assert len(topics_of(rig, sessions[1])) == 6
    sessions[1].close()
    assert [session.active for session in sessions] == [0, 0, 0]


def test_what_is_leased_is_settled_before_another_session_gets_more() -> None:
    rig = rig_with(2)
    first = rig.follow("t.*", mode="single")
    assert sorted(rig.shown(first.take(1 << 20), first.take(1 << 20))) == ["t.0 0-2 x1", "t.1 0-2 x1"]
    second = rig.follow("t.*", mode="single")
    rig.publish("t.0", b"new")
    rig.publish("t.1", b"new")
    assert second.take(1 << 20) is None, "the first one has messages of both"
    singles = {name: rig.broker.topic(name).channel("c").single for name in ("t.0", "t.1")}
    moved = next(name for name, single in singles.items() if single is not None and single.heir is not None)
    stays = "t.1" if moved == "t.0" else "t.0"
    assert rig.shown(first.take(1 << 20), first.take(1 << 20)) == [f"{stays} 3-3 x1"], "no more of the one that it hands over"
    rig.ack(moved, 0, 1)
    assert second.take(1 << 20) is None
    rig.ack(moved, 2, 2)
    assert rig.shown(second.take(1 << 20)) == [f"{moved} 3-3 x1"]


def test_a_lease_that_ends_lets_the_heir_take_over() -> None:
    rig = rig_with(2)
    first = rig.follow("t.*", mode="single")
    rig.take(first)
    second = rig.follow("t.*", mode="single")
    assert second.active == 1
    rig.advance(31)
    assert topics_of(rig, second) == {"t.0", "t.1"}, "the first one hangs, and loses the other topic, too"
    assert sorted(rig.take(second)) == sorted([(0, 1), (0, 2), *2 * [(1, 1), (2, 1)]]), "within the visibility timeout"


def test_what_a_session_held_goes_to_the_next_one_in_order() -> None:
    rig = rig_with(1)
    first, second = rig.subscribe("t.0", mode="single"), rig.subscribe("t.0", mode="single")
    assert rig.take(second) == []
    assert rig.take(first) == [(0, 1), (1, 1), (2, 1)]
    rig.ack("t.0", 0, 0)
    rig.woken.clear()
    first.close()
    assert rig.woken == [second], "it is told at once"
    assert [msg_id for msg_id, _ in rig.take(second)] == [1, 2]


def test_a_message_wakes_the_active_session_alone() -> None:
    rig = rig_with(1, messages=0)
    sessions = [rig.subscribe("t.0", mode="single") for _ in range(3)]
    for session in sessions:
        assert rig.take(session) == []
    rig.woken.clear()
    rig.publish("t.0", b"a", b"b", b"c")
    assert rig.woken == sessions[:1]
    assert rig.broker.topic("t.0").channel("c").takers == 1, "it need not leave a share for others"


def test_a_pull_gets_nothing_while_a_session_is_attached() -> None:
    rig = rig_with(1)
    session = rig.subscribe("t.0", mode="single", window=1)
    poll = rig.poll("t.0")
    assert poll.take(10, 1 << 20) == []
    session.close()
    assert rig.shown(*poll.take(10, 1 << 20)) == ["t.0 0-2 x1"]


def test_modes_do_not_mix() -> None:
    rig = rig_with(1)
    rig.subscribe("t.0", mode="single")
    with pytest.raises(ModeConflict, match="is consumed with mode=single: subscribe with mode=single"):
        rig.subscribe("t.0", mode="shared")
