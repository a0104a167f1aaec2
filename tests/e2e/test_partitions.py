"""Partitioned topics of a served broker, of one process and of several: every way in takes a route to the same partition."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest

import toymq
import toymq.sync
from tests.support.broker_process import BrokerProcess, Wire
from tests.support.worker_processes import serving, topic_of
from toymq_py.placement import worker_of
from toymq_py.storage import partitions_file

COUNT = 6
NAMES = [f"orders#{number}" for number in range(COUNT)]


def document(wire: Wire, command: bytes) -> Any:
    line = wire.ask(command)
    assert line.startswith(b"JSON "), line
    return json.loads(wire.read(int(line.split(b" ")[1]) + 1))


def lengths(wire: Wire) -> list[int]:
    parts = document(wire, b"DESCRIBE orders\n")["parts"]
    assert [part["topic"] for part in parts] == NAMES
    return [part["messages"] for part in parts]


def test_two_workers_have_partitions_each_and_every_worker_routes(tmp_path: Path) -> None:
    assert {worker_of(name, 2) for name in NAMES} == {0, 1}
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as first, workers.wire(1) as second:
            assert first.ask(b"CREATE orders partitions=%d visibility=60000\n" % COUNT) == b"OK 0"
            assert second.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            assert second.ask(b"CREATE orders partitions=2\n").startswith(b"ERR EXISTS orders exists with partitions=6, not 2")
            expected = [0] * COUNT
            for number in range(40):
                key = b"key-%d" % number
                wire = (first, second)[number % 2]
                partition = crc32(key) % COUNT
                assert wire.ask(b"PUB orders %b 1\nx\n" % key) == b"OK %d" % expected[partition]
                expected[partition] += 1
                assert wire.ask(b"PUB orders - 1 route=%b\nx\n" % key) == b"OK %d" % expected[partition]
                expected[partition] += 1
            assert lengths(first) == lengths(second) == expected
            found = document(first, b"CONFIG orders ttl=3600000\n")
            assert found == {"partitions": COUNT, "visibility": 60_000, "ttl": 3_600_000}
            second.send(b"".join(b"PUB orders - 1\n%d\n" % (number % 10) for number in range(60)))
            for _ in range(60):
                assert second.line().startswith(b"OK ")
            assert lengths(first) == [length + 10 for length in expected], "what has no route goes to each in turn"
            total = sum(expected) + 60
            assert first.ask(b"SUB orders c mode=shared window=%d\n" % total) == b"OK %d" % COUNT
            seen: dict[str, list[int]] = {}
            for _ in range(total):
                tokens = first.line().split(b" ")
                assert tokens[0] == b"MSG"
                first.read(int(tokens[6]) + 1)
                seen.setdefault(tokens[1].decode(), []).append(int(tokens[2]))
            assert {name: sorted(ids) for name, ids in seen.items()} == {
                name: list(range(length + 10)) for name, length in zip(NAMES, expected, strict=True) if length + 10
            }
            assert first.ask(b"UNSUB orders c\n") == b"OK 0"
            for name, other in ((b"orders", b"orders#*"), (b"orders#*", b"orders")):
                assert first.ask(b"SUB %b d start=latest\n" % name) == b"OK %d" % COUNT
                assert first.ask(b"UNSUB %b d\n" % other) == b"OK 0", "both names are of all partitions"
                assert first.ask(b"UNSUB %b d\n" % name).startswith(b"ERR NOT_SUBSCRIBED ")
            assert second.ask(b"SEEK orders c latest\n") == b"OK %d" % COUNT
            assert second.ask(b"DELETE orders\n") == b"OK %d" % total
            assert not list((tmp_path / "data/workers").glob("*/topics/*#*"))
            for wire in (first, second):
                assert wire.ask(b"PUB orders#1 - 1\nx\n").startswith(b"ERR NO_SUCH_TOPIC there is no partition orders#1")


def test_the_trail_has_a_line_of_the_worker_that_was_asked_and_marks_the_others(tmp_path: Path) -> None:
    """Found: a CREATE was three equal lines of the audit trail, without an address."""
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        there = topic_of(1, 2).encode()
        with workers.wire(0) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            assert wire.ask(b"CREATE orders partitions=2\n").startswith(b"ERR EXISTS")
            assert wire.ask(b"CREATE %b\n" % there) == b"OK 0"
            assert wire.ask(b"FORGET %b nobody\n" % there).startswith(b"ERR NO_SUCH_CONSUMER")
            assert wire.ask(b"DELETE orders\n") == b"OK 0"
        assert workers.stop() == 0
        workers.join()
        found = re.findall(r"toymq_py\.audit: (.*)", workers.said)
    told = [line for line in found if "address=127.0.0.1 via=tcp" in line]
    assert [line.split(" token")[0] + line[line.rindex(" ") :] for line in told] == [
        "action=create topic=orders result=OK", "action=create topic=orders result=EXISTS",
        f"action=create topic={there.decode()} result=OK",
        f"action=forget topic={there.decode()} consumer=nobody result=NO_SUCH_CONSUMER",
        "action=delete topic=orders result=OK",
    ]  # fmt: skip
    others = [line for line in found if line not in told]
    assert len(others) >= 4
    assert [line for line in others if "address=- via=passed" not in line] == []


def test_a_plain_topic_is_found_before_anything_is_made(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as first, workers.wire(1) as second:
            for name in ("a", "b", "c", "d"):
                assert first.ask(b"PUB %b - 1\nx\n" % name.encode()) == b"OK 0"
                assert second.ask(b"CREATE %b partitions=4\n" % name.encode()).startswith(b"ERR EXISTS")
            assert not any((tmp_path / f"data/workers/{worker}/partitions.json").exists() for worker in (0, 1))


@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_is_killed_and_nothing_is_lost(tmp_path: Path, killed: int) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        stored = [0] * COUNT
        with workers.wire(1 - killed) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            for number in range(30):
                key = b"key-%d" % number
                assert wire.ask(b"PUB orders %b 1\nx\n" % key).startswith(b"OK ")
                stored[crc32(key) % COUNT] += 1
        os.kill(workers.pids[killed], signal.SIGKILL)
        workers.ready(1)
        with workers.wire(1 - killed) as wire:
            for number in range(30):
                assert wire.ask(b"PUB orders key-%d 1\nx\n" % number).startswith(b"DUP "), "what is there is a duplicate"
            assert lengths(wire) == stored
            assert wire.ask(b"PULL orders c 100 wait=5000\n").startswith(b"MSG orders#")


def places(data_dir: Path) -> dict[str, list[int]]:
    """Return, by partition, the workers that have a directory of it."""
    found: dict[str, list[int]] = {}
    for path in data_dir.glob("workers/*/topics/orders#*"):
        found.setdefault(path.name, []).append(int(path.parts[-3]))
    return found


def test_a_worker_that_starts_again_makes_no_partition_of_another(tmp_path: Path) -> None:
    """Found: a restarted worker created empty copies of all partitions, and `toymq workers --set` was refused from then on."""
    once = {name: [worker_of(name, 2)] for name in NAMES}
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
        os.kill(workers.pids[0], signal.SIGKILL)
        workers.ready(1)
        assert places(tmp_path / "data") == once
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        assert places(tmp_path / "data") == once


def divided(data_dir: Path, workers: int) -> None:
    """Make a partitioned topic with a message in each partition, in a directory that is not served."""
    with serving(data_dir, workers) as running:
        running.ready(workers)
        with running.wire(0) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            for number in range(COUNT):
                assert wire.ask(b"PUB orders#%d - 1\nx\n" % number) == b"OK 0"


@pytest.mark.parametrize("at_home", [True, False], ids=["home", "another"])
def test_a_worker_is_killed_within_a_delete_and_no_plain_topic_takes_the_name(tmp_path: Path, at_home: bool) -> None:
    """Found: after an interrupted DELETE the worker where a plain topic of the name belongs had done its part, and SUB made a
    plain topic there, beside the partitions that were left."""
    data_dir, workers = tmp_path / "data", 3
    home = worker_of("orders", workers)
    killed, third = (worker for worker in range(workers) if worker != home)
    with serving(data_dir, workers) as running:
        running.ready(workers)
        with running.wire(home) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            for _ in range(COUNT):
                assert wire.ask(b"PUB orders - 1\nx\n") == b"OK 0"
        with socket.socket(socket.AF_UNIX) as of_one:  # as one that passes it on
            of_one.connect(str(data_dir / f"workers/{third}.listen"))
            of_one.sendall(b"DELETE orders\n")
            assert of_one.recv(1000).startswith(b"OK ")
        os.kill(running.pids[killed], signal.SIGKILL)
        running.ready(1)
        with running.wire(home) as wire:
            assert wire.ask(b"SUB orders c\n").startswith(b"ERR PLACEMENT_UNKNOWN")
            assert not list(data_dir.glob("workers/*/topics/orders"))
        with running.wire(home if at_home else third) as wire:
            assert wire.ask(b"DELETE orders\n").startswith(b"OK "), "a repeat completes it"
        assert places(data_dir) == {}


def forget(data_dir: Path, worker: int) -> None:
    """Remove from a worker's directory what a completed DELETE removes."""
    (data_dir / f"workers/{worker}/partitions.json").write_bytes(partitions_file.encode({}))
    for path in data_dir.glob(f"workers/{worker}/topics/orders#*"):
        shutil.rmtree(path)


