"""A topic moves between groups, as real processes over a real etcd, while clients publish and consume, and nodes die."""

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import toymq
import toymq.sync
from tests.support.broker_process import run
from tests.support.cluster_groups import Groups, connected
from tests.support.cluster_rig import CLUSTER, WAIT_S, ClusterRig, Load, running_groups
from tests.support.ctl import ok, refused
from tests.support.requirements import require
from toymq.errors import ConnectionLost
from toymq_py.replication.etcd_client import EtcdClient, EtcdOptions
from toymq_py.replication.kept_places import KeptPlaces
from toymqctl import cluster_moves
from toymqctl.cli import main as toymqctl
from toymqctl.cluster_requests import Refused

pytestmark = require("etcd", "proc")

A, B = "a", "b"


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """Run a group of one node, and one of two."""
    with running_groups(tmp_path, {A: ("a1",), B: ("b1", "b2")}) as rigs:
        for rig in rigs.values():
            asyncio.run(rig.leader())
        asyncio.run(rigs[B].in_sync(2))
        yield rigs


def ctl(groups: Groups, *arguments: str) -> Any:
    return CliRunner().invoke(toymqctl, ["cluster", "--cluster", CLUSTER, "--etcd", groups[A].etcd.urls[0], *arguments])


async def move(groups: Groups, topic: str, to: str) -> str:
    """Move a topic as the command does, in this loop."""
    kept = KeptPlaces(EtcdClient(EtcdOptions(groups[A].etcd.urls)), CLUSTER, A)
    try:
        return await cluster_moves.move(kept, topic, to, lambda text: None)
    finally:
        await kept.close()


def stored(rig: ClusterRig) -> set[str]:
    """Return the topics on the disk of a group's first node."""
    return {path.name for path in (next(iter(rig.nodes.values())).data_dir / "topics").iterdir() if path.name[0] != "."}


async def test_a_topic_moves_with_all_that_it_has(groups: Groups) -> None:
    async with await connected(groups[A]) as client:
        await client.create("orders", {"group": A, "max_attempts": 1, "visibility": 60})
        ids = [(await client.pub("orders", b"%d" % number, key=b"k%d" % number)).msg_id for number in range(100)]
        await client.pub("orders", b"late", delay=3600)
        async with client.sub("orders", "c", start="earliest") as messages:
            for number in range(10):
                message = await messages.next(timeout=WAIT_S)
                assert message.id == ids[number]
                await (message.nack() if number == 0 else message.ack(sync=True))
        before = await client.describe("orders")
        said = await asyncio.to_thread(lambda: ok(ctl(groups, "move", "orders", B)))
        assert said.splitlines() == ["orders goes from group a to b", "orders is in group b"]
        assert {"orders", "orders.dlq"} <= stored(groups[B])
        after = await client.describe("orders")
        same = ("first_id", "next_id", "messages", "settings", "incarnation", "state")
        assert {name: before[name] for name in same} == {name: after[name] for name in same}
        again = await client.pub("orders", b"again", key=b"k5")
        assert again.duplicate
        assert (await client.pub("orders", b"new")).msg_id == before["next_id"]
        pulled = await client.pull("orders", "c", max=5)
        assert [each.id for each in pulled] == ids[10:15]
        letters = await client.pull("orders.dlq", "judge", max=5)
        assert [each.payload for each in letters] == [b"0"]
        assert (await client.redrive("orders.dlq")) == 1
    assert not {"orders", "orders.dlq"} & stored(groups[A])


