"""A whole group of a cluster is down, as real processes over a real etcd: which answers its topics get, and what goes on."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import toymq
import toymq.sync
from tests.support.broker_process import environment
from tests.support.cluster_groups import Groups, connected, say, stored
from tests.support.cluster_rig import MONOTONIC, WAIT_S, ClusterRig
from tests.support.requirements import require
from toymq.errors import PlacementUnknown, RequestTimeout
from toymq_py.consumer_options import Mode
from toymq_py.routes import partition_of_route
from toymqctl.cli import main as toymqctl

pytestmark = require("etcd", "proc")

A, B = "a", "b"


async def lacks(rig: Any) -> list[list[str]]:
    """Return the missing groups that each connection of a group's leader reports."""
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
    """Found: subscribers of a pattern got nothing from any group, and each try took an attempt."""
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
                count = len(work.got) + len(there)
                for partition in there:
                    await publisher.pub(partition, b"more")
                await work.until(count)


PROBLEM = r"has had no leader for [0-9]+ s: look at its nodes \(`toymqctl cluster --group b`\)"
NO_LEADER = f"group b has the topic alone, and {PROBLEM}"


async def test_what_a_missing_group_has_is_refused_by_name_and_publishes_wait_for_it(groups: Groups) -> None:
    """Found: each call waited until the client's own time-out, whose error did not name the group."""
    a, (node,) = groups[A], groups[B].nodes.values()
    say(a, b"CREATE alone group=b\n", 1)
    say(a, b"CREATE wide partitions=6\n", 1)
    async with await connected(a) as patient:
        assert await patient.pub("alone", b"0") == toymq.Receipt(0, duplicate=False)
        await asyncio.to_thread(node.kill)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(patient.pub("alone", b"1"))
            await asyncio.to_thread(_until_refused, a)
            for command in (b"PUB alone - 1\nx\n", b"PUB alone k 1\nx\n", b"SUB alone c\n", b"DESCRIBE alone\n"):
                (answer,) = say(a, command, 1)
                assert re.fullmatch(f"ERR PLACEMENT_UNKNOWN {NO_LEADER}\n", answer.decode()), answer
            async with asyncio.TaskGroup() as clients:
                clients.create_task(asyncio.to_thread(_refused_by_name, a))
                clients.create_task(_asked_by_name(a))
                clients.create_task(_over_http(a))
            assert not waiting.done()
            await asyncio.to_thread(node.start)
        assert waiting.result().duplicate is False
        async with patient.sub("alone", "judge", start="earliest") as messages:
            assert [(await messages.next(timeout=WAIT_S)).payload for _ in range(2)] == [b"0", b"1"]


async def test_publishes_to_healthy_topics_go_on_beside_those_to_partitions_of_a_missing_group(groups: Groups) -> None:
    """Found: each publish to a partition of the missing group delayed all that its client sent after it by 4 s."""
    say(groups[A], b"CREATE plain group=a\n", 1)
    say(groups[A], b"CREATE parted partitions=4\n", 1)
    (node,) = groups[B].nodes.values()
    async with await connected(groups[A]) as client:
        await asyncio.to_thread(node.kill)
        until = MONOTONIC() + WAIT_S
        there = min(int(name.partition("#")[2]) for name in stored(groups[B]) if name.startswith("parted#"))
        while say(groups[A], b"OFFSETS parted#%d\n" % there, 1)[0].startswith(b"ERR MOVED"):
            assert MONOTONIC() < until, groups[A].logs()
        began = MONOTONIC()
        refused = 0
        for number in range(40):
            both = client.pub("plain", b"x"), client.pub("parted", b"x", route=f"{number}")
            found = await asyncio.gather(*both, return_exceptions=True)
            assert found[0] == toymq.Receipt(number, duplicate=False)
            refused += isinstance(found[1], PlacementUnknown)
        assert 0 < refused < 40, "routes of both groups"
        assert MONOTONIC() - began < WAIT_S / 2, "4 s for each that was refused"
        await asyncio.to_thread(node.start)
        while (await asyncio.to_thread(say, groups[A], b"PUB parted#%d - 1\nx\n" % there, 1))[0].startswith(b"ERR PLACEMENT"):
            assert MONOTONIC() - began < WAIT_S, groups[A].logs()