@pytest.mark.parametrize("http", [False, True], ids=["tcp", "http"])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_delete_that_some_workers_have_done_is_completed_by_a_repeat_at_any(tmp_path: Path, left: int, http: bool) -> None:
    """Found: the repeated DELETE was answered NO_SUCH_TOPIC, and a topic created anew had the messages of the worker that had
    been killed."""
    data_dir, workers = tmp_path / "data", 3
    divided(data_dir, workers)
    for worker in {*range(workers)} - {left}:
        forget(data_dir, worker)
    count = len(places(data_dir))
    assert count > 0
    shutil.copytree(data_dir, tmp_path / "kept", ignore=shutil.ignore_patterns("*.listen", "*.http"))
    for asked in range(workers):
        shutil.rmtree(data_dir)
        shutil.copytree(tmp_path / "kept", data_dir)
        with serving(data_dir, workers, "--http", "127.0.0.1:0") as running:
            running.ready(workers)
            if http:
                refused = httpx.delete(f"{running.http(asked)}/v1/topics/orders")
                assert (refused.status_code, refused.json()["code"]) == (409, "PARTITIONED")
                found = [httpx.delete(f"{running.http(asked)}/v1/topics/orders?partitions={len(NAMES)}") for _ in range(2)]
                assert [answer.status_code for answer in found] == [204, 404]
                assert found[1].json()["detail"] == "there is no topic orders"
            else:
                with running.wire(asked) as wire:
                    assert wire.ask(b"DELETE orders\n") == b"OK %d" % count
                    assert wire.ask(b"DELETE orders\n") == b"ERR NO_SUCH_TOPIC there is no topic orders"
        assert places(data_dir) == {}


