"""Partitioned topics over groups, as real processes over a real etcd: partitions in each group, commands at any node."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest

import toymq
import toymq.sync
from tests.support.cluster_groups import Groups, asked, connected, say, serving, stored, two_groups
from tests.support.cluster_rig import WAIT_S, running_groups
from tests.support.requirements import require
from toymq.errors import NoSuchTopic, PlacementUnknown, TopicExists
from toymq_py.consumer_options import Mode

pytestmark = require("etcd", "proc")

A, B = "a", "b"
COUNT = 6


def parts(rigs: Groups, topic: str) -> dict[str, set[str]]:
    """Return the partitions on the disk of each group."""
    return {name: {one for one in stored(rig) if one.startswith(f"{topic}#")} for name, rig in rigs.items()}


def names(topic: str, count: int = COUNT) -> list[str]:
    return [f"{topic}#{number}" for number in range(count)]


def test_partitions_are_spread_over_the_groups_and_every_leader_knows_them(groups: Groups) -> None:
    assert say(groups[A], b"CREATE spread partitions=6 visibility=60000\n", 1) == [b"OK 0\n"]
    found = parts(groups, "spread")
    assert {name: len(some) for name, some in found.items()} == {A: 3, B: 3}
    assert sorted(found[A] | found[B]) == names("spread")
    for rig in groups.values():
        assert say(rig, b"CREATE spread partitions=6\n", 1) == [b"OK 0\n"]
        assert asked(rig, b"CONFIG spread") == {"partitions": 6, "visibility": 60_000}
        described = asked(rig, b"DESCRIBE spread")
        assert [part["topic"] for part in described["parts"]] == names("spread")
        places = asked(rig, b"CLUSTER")["topics"]
        assert {name: places[name] for name in names("spread")} == {
            one: group for group, some in found.items() for one in some
        }
        (refusal,) = say(rig, b"CREATE spread partitions=4\n", 1)
        assert b"EXISTS spread exists with partitions=6, not 4" in refusal or refusal.startswith(b"ERR MOVED "), refusal


def test_a_publish_anywhere_goes_to_the_partition_of_its_route(groups: Groups) -> None:
    say(groups[B], b"CREATE routed partitions=6\n", 1)
    expected = [0] * COUNT
    for number in range(24):
        rig = groups[(A, B)[number % 2]]
        partition = crc32(b"key-%d" % number) % COUNT
        assert say(rig, b"PUB routed key-%d 1\nx\n" % number, 1) == [b"OK %d\n" % expected[partition]]
        expected[partition] += 1
        assert say(rig, b"PUB routed key-%d 1\nx\n" % number, 1)[0].startswith(b"DUP "), "also at the other group"
    for rig in groups.values():
        assert [part["messages"] for part in asked(rig, b"DESCRIBE routed")["parts"]] == expected
    for partition in names("routed"):
        answers = [say(rig, f"PUB {partition} - 1\nx\n".encode(), 1)[0] for rig in groups.values()]
        assert sorted(answer.split()[0] for answer in answers) == [b"ERR", b"OK"], answers
        assert any(answer.startswith(b"ERR MOVED ") for answer in answers)


async def test_the_asyncio_client(groups: Groups) -> None:
    async with await connected(groups[A]) as mq, await connected(groups[B]) as other:
        await mq.create("aio", {"partitions": COUNT, "visibility": "2m"})
        with pytest.raises(TopicExists, match="aio exists with partitions=6, not 2: the number is fixed at creation"):
            await other.create("aio", {"partitions": 2})
        with pytest.raises(TopicExists):
            await other.create("aio", {"partitions": COUNT, "visibility": "3m"})
        with pytest.raises(toymq.IsPartitioned) as error:
            await other.offsets("aio")
        assert error.value.partitions == COUNT
        for number in range(20):
            await (mq, other)[number % 2].pub("aio", b"%d" % number, route=f"customer-{number % 5}")
        receipts = await other.pub_many("aio", [b"n"] * (3 * COUNT))
        assert [receipt.duplicate for receipt in receipts] == [False] * (3 * COUNT)
        total = 20 + 3 * COUNT
        async with mq.sub("aio", "billing", window=8, start="earliest") as messages:
            seen: dict[str, list[int]] = {}
            for _ in range(total):
                message = await messages.next(timeout=WAIT_S)
                seen.setdefault(message.topic, []).append(message.id)
                await message.ack()
        assert all(ids == list(range(len(ids))) for ids in seen.values()), "each partition in its order"
        assert sum(map(len, seen.values())) == total
        (consumer,) = (await other.describe("aio"))["consumers"]
        assert (consumer["consumer"], consumer["backlog"]) == ("billing", 0)
        assert await other.seek("aio", "billing", "earliest") == COUNT
        assert (await mq.config("aio", {"ttl": "1h"}))["ttl"] == 3600
        pulled: list[Any] = []
        while len(pulled) < total:
            pulled += await mq.pull("aio", "billing", max=100, wait=WAIT_S)
        await pulled[0].dead_letter("no printer")
        for message in pulled[1:]:
            await message.ack(sync=True)
        (letter,) = await other.pull("aio.dlq", "person", wait=WAIT_S)
        assert letter.topic == f"{pulled[0].topic}.dlq"
        await letter.nack(0.0)
        assert await other.redrive("aio.dlq") == 1
        assert await mq.purge("aio") == total + 1
        await other.forget("aio", "billing")
        assert await other.delete("aio") >= 0
        assert parts(groups, "aio") == {A: set(), B: set()}
        for client in (mq, other):
            with pytest.raises(NoSuchTopic):
                await client.describe("aio")
        await mq.create("aio", {"partitions": 2})
        assert sum(map(len, parts(groups, "aio").values())) == 2
        await other.delete("aio")
        await mq.pub("aio", b"plain")
        with pytest.raises(TopicExists, match="exists and is not partitioned"):
            await other.create("aio", {"partitions": 2})


def test_all_partitions_are_in_the_group_that_is_named(groups: Groups) -> None:
    """Whichever group is asked, the client is redirected to the named one."""
    with toymq.sync.connect(groups[A].urls, timeout_s=WAIT_S, wait_s=WAIT_S) as mq:
        for _ in range(2):
            mq.create("named", {"partitions": COUNT, "group": B})
        assert {name: len(some) for name, some in parts(groups, "named").items()} == {A: 0, B: COUNT}
        mq.pub("named", b"x", route="customer-7")
        with pytest.raises(TopicExists, match="named has partitions in group b, not all in a"):
            mq.create("named", {"partitions": COUNT, "group": A})
        assert mq.delete("named") == 1


def test_the_blocking_client(groups: Groups) -> None:
    with toymq.sync.connect(groups[B].urls, timeout_s=WAIT_S, wait_s=WAIT_S) as mq:
        mq.create("blocking", {"partitions": COUNT})
        for number in range(12):
            mq.pub("blocking", b"%d" % number, route="customer-7")
        partition = f"blocking#{crc32(b'customer-7') % COUNT}"
        with mq.sub("blocking", "billing", start="earliest") as messages:
            for number in range(12):
                message = messages.next(WAIT_S)
                assert (message.topic, message.id, message.payload) == (partition, number, b"%d" % number)
                message.ack(sync=True)
        list(mq.pub_many("blocking", [b"x"] * COUNT))
        assert mq.delete("blocking") == 12 + COUNT


def test_http_has_all_of_a_partitioned_topic_at_any_gateway(groups: Groups) -> None:
    gateways = {name: f"http://127.0.0.1:{next(iter(rig.nodes.values())).http_port}" for name, rig in groups.items()}
    with (
        httpx.Client(base_url=gateways[A], timeout=WAIT_S) as http,
        httpx.Client(base_url=gateways[B], timeout=WAIT_S) as other,
    ):
        assert http.put("/v1/topics/web", json={"partitions": COUNT, "visibility": 60_000}).status_code == 201
        assert other.put("/v1/topics/web", json={"partitions": COUNT}).status_code == 200
        assert http.put("/v1/topics/web", json={"partitions": 2}).json()["code"] == "EXISTS"
        assert {name: len(some) for name, some in parts(groups, "web").items()} == {A: 3, B: 3}
        stored_count = 0
        for number in range(12):
            answer = http.post("/v1/topics/web/messages", content=b"x", headers={"x-route": f"r{number}"})
            if answer.status_code == 421:  # its gateway is named, and takes the same request
                assert f" {gateways[B]}/ (group b) has the topic web#" in answer.json()["detail"]
                answer = other.post("/v1/topics/web/messages", content=b"x", headers={"x-route": f"r{number}"})
            assert answer.status_code == 201
            stored_count += 1
        for client in (http, other):
            described = client.get("/v1/topics/web").json()
            assert [part["topic"] for part in described["parts"]] == names("web")
            assert described["messages"] == stored_count
            assert client.get("/v1/history").json()["part"] == f"group {A if client is http else B} of 2"
            listed = [topic["topic"] for topic in client.get("/v1/topics", params={"pattern": "web#*"}).json()["topics"]]
            assert listed == names("web")
        assert http.get("/v1/stats").json()["publish_total"] >= stored_count
        for client, method in ((http, "PATCH"), (other, "DELETE")):
            assert client.request(method, "/v1/topics/web", json={"ttl": 5000}).json()["code"] == "PARTITIONED"
        all_of_it = f"/v1/topics/web?partitions={COUNT}"
        assert other.patch(all_of_it, json={"ttl": 3_600_000}).json()["settings"]["ttl"] == 3_600_000
        assert http.put("/v1/topics/web/consumers/c", json={"seek": "earliest"}).json()["backlog"] == stored_count
        assert other.get("/v1/topics/web/consumers/c").json()["backlog"] == stored_count
        assert other.delete("/v1/topics/web/consumers/c").status_code == 204
        assert http.post("/v1/topics/web:purge").json() == {"purged": stored_count}
        assert other.delete(all_of_it).status_code == 204
        assert http.get("/v1/topics/web").status_code == 404


async def test_the_dashboard_shows_the_topics_of_all_groups(groups: Groups) -> None:
    say(groups[A], b"CREATE seen.a group=a\n", 1)
    say(groups[B], b"CREATE seen.b group=b\n", 1)
    port = next(iter(groups[B].nodes.values())).http_port
    async with (
        asyncio.timeout(WAIT_S), httpx.AsyncClient(timeout=WAIT_S) as http,
        http.stream("GET", f"http://127.0.0.1:{port}/v1/events") as events,
    ):
        async for line in events.aiter_lines():
            if line.startswith("data: "):
                found = {topic["topic"] for topic in json.loads(line.removeprefix("data: "))["topics"]}
                assert {"seen.a", "seen.b"} <= found
                break


async def test_a_topic_that_is_made_at_once_everywhere_is_one(groups: Groups) -> None:
    """Clients create a plain and a partitioned topic in both groups at the same time."""
    async with await connected(groups[A]) as first, await connected(groups[B]) as second:
        for number in range(15):
            name = f"race{number}"
            outcomes = await asyncio.gather(
                first.create(name, {"partitions": 2}), second.create(name, {"partitions": 2}), second.create(name),
                return_exceptions=True,
            )  # fmt: skip
            refused = [each for each in outcomes if isinstance(each, BaseException)]
            assert all(isinstance(each, TopicExists | PlacementUnknown) for each in refused), refused
            is_plain = sum(map(len, parts(groups, name).values())) == 0
            if not is_plain:
                await first.create(name, {"partitions": 2})
                assert (await second.describe(name))["partitions"] == 2
            assert [name in stored(rig) for rig in groups.values()].count(True) == int(is_plain)
            await first.delete(name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Groups]:
    """Run two groups of two nodes."""
    with running_groups(tmp_path, {A: ("a1", "a2"), B: ("b1", "b2")}) as rigs:
        serving(rigs)
        for rig in rigs.values():
            asyncio.run(rig.in_sync(2))
        yield rigs


KILLS = ((A, "process"), (B, "machine"), (A, "machine"), (B, "process"))


@pytest.mark.parametrize(
    ("mode", "kills"),
    [
        ("exclusive", KILLS[:2]), pytest.param("exclusive", KILLS, marks=pytest.mark.torture),
        pytest.param("keyed", KILLS, marks=pytest.mark.torture),
    ],
    ids=["exclusive", "exclusive-all", "keyed-all"],
)  # fmt: skip
async def test_kills_of_any_node_lose_nothing_and_keep_the_order_of_each_partition(
    cluster: Groups, mode: Mode, kills: Sequence[tuple[str, str]]
) -> None:
    """Producers at both groups, each with its route, and one consumer or two that share by key, while leaders of both groups
    die, by process and by machine."""
    acked: dict[bytes, int] = {}
    seen: dict[bytes, dict[int, None]] = {}  # in the order in which each came first: after a kill some come again
    places: dict[bytes, set[str]] = {}
    over = asyncio.Event()

    async def produce(rig_name: str, number: int) -> None:
        route, count = b"%b%d" % (rig_name.encode(), number), 0
        async with await connected(cluster[rig_name]) as client:
            while not over.is_set():
                try:
                    headers = {"toymq-group": route.decode()}
                    await client.pub("orders", b"%b %d" % (route, count), route=route.decode(), headers=headers)
                except toymq.RequestError as error:
                    if not error.retryable:
                        raise
                    await asyncio.sleep(0.02)
                    continue
                acked[route] = count = count + 1

    async def consume(group: str) -> None:
        async with (
            await connected(cluster[group]) as client,
            client.sub("orders", "c", start="earliest", window=64, mode=mode) as messages,
        ):
            while True:
                message = await messages.next()
                route, _, count = message.payload.partition(b" ")
                places.setdefault(route, set()).add(message.topic)
                seen.setdefault(route, {})[int(count)] = None
                await message.ack()

    async with await connected(cluster[B]) as admin:
        await admin.create("orders", {"partitions": COUNT})
    found = parts(cluster, "orders")
    assert {name: len(some) for name, some in found.items()} == {A: 3, B: 3}
    async with asyncio.TaskGroup() as tasks:
        consumers = [tasks.create_task(consume(group)) for group in ((A,) if mode == "exclusive" else (A, B))]
        producers = [tasks.create_task(produce(name, number)) for name in (A, B) for number in range(3)]
        for group, harm in kills:
            before = sum(acked.values())
            while sum(acked.values()) < before + 200:  # noqa: ASYNC110 (other tasks)
                await asyncio.sleep(0.02)
            rig = cluster[group]
            node = await rig.leader()
            if harm == "process":
                node.signal_node(signal.SIGKILL)
            else:
                node.kill_machine()
                await rig.leader(other_than=node.name)
                node.start()
            await rig.in_sync(2)
        before = sum(acked.values())
        while sum(acked.values()) < before + 200:  # noqa: ASYNC110 (other tasks)
            await asyncio.sleep(0.02)
        over.set()
        await asyncio.gather(*producers)
        async with asyncio.timeout(WAIT_S):
            while any(len(seen.get(route, ())) < count for route, count in acked.items()):  # noqa: ASYNC110 (other tasks)
                await asyncio.sleep(0.05)
        for consumer in consumers:
            consumer.cancel()
    for route, count in acked.items():
        assert list(seen[route])[:count] == list(range(count)), route
        assert places[route] == {f"orders#{crc32(route) % COUNT}"}


KILLED_AND_ASKED = ((A, A), (B, A), (A, B), (B, B))
"""Groups: the one whose leader is killed, and the one at which the command is."""


@pytest.mark.parametrize("cases", [(1, 2), pytest.param(range(4), marks=pytest.mark.torture)], ids=["others", "all"])
@pytest.mark.parametrize("command", ["CREATE", "DELETE"])
async def test_a_leader_is_killed_within_a_command_and_a_repeat_completes_it(
    cluster: Groups, command: str, cases: Sequence[int]
) -> None:
    for number in cases:
        group, at = KILLED_AND_ASKED[number]
        name = f"half{number}"
        async with await connected(cluster[at]) as client:
            if command == "DELETE":
                await client.create(name, {"partitions": 24})
            node = await cluster[group].leader()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_begun(client, command, name))
                await asyncio.sleep(0.01 * number)
                node.signal_node(signal.SIGKILL)
            while True:
                try:
                    if command == "CREATE":
                        await client.create(name, {"partitions": 24})
                    else:
                        with suppress(NoSuchTopic):
                            await client.delete(name)
                    break
                except (PlacementUnknown, toymq.ConnectionLost):
                    await asyncio.sleep(0.1)
            described = await client.describe(name) if command == "CREATE" else {"parts": []}
            assert [part["topic"] for part in described["parts"]] == (names(name, 24) if command == "CREATE" else [])
            if command == "DELETE":
                await client.pub(name, b"the name is free")
        await cluster[group].in_sync(2)


async def _begun(client: Any, command: str, name: str) -> None:
    with suppress(PlacementUnknown, toymq.ConnectionLost, NoSuchTopic):
        await (client.create(name, {"partitions": 24}) if command == "CREATE" else client.delete(name))


DEFINITIONS = """
[[topic]]
name = "defined"
visibility = "2m"

