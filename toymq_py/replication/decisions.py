"""Decides what a node that does not lead does next, from one read of the agreement. Pure: no I/O, no clock.

Contract: replication.md, section 5; ADR 0097, items 3, 5 to 8.
"""

from dataclasses import dataclass

from toymq_py.replication.agreement import GroupState, LeaderKey, Member, ReplicaId

HAND_OVER_WAIT_S = 1.0
"""How long the others leave an election to the copy that a hand-over names."""
RANK_WAIT_S = 0.05
"""The time between the elections of two copies: the first one usually wins, and the others need not ask."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The node's own state that a decision depends on, beside the agreement in etcd.

    ``promised``: the highest epoch that it has led or followed; ``copying``: its files are an incomplete bulk copy; ``lease``:
    the lease that it holds; ``may_begin``: no other replica was adopted as the first leader; ``grouped``: it has ``--group``.
    """

    replica: ReplicaId
    promised: int
    copying: bool
    lease: int
    may_begin: bool = True
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """There is no in-sync set: begin the group (transaction T1)."""


@dataclass(frozen=True, slots=True)
class Elect:
    """There is no leader, and this copy is in sync: stand for election (transaction T2) after ``delay_s``."""

    in_sync_revision: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Another node leads: follow it."""

    leader: Member
    epoch: int


@dataclass(frozen=True, slots=True)
class Open:
    """This node won an election (transaction T1, T2 or T6): it leads ``epoch`` once its files are recovered."""

    epoch: int
    in_sync: tuple[ReplicaId, ...]
    in_sync_revision: int


@dataclass(frozen=True, slots=True)
class ComeBack:
    """The leader key is from an earlier process of this node, which has ended: revoke its lease (T5)."""

    lease: int


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do until the agreement changes. ``reason`` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """etcd has lost data: do nothing. Only an operator can tell which copy has all acknowledged records. ``reason`` is for
    people."""

    reason: str


Decision = Begin | Elect | Follow | Open | ComeBack | Wait | Refuse


def decide(state: GroupState, standing: Standing) -> Decision:
    """The next step of a node that neither leads nor follows.

    An epoch is a revision of etcd, so a copy that has promised a higher epoch than etcd's revision knows that etcd went back.
    """
    if state.revision < standing.promised:
        return Refuse(f"etcd is at revision {state.revision}, and this copy has promised epoch {standing.promised}: etcd was "
                      "wiped or restored from a snapshot; see the runbook in docs/clusters.md")  # fmt: skip
    if state.placed and not standing.grouped:
        return Refuse("this group was served with --group: without it this node would not ask where topics are. Start it with "
                      "--group and the group's name")  # fmt: skip
    if state.leader is not None:
        return _led(state, state.leader, standing)
    in_sync = state.in_sync
    if in_sync is None:
        if standing.promised:
            return Refuse(f"etcd has no in-sync set, and this copy has promised epoch {standing.promised}: etcd was wiped or "
                          "restored, or --cluster names another cluster; see the runbook in docs/clusters.md")  # fmt: skip
        if not standing.may_begin:
            return Wait("the copy that was adopted begins: start its node")
        return Begin()
    if standing.replica not in in_sync.members:
        return Wait(f"no leader, and this copy is not in sync: it waits for one of {', '.join(in_sync.members)}")
    if standing.copying:
        return Refuse("this copy is in sync as etcd has it, and half copied as replica.json has it: etcd was restored")
    hand_over = state.hand_over
    if hand_over is not None and hand_over.to == standing.replica:
        return Elect(in_sync.revision, 0.0)
    delay_s = RANK_WAIT_S * in_sync.members.index(standing.replica)
    if hand_over is not None and hand_over.to in in_sync.members:
        delay_s += HAND_OVER_WAIT_S
    return Elect(in_sync.revision, delay_s)


def _led(state: GroupState, leader: LeaderKey, standing: Standing) -> Decision:
    if leader.member.replica == standing.replica:
        if leader.epoch <= standing.promised or leader.lease != standing.lease:
            return ComeBack(leader.lease)
        if state.in_sync is None:
            return Refuse("etcd has a leader and no in-sync set: its keys were changed by hand")
        return Open(leader.epoch, state.in_sync.members, state.in_sync.revision)
    if leader.epoch < standing.promised:
        return Refuse(f"etcd has epoch {leader.epoch}, and this copy has promised {standing.promised}: etcd was restored "
                      "from a snapshot; see the runbook in docs/clusters.md")  # fmt: skip
    return Follow(leader.member, leader.epoch)
