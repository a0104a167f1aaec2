"""Faults ("harms") for a cluster on machines of its own, each a row of the table in replication.md, section 11; and a round
that applies and judges them.

In a round, clients publish and consume, one harm after another happens and heals, then all messages are delivered. The checker
judges what clients saw; the copies must be equal, and each, opened alone, must have all that was acknowledged or delivered.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from tests.support.cluster_rig import CLUSTER, GROUP, MONOTONIC, WAIT_S, ClusterNode, ClusterRig, groups_on_machines
from tests.support.cluster_world import OPTIONS, REPLICA_TIMEOUT_S, ClusterWorld, Groups
from tests.support.machines import Machine, Machines
from tests.support.replica_reads import broken_replicas
from toymq_chaos import history
from toymq_py.replication.etcd_client import EtcdClient, EtcdOptions
from toymq_py.replication.kept_places import KeptPlaces
from toymqctl import cluster_moves

STOPPED_S = REPLICA_TIMEOUT_S + 1.0
"""A follower that hangs for so long is dropped."""


class Scene(NamedTuple):
    """The groups and machines to which a harm is done. ``leader`` leads the group ``rig`` when the harm begins."""

    groups: Groups
    rig: ClusterRig
    machines: Machines
    world: ClusterWorld
    leader: ClusterNode

    @property
    def followers(self) -> list[ClusterNode]:
        return [node for node in self.rig.nodes.values() if node is not self.leader]

    async def another_leads(self) -> None:
        """Wait until another node leads and serves clients."""
        await self.rig.leader(other_than=self.leader.name)
        await self.world.more()


Harm = Callable[[Scene], Awaitable[None]]


def _on(node: ClusterNode) -> Machine:
    assert node.machine is not None
    return node.machine


async def process_killed(scene: Scene) -> None:
    """Kill the leader's process: its successor on the same machine revokes its lease."""
    scene.leader.signal_node(signal.SIGKILL)
    await scene.world.more()


async def machine_lost(scene: Scene) -> None:
    """Kill the leader's machine, with its member of etcd."""
    leader = scene.leader
    member = scene.rig.etcd.members[_on(leader).number - 1]
    leader.kill_machine()
    member.kill()
    await scene.another_leads()
    member.start()
    await asyncio.to_thread(leader.start)


async def handed_over(scene: Scene) -> None:
    """Stop the leader orderly: no ack that was answered may be lost."""
    scene.world.ends_in_order = "epoch"
    scene.leader.terminate()
    await scene.another_leads()
    scene.world.ends_in_order = None
    assert await asyncio.to_thread(scene.leader.wait) == 0
    await asyncio.to_thread(scene.leader.start)


async def leader_paused(scene: Scene) -> None:
    """SIGSTOP the leader until another node leads; when it wakes it thinks that it still leads."""
    scene.leader.signal_node(signal.SIGSTOP)
    await scene.another_leads()
    scene.leader.signal_node(signal.SIGCONT)


