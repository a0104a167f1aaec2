"""AMQP publishers beyond --max-held-bytes and --memory-max: not read until there is room, and not closed. ADR 0232."""

import asyncio
import random
import select
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pika
import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.in_process import serving
from tests.support.sim_disk import SimDisk
from tests.support.tokens import table, token
from toymq_py.amqp import methods
from toymq_py.amqp.frames import BODY, HEADER, frame
from toymq_py.amqp.server import AmqpServer
from toymq_py.auth.quotas import Quotas
from toymq_py.clock import SystemClock
from toymq_py.server import Server

SIZE = 1_000_000
HALF = methods.encode(1, "basic.publish", routing_key="q") + frame(HEADER, 1, b"\0\x3c\0\0" + SIZE.to_bytes(8) + b"\0\0")
HALF += frame(BODY, 1, b"x" * 100_000) * 9
REST = frame(BODY, 1, b"x" * 100_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--max-held-bytes", "4MiB") as broker:
        yield broker


def publish(url: str, count: int) -> int:
    """Publish with confirms, as pika does it."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", "q", bytes(SIZE))
    connection.close()
    return count


def test_forty_publishers_of_a_megabyte_are_all_served_by_a_limit_of_four(broker: BrokerProcess) -> None:
    """Found: nine of ten publishers were closed with 506, whenever they tried."""
    with AmqpWire(broker.amqp).login() as consumer, ThreadPoolExecutor(40) as publishers:
        declare(consumer, "q")
        consumer.ask(1, "basic.consume", queue="q", no_ack=True)
        before = broker.rss_bytes()
        publishing = [publishers.submit(publish, broker.amqp, 3) for _ in range(40)]
        assert {len(body) for body in bodies(consumer, 120)} == {SIZE}
        assert broker.rss_bytes() - before < 160 << 20, "of 120 MB, each of which is there as a body, in the log and on its way"
        assert sum(each.result() for each in publishing) == 120


def test_bodies_that_have_all_come_in_part_become_whole(broker: BrokerProcess) -> None:
    """Twelve connections have sent half of a large body, and together hold the memory that any of them needs to complete its
    own."""
    with ExitStack() as open_wires:
        wires = [open_wires.enter_context(AmqpWire(broker.amqp)).login() for _ in range(12)]
        declare(wires[0], "q")
        for wire in wires:
            wire.ask(1, "confirm.select")
        threads = [threading.Thread(target=wire.socket.sendall, args=(HALF,)) for wire in wires]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # by now the kernel has what the broker does not read
        for wire in wires:
            wire.socket.sendall(REST)
        for wire in wires:
            assert wire.expect("basic.ack")["delivery_tag"] == 1


def test_who_holds_up_others_and_sends_nothing_is_closed(broker: BrokerProcess) -> None:
    with ExitStack() as open_wires:
        idle = [open_wires.enter_context(AmqpWire(broker.amqp)).login() for _ in range(8)]
        declare(idle[0], "q")
        for wire in idle:
            wire.socket.sendall(HALF)
        with ThreadPoolExecutor(1) as publishers:
            assert publishers.submit(publish, broker.amqp, 3).result() == 3
        declare(open_wires.enter_context(AmqpWire(broker.amqp)).login(), "q")


@pytest.mark.parametrize("size", [1, 60_000])
def test_a_token_that_never_commits_leaves_room_to_others(tmp_path: Path, size: int) -> None:
    """Each turn left behind what it had brought: 34 times the limit, and the others were refused. ADR 0279. With small bodies
    what was read became ten times as much: ADR 0287."""
    limit, message = 2 << 20, 256 << 10
    auth = tmp_path / "auth.toml"
    rights = 'publish = [">"]\nsubscribe = [">"]'
    auth.write_text(table("greedy", rights) + table("other", f"{rights}\nadmin = true"))
    auth.chmod(0o600)
    options = ("--auth-file", str(auth), "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")
    limits = ("--max-held-bytes", str(limit), "--max-payload", str(message))
    with BrokerProcess(tmp_path / "d", *options, *limits) as broker, ExitStack() as open_wires:

        def login(name: str) -> AmqpWire:
            return open_wires.enter_context(AmqpWire(broker.amqp)).login("u", token(name))

        def held_bytes() -> int:
            answer = httpx.get(f"{broker.http}v1/broker", headers={"authorization": f"Bearer {token('other')}"}).json()
            (held,) = [each for each in answer["limits"] if each["limit"] == "held_bytes"]
            used: int = held["used"]
            return used

        other, greedy = login("other"), [login("greedy") for _ in range(8)]
        declare(other, "q")
        other.ask(1, "confirm.select")
        for wire in greedy:
            wire.ask(1, "tx.select")
        for wire in greedy:
            for _ in range(600_000 // max(size, 150)):
                wire.publish(bytes(size), "q")
        most = tag = 0
        while not select.select([wire.socket for wire in greedy], [], [], 0)[0]:
            other.publish(bytes(message // 2), "q")
            tag += 1
            assert other.expect("basic.ack")["delivery_tag"] == tag
            most = max(most, held_bytes())
        assert limit // 2 < most < limit // 2 + 2 * message
        (first, *_), _, _ = select.select([wire.socket for wire in greedy], [], [])
        (closed,) = (wire for wire in greedy if wire.socket is first)
        code, text = closed.closed_with("connection.close")
        assert (code, "has no room" in text) == (506, True)


@asynccontextmanager
async def amqp() -> AsyncIterator[tuple[str, Quotas]]:
    """Serve a broker in this process. Yields: its URL, and the quotas by which a test reports that memory is high."""
    async with serving("/data/d", fs=SimDisk(random.Random(1))) as served, asyncio.TaskGroup() as tasks:
        server = AmqpServer(served.broker, SystemClock(), asyncio.get_running_loop())
        await server.load()
        listeners = Server.bind("127.0.0.1", 0)
        running = tasks.create_task(server.run(listeners))
        for _ in range(3):
            await asyncio.sleep(0)  # it listens now
        try:
            yield f"amqp://127.0.0.1:{listeners[0].getsockname()[1]}", served.broker.quotas
        finally:
            server.stop(within_s=0.1)
            await running


@pytest.mark.parametrize("mode", ["confirm.select", "tx.select", None])
async def test_while_memory_is_high_publishes_wait_and_consumers_go_on(mode: str | None) -> None:
    """Found: while memory was high a publish was nacked, and without confirms its channel was closed."""
    async with amqp() as (url, quotas), asyncio.timeout(60):

        def begin() -> tuple[AmqpWire, AmqpWire]:
            wire, other = AmqpWire(url), AmqpWire(url).login()
            wire.knows_blocked = True
            declare(wire.login(heartbeat=1), "q")
            other.publish(b"before", "q")
            assert declare(other, "q", passive=True)["message_count"] == 1
            if mode is not None:
                wire.ask(1, mode)
            return wire, other

        def while_it_is_high(wire: AmqpWire, other: AmqpWire) -> None:
            for number in range(300):
                wire.publish(b"%d" % number + bytes(1000), "q")
            if mode == "tx.select":
                wire.send(1, "tx.commit")
            assert wire.expect("connection.blocked")["reason"] == "low on memory"
            other.ask(1, "basic.consume", queue="q")
            assert bodies(other, 1) == [b"before"]
            other.send(1, "basic.ack", delivery_tag=1)
            assert declare(other, "q", passive=True)["message_count"] == 0
            for _ in range(6):
                assert wire.socket.recv(8) == frame(8, 0, b""), "the broker's heartbeats; the client sends none"

        def afterwards(wire: AmqpWire, other: AmqpWire) -> None:
            wire.expect("connection.unblocked")
            assert [body[:-1000] for body in bodies(other, 300)] == [b"%d" % number for number in range(300)]
            if mode == "tx.select":
                wire.expect("tx.commit-ok")
            wire.close()
            other.close()

        wires = await asyncio.to_thread(begin)
        quotas.memory_high = True
        await asyncio.to_thread(while_it_is_high, *wires)
        quotas.memory_high = False
        await asyncio.to_thread(partial(afterwards, *wires))
