"""The next step of a node that does not lead."""

from dataclasses import replace

import pytest

from toymq_py.replication.agreement import GroupState, HandOver, InSync, LeaderKey, Member
from toymq_py.replication.decisions import (
    HAND_OVER_WAIT_S,
    RANK_WAIT_S,
    Begin,
    ComeBack,
    Decision,
    Elect,
    Follow,
    Open,
    Refuse,
    Standing,
    Wait,
    decide,
)

ME, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32
NAMES = {ME: "n1", OTHER: "n2", THIRD: "n3"}


def led(replica: str, epoch: int, lease: int = 7) -> LeaderKey:
    return LeaderKey(Member(replica, NAMES[replica], "h:1", "h:2"), epoch, lease)


def state(
    leader: LeaderKey | None = None, members: tuple[str, ...] | None = (ME, OTHER), hand_over: HandOver | None = None,
    revision: int = 100,
) -> GroupState:  # fmt: skip
    in_sync = None if members is None else InSync(members, 40, 90)
    return GroupState(leader, in_sync, hand_over, None, None, revision)


NOT_ADOPTED = Standing(ME, 0, False, 7, may_begin=False)


def standing(promised: int = 50, *, copying: bool = False, lease: int = 7) -> Standing:
    return Standing(ME, promised, copying, lease)


@pytest.mark.parametrize(
    ("found", "mine", "decision"),
    [
        (state(members=None), standing(0), Begin()),
        (state(members=None), NOT_ADOPTED, Wait("the copy that was adopted begins: start its node")),
        (state(), Standing(ME, 50, False, 7, may_begin=False), Elect(90, 0.0)),
        (state(), standing(), Elect(90, 0.0)),
        (state(members=(OTHER, ME)), standing(), Elect(90, RANK_WAIT_S)),
        (state(led(OTHER, 60)), standing(), Follow(led(OTHER, 60).member, 60)),
        (state(led(OTHER, 50)), standing(), Follow(led(OTHER, 50).member, 50)),
        (state(led(OTHER, 60), members=(OTHER,)), standing(copying=True), Follow(led(OTHER, 60).member, 60)),
        (state(led(ME, 60)), standing(), Open(60, (ME, OTHER), 90)),
        (state(led(ME, 50)), standing(), ComeBack(7)),
        (state(led(ME, 60, lease=6)), standing(), ComeBack(6)),
        (state(hand_over=HandOver(ME, 50)), standing(), Elect(90, 0.0)),
        (state(hand_over=HandOver(OTHER, 50)), standing(), Elect(90, HAND_OVER_WAIT_S)),
        (state(hand_over=HandOver(THIRD, 50)), standing(), Elect(90, 0.0)),
    ],
    ids=[
        "no in-sync set", "another was adopted", "another was adopted, and has begun",
        "no leader", "the second in the set", "another leads", "another leads what it has promised",
        "half copied, so it copies on", "elected", "the epoch of a life before", "the lease of a life before",
        "handed over to this one", "handed over to another", "handed over to one that is not in sync",
    ],
)  # fmt: skip
def test_what_comes_next(found: GroupState, mine: Standing, decision: Decision) -> None:
    assert decide(found, mine) == decision


@pytest.mark.parametrize(
    ("found", "mine", "reason"),
    [
        (state(members=None), standing(1), "no in-sync set"),
        (state(led(OTHER, 49)), standing(), "has epoch 49, and this copy has promised 50"),
        (state(revision=49), standing(), "revision 49"),
        (state(), standing(copying=True), "half copied"),
        (state(led(ME, 60), members=None), standing(), "by hand"),
    ],
    ids=["wiped", "an older epoch", "an older revision", "in sync and half copied", "no set"],
)
def test_an_etcd_that_went_back_is_refused(found: GroupState, mine: Standing, reason: str) -> None:
    decision = decide(found, mine)
    assert isinstance(decision, Refuse)
    assert reason in decision.reason


def test_a_copy_that_is_not_in_sync_waits_and_says_for_which() -> None:
    decision = decide(state(members=(OTHER, THIRD)), standing())
    assert isinstance(decision, Wait)
    assert OTHER in decision.reason
    assert THIRD in decision.reason


@pytest.mark.parametrize("found", [state(), state(members=None), state(led(OTHER, 60)), state(led(ME, 60))])
def test_a_node_without_a_group_takes_no_part_where_topics_have_records(found: GroupState) -> None:
    decision = decide(replace(found, placed=True), standing())
    assert isinstance(decision, Refuse)
    assert "Start it with --group" in decision.reason
    assert decide(replace(found, placed=True), replace(standing(), grouped=True)) == decide(found, standing())