async def follower_paused(scene: Scene) -> None:
    """SIGSTOP a follower until the leader drops it from the in-sync set."""
    scene.followers[0].signal_node(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    await scene.world.more()
    scene.followers[0].signal_node(signal.SIGCONT)


async def follower_killed(scene: Scene) -> None:
    """Kill a follower's process."""
    scene.followers[0].signal_node(signal.SIGKILL)
    await scene.world.more()


async def leader_not_heard(scene: Scene) -> None:
    """One-way cut: what the leader sends to the other machines vanishes; what they send arrives."""
    for node in scene.followers:
        scene.machines.cut(_on(scene.leader), _on(node))
    await scene.another_leads()


async def leader_hears_nothing(scene: Scene) -> None:
    """One-way cut: what the other machines send to the leader's machine vanishes, acknowledgements and etcd's answers
    included."""
    for node in scene.followers:
        scene.machines.cut(_on(node), _on(scene.leader))
    await scene.another_leads()


async def acknowledgements_lost(scene: Scene) -> None:
    """One-way cut: what one follower sends to the leader vanishes. The leader drops the follower and goes on."""
    scene.machines.cut(_on(scene.followers[0]), _on(scene.leader), networks=("data",))
    await asyncio.sleep(STOPPED_S)
    await scene.world.more()


async def apart_from_followers(scene: Scene) -> None:
    """Cut the leader off from its followers but not from etcd: it drops them, and goes on alone (min_in_sync is 1)."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node), networks=("data",))
    await asyncio.sleep(STOPPED_S)
    await scene.world.more()


async def apart_from_etcd(scene: Scene) -> None:
    """Cut the leader off from the majority of etcd but not from its followers: another node is elected, and the followers
    refuse the old leader."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node), networks=("agreement",))
    await scene.another_leads()


async def alone_with_clients(scene: Scene) -> None:
    """Cut the leader off from everything but clients: it can neither replicate nor drop the followers."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node))
    await scene.another_leads()


async def cut_off(scene: Scene) -> None:
    """Cut the leader off from everything; its clients hear nothing."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node))
    scene.machines.part(_on(scene.leader), scene.machines.hub)
    await scene.another_leads()


async def moved(scene: Scene) -> None:
    """Move a topic of the group to the next group, without a fault."""
    scene.world.ends_in_order = "move"
    await _moved(scene)
    scene.world.ends_in_order = None


async def moved_while_it_dies(scene: Scene) -> None:
    """Move a topic, and kill the process that gives it away meanwhile."""
    await _moved(scene, scene.leader)


async def moved_while_the_other_dies(scene: Scene) -> None:
    """Move a topic, and kill the process that is to take it meanwhile."""
    await _moved(scene, await _next(scene).leader())


def _next(scene: Scene) -> ClusterRig:
    """Return the group to which topics of this group are moved."""
    rigs = list(scene.groups.values())
    return rigs[(rigs.index(scene.rig) + 1) % len(rigs)]


async def _moved(scene: Scene, killed: ClusterNode | None = None) -> None:
    """Move each topic of the group to the next group, kill a node meanwhile, and wait until the topics' clients work there."""
    to = _next(scene).group
    kept = KeptPlaces(EtcdClient(EtcdOptions(scene.rig.etcd.urls)), CLUSTER, to)
    try:
        for topic in [topic for topic in scene.world.topics.values() if topic.home == scene.rig.group]:
            moving = asyncio.get_running_loop().create_task(cluster_moves.move(kept, topic.name, to, lambda text: None))
            if killed is not None:
                await asyncio.sleep(scene.world.rng.uniform(0.0, 0.3))
                killed.signal_node(signal.SIGKILL)
                killed = None
            await moving
            until = MONOTONIC() + WAIT_S
            while topic.home != to:
                assert MONOTONIC() < until, f"no client of {topic.name} has found it in group {to}"
                await asyncio.sleep(0.02)
    finally:
        await kept.close()
    await scene.world.more()


HARMS: dict[str, Harm] = {
    harm.__name__: harm
    for harm in (
        process_killed, machine_lost, handed_over, leader_paused, follower_paused, follower_killed, leader_not_heard,
        leader_hears_nothing, acknowledgements_lost, apart_from_followers, apart_from_etcd, alone_with_clients, cut_off,
    )
}  # fmt: skip
FAILOVERS = tuple(sorted(HARMS.keys() - {
    "follower_paused", "follower_killed", "acknowledgements_lost", "apart_from_followers",
}))  # fmt: skip
"""Those after which there is a new epoch."""
MOVES: dict[str, Harm] = {harm.__name__: harm for harm in (moved, moved_while_it_dies, moved_while_the_other_dies)}
"""For several groups."""


@dataclass(slots=True)
class Outcome:
    """The outcome of one round. ``gaps``: by harm, the longest time without an answer to a publish, in seconds; ``broken``: the
    promises that were broken."""

    failovers: int = 0
    stored: int = 0
    gaps: dict[str, list[float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


def run_round(
    directory: Path, seed: int, names: Sequence[str], told: Callable[[str, float], object] = lambda name, gap_s: None,
    *options: str, ttl_s: float = 2.0, groups: Sequence[str] = (GROUP,),
    share: int = 1,
) -> Outcome:  # fmt: skip
    """Run one round with these harms, on three machines, each with a node of each group. ``told`` is called after each harm. A
    history that breaks a promise is left in ``directory``.

    Raises: AssertionError when the cluster does not come back from a harm.
    """
    with Machines(3) as machines:
        with machines.entered(), groups_on_machines(directory, machines, groups, *OPTIONS, *options, ttl_s=ttl_s) as rigs:
            world = ClusterWorld(rigs, seed, share)
            outcome = asyncio.run(_harmed(rigs, machines, world, names, told))
        outcome.stored = world.stored
        for name, rig in rigs.items():
            outcome.broken += broken_replicas(rig, world.owed(name))
    if outcome.broken:
        for topic in world.topics.values():
            history.write(directory / f"history-{topic.name}.jsonl", topic.history)
    return outcome


async def _harmed(
    groups: Groups, machines: Machines, world: ClusterWorld, names: Sequence[str], told: Callable[[str, float], object]
) -> Outcome:
    outcome = Outcome()
    async with world:
        for name, rig in zip(names, cycle(groups.values()), strict=False):
            if name in MOVES:  # of a group that has one
                rig = groups[world.rng.choice(list(world.topics.values())).home]
            await _all_in_sync(groups)
            await world.more()
            leader = await rig.leader()
            before = await _epoch(rig)
            world.recorder("nemesis", "pause", note=name)  # what is not flushed meanwhile may be lost
            world.longest_gap_s = 0.0
            try:
                await {**HARMS, **MOVES}[name](Scene(groups, rig, machines, world, leader))
            finally:
                machines.heal()
            await _all_in_sync(groups)
            await world.more()
            world.recorder("nemesis", "resume")
            outcome.failovers += await _epoch(rig) > before
            outcome.gaps.setdefault(name, []).append(world.longest_gap_s)
            told(name, world.longest_gap_s)
        verdict = await world.drain()
    outcome.broken += [str(violation) for violation in verdict.violations[:3]]
    for rig in groups.values():
        outcome.broken += (await rig.settled_differences())[:3]
    return outcome


async def _all_in_sync(groups: Groups) -> None:
    for rig in groups.values():
        await rig.in_sync(len(rig.nodes))


async def _epoch(rig: ClusterRig) -> int:
    leader = (await rig.until("a leader", lambda state: state.leader is not None)).leader
    assert leader is not None
    return leader.epoch
