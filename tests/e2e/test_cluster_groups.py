"""Groups of a cluster, as real processes over a real etcd: each topic is in one, and clients find it wherever they ask."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import toymq
import toymq.sync
from tests.support.certificates import CERT, KEY
from tests.support.cluster_groups import Groups, asked, connected, listed, say, serving, stored, two_groups
from tests.support.cluster_rig import CLUSTER, MONOTONIC, WAIT_S, ClusterRig, Load, running_groups
from tests.support.ctl import ok, refused, values
from tests.support.etcd import running_etcd
from tests.support.requirements import require
from tests.support.tokens import EVERYTHING, hello, table, token
from toymq.errors import BadArgument, Forbidden, PlacementUnknown, TopicExists
from toymqctl.cli import main as toymqctl

pytestmark = require("etcd", "proc")

A, B = "a", "b"


async def test_clients_go_where_a_topic_is(groups: Groups) -> None:
    async with await connected(groups[A]) as client:
        for topic, group in (("here", A), ("there", B)):
            await client.create(topic, {"group": group})
            await client.create(topic, {"group": group})
            await client.pub(topic, b"1")
            async with client.sub(topic, "c", start="earliest") as messages:
                message = await messages.next(timeout=WAIT_S)
                await message.ack(sync=True)
            pulled = await client.pull(topic, "d", max=5)
            assert [each.payload for each in pulled] == [b"1"]
            await pulled[0].ack(sync=True)
            assert (await client.describe(topic))["messages"] == 1
            assert await client.config(topic, {"visibility": 7}) == {"visibility": 7}
            assert topic in stored(groups[group])
            assert topic not in stored(groups[B if group == A else A])
        with pytest.raises(TopicExists, match="there is in group b, not in a"):
            await client.create("there", {"group": A})
        with pytest.raises(BadArgument, match="there is no group c; there are a, b"):
            await client.create("elsewhere", {"group": "c"})


def test_the_blocking_client_goes_there_too(groups: Groups) -> None:
    with toymq.sync.connect(groups[B].urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
        client.create("blocking", {"group": A})
        client.pub("blocking", b"1")
        with client.sub("blocking", "c", start="earliest") as messages:
            message = next(iter(messages))
            message.ack(sync=True)
        assert client.pull("blocking", "d", max=5)[0].payload == b"1"
    assert "blocking" in stored(groups[A])


def test_without_a_wish_the_hash_decides_and_any_node_knows(groups: Groups) -> None:
    names = [f"new{number}" for number in range(20)]
    with toymq.sync.connect(groups[A].urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
        for name in names:
            client.pub(name, b"1")
    of_a, of_b = (set(names) & stored(groups[each]) for each in (A, B))
    assert of_a | of_b == set(names)
    assert not of_a & of_b
    assert len(of_a) > 3, of_a
    assert len(of_b) > 3, of_b
    places = dict.fromkeys(of_a, A) | dict.fromkeys(of_b, B)
    for rig in groups.values():
        found = asked(rig, b"CLUSTER")
        assert {topic: group for topic, group in found["topics"].items() if topic in names} == places
        assert found["group"] == rig.group
        assert {name: each["leader"] for name, each in found["groups"].items()} == {
            name: other.urls[0].removeprefix("toymq://") for name, other in groups.items()
        }
        assert "topics" not in asked(rig, b"CLUSTER moved=1")


def test_who_follows_nothing_is_told_where_it_is(groups: Groups) -> None:
    say(groups[A], b"CREATE told group=b\n", 1)
    there = groups[B].urls[0].removeprefix("toymq://")
    for command in (b"PUB told - 1\nx\n", b"SUB told c\n", b"OFFSETS told\n", b"DELETE told.dlq\n"):
        (answer,) = say(groups[A], command, 1)
        assert answer.startswith(f"ERR MOVED {there} http://".encode()), answer
        assert b" (group b) has the topic told" in answer
    assert say(groups[B], b"PUB told - 1\nx\n", 1) == [b"OK 0\n"]


def test_lists_have_the_topics_of_all_groups(groups: Groups) -> None:
    for number in range(4):
        group = (A, B)[number % 2]
        assert say(groups[group], f"CREATE list.{number} group={group}\n".encode(), 1) == [b"OK 0\n"]
    for rig in groups.values():
        assert [topic["topic"] for topic in asked(rig, b"TOPICS list.*")] == [f"list.{number}" for number in range(4)]
        assert {f"list.{number}" for number in range(4)} <= {topic["topic"] for topic in asked(rig, b"STATS")["topics"]}


async def test_patterns_have_the_messages_of_all_groups(groups: Groups) -> None:
    names = [f"pattern.{number}" for number in range(4)]
    async with await connected(groups[A]) as client, await connected(groups[B]) as other:
        for number, name in enumerate(names):
            await client.create(name, {"group": (A, B)[number % 2]})
        async with client.sub("pattern.*", "all", start="earliest") as messages:
            for name in names:
                await other.pub(name, name.encode())
            found = [await messages.next(timeout=WAIT_S) for _ in names]
            for message in found:
                await message.ack(sync=True)
            assert sorted(message.topic for message in found) == names
            await other.create("pattern.later", {"group": B})
            await other.pub("pattern.later", b"x")
            assert (await messages.next(timeout=WAIT_S)).topic == "pattern.later"
        pulled: list[Any] = []
        while len(pulled) < len(names) + 1:
            pulled += await other.pull("pattern.*", "pulls", max=2, wait=WAIT_S)
        for message in pulled:
            await message.ack(sync=True)
        assert sorted(message.topic for message in pulled) == [*names, "pattern.later"]
        for name in names:
            described = await client.describe(name)
            assert [one["backlog"] for one in described["consumers"]] == [0, 0], described


async def test_dead_letters_are_where_their_topic_is(groups: Groups) -> None:
    async with await connected(groups[A]) as client:
        await client.create("fails", {"group": B, "max_attempts": 1})
        await client.pub("fails", b"1")
        async with client.sub("fails", "c", start="earliest") as messages:
            await (await messages.next(timeout=WAIT_S)).nack()
            async with client.sub("fails.dlq", "judge", start="earliest") as letters:
                assert (await letters.next(timeout=WAIT_S)).payload == b"1"
        assert {"fails", "fails.dlq"} <= stored(groups[B])
        assert await client.redrive("fails.dlq") == 1
        await client.delete("fails")
        with pytest.raises(TopicExists, match="fails is in group b, not in a"):
            await client.create("fails", {"group": A})
        await client.delete("fails.dlq")
        await client.create("fails", {"group": A})
        await client.pub("fails", b"2")
    assert "fails" in stored(groups[A])
    assert "fails" not in stored(groups[B])


async def test_a_topic_that_is_made_at_once_everywhere_is_in_one_group(groups: Groups) -> None:
    """Two clients create the same topic in different groups, and publish to it, at the same time."""
    async with await connected(groups[A]) as first, await connected(groups[B]) as second:
        for number in range(30):
            name = f"race{number}"
            outcomes = await asyncio.gather(
                first.create(name, {"group": A}), second.create(name, {"group": B}), first.pub(name, b"1"),
                second.pub(name, b"2"), return_exceptions=True,
            )  # fmt: skip
            refused = [each for each in outcomes if isinstance(each, BaseException)]
            assert all(isinstance(each, TopicExists) for each in refused), refused
            assert (await first.describe(name))["messages"] == 2
    races = {f"race{number}" for number in range(30)}
    assert not races & stored(groups[A]) & stored(groups[B])
    assert races <= stored(groups[A]) | stored(groups[B])


def test_toymqctl_goes_there_and_http_names_the_gateway(groups: Groups) -> None:
    node, other = groups[A].nodes["a1"], groups[B].nodes["b1"]

    def ctl(*arguments: str) -> str:
        return ok(CliRunner().invoke(toymqctl, ["--url", node.url, *arguments]))

    ctl("create", "orders", "group=b", "visibility=2m")
    ctl("pub", "orders", "hello")
    assert "visibility" in ctl("config", "orders")
    assert ctl("tail", "orders").endswith("hello\n")
    assert "orders" in ctl("topics")
    ctl("pull", "orders", "w")
    ctl("nack", "orders", "w", "0", "--dead")
    while "dead letter orders.dlq 0" not in ctl("inspect", "orders", "0"):
        pass  # it is stored behind the answer
    assert ctl("dlq", "discard", "orders", "0") == "discarded 1\n"
    with httpx.Client(base_url=f"http://127.0.0.1:{node.http_port}") as http:
        for answer in (http.get("/v1/topics/orders"), http.post("/v1/topics/orders/messages", content=b"x")):
            assert (answer.status_code, answer.json()["code"]) == (421, "MOVED")
            assert f" http://127.0.0.1:{other.http_port}/ (group b)" in answer.json()["detail"]
        made = [http.post(f"/v1/topics/http{number}/messages", content=b"x").status_code for number in range(10)]
        assert set(made) == {201, 421}, "each is placed by its first publish, here or there"
        places = asked(groups[A], b"CLUSTER")["topics"]
        assert [places[f"http{number}"] for number in range(10)] == [A if status == 201 else B for status in made]
    with httpx.Client(base_url=f"http://127.0.0.1:{other.http_port}") as http:
        assert http.post("/v1/topics/orders/messages", content=b"x").status_code == 201


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Groups]:
    """Run a group of one node, and one of two."""
    with running_groups(tmp_path, {A: ("a1",), B: ("b1", "b2")}) as rigs:
        serving(rigs)
        asyncio.run(rigs[B].in_sync(2))
        yield rigs


async def test_clients_go_on_with_the_next_leader_of_another_group(cluster: Groups) -> None:
    """The client has the address of a node of group a only; the leader of b dies with its machine, twice."""
    a, b = cluster[A], cluster[B]
    say(a, b"CREATE jobs group=b\n", 1)
    async with Load(a.urls) as load, await connected(a) as client, client.sub("jobs", "c", start="earliest") as messages:
        await load.more(500)
        for _ in range(2):
            dead = await b.leader()
            dead.kill_machine()
            await b.leader(other_than=dead.name)
            await load.more(500)
            dead.start()
            await b.in_sync(2)
            assert len(await listed(client, "jobs")) == 1
        await load.stop()
        assert not load.failed
        assert not await load.lost()
        missing = set(load.acked)
        async with asyncio.timeout(WAIT_S):
            while missing:
                message = await messages.next(timeout=WAIT_S)
                missing.discard(message.payload)
                await message.ack()


async def test_a_pattern_goes_on_when_the_leader_of_another_group_is_stopped(cluster: Groups) -> None:
    """Found: after a leader of another group stopped, as in each rolling upgrade, the client got CLOSED, kept its connection
    and received nothing more, of any group."""
    a, b = cluster[A], cluster[B]
    say(a, b"CREATE t.a group=a\n", 1)
    say(a, b"CREATE t.b group=b\n", 1)
    async with await connected(a) as client, await connected(a) as other, client.sub("t.*", "c", start="earliest") as messages:
        for number in range(3):
            missing = {(topic, b"%d" % number) for topic in ("t.a", "t.b")}
            for topic, payload in missing:
                await other.pub(topic, payload)
            async with asyncio.timeout(WAIT_S):
                while missing:
                    message = await messages.next(timeout=WAIT_S)
                    missing.discard((message.topic, message.payload))
                    await message.ack()
            leader = await b.leader()
            leader.terminate()
            assert await asyncio.to_thread(leader.wait) == 0
            await b.leader(other_than=leader.name)
            await asyncio.to_thread(leader.start)
            await b.in_sync(2)


async def test_without_etcd_known_topics_go_on_and_new_ones_are_refused(cluster: Groups) -> None:
    async with await connected(cluster[A]) as client:
        for topic, group in (("here", A), ("there", B), ("gone", A)):
            await client.create(topic, {"group": group})
        cluster[A].etcd.members[0].signal(signal.SIGSTOP)
        try:
            await client.delete("gone")
            for topic in ("here", "there"):
                await client.pub(topic, b"1")
            for topic in ("new", "gone"):
                with pytest.raises(PlacementUnknown):
                    await client.pub(topic, b"1")
            said = ""
            while "FAIL  etcd: has not answered the leader for " not in said:
                said = (await asyncio.to_thread(CliRunner().invoke, toymqctl, ["--url", cluster[A].urls[0], "doctor"])).stdout
            assert "no copy takes over from a leader that dies, and no new topic is placed" in said, "all was ok"
        finally:
            cluster[A].etcd.members[0].signal(signal.SIGCONT)
        for topic in ("new", "gone"):
            while True:
                try:
                    await client.pub(topic, b"1")
                    break
                except PlacementUnknown:
                    await asyncio.sleep(0.1)


def test_a_cluster_of_one_group_goes_on_as_one_of_several(tmp_path: Path) -> None:
    """The topics of the old group get records in etcd before another group places any; from then on its nodes do not lead
    without --group."""
    with running_etcd(tmp_path) as etcd, ClusterRig(tmp_path, etcd, ("n1",)).running(1, 2.0) as alone:
        node = alone.nodes["n1"]
        asyncio.run(alone.leader())
        with toymq.sync.connect(alone.urls, wait_s=WAIT_S) as client:  # a connection to the standby may be reset still
            client.pub("old", b"1")
        with running_groups(tmp_path, {"other": ("o1",)}, etcd=etcd) as others:
            other = others["other"]
            asyncio.run(other.leader())
            (answer,) = say(other, b"PUB new - 1\nx\n", 1)
            assert answer.startswith(b"ERR PLACEMENT_UNKNOWN group g0 has not been served with --group yet"), answer
            listed = CliRunner().invoke(toymqctl, ["--url", other.urls[0], "topics"])
            assert (listed.stdout, listed.stderr) == (
                "no topics\n", "the topics of group g0 are not listed: restart its nodes with --group g0\n"
            )
            node.stop()
            node.options += ["--group", "g0"]
            node.start()
            asyncio.run(alone.leader())
            with toymq.sync.connect(other.urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
                while True:
                    try:
                        client.pub("old", b"2")
                        break
                    except PlacementUnknown:
                        pass
                assert client.describe("old")["messages"] == 2
            assert "old" not in stored(other)
            node.stop()
            del node.options[-2:]
            node.launch()
            node.take_ready_line(node.read_ready_line())
            until = MONOTONIC() + WAIT_S
            while "this group was served with --group" not in node.log_path.read_text():
                assert MONOTONIC() < until, node.log_path.read_text()
                time.sleep(0.05)


def test_an_operator_sees_which_group_has_a_topic(groups: Groups) -> None:
    def ctl(*arguments: str) -> Any:
        return CliRunner().invoke(toymqctl, ["--url", groups[A].urls[0], *arguments])

    for name, topic in ((B, b"shown"), (A, b"shown.too")):
        assert say(groups[name], b"CREATE %b group=%b\n" % (topic, name.encode()), 1) == [b"OK 0\n"]
    assert {each["topic"]: each["group"] for each in values(ctl("topics", "shown", "--json"))} == {"shown": B}
    heads, *rows = [line.split() for line in ok(ctl("topics", "shown.*")).splitlines()]
    assert (heads[-1], [(row[0], row[-1]) for row in rows]) == ("group", [("shown.too", A)])
    assert ["group", B] in [line.split() for line in ok(ctl("describe", "shown")).splitlines()]
    assert values(ctl("describe", "shown.too", "--json"))[0]["group"] == A
    ok(ctl("create", "shown.parts", "--partitions", "2"))
    found = {one["topic"]: one["group"] for one in values(ctl("describe", "shown.parts", "--json"))[0]["parts"]}
    assert sorted(found.values()) == [A, B]
    lines = [line.split() for line in ok(ctl("describe", "shown.parts")).splitlines()]
    assert ["partition", "group", "messages"] in [line[:3] for line in lines]
    assert {line[0]: line[1] for line in lines if line and line[0].startswith("shown.parts#")} == found, "nowhere before"
    ok(ctl("delete", "shown.parts", "--yes"))


def test_an_operator_sees_all_groups(groups: Groups) -> None:
    def ctl(*arguments: str) -> Any:
        return CliRunner().invoke(toymqctl, ["cluster", "--cluster", CLUSTER, "--etcd", groups[A].etcd.urls[0], *arguments])

    found = values(ctl("show", "--json"))
    assert [(each["group"], each["leader"]) for each in found] == [(A, "a1"), (B, "b1")]
    topics = asked(groups[A], b"CLUSTER")["topics"].values()
    assert {each["group"]: each["topics"] for each in found} == {A: list(topics).count(A), B: list(topics).count(B)}
    assert [line.split()[:4] for line in ok(ctl()).splitlines() if "cluster" in line] == [
        ["cluster", CLUSTER, "group", A], ["cluster", CLUSTER, "group", B],
    ]  # fmt: skip
    assert [each["group"] for each in values(ctl("--group", B, "show", "--json"))] == [B]
    refused(ctl("init"), 1, "this cluster has groups (a, b): name one, `toymqctl cluster --group NAME init`")
    for words in ("hand-over", "remove a1", "force a1 --i-accept-loss"):
        refused(ctl(*words.split()), 1, f"this cluster has groups (a, b): name one, `toymqctl cluster --group b {words}`")
    for words in ("show", "hand-over"):
        refused(ctl("--group", "c", words), 1, "there is no group c; there are a, b")


@pytest.mark.parametrize("harms", [2, pytest.param(4, marks=pytest.mark.torture)])
async def test_kills_of_any_node_lose_nothing_and_no_topic_is_in_two_groups(cluster: Groups, harms: int) -> None:
    """Clients create topics in both groups while leaders die: each topic is in one group, with all that got OK."""
    a, b = cluster[A], cluster[B]
    acked: dict[str, set[bytes]] = {}
    over = asyncio.Event()

    async def client(rig: ClusterRig, name: str) -> None:
        number = 0
        async with await connected(rig) as client:
            while not over.is_set():
                topic, body = f"kill{number // 4}", b"%b-%d" % (name.encode(), number)
                number += 1
                try:
                    await client.pub(topic, body)
                    acked.setdefault(topic, set()).add(body)
                except toymq.RequestError as error:
                    if not error.retryable:
                        raise
                    await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks:
        for rig in (a, b):
            for number in range(2):
                tasks.create_task(client(rig, f"{rig.group}{number}"))
        for harm in ("process", "machine") * (harms // 2):
            before = len(acked)
            while len(acked) < before + 20:  # noqa: ASYNC110 (other tasks)
                await asyncio.sleep(0.02)
            node = await (a if harm == "process" else b).leader()
            if harm == "process":
                node.signal_node(signal.SIGKILL)
            else:
                node.kill_machine()
                await b.leader(other_than=node.name)
                node.start()
                await b.in_sync(2)
        over.set()
    for rig in cluster.values():
        await rig.leader()
    names = {topic.name for topic in await _on_disk(a)} & {topic.name for topic in await _on_disk(b)}
    assert not {name for name in names if name.startswith("kill")}
    async with await connected(a) as reader:
        for topic, bodies in acked.items():
            described = await reader.describe(topic)
            found: set[bytes] = set()
            async with reader.sub(topic, "judge", start="earliest") as messages:
                while len(found) < described["messages"]:
                    message = await messages.next(timeout=WAIT_S)
                    found.add(message.payload)
                    await message.ack()
            assert bodies <= found, (topic, bodies - found)


async def _on_disk(rig: ClusterRig) -> list[Path]:
    return await asyncio.to_thread(lambda: list((next(iter(rig.nodes.values())).data_dir / "topics").iterdir()))


def test_nodes_with_different_secrets_say_so_and_where_to_set_them(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one")
    secret.chmod(0o600)
    with two_groups(tmp_path, "--replicate-token-file", str(secret)) as rigs:
        assert say(rigs[B], b"CREATE t group=b\n", 1) == [b"OK 0\n"]
        secret.write_text("another")
        node = rigs[B].nodes["b1"]
        node.stop()
        node.start()
        serving(rigs)
        said = "the secret that was shown is another one: give all nodes of all groups the same word in --replicate-token-file"
        refusal = f"group b refuses this node: AUTH_FAILED {said}"
        assert say(rigs[A], b"TOPICS\n", 1) == [f"ERR PLACEMENT_UNKNOWN {refusal}\n".encode()]
        for name, line in (("a1", f": {refusal}\n"), ("b1", f"a node of another group was refused: AUTH_FAILED {said}")):
            asked = rigs[name[0]].nodes[name]
            asked.until(lambda node=asked, line=line: line in node.log_path.read_text(), line)

        def ctl(*arguments: str) -> Any:
            return CliRunner().invoke(toymqctl, ["cluster", "--cluster", CLUSTER, "--etcd", rigs[A].etcd.urls[0], *arguments])

        assert f"group b refuses group a: AUTH_FAILED {said}" in ctl("move", "t", A).stderr
        until = MONOTONIC() + WAIT_S
        while f"a1 says: {refusal}" not in (shown := ok(ctl())):
            assert MONOTONIC() < until, shown
            time.sleep(0.1)


TOKENS = EVERYTHING, table("few", 'publish = ["x.*"]\nsubscribe = ["x.*"]')


def test_over_tls_and_with_tokens_each_group_judges_the_clients_own(tmp_path: Path) -> None:
    """Lists and patterns of a client cross the nodes' network with the nodes' certificates and secret; each group checks the
    client's own token."""
    (tmp_path / "auth.toml").write_text("".join(TOKENS))
    (tmp_path / "secret").write_text("of-the-nodes")
    for file in ("auth.toml", "secret"):
        (tmp_path / file).chmod(0o600)
    options = (
        "--auth-file", str(tmp_path / "auth.toml"), "--replicate-token-file", str(tmp_path / "secret"),
        "--replicate-cert", CERT, "--replicate-key", KEY, "--replicate-ca", CERT,
    )  # fmt: skip
    with two_groups(tmp_path, *options) as rigs:
        asyncio.run(_judged(rigs))