@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.torture), 1, 2])
def test_what_some_workers_do_not_know_is_refused_as_such_and_never_moved(tmp_path: Path, left: int) -> None:
    """Found: with `nc` or `curl` a command was redirected from one worker to another and on to a third, or answered that there
    is no such topic."""
    data_dir, workers = tmp_path / "data", 3
    divided(data_dir, workers)
    forget(data_dir, left)
    home = worker_of("orders", workers)
    of_all = b"DESCRIBE orders", b"CONFIG orders", b"PURGE orders", b"FORGET orders c", b"SEEK orders c latest"
    with serving(data_dir, workers, "--http", "127.0.0.1:0") as running:
        running.ready(workers)
        for asked in {0, 1, 2} - {left} if home == left else {0, 1, 2}:
            with running.wire(asked) as wire:
                answers = [wire.ask(b"PUB orders - 1\nx\n") for _ in range(COUNT)]
                told = {answer[:64] for answer in answers if not answer.startswith(b"OK")}
                assert told == {b"ERR PLACEMENT_UNKNOWN orders has its partitions at some workers "}, answers
                for command in of_all:
                    assert wire.ask(command + b"\n").startswith(b"ERR PLACEMENT_UNKNOWN orders has"), command
                for command in (b"PULL orders c 1", b"SUB orders c") if left != home else ():
                    assert wire.ask(command + b"\n").startswith(b"ERR PLACEMENT_UNKNOWN orders has"), command
            url = f"{running.http(asked)}/v1/topics/orders/messages"
            codes = {httpx.post(url, content=b"x").json().get("code") for _ in range(2 * COUNT)}
            assert codes == {None, "PLACEMENT_UNKNOWN"}
            url_of_whole = f"{running.http(asked)}/v1/topics/orders"
            seek, ttl = {"seek": "latest"}, {"ttl": 3_600_000}
            for answer in (
                httpx.get(url_of_whole), httpx.get(f"{url_of_whole}/settings"), httpx.post(f"{url_of_whole}:purge"),
                httpx.patch(f"{url_of_whole}?partitions={COUNT}", json=ttl),
                httpx.put(f"{url_of_whole}/consumers/c", json=seek),
            ) if home != left else ():  # fmt: skip
                assert (answer.status_code, answer.json().get("code")) == (503, "PLACEMENT_UNKNOWN"), answer.url
            if home == left:  # a batch makes a plain topic there
                continue
            answer = httpx.post(f"{url}:batch", content=b'{"payload":"x"}\n' * 2 * COUNT,
                                headers={"content-type": "application/x-ndjson"})  # fmt: skip
            assert {one.get("code") for one in answer.json()["results"]} == {None, "PLACEMENT_UNKNOWN"}
            assert answer.status_code == 503


