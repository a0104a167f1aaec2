"""Three nodes and a real etcd under load: whatever happens to a node, what got OK is there, under its id.

The tests of this file share a cluster, which each leaves with three copies in sync. Longer runs are in the torture part.
"""

import asyncio
import json
import random
import signal
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import toymq
from tests.support.broker_process import Wire
from tests.support.cluster_rig import WAIT_S, ClusterNode, ClusterRig, Load, running_cluster
from tests.support.requirements import require
from toymq_py.replication.node import REASONS
from toymq_py.storage.unclean_ends import FILE_NAME

pytestmark = require("etcd", "proc")

Harm = Callable[[ClusterRig, ClusterNode], Awaitable[None]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as rig:
        yield rig


async def harmed(rig: ClusterRig, harm: Harm, *, moves: bool, count: int = 300) -> Load:
    """Do harm to the leader while a client publishes, and wait until all copies are in sync again. ``moves``: another node must
    lead then."""
    await rig.in_sync(3)
    leader = await rig.leader()
    async with Load(rig.urls, topic=harm.__name__) as load:
        await load.more(count)
        await harm(rig, leader)
        if moves:
            await rig.leader(other_than=leader.name)
        await load.more(count)
    await rig.in_sync(3)
    assert not load.failed
    lost = await load.lost()
    assert not lost, f"{len(lost)} of {len(load.acked)} that got OK are not there: {lost[:5]}\n{rig.logs()}"
    return load


async def test_a_leader_whose_process_is_killed_is_replaced_before_its_lease_ends(cluster: ClusterRig) -> None:
    async def kill(rig: ClusterRig, leader: ClusterNode) -> None:
        leader.signal_node(signal.SIGKILL)

    await harmed(cluster, kill, moves=False)


async def test_a_leader_whose_machine_dies_is_replaced(cluster: ClusterRig) -> None:
    async def cut_power(rig: ClusterRig, leader: ClusterNode) -> None:
        leader.kill_machine()
        await rig.leader(other_than=leader.name)
        await asyncio.to_thread(leader.start)

    await harmed(cluster, cut_power, moves=False)


async def test_a_leader_that_pauses_is_replaced_and_follows_when_it_wakes(cluster: ClusterRig) -> None:
    async def pause(rig: ClusterRig, leader: ClusterNode) -> None:
        leader.signal_node(signal.SIGSTOP)
        await rig.leader(other_than=leader.name)
        leader.signal_node(signal.SIGCONT)
        await asyncio.to_thread(leader.until, lambda: not (leader.data_dir / FILE_NAME).exists(), "it has not died")

    await harmed(cluster, pause, moves=True)


async def test_a_leader_that_is_stopped_hands_over(cluster: ClusterRig) -> None:
    async def stop(rig: ClusterRig, leader: ClusterNode) -> None:
        known = await incarnation(rig)
        leader.terminate()
        assert await asyncio.to_thread(leader.wait) == 0
        await rig.leader(other_than=leader.name)
        assert (await incarnation(rig), known is None) == (known, False), "the file was copied before it was told"
        await asyncio.to_thread(leader.start)

    async def incarnation(rig: ClusterRig) -> str | None:
        async with toymq.connect(rig.urls, wait_s=WAIT_S) as mq:  # the one that takes over may still close what it took
            return (await mq.topic_range("stop")).incarnation

    await harmed(cluster, stop, moves=False)


async def test_a_follower_that_dies_costs_a_moment_and_comes_back(cluster: ClusterRig) -> None:
    async def kill_follower(rig: ClusterRig, leader: ClusterNode) -> None:
        follower = next(node for node in rig.nodes.values() if node is not leader)
        follower.signal_node(signal.SIGKILL)

    await harmed(cluster, kill_follower, moves=False)


async def test_a_node_that_follows_says_where_the_leader_is(cluster: ClusterRig) -> None:
    await cluster.in_sync(3)
    leader = await cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    for command in (b"PING\n", b"HELLO 1\n", b"PUB t - 1\nx\n"):
        with Wire(follower.port) as wire:
            assert wire.ask(command) == b"ERR NOT_LEADER 127.0.0.1:%d" % leader.port
            assert wire.at_end()

    def get(node: ClusterNode, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: object) -> None:
                return None

        request = urllib.request.Request(node.http + path, method=method)
        try:
            with urllib.request.build_opener(Stay).open(request, timeout=20) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    ask = asyncio.to_thread
    async with asyncio.timeout(WAIT_S):
        while json.loads((await ask(get, follower, "healthz"))[2])["state"] != "FOLLOWING":  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
    status, _, body = await ask(get, follower, "healthz")
    assert (status, json.loads(body)["role"]) == (200, "follower")
    status, _, body = await ask(get, leader, "healthz")
    assert (status, json.loads(body)["role"]) == (200, "leader")
    assert json.loads(body)["epoch"] == json.loads((await ask(get, follower, "healthz"))[2])["epoch"] > 0
    assert [(await ask(get, node, "leader"))[0] for node in (leader, follower)] == [200, 503]
    named = json.loads((await ask(get, follower, "leader"))[2])["leader"]
    assert (named["name"], named["http"]) == (leader.name, f"127.0.0.1:{leader.http_port}")
    status, headers, body = await ask(get, follower, "v1/topics?x=1")
    assert status == 307
    assert headers["location"] == f"http://127.0.0.1:{leader.http_port}/v1/topics?x=1", "each node has a port of its own"
    assert json.loads(body)["code"] == "NOT_LEADER"
    status, headers, _ = await ask(get, follower, "v1/topics/t/messages", "POST")
    assert (status, headers["retry-after"]) == (503, "1")
    metrics = {name: (await ask(get, node, "metrics"))[2].decode() for name, node in (("leads", leader), ("follows", follower))}
    assert 'toymq_role{role="LEADING"} 1.0' in metrics["leads"]
    assert 'toymq_role{role="FOLLOWING"} 1.0' in metrics["follows"]
    assert "toymq_isr_size 3.0" in metrics["leads"]
    assert 'toymq_isr_changes_total{change="added"}' in metrics["leads"]
    assert "toymq_clock_offset_seconds" in metrics["follows"]
    assert f'toymq_replica_sync_seconds_bucket{{replica="{follower.name}",le="+Inf"}}' in metrics["leads"]
    assert sum(f'toymq_failovers_total{{reason="{reason}"}} 1.0' in metrics["leads"] for reason in REASONS) == 1
    names = "etcd_request_seconds_count", "etcd_failures_total", "damaged_segments", "scrub_bytes_total", "resync_bytes_total"
    for name in names:
        assert all(f"\ntoymq_{name} " in text for text in metrics.values()), name
    assert f'toymq_replica_lag_bytes{{replica="{follower.name}"}}' in metrics["leads"]


async def test_a_node_whose_topics_are_not_mounted_takes_no_part(cluster: ClusterRig) -> None:
    """Found: such a node followed the leader, and filled the mount point."""
    await cluster.in_sync(3)
    leader = await cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    follower.kill_machine()
    topics, away = follower.data_dir / "topics", follower.data_dir / "away"
    topics.rename(away)
    topics.mkdir()
    mounted = follower.data_dir / "topics-mounted"
    mounted.touch()
    follower.launch()
    assert await asyncio.to_thread(follower.wait) == 2
    assert "topics is empty, and was a file system of its own before: mount it" in follower.log_path.read_text()
    assert not [*topics.iterdir()]
    topics.rmdir()
    away.rename(topics)
    mounted.unlink()
    await asyncio.to_thread(follower.start)
    await cluster.in_sync(3)


async def test_the_copies_are_equal_when_nothing_happens(cluster: ClusterRig) -> None:
    await cluster.in_sync(3)
    async with Load(cluster.urls, topic="last") as load:
        await load.more(500)
    assert not await load.lost()
    assert await cluster.settled_differences() == [], cluster.logs()


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_harm_in_any_order(tmp_path: Path, seed: int) -> None:
    """Do thirty harms, some before the last one is healed. One copy is always left alone."""
    with running_cluster(tmp_path, members=3) as rig:
        asyncio.run(_any_harm(rig, random.Random(seed)))


async def _any_harm(rig: ClusterRig, rng: random.Random) -> None:
    await rig.in_sync(3)
    async with Load(rig.urls) as load:
        for _ in range(30):
            await load.more(200)
            leader = await rig.leader()
            node = leader if rng.random() < 0.6 else rng.choice(list(rig.nodes.values()))
            harm = rng.choice(("kill", "machine", "pause", "stop", "etcd"))
            if harm == "kill":
                with suppress(ProcessLookupError):
                    node.signal_node(signal.SIGKILL)
            elif harm == "machine":
                node.kill_machine()
                await asyncio.sleep(rng.uniform(0, 4))
                await asyncio.to_thread(node.start)
            elif harm == "pause":
                with suppress(ProcessLookupError):
                    node.signal_node(signal.SIGSTOP)
                    await asyncio.sleep(rng.uniform(0, 5))
                    node.signal_node(signal.SIGCONT)
            elif harm == "stop":
                node.terminate()
                assert await asyncio.to_thread(node.wait) == 0
                await asyncio.to_thread(node.start)
            else:
                member = rng.choice(rig.etcd.members)
                member.kill()
                await asyncio.sleep(rng.uniform(0, 3))
                member.start()
                await asyncio.to_thread(member.wait_until_it_answers)
            if rng.random() < 0.7:
                await rig.in_sync(3)
        await load.more(200)
        await rig.in_sync(3)
    assert not load.failed, load.failed[:3]
    lost = await load.lost()
    assert not lost, f"{len(lost)} of {len(load.acked)} that got OK are not there\n{rig.logs()}"
    assert await rig.settled_differences() == [], rig.logs()


def test_a_pair_refuses_publishes_below_its_minimum_and_takes_them_again(tmp_path: Path) -> None:
    with running_cluster(tmp_path, names=("n1", "n2"), min_in_sync=2) as rig:
        asyncio.run(_pair(rig))


async def _pair(rig: ClusterRig) -> None:
    await rig.in_sync(2)
    leader = await rig.leader()
    follower = next(node for node in rig.nodes.values() if node is not leader)
    async with Load(rig.urls) as load:
        await load.more(100)
        follower.kill_machine()
        await rig.in_sync(1)
        while not load.failed:  # noqa: ASYNC110 (of a client)
            await asyncio.sleep(0.02)
        assert "NOT_ENOUGH_REPLICAS" in load.failed[-1] or "NotEnoughReplicas" in load.failed[-1]
        with Wire(leader.port) as wire:
            assert wire.ask(b"PUB jobs - 1\nx\n").startswith(b"ERR NOT_ENOUGH_REPLICAS 1 of 2 copies are in sync")
            wire.send(b"SUB jobs c window=1\n")
            assert wire.line().startswith(b"OK")
            msg_id, _, _ = wire.message()
            wire.send(b"UNSUB jobs c\nACK jobs c %d sync=1\n" % msg_id)
            assert (wire.line(), wire.line()) == (b"OK 0", b"OK 1"), "acks go on"
        await asyncio.to_thread(follower.start)
        await rig.in_sync(2)
        await load.more(100)
    assert not await load.lost()
