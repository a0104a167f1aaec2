"""A directory that is removed or replaced below a running broker ends it, with one line. ADR 0049."""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import toymq
import toymq.sync
from tests.support.broker_process import BrokerProcess, Wire, environment, run


def remove(data: Path) -> None:
    shutil.rmtree(data.rename(data.with_name("removed")))  # at once: the broker makes files in it meanwhile


def replace(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))
    data.mkdir()


def remove_lock(data: Path) -> None:
    (data / "LOCK").unlink()


@pytest.mark.parametrize(
    ("act", "path", "what"), [(remove, "", "removed"), (replace, "", "replaced"), (remove_lock, "/LOCK", "removed")]
)
def test_the_broker_ends_with_a_line_that_says_what_happened(
    tmp_path: Path, act: Callable[[Path], None], path: str, what: str
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, "--http", "127.0.0.1:0") as broker:
        with Wire(broker.port) as wire:
            wire.send(b"PUB orders 1\n\nx\n")
            wire.line()
            act(data)
            code, errors = broker.ended()
        assert code == 2
        line = errors.strip().splitlines()[-1]
        assert line.startswith(f"toymq: {data}{path} was {what} below the running broker")
        assert "Traceback" not in errors
    if act is replace:
        assert list(data.iterdir()) == [], "nothing is written into what is not its own"


def test_a_second_broker_is_refused_although_lock_was_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        os.kill(broker.pid, signal.SIGSTOP)  # it has not looked yet
        remove_lock(data)
        second = run("serve", "--data-dir", str(data), "--listen", "127.0.0.1:0")
        assert second.returncode == 2
        assert "is in use by" in second.stderr
        os.kill(broker.pid, signal.SIGCONT)
        assert broker.ended()[0] == 2
    with BrokerProcess(data) as broker:
        assert broker.stop() == 0


async def test_an_embedded_broker_does_not_begin_a_new_directory_in_its_place(tmp_path: Path) -> None:
    data = tmp_path / "queue"
    async with toymq.open(data, timeout_s=1) as mq:
        await mq.pub("orders", b"x")
        remove(data)
        ended = asyncio.wrap_future(mq._host.ended)
        async with asyncio.timeout(20):
            await ended
        assert not data.exists()
        with pytest.raises(toymq.ToymqError):
            await mq.pub("orders", b"y")



OTHER = """
import asyncio, sys, toymq
from toymq import sync
async def wait():
    async with toymq.open(sys.argv[1], timeout_s=60) as mq, mq.sub("orders", "c") as messages:
        async for message in messages:
            await message.ack()
            print("message", flush=True)
def wait_blocking():
    with sync.open(sys.argv[1], timeout_s=60) as mq, mq.sub("orders", "c") as messages:
        for message in messages:
            message.ack()
            print("message", flush=True)
try:
    asyncio.run(wait()) if sys.argv[2] == "asyncio" else wait_blocking()
except toymq.DirectoryLost as error:
    print(error, flush=True)
"""


@asynccontextmanager
async def other_process(data: Path, form: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run a process that has received a message of the topic ``orders``, and waits for the next. Yields: its output."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER, str(data), form, env=environment(), stdout=PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"message\n"
        yield process.stdout
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def put_another_in_its_place(data: Path) -> None:
    """Replace the directory, as a deployment that starts from an empty disk."""
    replace(data)
    with toymq.sync.open(data) as mq:
        mq.pub("orders", b"another's")


def move_topics(data: Path) -> None:
    (data / "topics").rename(data / "elsewhere")


@pytest.mark.parametrize("form", ["asyncio", "blocking"])
@pytest.mark.parametrize(
    ("act", "path", "what"),
    [(remove, "", "removed"), (put_another_in_its_place, "", "replaced"), (move_topics, "/topics", "removed")],
)
async def test_each_client_of_an_embedded_broker_hears_that_its_directory_is_lost(
    tmp_path: Path, act: Callable[[Path], None], path: str, what: str, form: str
) -> None:
    """Found: clients only got RequestTimeout, each after its own time, and clients in the other process were moved to another
    queue."""
    data = tmp_path / "data"
    lost = f"{data}{path} was {what} below the running broker: open it again"
    async with toymq.open(data, timeout_s=60) as mq, asyncio.timeout(60):
        await mq.pub("orders", b"x")
        async with other_process(data, form) as says:
            waiting = asyncio.ensure_future(mq.pull("others", "c", wait=60))
            await mq.ping()
            await asyncio.to_thread(act, data)
            with pytest.raises(toymq.DirectoryLost) as found:
                await waiting
            assert str(found.value) == lost
            assert (await says.readline()).decode() == f"{lost}\n"
            await asyncio.wrap_future(mq._host.ended)
            with pytest.raises(toymq.DirectoryLost) as found:
                await mq.pub("orders", b"y")
            assert str(found.value) == lost
    assert not (data / "topics").exists() or act is put_another_in_its_place, "none is begun anew"


def test_a_blocking_client_in_the_serving_process_hears_it_while_it_waits(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with toymq.sync.open(data, timeout_s=60) as mq:
        messages = mq.sub("orders", "c", auto_extend=True)
        remove(data)
        with pytest.raises(toymq.DirectoryLost, match=f"{data} was removed below the running broker: open it again"):
            messages.next(60)
        with pytest.raises(toymq.DirectoryLost):
            mq.pub("orders", b"x")


async def test_without_lock_the_process_that_served_hears_it_and_another_one_takes_over(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with toymq.open(data, timeout_s=60) as mq, asyncio.timeout(60):
        await mq.pub("orders", b"x")
        async with other_process(data, "asyncio") as says:
            waiting = asyncio.ensure_future(mq.pull("others", "c", wait=60))
            await mq.ping()
            remove_lock(data)
            with pytest.raises(toymq.DirectoryLost, match=f"{data}/LOCK was removed below the running broker: open it again"):
                await waiting
            async with toymq.open(data, timeout_s=60) as again:
                assert (await again.pub("orders", b"y")).msg_id == 1
                assert await says.readline() == b"message\n"
