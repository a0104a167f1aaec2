"""A failing disk, a bug, a shutdown: every command still gets its answer, and no other session notices."""

import errno
import logging
import random
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.in_process import AsyncWire, InProcess, serving
from tests.support.sim_disk import SimDisk
from toymq_py.session.session import LINGER_BYTES
from toymq_py.storage.segment import segment_name
from toymq_py.topic import Subscription, Topic
from toymq_py.topic.consumer_registry import ConsumerRegistry
from toymq_py.topic.publisher import Publisher

DIR = "/data/d"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def code(wire: AsyncWire, command: bytes) -> str:
    """Return the code of the ERR that answers a command."""
    line = (await wire.ask(command)).split(b" ")
    assert line[0] == b"ERR", line
    return line[1].decode()


async def test_a_failed_sync_answers_every_publish_and_closes_that_topic_alone() -> None:
    async with serving(DIR, fs=(fs := disk())) as served:
        wire = await served.connect()
        assert await wire.ask(b"PUB t k0 1\na\n") == b"OK 0"
        assert await wire.ask(b"SUB t c\n") == b"OK 1"
        assert (await wire.message())[0] == 0
        fs.fail("sync", 1, errno.EIO, path=f"t/{segment_name(0)}")
        wire.send(b"PUB t k1 1\nb\nPUB t - 1\nc\nPUB t k1 1\nb\nPUB other - 1\nd\n")
        answers = [await wire.line() for _ in range(4)]
        assert [answer.split(b" ")[:2] for answer in answers] == [[b"ERR", b"STORAGE_FAILED"]] * 3 + [[b"OK", b"0"]]
        assert await code(wire, b"PUB t k1 1\nb\n") == "STORAGE_FAILED"
        assert await wire.ask(b"PUB t k0 1\na\n") == b"DUP 0", "what is committed is still known"
        assert await wire.ask(b"ACK t c 0 sync=1\n") == b"OK 1", "acks go on"
        assert b'"state": "failed"' in await wire.body(await wire.ask(b"DESCRIBE t\n"))
    async with serving(DIR, fs=fs.kill()) as served:
        wire = await served.connect()
        assert await wire.ask(b"PUB t k1 1\nb\n") == b"OK 1", "a restart opens it again"


async def test_a_full_disk_answers_and_publishing_resumes() -> None:
    async with serving(DIR, fs=(fs := disk())) as served:
        wire = await served.connect()
        assert await wire.ask(b"PUB t - 1\na\n") == b"OK 0"
        fs.fail("pwrite", 1, errno.ENOSPC, path=".log")
        wire.send(b"PUB t k 1\nb\nPUB t k 1\nb\nPING\n")
        answers = [await wire.line() for _ in range(3)]
        assert [answer.split(b" ")[1] if answer != b"PONG" else answer for answer in answers] == [b"DISK_FULL"] * 2 + [b"PONG"]
        assert await wire.ask(b"PUB t k 1\nb\n") == b"OK 1"


async def test_offsets_that_cannot_be_written_are_said_where_they_were_asked_for() -> None:
    async with serving(DIR, fs=(fs := disk())) as served:
        wire = await served.connect()
        await wire.ask(b"PUB t - 1\na\n")
        await wire.ask(b"SUB t c\n")
        await wire.message()
        fs.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="offsets.json")
        assert await code(wire, b"ACK t c 0 sync=1\n") == "DISK_FULL"
        assert await wire.ask(b"ACK t c 0\n") == b"OK 0", "it is acked, and will be written later"
        assert await wire.ask(b"SEEK t c latest\n") == b"CLOSED t c SEEK"
        assert (await wire.line()).startswith(b"ERR DISK_FULL ")
        fs.heal()
        assert await wire.ask(b"SEEK t c latest\n") == b"OK 1"