async def _judged(rigs: Groups) -> None:
    urls = {name: rig.urls[0].removeprefix("toymq://") for name, rig in rigs.items()}
    async with await toymq.connect(f"toymq://{token('all')}@{urls[A]}", timeout_s=WAIT_S, wait_s=WAIT_S) as admin:
        for topic, group in (("x.here", A), ("x.there", B), ("y", B)):
            await admin.create(topic, {"group": group})
            await admin.pub(topic, topic.encode())
        assert [each["topic"] for each in await listed(admin, ">")] == ["x.here", "x.there", "y"]
    async with await toymq.connect(f"toymq://{token('few')}@{urls[A]}", timeout_s=WAIT_S, wait_s=WAIT_S) as few:
        assert [each["topic"] for each in await listed(few, ">")] == ["x.here", "x.there"]
        async with few.sub("x.*", "c", start="earliest") as messages:
            found = [await messages.next(timeout=WAIT_S) for _ in range(2)]
            for message in found:
                await message.ack(sync=True)
        assert sorted(message.topic for message in found) == ["x.here", "x.there"]
        with pytest.raises(Forbidden):
            await few.pub("y", b"no")
    gateway = f"http://127.0.0.1:{rigs[A].nodes['a1'].http_port}"
    async with httpx.AsyncClient(base_url=gateway, timeout=WAIT_S) as http:
        found = (await http.get("/v1/topics", headers={"authorization": f"Bearer {token('few')}"})).json()["topics"]
    assert [topic["topic"] for topic in found] == ["x.here", "x.there"], "it shows what few may see"
    reader, writer = await asyncio.open_connection(*urls[A].split(":"))
    writer.write(hello("few") + b"CLUSTER\n")
    await reader.readline()
    await reader.readline()
    assert json.loads(await reader.readline())["topics"] == {"x.here": A, "x.there": B}
    writer.close()
