"""A bit rots in a sealed segment of a real node: the scrub finds it, and an intact copy replaces it."""

import asyncio
from pathlib import Path

import toymq
from tests.support.cluster_rig import MONOTONIC, WAIT_S, ClusterNode, ClusterRig, Load, running_cluster, written_bytes
from tests.support.requirements import require
from tests.support.sealed_segments import flip_bit, segments_of

pytestmark = require("etcd", "proc")

OPTIONS = ("--scrub-interval", "300ms", "--segment-bytes", "16KiB")


def test_what_rots_on_a_follower_and_on_the_leader_comes_back_from_the_other_copy(tmp_path: Path) -> None:
    with running_cluster(tmp_path, *OPTIONS, names=("n1", "n2")) as rig:
        asyncio.run(_rot(rig))


async def _rot(rig: ClusterRig) -> None:
    await rig.in_sync(2)
    leader = await rig.leader()
    follower = next(node for node in rig.nodes.values() if node is not leader)
    async with Load(rig.urls) as load:
        await load.more(2000)
    assert await rig.settled_differences() == []
    first, second = segments_of(leader.data_dir)[:2]

    flip_bit(follower.data_dir, first)
    await _whole(rig, leader, follower, first)
    await rig.in_sync(2)
    assert (await rig.leader()) is leader, "a follower that rots costs the leader nothing"
    aside = await asyncio.to_thread(lambda: list(follower.data_dir.glob(f"replaced/*/{first}")))
    assert aside, "what rots is put aside"

    flip_bit(leader.data_dir, second)
    async with await toymq.connect(rig.urls, timeout_s=WAIT_S, wait_s=WAIT_S) as reader:
        await reader.fetch("jobs", int(Path(second).stem), 100)  # maybe before the scrub: what it meets, no other copy believes
    assert await rig.leader(other_than=leader.name) is follower, "its copy is whole, so it leads"
    await _whole(rig, follower, leader, second)
    await rig.in_sync(2)
    lost = await load.lost()
    assert lost == [], rig.logs()


async def _whole(rig: ClusterRig, good: ClusterNode, other: ClusterNode, path: str) -> None:
    wanted = written_bytes(good.data_dir / path)
    until = MONOTONIC() + WAIT_S
    copy = other.data_dir / path
    while written_bytes(copy) != wanted:
        assert MONOTONIC() < until, f"{path} of {other.name} is not whole again\n{rig.logs()}"
        await asyncio.sleep(0.05)
