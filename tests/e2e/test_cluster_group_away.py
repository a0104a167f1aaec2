"""A whole group of a cluster is away, as real processes over a real etcd: what subscriptions to topics of all groups get."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.cluster_groups import Groups, connected, say, serving, stored
from tests.support.cluster_rig import WAIT_S, running_groups
from tests.support.requirements import require
from toymq_py.consumer_options import Mode

pytestmark = require("etcd", "proc")

A, B = "a", "b"


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    """Two, of a node each."""
    with running_groups(tmp_path_factory.mktemp("groups"), {A: ("a1",), B: ("b1",)}) as rigs:
        serving(rigs)
        yield rigs


async def lacks(rig: Any) -> list[list[str]]:
    """What the connections of a group's leader lack."""
    (node,) = rig.nodes.values()
    async with httpx.AsyncClient() as http:
        found = (await http.get(f"http://{node.host}:{node.http_port}/v1/connections")).json()
    assert found["part"] == "group a of 2"
    return [each["lacks"] for each in found["connections"] if each["lacks"]]


class Work:
    """Subscribers of one consumer, which ack all they get."""

    def __init__(self, topic: str, mode: Mode) -> None:
        self.topic, self.mode = topic, mode
        self.got: list[tuple[int, Any]] = []
        self._news = asyncio.Condition()

    @asynccontextmanager
    async def subscriber(self, number: int, rig: Any) -> AsyncIterator[None]:
        async with await connected(rig) as client, client.sub(self.topic, "c", mode=self.mode, start="earliest") as messages:

            async def work() -> None:
                async for message in messages:
                    await message.ack(sync=True)
                    async with self._news:
                        self.got.append((number, message))
                        self._news.notify_all()

            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(work())
                yield
                task.cancel()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(lambda: len(self.got) >= count)


@pytest.mark.parametrize("mode", ["shared", "keyed", "single"])
async def test_subscribers_of_all_go_on_without_a_group_and_get_its_messages_when_it_is_back(
    groups: Groups, mode: Mode
) -> None:  # fmt: skip
    """They got nothing of any group, and each try took an attempt."""
    topic = f"jobs-{mode}"
    say(groups[A], f"CREATE {topic} partitions=6 max_attempts=2\n".encode(), 1)
    here, there = ([one for one in stored(groups[each]) if one.startswith(f"{topic}#")] for each in (A, B))
    assert (len(here), len(there)) == (3, 3)
    work = Work(topic, mode)
    node = groups[B].nodes["b1"]
    async with await connected(groups[A]) as publisher, work.subscriber(1, groups[A]):
        for partition in (*here, *there):
            await publisher.pub(partition, b"0")
        await work.until(6)
        await asyncio.to_thread(node.kill)
        async with work.subscriber(2, groups[A]):
            for number in range(1, 4):
                for partition in here:
                    await publisher.pub(partition, b"%d" % number)
            await work.until(6 + 9)
            assert await lacks(groups[A]) == [["group b"], ["group b"]]
            await asyncio.to_thread(node.start)
            for number in range(1, 4):
                for partition in there:
                    await publisher.pub(partition, b"%d" % number)
            await work.until(6 + 18)
            got = sorted((message.topic, message.payload) for _, message in work.got)
            assert got == sorted((one, b"%d" % number) for one in (*here, *there) for number in range(4)), "each once"
            assert {message.attempt for _, message in work.got} == {1}
            assert await lacks(groups[A]) == []
            while {number for number, message in work.got if message.topic in there} != {1, 2}:
                for partition in there:
                    await publisher.pub(partition, b"more")
                await work.until(len(work.got) + len(there))
