"""Harm to a cluster on machines of its own, each a row of replication.md, section 11; and one round of it, judged.

A round: clients publish and consume, one harm after another happens and heals, then all is delivered; the checker judges what
clients saw, the copies are equal, and each of them, opened alone, has all that was acknowledged or delivered.
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
    """What a harm is done to. ``leader`` leads the group ``rig`` when it begins."""

    groups: Groups
    rig: ClusterRig
    machines: Machines
    world: ClusterWorld
    leader: ClusterNode

    @property
    def followers(self) -> list[ClusterNode]:
        return [node for node in self.rig.nodes.values() if node is not self.leader]

    async def another_leads(self) -> None:
        """Wait until it does, and clients are served."""
        await self.rig.leader(other_than=self.leader.name)
        await self.world.more()


Harm = Callable[[Scene], Awaitable[None]]


def _on(node: ClusterNode) -> Machine:
    assert node.machine is not None
    return node.machine


async def process_killed(scene: Scene) -> None:
    """The leader's process: its successor in the same place revokes its lease."""
    scene.leader.signal_node(signal.SIGKILL)
    await scene.world.more()


async def machine_lost(scene: Scene) -> None:
    """The leader's machine, with its member of etcd."""
    leader = scene.leader
    member = scene.rig.etcd.members[_on(leader).number - 1]
    leader.kill_machine()
    member.kill()
    await scene.another_leads()
    member.start()
    await asyncio.to_thread(leader.start)


async def handed_over(scene: Scene) -> None:
    """The leader is stopped in order: no ack that was answered may be lost."""
    scene.world.ends_in_order = "epoch"
    scene.leader.terminate()
    await scene.another_leads()
    scene.world.ends_in_order = None
    assert await asyncio.to_thread(scene.leader.wait) == 0
    await asyncio.to_thread(scene.leader.start)


async def leader_paused(scene: Scene) -> None:
    """SIGSTOP until another leads; it wakes as one that thinks it leads."""
    scene.leader.signal_node(signal.SIGSTOP)
    await scene.another_leads()
    scene.leader.signal_node(signal.SIGCONT)


async def follower_paused(scene: Scene) -> None:
    """SIGSTOP of a follower until it is dropped."""
    scene.followers[0].signal_node(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    await scene.world.more()
    scene.followers[0].signal_node(signal.SIGCONT)


async def follower_killed(scene: Scene) -> None:
    """A follower's process."""
    scene.followers[0].signal_node(signal.SIGKILL)
    await scene.world.more()


async def leader_not_heard(scene: Scene) -> None:
    """One way: what the leader sends to the other machines vanishes, what they send arrives."""
    for node in scene.followers:
        scene.machines.cut(_on(scene.leader), _on(node))
    await scene.another_leads()


async def leader_hears_nothing(scene: Scene) -> None:
    """One way: what the other machines send to the leader's vanishes, acknowledgements and etcd's answers among it."""
    for node in scene.followers:
        scene.machines.cut(_on(node), _on(scene.leader))
    await scene.another_leads()


async def acknowledgements_lost(scene: Scene) -> None:
    """One way: what one follower sends to the leader vanishes. The leader drops it, and goes on."""
    scene.machines.cut(_on(scene.followers[0]), _on(scene.leader), networks=("data",))
    await asyncio.sleep(STOPPED_S)
    await scene.world.more()


async def apart_from_followers(scene: Scene) -> None:
    """The leader reaches etcd and no follower: it drops them, and goes on alone (min_in_sync is 1)."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node), networks=("data",))
    await asyncio.sleep(STOPPED_S)
    await scene.world.more()


async def apart_from_etcd(scene: Scene) -> None:
    """The leader reaches its followers and no majority of etcd: another is elected, and the followers refuse the old one."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node), networks=("agreement",))
    await scene.another_leads()


async def alone_with_clients(scene: Scene) -> None:
    """The leader reaches nothing but clients: it can neither sync elsewhere nor drop the others."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node))
    await scene.another_leads()


async def cut_off(scene: Scene) -> None:
    """The leader reaches nothing, and its clients hear nothing."""
    for node in scene.followers:
        scene.machines.part(_on(scene.leader), _on(node))
    scene.machines.part(_on(scene.leader), scene.machines.hub)
    await scene.another_leads()


async def moved(scene: Scene) -> None:
    """A topic of the group goes to the next one, in order."""
    scene.world.ends_in_order = "move"
    await _moved(scene)
    scene.world.ends_in_order = None


async def moved_while_it_dies(scene: Scene) -> None:
    """As ``moved``, while the process is killed that gives it away."""
    await _moved(scene, scene.leader)


async def moved_while_the_other_dies(scene: Scene) -> None:
    """As ``moved``, while the process is killed that is to take it."""
    await _moved(scene, await _next(scene).leader())


def _next(scene: Scene) -> ClusterRig:
    """The group that topics of this one are moved to."""
    rigs = list(scene.groups.values())
    return rigs[(rigs.index(scene.rig) + 1) % len(rigs)]


async def _moved(scene: Scene, killed: ClusterNode | None = None) -> None:
    """Move each topic of the group to the next one, kill a node in between, and wait until its clients are there."""
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
    """Of one round. ``gaps``: the longest time without an answer to a publish, by harm; ``broken``: what was promised and
    not kept."""

    failovers: int = 0
    stored: int = 0
    gaps: dict[str, list[float]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


def run_round(
    directory: Path, seed: int, names: Sequence[str], told: Callable[[str, float], object] = lambda name, gap_s: None,
    *options: str, ttl_s: float = 2.0, groups: Sequence[str] = (GROUP,),
    share: int = 1,
) -> Outcome:  # fmt: skip
    """One round with these harms, on three machines, each with a node of each group. ``told`` hears of each. A history that is
    broken stays in ``directory``.

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
