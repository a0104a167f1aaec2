"""``toymq.open``: processes share a directory without a broker to run; the process that serves it may be killed at any time."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import replace
from pathlib import Path

import pytest

import toymq
import toymq.sync
from tests.support import moving
from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment, run
from tests.support.embedded_worker import CONSUMER
from toymq.errors import ClientClosed
from toymq.sockets import UNIX_PATH_BYTES_MAX
from toymq_py.embedded.host import EMBEDDED, SOCKET_NAME
from toymq_py.errors import DirectoryLocked, QueueFull
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import RealFileSystem

ROOMY = replace(EMBEDDED, min_free_bytes=0)


class Workers:
    """Processes that pass messages in a ring, and a record of what they have seen."""

    def __init__(self, data_dir: Path, count: int, messages: int, block_s: float = 0) -> None:
        """``block_s``: how long the first worker's first handler blocks its process."""
        self.seen: set[bytes] = set()
        self.gaps_s: list[float] = []
        """How long each kill kept a client from the queue."""
        self._data_dir = data_dir
        self._messages = messages
        self._block_s = block_s
        self._processes: list[Process | None] = [None] * count
        self._more = asyncio.Event()
        self._connected = asyncio.Event()
        self._lost_at = 0.0

    def topic(self, number: int) -> str:
        return f"work.{number % len(self._processes)}"

    async def run(self, kills: int) -> None:
        """Run until all was seen. Each time a share of it was seen, the process that serves is killed, and started again."""
        total = self._messages * len(self._processes)
        async with asyncio.TaskGroup() as tasks:
            for number in range(len(self._processes)):
                tasks.create_task(self._run_one(number))
            try:
                async with toymq.connect(
                    f"unix:{self._data_dir / SOCKET_NAME}", wait_s=TIMEOUT_S, backoff_min_s=0.01, backoff_max_s=0.1,
                    on_event=self._on_event,
                ):  # fmt: skip
                    for kill in range(1, kills + 1):
                        await self._until(total * kill // (kills + 1))
                        await self._kill_server()
                    await self._until(total)
            except BaseException:
                for process in filter(None, self._processes):
                    process.kill()
                raise
            for process in filter(None, self._processes):
                assert process.stdin is not None
                process.stdin.close()

    async def _run_one(self, number: int) -> None:
        """Run a worker, and its successor when it is killed."""
        code: int | None = None
        while code != 0:
            block_s = self._block_s if number == 0 and code is None else 0
            process = self._processes[number] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.support.embedded_worker", str(self._data_dir), self.topic(number),
                self.topic(number + 1), str(self._messages), str(block_s),
                env=environment(), stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            async for line in process.stdout:
                if line.endswith(b"\n"):
                    self.seen.add(line[:-1])
                    self._more.set()
            code = await process.wait()
            assert code in (0, -signal.SIGKILL), f"worker {number} ended with {code}"

    async def _until(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S + count / 100):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()

    async def _kill_server(self) -> None:
        server = int((self._data_dir / "LOCK").read_text())
        (process,) = [process for process in self._processes if process is not None and process.pid == server]
        self._connected.clear()
        process.kill()
        async with asyncio.timeout(TIMEOUT_S):
            await self._connected.wait()
        assert int((self._data_dir / "LOCK").read_text()) != server, "another process serves"

    def _on_event(self, event: toymq.Connected | toymq.Disconnected) -> None:
        now = time.perf_counter()
        if isinstance(event, toymq.Disconnected):
            self._lost_at = now
        elif self._lost_at:
            self.gaps_s.append(now - self._lost_at)
            self._connected.set()

    def check_directory(self) -> None:
        """Check that every message is there once and acked, and that the directory is a data directory like any other."""
        done = run("verify", str(self._data_dir))
        assert done.returncode == 0, done.stdout + done.stderr
        with BrokerProcess(self._data_dir) as broker, toymq.sync.connect(f"127.0.0.1:{broker.port}") as mq:
            for number in range(len(self._processes)):
                assert mq.offsets(self.topic(number)) == (0, self._messages), "each is stored exactly once"
                (consumer,) = mq.describe(self.topic(number))["consumers"]
                assert (consumer["consumer"], consumer["backlog"]) == (CONSUMER, 0), "everything is acked"


async def test_processes_share_a_queue_whose_server_is_killed(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "q", count=3, messages=400)
    await workers.run(kills=2)
    assert len(workers.seen) == 1_200
    assert min(workers.gaps_s) < 1, "a dead server is replaced within a second"
    workers.check_directory()


@pytest.mark.torture
async def test_eight_processes_with_three_kills_of_the_server(tmp_path: Path) -> None:
    workers = Workers(tmp_path / "q", count=8, messages=2_500, block_s=5)
    await workers.run(kills=3)
    assert len(workers.seen) == 20_000
    assert max(workers.gaps_s) < 1, f"a dead server is replaced within a second: {workers.gaps_s}"
    workers.check_directory()


async def test_a_handler_that_blocks_the_serving_process_harms_nobody(tmp_path: Path) -> None:
    async with toymq.open(tmp_path / "q", options=ROOMY) as mq:
        await mq.pub("slow", b"work")
        async with mq.sub("slow", "c") as messages:
            message = await messages.next(TIMEOUT_S)
            done = subprocess.run(  # noqa: ASYNC221 (this loop is to stand still until another process has done its work)
                [sys.executable, "-c", OTHER, str(tmp_path / "q")],
                env=environment(), timeout=TIMEOUT_S, capture_output=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (0, b"other's\n"), done.stderr
            await message.ack(sync=True)


OTHER = """
import sys
from toymq import sync
from toymq_py.embedded import host
with sync.open(sys.argv[1]) as mq:
    mq.pub("fast", b"other's")
    with mq.sub("fast", "c") as messages:
        message = messages.next(10)
        message.ack(sync=True)
        print(message.payload.decode())
"""


async def test_it_has_all_that_a_broker_has(tmp_path: Path) -> None:
    async with toymq.open(tmp_path / "q", options=ROOMY) as mq, toymq.open(tmp_path / "q", options=ROOMY) as other:
        await mq.create("jobs.a", {"max_attempts": 1, "backlog_max_messages": 4})
        assert (await other.config("jobs.a"))["max_attempts"] == 1
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(other.pull("jobs.*", "w", 2, wait=TIMEOUT_S))
            await mq.pub("jobs.a", b"poison")
            (poison,) = await waiting
            await poison.nack(0)
        (letter,) = await other.pull("jobs.*.dlq", "support", wait=TIMEOUT_S)
        assert (letter.payload, letter.headers["toymq-consumer"]) == (b"poison", "w")
        assert await mq.redrive("jobs.a.dlq") == 1
        await mq.pub_many("jobs.a", [b"x", b"y"], delay=60)
        with pytest.raises(QueueFull):
            await mq.pub_many("jobs.a", [b"z", b"too many"], ttl=60)
        async with mq.sub("jobs.*", "w", mode="shared", window=1) as mine, other.sub("jobs.*", "w", mode="shared") as others:
            found = [await mine.next(TIMEOUT_S), await others.next(TIMEOUT_S)]
            assert {one.payload for one in found} == {b"poison", b"z"}
            assert [await one.dead_letter("twice") for one in found] == [True, True]
        assert await mq.seek("jobs.a", "w", "latest") == 5
        assert await mq.purge("jobs.a") > 0


@pytest.mark.parametrize("what", moving.OUTPUTS)
async def test_a_client_that_speaks_as_its_connection_ends_comes_back(tmp_path: Path, what: str) -> None:
    async with toymq.open(tmp_path / "q", options=ROOMY, timeout_s=moving.MOVE_S) as mq:
        await moving.speaks_as_its_connection_ends(mq, moving.OUTPUTS[what])


async def test_every_subscription_moves_after_each_takeover(tmp_path: Path) -> None:
    """Three processes beside this one share the directory. The one that serves it is killed, until this one serves."""
    command = (sys.executable, "-c", HOLDING, str(tmp_path / "q"))
    holders: list[Process] = []
    try:
        for _ in range(3):
            holder = await asyncio.create_subprocess_exec(*command, env=environment(), stdin=PIPE, stdout=PIPE)
            holders.append(holder)
            assert holder.stdout is not None
            assert await holder.stdout.readline() == b"held\n"
        async with (
            toymq.open(tmp_path / "q", options=ROOMY, timeout_s=120) as mq, moving.UnderLoad(mq).running() as load,
        ):  # fmt: skip
            await load.all_move()
            while (server := int((tmp_path / "q" / "LOCK").read_text())) != os.getpid():
                os.kill(server, signal.SIGKILL)
                await load.all_move()
    finally:
        for holder in holders:
            if holder.returncode is None:
                holder.kill()
            await holder.wait()


HOLDING = """
import sys
from dataclasses import replace
from toymq import sync
from toymq_py.embedded import host
from toymq_py.embedded.host import EMBEDDED
with sync.open(sys.argv[1], options=replace(EMBEDDED, min_free_bytes=0)):
    print("held", flush=True)
    sys.stdin.read()
"""


async def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30)
    assert len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX
    async with toymq.open(path, options=ROOMY) as server, toymq.open(path) as other:
        assert (await server.pub("t", b"1")).msg_id == 0
        assert (await other.pub("t", b"2")).msg_id == 1
        blocking = await asyncio.to_thread(toymq.sync.open, path)
        assert blocking.pub("t", b"3").msg_id == 2
        await asyncio.to_thread(blocking.close)


async def test_a_client_that_was_closed_stays_closed(tmp_path: Path) -> None:
    mq = toymq.open(tmp_path / "q")
    await mq.close()
    with pytest.raises(ClientClosed):
        await mq.open()
    assert not (tmp_path / "q").exists(), "nothing was begun"


async def test_opening_that_is_cancelled_leaves_the_directory(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(toymq.open(tmp_path / "q").open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with toymq.open(tmp_path / "q", options=ROOMY) as mq:  # it waits until the first one has let go
        assert (await mq.pub("t", b"x")).msg_id == 0


async def test_a_directory_that_a_broker_serves_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "q") as broker:
        instead = f"process {broker.pid}, a broker: connect to toymq://127.0.0.1:{broker.port} instead"
        with pytest.raises(DirectoryLocked, match=instead):
            await asyncio.wait_for(toymq.open(tmp_path / "q", wait_s=600).open(), 60)  # at once, not when it has waited
        with pytest.raises(DirectoryLocked, match=instead):
            toymq.sync.open(tmp_path / "q", wait_s=600)
    async with toymq.open(tmp_path / "q") as mq:
        assert await mq.topics() == []
        served = run("serve", "--data-dir", str(tmp_path / "q"), "--listen", "127.0.0.1:0")
        assert served.returncode == 2
        assert f"process {os.getpid()}" in served.stderr


@pytest.mark.parametrize("command", ["toymq backup", "toymq restore", "toymq repair"])
async def test_a_directory_that_a_command_uses_is_refused_at_once(tmp_path: Path, command: str) -> None:
    """Found: ``toymq.open`` waited ten seconds for the directory without a message."""
    lock = DirectoryLock.take(RealFileSystem(), str(tmp_path), 4711, command)
    with pytest.raises(DirectoryLocked, match=f"process 4711, `{command}`"):
        await asyncio.wait_for(toymq.open(tmp_path, wait_s=600).open(), 20)
    lock.release()