[[topic.consumer]]
name = "billing"
start = "earliest"

[[topic]]
name = "divided"
partitions = 6
ttl = "1h"

[[topic.consumer]]
name = "shipping"

[[topic]]
name = "divided#3"
ttl = "2h"

""" + "".join(f'[[topic]]\nname = "more{number}"\n' for number in range(8))


def test_definitions_are_applied_where_each_topic_is(tmp_path: Path) -> None:
    file = tmp_path / "defs.toml"
    file.write_text(DEFINITIONS)
    with two_groups(tmp_path, "--definitions", str(file)) as rigs:
        asyncio.run(_defined(rigs))


async def _defined(rigs: Groups) -> None:
    wanted = {"defined", *(f"more{number}" for number in range(8))}
    async with asyncio.timeout(WAIT_S), await connected(rigs[A]) as client:
        while not wanted <= stored(rigs[A]) | stored(rigs[B]):  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.05)
        assert not stored(rigs[A]) & stored(rigs[B])
        while (await client.config("defined")) != {"visibility": 120}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while not (found := (await client.describe("defined"))["consumers"]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert [one["consumer"] for one in found] == ["billing"]
        while not _as_defined(parts := await _parts_of(client, "divided")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        others = [part["settings"] for part in parts if part["topic"] != "divided#3"]
        assert others == [{"ttl": 3_600_000}] * 5
        of_a, of_b = (sorted(one for one in stored(rigs[each]) if one.startswith("divided#")) for each in (A, B))
        assert (len(of_a), len(of_b)) == (3, 3), "spread over both, whichever leader came first"


def _as_defined(parts: list[dict[str, Any]]) -> bool:
    return bool(parts) and all(part["consumers"] for part in parts) and parts[3]["settings"] == {"ttl": 7_200_000}


async def _parts_of(client: Any, topic: str) -> list[dict[str, Any]]:
    with suppress(NoSuchTopic, PlacementUnknown):
        return list((await client.describe(topic))["parts"])
    return []


def test_definitions_are_imported_and_exported_over_the_wire(groups: Groups, tmp_path: Path) -> None:
    file, url = tmp_path / "defs.toml", groups[A].urls[0]
    file.write_text('[[topic]]\nname = "written"\npartitions = 4\nttl = "1h"\n\n[[topic.consumer]]\nname = "c"\n')

    def definitions(*arguments: str) -> str:
        command = [sys.executable, "-m", "toymq_py", "definitions", *arguments, "--url", url]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout

    assert "+ topic written partitions=4 ttl=1h" in definitions("import", str(file))
    assert "written" not in definitions("diff", str(file))
    of_a, of_b = ([one for one in stored(groups[each]) if one.startswith("written#")] for each in (A, B))
    assert (len(of_a), len(of_b)) == (2, 2)
    assert 'name = "written"\npartitions = 4' in definitions("export")
