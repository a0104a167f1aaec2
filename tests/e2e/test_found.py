"""Faults of sessions and clients that a reviewer found; each case has the name of what happened."""

import asyncio
import errno
import random
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.broker_process import COMMAND, BrokerProcess, environment
from tests.support.in_process import AsyncWire, serving
from tests.support.sim_disk import SimDisk
from toymq import sync
from toymq_py.errors import NoSuchTopic, PayloadTooLarge


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def test_describe_of_a_topic_that_is_deleted_and_made_anew_before_its_turn() -> None:
    """Found: the reply to DESCRIBE read the old topic's log through the new topic's file, and never ended."""
    async with serving("/data/d", fs=disk()) as served:
        wire, other = await served.connect(), await served.connect()
        wire.send(b"PUB t - 1\nx\n" * 20 + b"PUB w - 1\nx\nSEEK t c 10\n")
        for _ in range(22):
            await wire.line()
        wire.send(b"FETCH w 1 1 wait=60000\nDESCRIBE t\nOFFSETS t at=0\n")
        assert await other.ask(b"DELETE t\n") == b"OK 20"
        assert await other.ask(b"PUB t - 1\nx\n") == b"OK 0"
        assert await other.ask(b"PUB w - 1\nx\n") == b"OK 1"
        await wire.body(await wire.line())
        for _ in range(2):
            assert (await wire.line()).startswith(b"ERR NO_SUCH_TOPIC ")


async def test_redelivery_in_a_thousand_pieces() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        wire.send(b"PUB t - 8\n12345678\n" * 2000)
        for _ in range(2000):
            await wire.line()
        await wire.ask(b"SUB t c window=2000\n")
        for _ in range(2000):
            await wire.message()
        wire.send(b"".join(b"ACK t c %d\n" % n for n in range(0, 2000, 2)))
        for _ in range(1000):
            assert await wire.line() == b"OK 1"
        await wire.close()
        again = await served.connect()
        await again.ask(b"SUB t c window=2000\n")
        assert [(await again.message())[:2] for _ in range(1000)] == [(n, 2 if n == 1 else 1) for n in range(1, 2000, 2)]


async def test_many_waits_end_together() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire, other = await served.connect(), await served.connect()
        await wire.ask(b"PUB t - 1\nx\n")
        wire.send(b"FETCH t 1 1 wait=600000\n" * 20_000)
        topic = served.broker.topics["t"]
        while len(topic.commits._waiters) < 20_000:
            await other.ask(b"PING\n")
        await wire.close()
        while topic.commits._waiters:
            await other.ask(b"PING\n")


@pytest.mark.parametrize("end", [b"QUIT\n", b"PUB q - x\n"])
async def test_what_ends_a_connection_cuts_its_waits_short(end: bytes) -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        await wire.ask(b"PUB q - 1\nx\n")
        await wire.ask(b"SUB q c\n")
        await wire.message()
        wire.send(b"FETCH q 1 1 wait=600000\n" + end)
        assert await wire.line() == b"BATCH q 0 1 0"
        await wire.close()
        other = await served.connect()
        await other.ask(b"SUB q c\n")
        assert (await other.message())[0] == 0


async def test_an_end_of_stream_cuts_waits_short_when_replies_fill_the_room() -> None:
    async with serving("/data/d", fs=disk(), max_inflight_bytes=65_536) as served:
        wire = await served.connect()
        await wire.ask(b"PUB q - 1\nx\n")
        wire.send(b"FETCH q 1 1 wait=600000\n" + b"PUB q - 50000\n%b\n" % bytes(50_000) * 2)
        wire.writer.write_eof()
        lines = (await wire.rest()).split(b"\n")
        assert [line.split(b" ")[0] for line in lines if line[:2] == b"OK"] == [b"OK", b"OK"]


