"""A topic moves between groups, as real processes over a real etcd, while clients publish and consume, and nodes die."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import toymq
from tests.support.cluster_rig import CLUSTER, WAIT_S, ClusterRig, Load, running_groups
from tests.support.ctl import ok, refused
from tests.support.requirements import require
from toymqctl.cli import main as toymqctl

pytestmark = require("etcd", "proc")

Groups = dict[str, ClusterRig]
A, B = "a", "b"


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """A group of one node, and one of two."""
    with running_groups(tmp_path, {A: ("a1",), B: ("b1", "b2")}) as rigs:
        for rig in rigs.values():
            asyncio.run(rig.leader())
        asyncio.run(rigs[B].in_sync(2))
        yield rigs


def connected(rig: ClusterRig) -> Any:
    return toymq.connect(rig.urls, timeout_s=WAIT_S, wait_s=WAIT_S)


def ctl(groups: Groups, *arguments: str) -> Any:
    return CliRunner().invoke(toymqctl, ["cluster", "--cluster", CLUSTER, "--etcd", groups[A].etcd.urls[0], *arguments])


async def move(groups: Groups, topic: str, to: str) -> str:
    return await asyncio.to_thread(lambda: ok(ctl(groups, "move", topic, to)))


def stored(rig: ClusterRig) -> set[str]:
    """The topics on the disk of a group's first node."""
    return {path.name for path in Path(next(iter(rig.nodes.values())).data_dir, "topics").iterdir() if path.name[0] != "."}


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
        said = await move(groups, "orders", B)
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
    refused(ctl(groups, "move", "nothing", B), 1, "no group has a topic nothing")
    refused(ctl(groups, "move", "orders", "c"), 1, "there is no group c; there are a, b")
    assert ok(ctl(groups, "move", "orders", B)) == "orders is in group b\n"
