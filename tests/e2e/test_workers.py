"""Both clients and ``toymqctl`` with `--workers`: every topic over one address, also while workers are killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import toymq
import toymq.sync
from tests.support.broker_process import environment
from tests.support.lost_worker import losing_a_worker
from tests.support.worker_processes import Workers, serving, topic_of
from toymq.sockets import reserved_port
from toymq_py.placement import worker_of

TOPICS = [f"t{number}" for number in range(8)]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        yield workers


def url(workers: Workers, worker: int = 0) -> str:
    return f"toymq://127.0.0.1:{workers.ports[worker]}"


async def test_the_asyncio_client_uses_every_topic(workers: Workers) -> None:
    assert {worker_of(topic, 2) for topic in TOPICS} == {0, 1}
    async with toymq.connect(url(workers)) as mq:
        receipts = await asyncio.gather(*(mq.pub(topic, b"%d" % number) for number in range(50) for topic in TOPICS))
        assert [receipt.msg_id for receipt in receipts] == [number for number in range(50) for _ in TOPICS]
        many = await mq.pub_many(topic_of(1, 2) + ".many", [b"%d" % number for number in range(3000)])
        assert [receipt.msg_id for receipt in many] == list(range(3000))
        for topic in TOPICS:
            async with mq.sub(topic, "c", start="earliest") as messages, mq.sub(topic, "other", start="earliest") as others:
                for number in range(50):
                    message = await messages.next(60)
                    assert message.payload == b"%d" % number
                    await message.ack()
                assert (await others.next(60)).payload == b"0"
            (message,) = await mq.pull(topic, "p", wait=5)
            assert await message.extend(60)
            assert await message.dead_letter("no printer")
            (letter,) = await mq.pull(f"{topic}.dlq", "p", wait=5)
            await letter.nack(0.0)
            await mq.config(topic, {"visibility": 60})
            assert (await mq.describe(topic))["messages"] == 50
            assert await mq.redrive(f"{topic}.dlq") == 1
            assert await mq.ack(topic, "p", [(0, 9)]) == 0
            assert await mq.delete(topic) == 51
        with pytest.raises(toymq.NoSuchTopic):
            await mq.describe(topic_of(1, 2) + ".none")


def test_the_blocking_client_uses_every_topic(workers: Workers) -> None:
    with toymq.sync.connect(url(workers)) as mq:
        for topic in TOPICS:
            receipts = list(mq.pub_many(topic, [b"%d" % number for number in range(300)]))
            assert [receipt.msg_id for receipt in receipts] == list(range(300))
            with mq.sub(topic, "c", start="earliest", auto_extend=True) as messages:
                for number in range(300):
                    message = messages.next(60)
                    assert message.payload == b"%d" % number
                    message.ack()
            (message,) = mq.pull(topic, "p", wait=5)
            message.ack(sync=True)
            assert mq.describe(topic)["messages"] == 300
            assert mq.delete(topic) == 300


def test_toymqctl_needs_one_address(workers: Workers) -> None:
    def ctl(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "toymqctl", "--url", url(workers), *arguments],
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    topic = topic_of(1, 2)
    ctl("create", topic, "visibility=2m")
    ctl("pub", topic, "hello")
    assert ["worker", "1"] in [line.split() for line in ctl("describe", topic).splitlines()]
    heads, *rows = [line.split() for line in ctl("topics").splitlines()]
    assert (heads[-1], [row[-1] for row in rows if row[0] == topic]) == ("worker", ["1"])
    assert "workers: 2, all of them answer" in (examined := ctl("doctor"))
    assert "limits: at the worker with the most " in examined
    assert "hello" in ctl("pull", topic, "c", "--ack")
    ctl("delete", topic, "--yes")


def test_what_is_of_one_worker_alone_says_of_which(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
        workers.ready(2)
        for worker in (0, 1):
            broker = httpx.get(f"{workers.http(worker)}/v1/broker").json()
            assert broker["part"] == f"worker {worker} of 2"
            options = {each["option"]: (each["value"], each["from"]) for each in broker["options"]}
            assert options["workers"] == ("1", "--workers 2, for this worker")
            assert httpx.get(f"{workers.http(worker)}/v1/connections").json()["part"] == f"worker {worker} of 2"
        done = subprocess.run(
            [sys.executable, "-m", "toymqctl", "--http-url", workers.http(1), "connections"],
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "these are the connections of worker 1 of 2 alone: --http-url asks another one" in done.stderr


def test_the_history_is_that_of_all_workers(tmp_path: Path) -> None:
    """Found: the dashboard's charts of topics began empty except for topics of the worker that was asked, and the broker's
    chart had that worker's numbers only."""
    for again in (False, True):  # the first sample is what a start finds
        with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
            workers.ready(2)
            if again:
                for worker in (0, 1):
                    found = httpx.get(f"{workers.http(worker)}/v1/history", params={"last_s": 60, "topics": "true"}).json()
                    assert max(value or 0 for value in found["broker"]["backlog"]) == len(TOPICS)
                    assert sorted(found["topics"]) == TOPICS
                    assert len(found["topics"][TOPICS[0]]["backlog"]) == 6
            else:
                for topic in TOPICS:
                    httpx.post(f"{workers.http(0)}/v1/topics/{topic}/messages", content=b"x").raise_for_status()