async def test_a_change_of_all_partitions_is_made_nowhere_while_a_group_is_away(groups: Groups) -> None:
    """Found: the partitions in group a were purged for good, or changed, and the answer was only that group b does not
    answer."""
    a, (node,), (own,) = groups[A], groups[B].nodes.values(), groups[A].nodes.values()
    assert say(a, b"CREATE whole partitions=6\n", 1) == [b"OK 0\n"]
    async with await connected(a) as client:
        await client.pub_many("whole", [b"x"] * 12)
        assert await client.seek("whole", "c", "earliest", create=True) == 6
        here = next(one for one in stored(a) if one.startswith("whole#"))
        await asyncio.to_thread(node.kill)
        (answer,) = await asyncio.to_thread(say, a, b"PURGE whole\n", 1)
        assert re.fullmatch(rb"ERR PLACEMENT_UNKNOWN group b .*nothing was done.*\n", answer), "it is not known as away yet"
        await asyncio.to_thread(_until_no_leader, own)
        for command in ("PURGE whole", "CONFIG whole", "SEEK whole c", "FORGET whole c", "REDRIVE whole.dlq", "DELETE whole"):
            more = {"CONFIG": " max_attempts=7", "SEEK": " latest"}.get(command.split()[0], "")
            (answer,) = await asyncio.to_thread(say, a, f"{command}{more}\n".encode(), 1)
            assert answer.decode() == f"ERR PLACEMENT_UNKNOWN {refusal_of(command)}\n"
        async with httpx.AsyncClient(base_url=f"http://{own.host}:{own.http_port}/v1/topics") as http:
            for command, answered in (
                ("PURGE whole", await http.post("/whole:purge")),
                ("REDRIVE whole.dlq", await http.post("/whole.dlq:redrive")),
                ("CONFIG whole", await http.patch("/whole?partitions=6", json={"max_attempts": 7})),
                ("SEEK whole c", await http.put("/whole/consumers/c", json={"seek": "latest"})),
                ("FORGET whole c", await http.delete("/whole/consumers/c")),
                ("DELETE whole", await http.delete("/whole?partitions=6")),
            ):
                assert (answered.status_code, answered.json()["detail"]) == (503, refusal_of(command))
        found = await client.describe(here)
        assert (found["messages"], found["settings"], [one["backlog"] for one in found["consumers"]]) == (2, {}, [2])
        await asyncio.to_thread(node.start)
        while True:
            try:
                assert await client.purge("whole") == 12
                break
            except PlacementUnknown:
                await asyncio.sleep(0.1)


def refusal_of(command: str) -> str:
    remedy = f"start its nodes (`toymqctl cluster --group b`), and repeat {command} when it has one; nothing was done"
    return f"group b has no leader, and would not do its part: {remedy}"


def _until_no_leader(node: Any) -> None:
    until = MONOTONIC() + WAIT_S
    while 'toymq_group_has_leader{group="b"} 0.0' not in httpx.get(f"http://{node.host}:{node.http_port}/metrics").text:
        assert MONOTONIC() < until
        time.sleep(0.1)


async def test_a_leader_that_is_newer_than_the_absence_says_the_same(groups: Groups) -> None:
    """Found: a leader that took office after the group went down knew none of its nodes, and refused publishes at once. A topic
    that was to be made in that group already had a record."""
    a, (node,), (own,) = groups[A], groups[B].nodes.values(), groups[A].nodes.values()
    say(groups[B], b"CREATE alone group=b\n", 1)
    await asyncio.to_thread(node.kill)
    (answer,) = await asyncio.to_thread(say, a, b"CREATE early group=b\n", 1)
    assert answer.startswith(b"ERR PLACEMENT_UNKNOWN early was not made: group b "), "it is not known as away yet"
    await asyncio.to_thread(_until_refused, a)
    assert say(a, b"CREATE early group=a\n", 1) == [b"OK 0\n"], "nor has it the name"
    await asyncio.to_thread(own.stop)
    await asyncio.to_thread(own.start)
    await a.leader()
    await asyncio.to_thread(_until_refused, a)
    moved = f"ERR MOVED {node.host}:{node.port} "
    for command in (b"PUB alone - 1\nx\n", b"SUB alone c\n"):
        answer = say(a, b"CLUSTER moved=1\n" + command, 3)[-1].decode()
        assert answer.startswith(moved), answer
        assert re.search(rf"\(group b\) has the topic alone, and {PROBLEM}\n", answer), answer
    (answer,) = say(a, b"CREATE other group=b\n", 1)
    assert re.fullmatch(f"ERR PLACEMENT_UNKNOWN other was not made: group b {PROBLEM}\n", answer.decode()), answer
    assert say(a, b"CREATE other group=a\n", 1) == [b"OK 0\n"]
    async with await connected(a) as patient, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(patient.pub("alone", b"1"))
        await asyncio.to_thread(node.start)
    assert waiting.result().duplicate is False


def _until_refused(rig: ClusterRig) -> None:
    until = MONOTONIC() + WAIT_S
    while say(rig, b"OFFSETS alone\n", 1)[0].startswith(b"ERR MOVED"):
        assert MONOTONIC() < until, rig.logs()
        time.sleep(0.1)


