"""Which producers of a connection were refused, and from which sequence they go on. Contract: protocol.md, OUT_OF_SEQUENCE."""

import pytest

from tests.support.session_rig import SessionRig
from toymq_py.errors import DiskFull, Moved, OutOfSequence
from toymq_py.session.refused_sequences import ENTRY_COST_BYTES, REFUSED_BYTES_MAX, RefusedSequences
from toymq_py.topic import Commit


def test_who_goes_back_is_admitted_again() -> None:
    refused = RefusedSequences(Moved)
    refused.refuse("t", [b"p", b"p"], [5, 6])
    assert refused.admit("t", [b"q", b"p"], [9, 6], 0) == 1
    assert isinstance(refused.error("t", b"p"), OutOfSequence)
    refused.refuse("t", [b"p"], [9])
    assert refused.admit("t", [b"p"], [6], 0) == 0, "a later refusal does not move the first one"
    assert refused.admit("t", [b"p", b"p"], [5, 6], 0) == 2
    assert refused.admit("u", [b"p"], [6], 0) == 1


def test_a_commit_that_fails_refuses_the_lowest_it_held() -> None:
    refused, commit, other = RefusedSequences(Moved), Commit(), Commit()
    refused.watch(commit, "t", [b"p", b"p"], [5, 6])
    refused.watch(commit, "t", [b"p"], [3])
    refused.watch(other, "t", [b"q"], [1])
    other.resolve(None)
    assert refused.admit("t", [b"p", b"q"], [7, 2], 0) == 2
    commit.resolve(DiskFull("full"))
    assert refused.admit("t", [b"p"], [4], 0) == 0
    assert refused.admit("t", [b"p"], [3], 0) == 1


def test_a_crowd_of_refused_producers_has_to_connect_anew() -> None:
    refused = RefusedSequences(Moved)
    names = [b"%d" % n for n in range(REFUSED_BYTES_MAX // ENTRY_COST_BYTES)]
    refused.refuse("t", names, [1] * len(names))
    assert refused.admit("t", [b"0", b"stranger"], [1, 1], 0) == 1
    assert not refused.ends_session
    assert isinstance(refused.error("t", b"stranger"), OutOfSequence)
    assert refused.ends_session


@pytest.mark.parametrize("moved", [False, True])
def test_long_names_of_refused_producers_are_bounded_in_bytes(moved: bool) -> None:
    """65,536 names of 495 bytes took 40 MB of each connection."""
    refused = RefusedSequences(Moved)
    names = [b"%0500d" % n for n in range(2 * REFUSED_BYTES_MAX // 500)]
    for name in names:
        refused.refuse("t", [name], [1], moved=moved)
    kept = sum(map(len, [name for _, name in (*refused._refused, *refused._moved)]))
    assert kept < refused.held_bytes <= REFUSED_BYTES_MAX
    for name in names:
        refused.admit("t", [name], [1], 0)
    assert refused.held_bytes == 0


def test_a_refusal_takes_the_place_of_a_producer_that_was_told_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.session.refused_sequences.REFUSED_BYTES_MAX", 2 * ENTRY_COST_BYTES + 4)
    refused = RefusedSequences(Moved)
    refused.refuse("t", [b"a", b"b"], [1, 1], moved=True)
    refused.refuse("t", [b"c"], [1])
    assert [refused.admit("t", [name], [2], 0) for name in (b"a", b"b", b"c", b"d")] == [1, 0, 0, 1]


def test_a_crowded_connection_keeps_its_floor_of_refused_producers() -> None:
    with SessionRig() as session:
        refused = session.handler.refused
        refused.seat = session.seat
        session.rig.broker.quotas.memory_high = True
        for number in range(1000):
            refused.refuse("t", [b"%0400d" % number], [1])
        assert session.seat.floor_bytes - 1000 < refused.held_bytes <= session.seat.floor_bytes
        assert refused.admit("t", [b"%0400d" % 999], [2], 0) == 0


def test_behind_moved_a_producer_is_sent_here_again_until_it_repeats_what_was_moved() -> None:
    """The topic moved here between two publishes: if the second were stored first, the first one would count as its
    duplicate."""
    refused = RefusedSequences(lambda topic: Moved(f"here:1 has the topic {topic}"))
    refused.refuse("t", [b"p", b"p"], [4, 5], moved=True)
    assert refused.admit("t", [b"p"], [6], 0) == 0
    assert str(refused.error("t", b"p")) == "here:1 has the topic t"
    assert refused.admit("t", [b"q", b"p"], [0, 5], 0) == 1
    assert refused.admit("u", [b"p"], [6], 0) == 1
    refused.refuse("t", [b"p"], [3], moved=True)
    assert refused.admit("t", [b"p"], [4], 0) == 0
    assert refused.admit("t", [b"p", b"p"], [3, 4], 0) == 2
    assert refused.admit("t", [b"p"], [5], 0) == 1


def test_a_topic_that_came_back_has_what_was_moved() -> None:
    """Otherwise a producer's publishes would be redirected in circles for a topic that was here, moved away, and came back."""
    refused = RefusedSequences(Moved)
    refused.refuse("t", [b"p"], [4], moved=True)
    assert refused.admit("t", [b"p"], [6], 0, lambda producer: 3) == 0
    assert refused.admit("t", [b"p"], [6], 0, lambda producer: 5) == 1, "it was stored elsewhere"
    assert refused.admit("t", [b"p"], [7], 0, lambda producer: 3) == 1, "and is over"


def test_those_that_were_moved_are_bounded_and_refuse_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.session.refused_sequences.MOVED_MAX", 2)
    refused = RefusedSequences(Moved)
    for number in range(3):
        refused.refuse("t", [b"p%d" % number], [0], moved=True)
    assert [refused.admit("t", [b"p%d" % number], [1], 0) for number in range(4)] == [1, 0, 0, 1]
