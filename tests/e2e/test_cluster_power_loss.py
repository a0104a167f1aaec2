"""All machines of a cluster lose their power at once, each with a disk that keeps no more than what was synced.

Acknowledged means synced on every copy that may be elected, so whichever comes back first has it (NATS#7564 did not). The disks
are ``tests/support/fuse_disk.py``; etcd's is the machine's own.
"""

import asyncio
import contextlib
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


def cut_and_look(directory: Path, seed: int, nodes: int, cuts: int, *, lies: bool = False) -> list[str]:
    """``lies``: of the disks, from when all are in sync on. Returns: what was promised and not kept."""
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(directory))
        rig = ClusterRig(directory, etcd, NAMES[:nodes], *OPTIONS)
        disks = []
        for number, node in enumerate(rig.nodes.values()):
            path = directory / f"disk-{node.name}"
            path.mkdir()
            disks.append(stack.enter_context(FuseDisk(path, seed * 10 + number)))
            node.data_dir = str(path / "d")
        stack.enter_context(rig.running(min_in_sync=1, ttl_s=2.0))
        world = ClusterWorld(rig, seed)
        broken = asyncio.run(_cut(rig, world, disks, cuts, lies=lies))
        for node in rig.nodes.values():
            node.kill_machine()
        return broken + broken_replicas(rig, world.owed())


async def _cut(rig: ClusterRig, world: ClusterWorld, disks: list[FuseDisk], cuts: int, *, lies: bool) -> list[str]:
    async with world:
        await world.more(200)
        await rig.in_sync(len(disks))
        for disk in disks if lies else ():
            disk.lie()
        for _ in range(cuts):
            await rig.in_sync(len(disks))
            await world.more(200)
            world.recorder("nemesis", "pause", note="power")
            with ThreadPoolExecutor(len(disks)) as threads:
                list(threads.map(FuseDisk.cut, disks))
            for node in rig.nodes.values():
                node.kill_machine()
            for disk in disks:
                disk.restore()
            for node in rig.nodes.values():
                node.launch()
            for node in rig.nodes.values():
                node.take_ready_line(await asyncio.to_thread(node.read_ready_line))
            await rig.in_sync(len(disks))
            await world.more()
            world.recorder("nemesis", "resume")
        verdict = await world.drain()
    return [*map(str, verdict.violations[:3]), *(await rig.settled_differences())[:3]]


def test_a_pair_loses_nothing_when_both_lose_their_power(tmp_path: Path) -> None:
    assert cut_and_look(tmp_path, 1, nodes=2, cuts=1) == []


def test_with_disks_that_lie_something_is_lost(tmp_path: Path) -> None:
    assert cut_and_look(tmp_path, 3, nodes=2, cuts=1, lies=True), "the test cannot fail"


@pytest.mark.torture
def test_three_lose_nothing_when_all_lose_their_power(tmp_path: Path) -> None:
    assert cut_and_look(tmp_path, 2, nodes=3, cuts=3) == []


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(4, 10))
def test_nothing_is_lost_in_fifty_cuts(tmp_path: Path, seed: int) -> None:
    assert cut_and_look(tmp_path, seed, nodes=2 + seed % 2, cuts=8) == []