async def _asked_by_name(rig: ClusterRig) -> None:
    """Check the asyncio client's errors: at once for calls that are not repeated."""
    async with toymq.connect(rig.urls, timeout_s=30) as client:
        with pytest.raises(PlacementUnknown, match=f"^{NO_LEADER}$") as refused:
            await client.describe("alone")
        assert refused.value.retryable
        with pytest.raises(PlacementUnknown, match=f"^group b {PROBLEM}$"):
            await client.stats()
    async with toymq.connect(rig.urls, timeout_s=3) as client:
        with pytest.raises(RequestTimeout, match=f"waited for the OK of a publish to alone; {NO_LEADER}") as late:
            await client.pub("alone", b"late")
        assert late.value.retryable
        with pytest.raises(RequestTimeout, match=f"waited for the OK of SUB alone c; {NO_LEADER}"):
            async with client.sub("alone", "c"):
                pass


async def _over_http(rig: ClusterRig) -> None:
    (node,) = rig.nodes.values()
    async with httpx.AsyncClient(base_url=f"http://{node.host}:{node.http_port}") as http:
        for each in (await http.post("/v1/topics/alone/messages", content=b"x"), await http.get("/v1/topics/alone")):
            assert (each.status_code, each.headers["retry-after"]) == (503, "1")
            assert each.json()["code"] == "PLACEMENT_UNKNOWN"
            assert re.fullmatch(NO_LEADER, each.json()["detail"])
        made = await http.put("/v1/topics/newp", json={"partitions": 4})
        assert (made.status_code, made.json()["code"]) == (503, "PLACEMENT_UNKNOWN")
        assert made.json()["detail"].startswith("group b has no leader, and would get no partition of newp: start its nodes (")
        assert (await http.get("/v1/topics/newp")).json()["code"] == "NO_SUCH_TOPIC", "nothing was made"
        metrics = (await http.get("/metrics")).text.splitlines()
    assert 'toymq_role{role="LEADING",group="a"} 1.0' in metrics
    assert [row.partition("{")[2] for row in metrics if row.startswith("toymq_group_has_leader{")] == [
        'group="a"} 1.0', 'group="b"} 0.0',
    ]  # fmt: skip


def _refused_by_name(rig: ClusterRig) -> None:
    """Check the errors of the blocking client, and of the command line."""
    with toymq.sync.connect(rig.urls, timeout_s=3) as client:
        with pytest.raises(PlacementUnknown, match=f"^{NO_LEADER}$"):
            client.describe("alone")
        with pytest.raises(RequestTimeout, match=f"waited for the OK of a publish to alone; {NO_LEADER}"):
            client.pub("alone", b"late")
        with pytest.raises(RequestTimeout, match=f"waited for the OK of SUB alone c; {NO_LEADER}"):
            client.sub("alone", "c")
    refused = CliRunner().invoke(toymqctl, ["--url", rig.urls[0], "describe", "alone"])
    assert refused.exit_code == 1
    assert re.search(f"PLACEMENT_UNKNOWN: {NO_LEADER}", refused.output), refused.output
    here = rig.urls[0].removeprefix("toymq://")
    half = CliRunner().invoke(toymqctl, ["--url", here, "create", "newp", "--partitions", "4"])
    assert half.exit_code == 1
    none = r"group b has no leader, and would get no partition of newp: start its nodes .*, and repeat CREATE newp when it"
    assert re.search(f"PLACEMENT_UNKNOWN: {none}", half.output), half.output
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()", "--url", here, "pub", "alone", "late"]
    with subprocess.Popen(program, env=environment(), stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        said = next(line for line in waiting.stderr if "partitioned" not in line)
        waiting.kill()
    late = "toymqctl: waiting up to 30 s for the answer to a publish to alone: group b has the topic alone, and "
    assert re.fullmatch(f"{late}{PROBLEM}.*\n", said), said
    there = next(one for one in stored(rig) if one.startswith("wide#"))
    route = next(f"r{number}" for number in range(999) if f"wide#{partition_of_route(b'r%d' % number, 6)}" == there)
    told = CliRunner().invoke(toymqctl, ["--url", here, "pub", "wide", "x", "--route", route])
    assert told.stdout == f"OK 0 {there}\n", told.output
    examined = CliRunner().invoke(toymqctl, ["--url", f"toymq://127.0.0.1:1,{here}", "doctor"])
    assert examined.exit_code == 1
    assert examined.output.startswith(f"ok    reachable: {here}\n"), "the address that answered, not the first of the URL"
    for said in (
        "FAIL  group b: no leader: its topics are away", "warn  copies of group a: one copy is in sync",
        "ok    durability: ", "payloads up to 2.0MiB (without group b)", "ok    dead letters: none (without group b)",
    ):  # fmt: skip
        assert said in examined.output, examined.output
    for arguments in ("connections",), ("alerts", "list"), ("webhooks", "list"):  # they ask this node alone
        listed = CliRunner().invoke(toymqctl, ["--url", here, *arguments])
        assert listed.exit_code == 0, listed.output