@pytest.mark.parametrize("without", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_workers_that_lost_the_number_refuse_the_topic_until_a_create_at_any(tmp_path: Path, without: tuple[int, ...]) -> None:
    """Found: workers that had lost the number of partitions made a plain topic of the name, which hid the messages in the
    partitions."""
    data_dir, workers = tmp_path / "data", 3
    divided(data_dir, workers)
    for worker in without:
        (data_dir / f"workers/{worker}/partitions.json").unlink()
    with serving(data_dir, workers) as running:
        running.ready(workers)
        for worker in range(workers):
            with running.wire(worker) as wire:
                if worker in without:
                    assert wire.ask(b"PUB orders - 1\nx\n").startswith(b"ERR STORAGE_FAILED partitions of orders are here")
                    assert wire.ask(b"DELETE orders\n").startswith(b"ERR STORAGE_FAILED")
                assert wire.ask(b"PUB orders#%d - 1\nx\n" % worker) == b"OK 1", "served by its name"
        assert not list(data_dir.glob("workers/*/topics/orders"))
        with running.wire(without[-1]) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
        for worker in range(workers):
            with running.wire(worker) as wire:
                assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
                assert lengths(wire) == [2, 2, 2, 1, 1, 1]


def test_commands_behind_a_create_or_delete_in_one_packet_do_not_overtake_it(tmp_path: Path) -> None:
    """Found: a publish that got OK was deleted by the DELETE sent before it; a publish behind a CREATE made a plain topic, or
    was answered MOVED."""
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            for name in (b"a", b"b", b"orders"):
                publishes = b"".join(b"PUB %b - 1 route=%d\nx\n" % (name, number) for number in range(COUNT))
                with workers.wire(worker) as wire:
                    assert wire.ask(b"PUB %b - 1\nx\n" % name) == b"OK 0"
                    wire.send(b"DELETE %b\n%bDELETE %b\n" % (name, publishes, name))
                    told = [wire.line() for _ in range(COUNT + 2)]
                    assert told == [b"OK 1", *(b"OK %d" % number for number in range(COUNT)), b"OK %d" % COUNT], "a plain topic"
                    wire.send(b"CREATE %b partitions=%d\n%bDELETE %b\n%b" % (name, COUNT, publishes, name, publishes))
                    told = [wire.line() for _ in range(2 * COUNT + 2)]
                    assert told[0] == b"OK 0"
                    assert all(line.startswith(b"OK ") for line in told), told
                    assert told[COUNT + 1] == b"OK %d" % COUNT
                    assert told[COUNT + 2 :] == [b"OK %d" % number for number in range(COUNT)], "a plain topic again"
                    assert wire.ask(b"DELETE %b\n" % name) == b"OK %d" % COUNT


def test_a_publish_behind_a_purge_in_one_packet_is_not_dropped(tmp_path: Path) -> None:
    """Found: the publish was applied, by this worker or another one, before the PURGE was, so it was purged although it got
    OK."""
    publishes = b"".join(b"PUB orders - 1 route=%d\nx\n" % number for number in range(8))
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            with workers.wire(worker) as wire:
                assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
                for _ in range(10):
                    wire.send(publishes)
                    assert all(wire.line().startswith(b"OK ") for _ in range(8))
                    wire.send(b"PURGE orders\n%bPURGE orders\n" % publishes)
                    told = [wire.line() for _ in range(10)]
                    assert (told[0], told[9]) == (b"OK 8", b"OK 8")
                assert wire.ask(b"DELETE orders\n") == b"OK 0"


def test_a_broker_that_is_killed_has_its_partitions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, Wire(broker.port) as wire:
        assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
        assert wire.ask(b"PUB orders key-1 1\nx\n") == b"OK 0"
        broker.kill()
    with BrokerProcess(tmp_path / "d") as broker, Wire(broker.port) as wire:
        assert wire.ask(b"PUB orders key-1 1\nx\n") == b"DUP 0"
        assert lengths(wire)[crc32(b"key-1") % COUNT] == 1


@pytest.fixture(params=[1, 2])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a broker of one process, and of one of two workers."""
    if request.param == 1:
        with BrokerProcess(tmp_path / "d") as broker:
            yield f"toymq://127.0.0.1:{broker.port}"
    else:
        with serving(tmp_path / "data", request.param) as workers:
            workers.ready(request.param)
            yield f"toymq://127.0.0.1:{workers.ports[0]}"


async def test_the_asyncio_client(url: str) -> None:
    async with toymq.connect(url) as mq:
        await mq.create("orders", {"partitions": COUNT, "visibility": "2m"})
        assert await mq.config("orders") == {"partitions": COUNT, "visibility": 120}
        with pytest.raises(toymq.IsPartitioned) as error:
            await mq.offsets("orders")
        assert error.value.partitions == COUNT
        for number in range(20):
            await mq.pub("orders", b"%d" % number, route=f"customer-{number % 5}")
        await mq.pub_many("orders", [(f"key-{number}", b"k") for number in range(20)])
        receipts = await mq.pub_many("orders", [b"n"] * (3 * COUNT))
        assert [receipt.duplicate for receipt in receipts] == [False] * (3 * COUNT)
        expected = [3] * COUNT
        for number in range(20):
            expected[crc32(b"customer-%d" % (number % 5)) % COUNT] += 1
            expected[crc32(b"key-%d" % number) % COUNT] += 1
        described = await mq.describe("orders")
        assert [part["messages"] for part in described["parts"]] == expected
        total = sum(expected)
        async with mq.sub("orders", "billing", window=8) as messages:
            seen: dict[str, list[int]] = {}
            for _ in range(total):
                message = await messages.next(30)
                seen.setdefault(message.topic, []).append(message.id)
                await message.ack()
        assert {name: len(ids) for name, ids in seen.items()} == {
            name: length for name, length in zip(NAMES, expected, strict=True) if length
        }
        assert all(ids == sorted(ids) for ids in seen.values()), "each partition in its order"
        (consumer,) = (await mq.describe("orders"))["consumers"]
        assert (consumer["consumer"], consumer["backlog"]) == ("billing", 0)
        assert await mq.seek("orders", "billing", "earliest") == COUNT
        async with mq.sub("orders#*", "billing", mode="shared") as all_of_them, mq.sub("orders#0", "other") as one:
            message = await all_of_them.next(30)
            assert await message.extend(60)
            await message.dead_letter("no printer")
            if expected[0]:
                assert (await one.next(30)).topic == "orders#0"
        (letter,) = await mq.pull("orders.dlq", "person", wait=30)
        assert letter.topic.startswith("orders#")
        assert letter.topic.endswith(".dlq")
        await letter.nack(0.0)
        assert await mq.redrive("orders.dlq") == 1
        pulled = await mq.pull("orders", "puller", 5)
        assert len(pulled) == 5
        for message in pulled:
            await message.ack(sync=True)
        assert await mq.purge("orders") == total + 1
        await mq.forget("orders", "billing")
        assert await mq.delete("orders") >= 0
        with pytest.raises(toymq.NoSuchTopic):
            await mq.describe("orders")


def test_the_blocking_client(url: str) -> None:
    with toymq.sync.connect(url) as mq:
        mq.create("orders", {"partitions": COUNT})
        for number in range(12):
            mq.pub("orders", b"%d" % number, route="customer-7")
        partition = f"orders#{crc32(b'customer-7') % COUNT}"
        with mq.sub("orders", "billing", auto_extend=True) as messages:
            for number in range(12):
                message = messages.next(30)
                assert (message.topic, message.id, message.payload) == (partition, number, b"%d" % number)
                message.ack()
        list(mq.pub_many("orders", [b"x"] * COUNT))
        assert len(mq.pull("orders", "billing", 100, wait=30)) > 0
        assert mq.delete("orders") == 12 + COUNT


async def test_a_full_partition_refuses_its_messages_and_the_others_go_on(url: str) -> None:
    """Publishes with sequence numbers go on behind a refused one, whichever partition it was for."""
    async with toymq.connect(url) as mq:
        await mq.create("orders", {"partitions": 2, "backlog_max_messages": 5})
        await mq.create("free", {"partitions": 2})
        async with mq.sub("orders#0", "c", window=1), mq.sub("orders#1", "c", window=1):
            outcomes = await asyncio.gather(
                *(mq.pub("orders", b"x", route="a" if number % 3 else "b") for number in range(30)), return_exceptions=True
            )
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert {type(one) for one in refused} == {toymq.QueueFull}
        places = [crc32(b"a" if number % 3 else b"b") % 2 for number in range(30)]
        assert len(refused) == 30 - sum(min(places.count(place), 5) for place in (0, 1))


async def test_subscribers_share_the_partitions_and_take_over(url: str) -> None:
    async with toymq.connect(url) as one, toymq.connect(url) as two:
        await one.create("orders", {"partitions": COUNT})
        first = await one.sub("orders", "workers", mode="single")
        second = await two.sub("orders", "workers", mode="single")
        await one.pub_many("orders", [b"%d" % number for number in range(3 * COUNT)])
        seen: dict[str, set[str]] = {"first": set(), "second": set()}

        left = 3 * COUNT
        done = asyncio.Event()

        async def work(name: str, messages: toymq.Subscription) -> None:
            nonlocal left
            async for message in messages:
                seen[name].add(message.topic)
                await message.ack(sync=True)
                left -= 1
                if not left:
                    done.set()

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(work("first", first)), tasks.create_task(work("second", second))]
            await done.wait()
            for worker in workers:
                worker.cancel()
        assert not seen["first"] & seen["second"], "each partition has one subscriber"
        assert seen["first"] | seen["second"] == set(NAMES)
        assert abs(len(seen["first"]) - len(seen["second"])) <= 2, "with each worker they are at most one apart"
        await first.close()
        await one.pub_many("orders", [b"more"] * COUNT)
        assert {(await second.next(30)).topic for _ in range(COUNT)} == set(NAMES), "the other one takes over"
        await second.close()
