"""``toymq worker`` under kills of its processes and of the broker: every job is done, and hopeless ones are dead letters."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import toymq
from tests.support import killed_workers
from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from toymq.broker_process import TOYMQ

TARGET = "tests.support.killed_workers:app"
ROOT = Path(killed_workers.__file__).parents[2]


def workers(broker: BrokerProcess, said: Path) -> "subprocess.Popen[bytes]":
    variables = {"TEST_SAID": str(said), "TOYMQ_URL": f"toymq://127.0.0.1:{broker.port}"}
    return subprocess.Popen(
        [*TOYMQ, "worker", TARGET, "--processes", "2"], env={**environment(), **variables}, cwd=ROOT, stderr=subprocess.DEVNULL
    )


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def done(said: Path) -> set[tuple[str, int]]:
    lines = [line for path in said.glob("*.txt") for line in path.read_text().splitlines()]
    return {(kind, int(number)) for kind, _, number in (line.partition(" ") for line in lines)}


async def until(ready: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not ready():  # noqa: ASYNC110 (of other processes)
            await asyncio.sleep(0.02)


async def everything_is_done(broker: BrokerProcess, said: Path, kills: int, jobs: int) -> None:
    process, random, each = workers(broker, said), Random(kills), jobs // kills
    url = f"toymq://127.0.0.1:{broker.port}"
    async with toymq.connect(url, wait_s=60, timeout_s=120) as mq:
        for kill_number in range(kills):
            before = len(done(said))
            for number in range(kill_number * each, (kill_number + 1) * each):
                await mq.pub("jobs", killed_workers.work.payload(number), key=f"a{number}")
                await mq.pub("blocking", killed_workers.block.payload(number), key=f"b{number}")
            await until(lambda before=before: len(done(said)) >= before + 3)  # type: ignore[misc]
            await kill(broker, process, random)  # with work left, and while the next is published
        wanted = {("async", n) for n in range(jobs) if n % 10 != 7} | {("plain", n) for n in range(jobs)}
        await until(lambda: done(said) == wanted)
        letters: set[bytes] = set()
        async with asyncio.timeout(TIMEOUT_S):
            while len(letters) < jobs // 10:
                for letter in await mq.pull("jobs.dlq", "test", 100, wait=1):
                    assert "is hopeless" in str(letter.headers)
                    letters.add(letter.payload)
                    await letter.ack()
        assert letters == {killed_workers.work.payload(n) for n in range(7, jobs, 10)}
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0


async def kill(broker: BrokerProcess, process: "subprocess.Popen[bytes]", random: Random) -> None:
    """Kill the broker, or a process of the workers."""
    if random.random() < 0.3:
        broker.kill()
        await asyncio.to_thread(broker.start)
    else:
        await until(lambda: children(process.pid))
        os.kill(random.choice(children(process.pid)), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_every_job_is_done_under_kills_of_workers_and_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        await everything_is_done(broker, tmp_path, 6, 120)


@pytest.mark.torture
async def test_every_job_is_done_under_a_hundred_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        await everything_is_done(broker, tmp_path, 100, 2000)