def test_an_alert_on_a_pattern_says_that_one_worker_watches(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
        workers.ready(2)
        done = subprocess.run(
            [sys.executable, "-m", "toymqctl", "--http-url", workers.http(1), "alerts", "set", "late", "lag", ">", "10",
             "--to", topic_of(1, 2)],
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.startswith("late: lag of > at least 10"), done.stderr
        assert f"the topics of one of 2 workers, {workers.http(1)}: set it at each" in done.stderr


async def test_nothing_is_lost_or_doubled_while_workers_are_killed(workers: Workers) -> None:
    """Publishes go on through five kills of each worker; every message with a receipt is there once, in its order."""
    counts = dict.fromkeys(TOPICS, 0)
    over = asyncio.Event()

    async def publish(mq: toymq.Client, topic: str) -> None:
        while not over.is_set():
            await mq.pub(topic, b"%d" % counts[topic])
            counts[topic] += 1

    async with toymq.connect(url(workers)) as mq:
        async with asyncio.TaskGroup() as tasks:
            for topic in TOPICS:
                tasks.create_task(publish(mq, topic))
            for turn in range(10):
                before = counts.copy()
                while any(counts[topic] < before[topic] + 5 for topic in TOPICS):
                    await mq.ping()
                    await asyncio.sleep(0)
                os.kill(workers.pids[turn % 2], signal.SIGKILL)
                await asyncio.to_thread(workers.ready, 1)
            over.set()
        for topic in TOPICS:
            async with mq.sub(topic, "check", start="earliest", auto_ack=True) as messages:
                seen = [int((await messages.next(60)).payload) for _ in range(counts[topic])]
            assert seen == list(range(counts[topic])), topic
            assert (await mq.describe(topic))["messages"] == counts[topic]


def test_the_blocking_client_goes_on_when_workers_are_killed(workers: Workers) -> None:
    """A worker is killed before a call, and while a call waits in the middle of many publishes."""
    topics = [topic_of(worker, 2) for worker in (0, 1)]
    with toymq.sync.connect(url(workers)) as mq:
        for topic in topics:
            mq.pub(topic, b"0")
        for turn in range(1, 5):
            os.kill(workers.pids[turn % 2], signal.SIGKILL)
            for topic in topics:
                assert mq.pub(topic, b"%d" % turn).msg_id == turn
            workers.ready(1)
        receipts = mq.pub_many(topics[1], [b"%d" % number for number in range(5, 5000)], window=500)
        assert next(receipts).msg_id == 5
        os.kill(workers.pids[1], signal.SIGKILL)
        left = list(receipts)
        assert len(left) == 4994
        assert all(receipt.duplicate or receipt.msg_id == msg_id for msg_id, receipt in enumerate(left, 6))
        workers.ready(1)
        with mq.sub(topics[1], "c", start="earliest", auto_ack=True) as messages:
            assert [int(messages.next(60).payload) for _ in range(5000)] == list(range(5000))


async def test_workers_that_are_at_other_ports_now_are_found(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The supervisor is killed, and the next one gives worker 1 the port that worker 0 had. A client that waits for worker 1 at
    its old port, where nothing listens any more, must find the new one."""
    there, port = topic_of(1, 2), reserved_port(request, 4)
    with serving(tmp_path / "data", 2, "--listen", f"127.0.0.1:{port + 1}") as workers:
        workers.ready(2)
        async with toymq.connect(url(workers), backoff_max_s=0.2) as mq:
            await mq.pub(there, b"0")
            async with mq.sub(there, "c", start="earliest") as messages:
                await (await messages.next(60)).ack(sync=True)
                workers.process.kill()
                await asyncio.to_thread(workers.join)
                publishing = asyncio.ensure_future(mq.pub(there, b"1"))
                with serving(tmp_path / "data", 2, "--listen", f"127.0.0.1:{port}") as following:
                    await asyncio.to_thread(following.ready, 2)
                    assert following.ports == {0: port + 1, 1: port + 2}
                    assert (await publishing).msg_id == 1
                    assert (await messages.next(60)).payload == b"1"
                    assert (await mq.pull(topic_of(0, 2), "c")) == []


async def test_a_pattern_and_a_list_have_the_topics_of_all_workers(workers: Workers) -> None:
    topics = [f"orders.{name}" for name in "abcdefgh"]
    async with toymq.connect(url(workers)) as mq:
        async with mq.sub("orders.*", "c", start="earliest") as messages:
            for topic in topics:
                await mq.pub(topic, topic.encode())
            seen = set()
            for _ in topics:
                message = await messages.next(60)
                await message.ack(sync=True)
                seen.add(message.payload.decode())
            assert seen == set(topics)
        assert [described["topic"] for described in await mq.topics("orders.*")] == topics
        assert all(described["consumers"][0]["backlog"] == 0 for described in await mq.topics("orders.*"))
        assert (await mq.stats())["publish_total"] == len(topics)
    with toymq.sync.connect(url(workers, 1)) as blocking, blocking.sub("orders.*", "d", start="earliest") as deliveries:
        assert {deliveries.next(60).payload.decode() for _ in topics} == set(topics)
        assert [described["topic"] for described in blocking.topics()] == topics


@asynccontextmanager
async def naming_each_other() -> AsyncIterator[str]:
    """Two brokers that each name the other one for every topic."""
    ports: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other = ports[writer.get_extra_info("sockname")[1] == ports[0]]
        while line := await reader.readline():
            if line.startswith(b"PUB"):
                await reader.readexactly(int(line.split()[3]) + 1)
            greeting = b"HELLO 1 server=x/1 max_payload=99 workers=1\n"
            known = {b"HELLO": greeting, b"CLUSTER": b"JSON 2\n{}\n", b"QUIT": b"OK 0\n"}
            writer.write(known.get(line.split()[0], b"ERR MOVED 127.0.0.1:%d has it\n" % other))
        writer.close()

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
    ports += [server.sockets[0].getsockname()[1] for server in servers]
    try:
        yield f"toymq://127.0.0.1:{ports[0]}"
    finally:
        for server in servers:
            server.close()


async def test_in_circles_the_caller_gets_moved() -> None:
    async with naming_each_other() as address:
        async with toymq.connect(address) as mq:
            for asked in (mq.pub("a", b"x"), mq.describe("b"), mq.pull("c", "c"), mq.pull("d", "c", wait=9), mq.sub("e", "c")):
                with pytest.raises(toymq.Moved):
                    await asked

        def block() -> None:
            with toymq.sync.connect(address) as mq:
                for ask in (
                    lambda: mq.pub("a", b"x"), lambda: mq.describe("b"), lambda: mq.pull("c", "c"),
                    lambda: mq.pull("d", "c", wait=9), lambda: mq.sub("e", "c"),
                ):  # fmt: skip
                    with pytest.raises(toymq.Moved):
                        ask()

        await asyncio.to_thread(block)


async def test_a_synced_ack_of_the_blocking_client_follows_its_subscription() -> None:
    """The worker dies on the ACK: the subscription and the ack move to another worker, and the call must read its answer there.
    Found: it waited on the old connection until its time-out."""

    def block(url: str) -> None:
        with toymq.sync.connect(url, timeout_s=20) as mq, mq.sub("t", "c") as messages:
            messages.next(10).ack(sync=True)
            assert messages.next(10).id == 1

    async with losing_a_worker() as (broker, url):
        await asyncio.to_thread(block, url)
    assert broker.acks == ["0"]


async def test_an_ack_behind_a_move_goes_where_the_subscription_is() -> None:
    """Found: an ack of a message that the old worker had delivered, and all later acks of the topic with it, waited for ever
    for a connection to the old address."""
    async with (
        losing_a_worker() as (broker, url), toymq.connect(url) as mq,
        mq.sub("t", "c", visibility=1, auto_extend=True) as messages,
    ):  # fmt: skip
        before = await messages.next(10)
        broker.lose()
        after = await messages.next(10)
        async with asyncio.timeout(10):
            await broker.touched.wait()
        await before.ack()
        await after.ack(sync=True)
    assert broker.acks == ["0-1"]


async def test_an_ack_of_the_blocking_client_behind_a_move_goes_where_the_subscription_is() -> None:
    loop = asyncio.get_running_loop()
    async with losing_a_worker() as (broker, url):

        def block() -> None:
            with toymq.sync.connect(url) as mq, mq.sub("t", "c") as messages:
                before = messages.next(10)
                loop.call_soon_threadsafe(broker.lose)
                after = messages.next(10)
                before.ack()
                after.ack(sync=True)

        await asyncio.to_thread(block)
        assert ",".join(broker.acks) in {"0-1", "0,1"}


def test_what_the_blocking_client_pulled_from_another_worker_is_settled_at_once(workers: Workers) -> None:
    """Acks of pulled messages go over a connection that only pulls use."""
    topic = topic_of(1, 2)
    with toymq.sync.connect(url(workers)) as mq, toymq.sync.connect(url(workers, 1)) as other:
        for number in range(3):
            other.pub(topic, b"%d" % number)
        acked, extended, given_back = mq.pull(topic, "c", 3)
        acked.ack()
        assert extended.extend(60)
        given_back.nack(0)
        (again,) = mq.pull(topic, "c", wait=5)
        assert (again.payload, again.attempt) == (b"2", 2)
        assert other.describe(topic)["consumers"][0]["last_acked"] == 0


async def test_what_the_asyncio_client_pulled_from_another_worker_is_given_back_at_once(workers: Workers) -> None:
    topic = topic_of(1, 2)
    async with toymq.connect(url(workers)) as mq, toymq.connect(url(workers, 1)) as other:
        await other.pub(topic, b"0")
        (message,) = await mq.pull(topic, "c")
        await message.nack(0)
        (again,) = await mq.pull(topic, "c", wait=5)
        assert again.attempt == 2


async def test_what_was_pulled_from_a_worker_that_is_gone_comes_again_by_its_time_without_an_error() -> None:
    loop = asyncio.get_running_loop()
    async with losing_a_worker() as (broker, url), toymq.connect(url) as mq:
        (message,) = await mq.pull("t", "c")
        broker.lose()
        async with asyncio.timeout(10):
            while await message.extend():
                pass
            await message.nack(0)
            await message.ack(sync=True)
        assert broker.acks
    async with losing_a_worker() as (broker, url):

        def block() -> None:
            with toymq.sync.connect(url) as mq:
                first, second = mq.pull("t", "c") + mq.pull("t", "c")
                loop.call_soon_threadsafe(broker.lose)
                while first.extend():
                    pass
                second.nack(0)
                second.ack()
                mq.pull("t", "c")

        await asyncio.to_thread(block)
        assert broker.acks