def test_what_cannot_be_moved_is_refused(groups: Groups) -> None:
    with toymq.sync.connect(groups[A].urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
        client.create("orders", {"group": A})
    refused(ctl(groups, "move", "nothing", B), 1, "no group has a topic nothing")
    refused(ctl(groups, "move", "orders", "c"), 1, "there is no group c; there are a, b")
    refused(ctl(groups, "move", "orders.dlq", B), 1, "orders.dlq goes with orders: move that")
    assert ok(ctl(groups, "move", "orders", A)) == "orders is in group a\n"


async def test_a_group_whose_topics_were_moved_is_taken_out(groups: Groups) -> None:
    async with await connected(groups[B]) as client:
        await client.create("orders", {"group": A})
        await client.pub("orders", b"1")
    with pytest.raises(Refused, match="group z"):
        await removed(groups, "z")
    with pytest.raises(Refused, match="a1 of group a runs: stop its nodes first"):
        await removed(groups, A)
    groups[A].nodes["a1"].stop()
    with pytest.raises(Refused, match="group a has topics: orders; start it, and move them"):
        await removed(groups, A)
    groups[A].nodes["a1"].start()
    await move(groups, "orders", B)
    groups[A].nodes["a1"].stop()
    assert await removed(groups, A) == "group a is no more: its data directories are not touched"
    async with await connected(groups[B]) as client:
        await client.pub("orders", b"2")
        await client.pub("new", b"1")
        names = [each["topic"] for each in await client.topics(">")]
        assert names == ["new", "orders"], "no list waits for it"
    node = groups[A].nodes["a1"]
    node.start()
    why = "the group a is no longer in the cluster"
    await asyncio.to_thread(node.until, lambda: why in node.log_path.read_text(), why)
    node.stop()
    with pytest.raises(Refused, match="b is the only group"):
        await removed(groups, B)


def test_a_node_with_a_wrong_group_says_which_one_its_directory_is_of(groups: Groups) -> None:
    """Found: the error said that the node's group had been removed, or gave two ids and "see the runbook"."""
    node = groups[A].nodes["a1"]
    node.stop()
    assert node.options[-2:] == ["--group", A]
    base = node.options[:-2]
    start = f"start it with --cluster {CLUSTER} --group {A}; a node of group"
    for other, group in (([], "g0"), (["--group", B], B), (["--group", "z"], "z"), (["--cluster", "solo", "--group", A], A)):
        found = run("serve", "--data-dir", str(node.data_dir), "--listen", f"127.0.0.1:{node.port}", *base, *other)
        assert found.returncode == 2, found
        whose = f"{node.data_dir}: the directory belongs to group a of the cluster {CLUSTER}, not to group {group} of"
        assert whose in found.stderr
        assert start in found.stderr


async def removed(groups: Groups, group: str) -> str:
    kept = KeptPlaces(EtcdClient(EtcdOptions(groups[A].etcd.urls)), CLUSTER, group)
    try:
        return await cluster_moves.remove_group(kept, group)
    finally:
        await kept.close()


class Consumer:
    """Consumes until it is cancelled: acks, and dead-letters every 50th message."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.dead: set[bytes] = set()

    async def run(self, rig: ClusterRig) -> None:
        async with await connected(rig) as client, client.sub("jobs", "c", start="earliest") as messages:
            async for message in messages:
                if int(message.payload) % 50 == 7:
                    with contextlib.suppress(ConnectionLost):  # then it comes again, or is one
                        if await message.dead_letter():
                            self.dead.add(message.payload)
                else:
                    await message.ack()
                self.seen.add(message.payload)


HARMS = (None, (A, "process"), (B, "process"), (B, "machine"))
"""What is killed while the topic moves to b and back."""


async def test_a_topic_moves_back_and_forth_under_load_while_nodes_die(groups: Groups) -> None:
    rng = random.Random(7)
    async with await connected(groups[A]) as client:
        await client.create("jobs", {"group": A})
    consumer = Consumer()
    consuming = asyncio.get_running_loop().create_task(consumer.run(groups[B]))
    async with Load(groups[A].urls, window=8) as load:
        await load.more(150)
        for harm in HARMS:
            for to in (B, A):
                moving = asyncio.get_running_loop().create_task(move(groups, "jobs", to))
                if harm is not None:
                    await asyncio.sleep(rng.uniform(0.0, 0.2))
                    await kill(groups[harm[0]], harm[1])
                await moving
                await load.more(60)
        await load.stop()
        assert not load.failed
        async with asyncio.timeout(WAIT_S):
            while not load.acked.keys() <= consumer.seen:  # noqa: ASYNC110 (another task)
                await asyncio.sleep(0.05)
        consuming.cancel()
        assert not await load.lost()
    async with await connected(groups[B]) as client:
        count = (await client.describe("jobs.dlq"))["messages"]
        letters = [letter.payload for letter in await client.pull("jobs.dlq", "judge", max=count + 1)]
    assert len(letters) == len(set(letters)), "each once"
    assert consumer.dead <= set(letters)
    for _ in range(100):
        if not stored(groups[A]) & stored(groups[B]):
            break
        await asyncio.sleep(0.05)
    assert not stored(groups[A]) & stored(groups[B])
    assert not any("way" in each for each in marks(groups))


def marks(groups: Groups) -> list[str]:
    return [(node.data_dir / "moves.json").read_text() for rig in groups.values() for node in rig.nodes.values()]


async def kill(rig: ClusterRig, what: str) -> None:
    node = await rig.leader()
    if what == "process":
        node.signal_node(signal.SIGKILL)
        return
    node.kill_machine()
    await rig.leader(other_than=node.name)
    node.start()
    await rig.in_sync(len(rig.nodes))