async def test_closed_comes_before_the_ok_of_a_newer_sub() -> None:
    async with serving("/data/d", fs=disk()) as served:
        slow, other = await served.connect(), await served.connect()
        await other.ask(b"PUB t - 1\nx\n")
        await slow.ask(b"SUB t c\n")
        await slow.message()
        slow.send(b"FETCH t 1 1 wait=600000\n")  # holds what comes behind it
        assert await other.ask(b"SUB t c\n") == b"OK 1"
        slow.send(b"SUB t c\n")
        assert await slow.line() == b"CLOSED t c TAKEN_OVER"
        assert await other.message() == (0, 2, b"x")
        assert await other.line() == b"CLOSED t c TAKEN_OVER"
        await other.ask(b"PUB t - 1\ny\n")
        assert (await slow.line()).startswith(b"BATCH t ")


async def test_a_sub_that_is_refused_delivers_nothing_and_leaves_nothing() -> None:
    async with serving("/data/d", fs=(fs := disk())) as served:
        wire, other = await served.connect(), await served.connect()
        wire.send(b"PUB t - 1\nx\nPUB t - 1\ny\n")
        assert [await wire.line(), await wire.line()] == [b"OK 0", b"OK 1"]
        fs.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="offsets.json")
        assert (await wire.ask(b"SUB t c start=1\n")).startswith(b"ERR DISK_FULL ")
        assert await other.ask(b"PUB t - 1\nz\n") == b"OK 2"
        await wire.nothing_before_pong()
        assert (await other.ask(b"FORGET t c\n")).startswith(b"ERR NO_SUCH_CONSUMER ")
        assert await wire.ask(b"SUB t d\n") == b"OK 1", "at the first id a full disk refuses none"
        assert (await wire.message())[0] == 0


async def test_nothing_behind_quit_is_executed() -> None:
    async with serving("/data/d", fs=disk(), max_inflight_bytes=65_536) as served:
        wire = await served.connect()
        wire.send(b"PUB a - 70000\n%b\nQUIT\n" % bytes(70_000) + b"PUB evil - 1\nx\n" * 8000)
        assert await wire.rest() == b"OK 0\nOK 0\n"
        assert "evil" not in served.broker.topics


async def test_a_refused_body_without_its_newline_ends_the_connection() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        wire.send(b"PUB ../x - 3\nabcXPING\n")
        lines = (await wire.rest()).split(b"\n")
        assert [line[:15] for line in lines] == [b"ERR BAD_NAME to", b"ERR BAD_FRAMING", b""]