async def test_a_segment_that_cannot_be_opened_is_an_error_of_that_read(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(DIR, fs=(fs := disk()), segment_bytes=4096) as served:
        wire = await served.connect()
        for n in range(4):
            assert await wire.ask(b"PUB t - 3000\n%b\n" % bytes(3000)) == b"OK %d" % n
        fs.fail("open", 1, errno.EMFILE, path=segment_name(0))
        assert await code(wire, b"FETCH t 0 1\n") == "DISK_FULL"
        assert (await wire.body(await wire.ask(b"FETCH t 0 1\n")))[4:12] == bytes(8)
        served.broker.topics["t"].log.close()
        fs.fail("open", 1, errno.EMFILE, path=segment_name(0))
        with caplog.at_level(logging.ERROR):
            assert await wire.ask(b"SUB t c\n") == b"OK 1"
            assert await wire.ask(b"PING\n") == b"PONG"
        assert "cannot read t" in caplog.text
        wire.send(b"PUB t - 1\nx\n")  # the next wake tries again
        lines = {(await wire.line())[:5]}
        assert lines <= {b"OK 4", b"MSG t"}
        fs.fail("open", 1, errno.EMFILE, path=segment_name(0))
        served.broker.topics["t"].log.close()
        assert await code(await served.connect(), b"SEEK t d @1\n") == "DISK_FULL"


@pytest.mark.provokes_bugs
async def test_a_bug_in_one_command_is_answered_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object, **__: object) -> Any:
        raise RuntimeError("a bug")

    async with serving(DIR, fs=disk()) as served:
        wire, other = await served.connect(), await served.connect()
        await wire.ask(b"PUB t - 1\na\n")
        await other.ask(b"SUB t c\n")
        await other.message()
        for owner, method, command in (
            (Topic, Topic.describe, b"DESCRIBE t\n"),
            (Topic, Topic.ack, b"ACK t c 0\n"),
            (Publisher, Publisher._append, b"PUB t - 1\nx\n"),
            (ConsumerRegistry, ConsumerRegistry.resolve, b"SEEK t c latest\n"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(owner, method.__name__, bug)
                assert await code(wire, command) == "INTERNAL"
            assert await wire.ask(b"PING\n") == b"PONG", "the connection lives"
        with monkeypatch.context() as patch:
            patch.setattr(Publisher, "_append", bug)
            wire.send(b"PUB t - 1\nx\n" * 3 + b"PING\n")
            assert [(await wire.line())[:12] for _ in range(4)] == [b"ERR INTERNAL"] * 3 + [b"PONG"]
        assert caplog.text.count("RuntimeError: a bug") == 5
        assert await other.ask(b"ACK t c 0\n") == b"OK 1"


@pytest.mark.provokes_bugs
async def test_a_bug_in_delivering_ends_that_session_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(DIR, fs=disk()) as served:
        wire, other = await served.connect(), await served.connect()
        await other.ask(b"PUB t - 1\na\n")
        with monkeypatch.context() as patch:
            patch.setattr(Subscription, "take", lambda *_: 1 / 0)
            assert await wire.ask(b"SUB t c\n") in (b"OK 1", b"")
            assert await wire.rest() == b""
        assert "ended by a bug" in caplog.text
        assert await other.ask(b"SUB t c\n") == b"OK 1"
        assert await other.message() == (0, 1, b"a"), "nothing of it stayed leased"


async def test_after_a_fatal_error_what_still_comes_is_dropped_for_a_while() -> None:
    async with serving(DIR, fs=disk()) as served:
        wire = await served.connect()
        wire.send(b"PUB t - x\n" + b"PUB t - 1\nx\n" * 100)
        assert (await wire.line()).startswith(b"ERR BAD_FRAMING ")
        wire.send(bytes(LINGER_BYTES + 70_000))
        assert await wire.rest() == b""
        assert await (await served.connect()).ask(b"PING\n") == b"PONG"
        assert "t" not in served.broker.topics, "nothing behind the error was executed"


async def test_a_broker_that_shuts_down_takes_nothing_new() -> None:
    async with serving(DIR, fs=disk(), shutdown_timeout_ms=2000) as served:
        wire = await served.connect()
        for commands in (b"PUB t - 1\nx\n", b"SUB t d\n", b"SEEK t c latest\n"):
            again = await shutting_down(served, commands)
            assert again == "SHUTTING_DOWN"
        assert await wire.ask(b"PING\n") == b"PONG"


async def shutting_down(served: InProcess, command: bytes) -> str:
    wire = await served.connect()
    assert await wire.ask(b"PING\n") == b"PONG"
    served.broker.shutting_down = True
    try:
        return await code(wire, command)
    finally:
        served.broker.shutting_down = False


async def test_waits_end_when_the_topic_goes() -> None:
    async with serving(DIR, fs=disk()) as served:
        wire, other = await served.connect(), await served.connect()
        await wire.ask(b"PUB t - 1\na\n")
        wire.send(b"FETCH t 1 1 wait=60000\n")
        assert await other.ask(b"PING\n") == b"PONG"
        assert await other.ask(b"DELETE t\n") == b"OK 1"
        assert (await wire.line()).startswith(b"ERR NO_SUCH_TOPIC ")
        assert not served.broker.topics


async def test_a_connection_that_goes_takes_its_waits_with_it() -> None:
    async with serving(DIR, fs=disk()) as served:
        wire, other = await served.connect(), await served.connect()
        await wire.ask(b"PUB t - 1\na\n")
        wire.send(b"FETCH t 1 1 wait=60000\n")
        assert await other.ask(b"PING\n") == b"PONG"
        topic = served.broker.topics["t"]
        assert len(topic.commits._waiters) == 1
        wire.writer.transport.abort()
        while served.broker.metrics.connections > 1:
            await other.ask(b"PING\n")
        assert not topic.commits._waiters


@pytest.mark.parametrize(
    "command", [b"SEEK mine c%d earliest\n", b"CONFIG mine ttl=%d000\n", b"FORGET mine c%d\n"], ids=["seek", "config", "forget"]
)
def test_a_client_that_is_gone_before_its_answer_takes_no_answer_of_others_along(tmp_path: Path, command: bytes) -> None:
    """Found: the audit line of a closed connection needed its address, which raised; all sessions that waited for the same
    write then got no answer, and the trail lacked the change."""
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as bystander:
        for topic in (b"mine", b"theirs"):
            bystander.send(b"PUB %b - 1\nx\n" % topic * 30)
            assert [bystander.line() for _ in range(30)] == [b"OK %d" % n for n in range(30)]
        bystander.send(b"PULL theirs v 30 visibility=600000\n")
        for n in range(30):
            assert bystander.message()[0] == n
        assert bystander.line() == b"OK 30"
        for n in range(30):
            leaving = socket.create_connection(("127.0.0.1", broker.port))
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            leaving.sendall(b"".join(command % (20 * n + k) for k in range(20)))
            leaving.close()
            bystander.socket.settimeout(30)
            assert bystander.ask(b"ACK theirs v %d sync=1\n" % n) == b"OK 1"
            assert bystander.ask(b"SEEK theirs w latest\n").startswith(b"OK ")
        broker.stop()
        code, log = broker.ended()
    assert (code, "Traceback" in log) == (0, False)
    trail = [line for line in log.splitlines() if "toymq_py.audit" in line and " topic=mine " in line]
    assert all("address=127.0.0.1" in line for line in trail)
