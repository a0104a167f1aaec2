"""All machines of a cluster lose their power at once, each with a disk that keeps no more than what was synced; and a leader
whose disk hangs, or fails.

Acknowledged means synced on every copy that may be elected, so whichever comes back first has it (NATS#7564 did not). The disks
are ``tests/support/fuse_disk.py``; etcd's is the machine's own.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cluster_rig import ClusterRig
from tests.support.cluster_world import OPTIONS, ClusterWorld
from tests.support.etcd import running_etcd
from tests.support.fuse_disk import FuseDisk
from tests.support.replica_reads import broken_replicas
from tests.support.requirements import require

pytestmark = require("etcd", "proc", "fuse")

NAMES = ("n1", "n2", "n3")
HANGS_S = 20.0
SHARE = 4
"""Of the messages, in short tests."""


Harm = Callable[[ClusterRig, ClusterWorld, dict[str, FuseDisk]], Awaitable[None]]
"""``FuseDisk`` by node."""


def harmed(directory: Path, seed: int, nodes: int, harm: Harm, share: int = 1) -> list[str]:
    """Do harm to a cluster under load. Returns: the promises that were not kept."""
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(directory))
        rig = ClusterRig(directory, etcd, NAMES[:nodes], *OPTIONS)
        disks = {}
        for number, node in enumerate(rig.nodes.values()):
            path = directory / f"disk-{node.name}"
            path.mkdir()
            disks[node.name] = stack.enter_context(FuseDisk(path, seed * 10 + number))
            node.data_dir = path / "d"
        stack.enter_context(rig.running(min_in_sync=1, ttl_s=2.0))
        world = ClusterWorld({rig.group: rig}, seed, share)
        broken = asyncio.run(_harmed(rig, world, disks, harm))
        for node in rig.nodes.values():
            node.kill_machine()
        return broken + broken_replicas(rig, world.owed(rig.group), torn=True)


async def _harmed(rig: ClusterRig, world: ClusterWorld, disks: dict[str, FuseDisk], harm: Harm) -> list[str]:
    async with world:
        await world.more(200)
        await rig.in_sync(len(disks))
        await harm(rig, world, disks)
        await rig.in_sync(len(disks))
        await world.more()
        verdict = await world.drain()
    return [*map(str, verdict.violations[:3]), *(await rig.settled_differences())[:3]]


def power_cuts(times: int, *, lies: bool = False) -> Harm:
    """Return a harm of so many power cuts. ``lies``: from then on the disks report syncs that they did not make."""

    async def harm(rig: ClusterRig, world: ClusterWorld, disks: dict[str, FuseDisk]) -> None:
        for disk in disks.values() if lies else ():
            disk.lie()
        for _ in range(times):
            await rig.in_sync(len(disks))
            await world.more(200)
            world.recorder("nemesis", "pause", note="power")
            with ThreadPoolExecutor(len(disks)) as threads:
                list(threads.map(FuseDisk.cut, disks.values()))
            for node in rig.nodes.values():
                node.kill_machine()
            for disk in disks.values():
                disk.restore()
            for node in rig.nodes.values():
                node.launch()
            for node in rig.nodes.values():
                node.take_ready_line(await asyncio.to_thread(node.read_ready_line))
            await rig.in_sync(len(disks))
            await world.more()
            world.recorder("nemesis", "resume")

    return harm


async def hanging_then_failing(rig: ClusterRig, world: ClusterWorld, disks: dict[str, FuseDisk]) -> None:
    """Spoil the disk of whichever node leads: each sync takes longer than --stall-timeout; then every call fails."""
    world.recorder("nemesis", "pause", note="disk")
    leader = await rig.leader()
    disks[leader.name].slow(HANGS_S)
    await rig.leader(other_than=leader.name)
    await world.more()
    await asyncio.to_thread(disks[leader.name].slow, 0)
    await rig.in_sync(len(disks))
    leader = await rig.leader()
    disks[leader.name].cut()
    await rig.leader(other_than=leader.name)
    await world.more()
    leader.kill_machine()
    disks[leader.name].restore()
    await asyncio.to_thread(leader.start)
    await rig.in_sync(len(disks))
    world.recorder("nemesis", "resume")


def test_a_pair_loses_nothing_when_both_lose_their_power(tmp_path: Path) -> None:
    assert harmed(tmp_path, 1, 2, power_cuts(1), SHARE) == []


@pytest.mark.torture
def test_with_disks_that_lie_something_is_lost(tmp_path: Path) -> None:
    assert harmed(tmp_path, 3, 2, power_cuts(1, lies=True)), "the test cannot fail"


def test_a_leader_whose_disk_hangs_or_fails_leaves_its_place(tmp_path: Path) -> None:
    assert harmed(tmp_path, 11, 2, hanging_then_failing, SHARE) == []


@pytest.mark.torture
def test_three_lose_nothing_when_all_lose_their_power(tmp_path: Path) -> None:
    assert harmed(tmp_path, 2, 3, power_cuts(3)) == []


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(4, 10))
def test_nothing_is_lost_in_fifty_cuts(tmp_path: Path, seed: int) -> None:
    assert harmed(tmp_path, seed, 2 + seed % 2, power_cuts(8)) == []