class SlowToUnlink(SimDisk):
    """A file system that removes no file before it is told to."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.go_on = threading.Event()

    def unlink(self, path: str) -> None:
        assert self.go_on.wait(30), "it was not told"
        super().unlink(path)


async def test_what_is_pipelined_behind_a_delete() -> None:
    fs = SlowToUnlink()
    async with serving("/data/d", fs=fs) as served:
        wire, other = await served.connect(), await served.connect()
        assert await wire.ask(b"PUB t k 1\nx\n") == b"OK 0"
        wire.send(b"DELETE t\nPUB t k 1\nx\nOFFSETS t\nDESCRIBE t\nACK t c 0\nCONFIG t\nSUB t c\n")
        for _ in range(20):  # each is a turn of the other session, too: all it was sent is parsed before the topic is gone
            assert await other.ask(b"PING\n") == b"PONG"
        fs.go_on.set()
        assert await wire.line() == b"OK 1"
        assert await wire.line() == b"OK 0", "the PUB waited until the name was free (ADR 0103)"
        assert await wire.line() == b"OFFSETS t 0 1"
        assert b'"next_id": 1' in await wire.body(await wire.line())
        assert (await wire.line()).startswith(b"ERR NO_SUCH_CONSUMER ")
        assert await wire.body(await wire.line()) == b"{}"
        assert await wire.line() == b"OK 1"
        assert (await wire.line()).startswith(b"MSG t 0 1 "), "the message of the new topic"


async def test_settings_are_shown_in_their_turn() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        wire.send(b"CREATE t visibility=5000\nCONFIG t\nCONFIG t visibility=6000\nCONFIG t\n")
        assert await wire.line() == b"OK 0"
        shown = [await wire.body(await wire.line()) for _ in range(3)]
        assert shown == [b'{"visibility": 5000}', b'{"visibility": 6000}', b'{"visibility": 6000}']


async def test_a_paused_consumer_is_shown_as_paused() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        await wire.ask(b"SUB t c\n")
        for command, paused in ((b"PAUSE\n", b"true"), (b"RESUME\n", b"false")):
            assert await wire.ask(command) == b"OK 0"
            assert b'"paused": ' + paused in await wire.body(await wire.ask(b"DESCRIBE t\n"))


async def test_earlier_deadlines_do_not_fill_the_memory() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        await wire.ask(b"PUB t - 1\nx\n")
        await wire.ask(b"SUB t c visibility=90000000\n")
        await wire.message()
        wire.send(b"".join(b"TOUCH t c 0 visibility=%d\n" % ms for ms in range(80_000_000, 79_995_000, -1)))
        for _ in range(5000):
            assert await wire.line() == b"OK 1"
        assert len(served.broker._ticker._due) < 100


async def test_hello_is_the_first_line_even_when_that_was_refused() -> None:
    async with serving("/data/d", fs=disk()) as served:
        wire = await served.connect()
        wire.send(b"DESCRIBE nope\nHELLO 1\n")
        assert (await wire.line()).startswith(b"ERR NO_SUCH_TOPIC ")
        assert (await wire.line()).startswith(b"ERR BAD_ARGUMENT HELLO must be the first command")


async def test_a_connection_that_is_accepted_while_the_broker_stops() -> None:
    """No connection may wait for ever; one that is refused or reset is right. The broker stops at each of the next passes of
    the loop."""
    ended = 0
    for passes in range(12):
        async with serving("/data/d", fs=disk()) as served:
            wires = [asyncio.ensure_future(served.connect()) for _ in range(5)]
            for _ in range(passes):
                await asyncio.sleep(0)
            served.server.stop()
            for wire in wires:
                with suppress(ConnectionError):  # not OSError: TimeoutError is one
                    connected: AsyncWire = await wire
                    assert await connected.rest() == b""
                    ended += 1
    assert ended, "some were accepted"


def test_sigterm_at_the_moment_of_a_connect(tmp_path: Path) -> None:
    """Found: the session was made after the broker had stopped looking for new ones, and the process waited for its end for
    ever."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(BrokerProcess(tmp_path / str(n))) for n in range(4)]
        for broker in brokers:
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 10))
            broker.terminate()
        for n, broker in enumerate(brokers):
            code, errors = broker.ended()
            assert code == 0, f"round {n}: {errors}"


@pytest.fixture
def client(tmp_path: Path):  # type: ignore[no-untyped-def]
    with BrokerProcess(tmp_path / "d") as broker, sync.connect(f"127.0.0.1:{broker.port}") as connected:
        yield connected


def test_answers_that_nobody_waits_for_any_more_are_nobody_elses(client: sync.Client) -> None:
    for receipt in client.pub_many("t", [b"x"] * 100):
        assert receipt.msg_id == 0
        break
    assert client.pub("other", b"mine").msg_id == 0
    with pytest.raises(PayloadTooLarge):
        list(client.pub_many("t", [b"x", bytes(3_000_000), b"y"]))
    assert client.describe("t")["next_id"] == 101
    with pytest.raises(NoSuchTopic):
        client.describe("nothing")


def test_acks_of_every_other_message_fit_into_lines(client: sync.Client) -> None:
    list(client.pub_many("t", [b"x"] * 6000))
    with client.sub("t", "c", window=6000) as subscription:
        for _ in range(6000):
            message = subscription.next(10)
            if message.id % 2:
                message.ack()
    assert client.describe("t")["consumers"][0]["backlog"] == 3000


def test_every_option_has_the_name_of_its_environment_variable(tmp_path: Path) -> None:
    shown = subprocess.run([*COMMAND, "serve", "--help"], env=environment(), capture_output=True, text=True, check=True)
    assert "--max-payload" in shown.stdout
    with BrokerProcess(tmp_path / "d") as broker:
        broker.stop()
    env = environment() | {"TOYMQ_MAX_PAYLOAD": "10", "TOYMQ_LISTEN": "127.0.0.1:0", "TOYMQ_DATA_DIR": str(tmp_path / "d")}
    with subprocess.Popen([*COMMAND, "serve"], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().split()[1].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), 10) as wire:
                wire.sendall(b"HELLO 1\n")
                assert b"max_payload=10" in wire.recv(100).split()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
