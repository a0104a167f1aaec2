"""``toymq worker`` under kills of its processes, of the processes of its jobs and of the broker.

Every job is done, hopeless ones are dead letters with their exception; jobs of a key run in order, and one at a time.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import toymq
from tests.support import killed_workers, worker_history
from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.worker_history import Kills, Said, broken_rules
from toymq.broker_process import TOYMQ

TARGET = "tests.support.killed_workers:app"
ROOT = Path(killed_workers.__file__).parents[2]
GROUPS = 3
PROCESS_JOBS_EACH = 3
"""Of a kill: one after the other, they are the slowest."""


def workers(broker: BrokerProcess, said: Path) -> "subprocess.Popen[bytes]":
    variables = {"TEST_SAID": str(said), "TOYMQ_URL": f"toymq://127.0.0.1:{broker.port}"}
    return subprocess.Popen(
        [*TOYMQ, "worker", TARGET, "--processes", "2"], env={**environment(), **variables}, cwd=ROOT, stderr=subprocess.DEVNULL
    )


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def job_processes(pid: int) -> list[int]:
    """Return the job processes of the workers below a process. Threads start them, so each thread's list of children is
    read."""
    found = []
    for worker in children(pid):
        for path in Path(f"/proc/{worker}/task").glob("*/children"):
            for child in path.read_text().split():
                command = Path(f"/proc/{child}/cmdline")
                if command.exists() and b"spawn_main" in command.read_bytes():
                    found.append(int(child))
    return found


async def until(ready: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not ready():  # noqa: ASYNC110 (of other processes)
            await asyncio.sleep(0.02)


async def publish(mq: toymq.Client, numbers: range, first_of_processes: int) -> None:
    for number in numbers:
        await mq.pub("jobs", killed_workers.work.payload(number), key=f"a{number}")
        await mq.pub("blocking", killed_workers.block.payload(number), key=f"b{number}")
        group = f"g{number % GROUPS}"
        job = killed_workers.in_order.payload(group, number)
        await mq.pub("keyed", job, key=f"k{number}", headers={"toymq-group": group})
    for number in range(first_of_processes, first_of_processes + PROCESS_JOBS_EACH):
        await mq.pub("processes", killed_workers.compute.payload(number), key=f"p{number}")


async def everything_is_done(broker: BrokerProcess, said: Path, kills: int, jobs: int) -> None:
    process, random, each, log = workers(broker, said), Random(kills), jobs // kills, Kills()

    def done() -> set[tuple[str, int]]:
        return worker_history.done(worker_history.read(said))

    async with toymq.connect(f"toymq://127.0.0.1:{broker.port}", wait_s=60, timeout_s=120) as mq:
        for kill_number in range(kills):
            before = len(done())
            await publish(mq, range(kill_number * each, (kill_number + 1) * each), kill_number * PROCESS_JOBS_EACH)
            await until(lambda before=before: len(done()) >= before + 3)  # type: ignore[misc]
            await kill(broker, process, random, log)  # with work left, and while the next is published
        wanted = {("async", n) for n in range(jobs) if n % 10 != 7}
        wanted |= {(kind, n) for kind in ("plain", "keyed") for n in range(jobs)}
        wanted |= {("process", n) for n in range(kills * PROCESS_JOBS_EACH)}
        await until(lambda: done() == wanted)
        await check_letters(mq, jobs)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
        for topic in ("jobs", "blocking", "keyed", "processes"):
            (consumer,) = (await mq.describe(topic))["consumers"]
            left = consumer["ready"], consumer["inflight"], consumer["backlog"], consumer["sessions"]
            assert left == (0, 0, 0, 0), f"{topic}: all is acked, and no lease is left"
            assert topic == "jobs" or (await mq.topics(f"{topic}.dlq")) == [], f"no dead letter of {topic}"
    (said / "kills").write_text(str(log))
    broken = broken_rules(worker_history.read(said), log)
    assert broken == [], f"what was said and killed is in {said}"


async def check_letters(mq: toymq.Client, jobs: int) -> None:
    """Check that each hopeless job is a dead letter with its exception."""
    letters: set[bytes] = set()
    async with asyncio.timeout(TIMEOUT_S):
        while len(letters) < jobs // 10:
            for letter in await mq.pull("jobs.dlq", "test", 100, wait=1):
                headers, number = letter.headers, letter.json()["number"]
                assert (headers["toymq-error-type"], headers["toymq-error"]) == ("ValueError", f"job {number} is hopeless")
                assert "in work" in headers["toymq-traceback"]
                letters.add(letter.payload)
                await letter.ack()
    assert letters == {killed_workers.work.payload(n) for n in range(7, jobs, 10)}


async def kill(broker: BrokerProcess, process: "subprocess.Popen[bytes]", random: Random, log: Kills) -> None:
    """Kill the broker, a process of the workers, or the process of a job."""
    what = random.random()
    if what < 0.3:
        log.broker.append(time.monotonic_ns())
        broker.kill()
        await asyncio.to_thread(broker.start)
        return
    found = log.living(job_processes(process.pid)) if what < 0.5 else []
    if not found:
        await until(lambda: log.living(children(process.pid)))
        found = log.living(children(process.pid))
    victim = random.choice(found)
    log.processes[victim] = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_every_job_is_done_under_kills_of_workers_and_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        await everything_is_done(broker, tmp_path, 6, 120)


@pytest.mark.torture
async def test_every_job_is_done_under_a_hundred_kills(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        await everything_is_done(broker, tmp_path, 100, 2000)


def test_a_process_is_killed_once() -> None:
    """Found by the hundred kills: a second kill of a process that was not reaped yet hid that its first kill lost an ack."""
    assert Kills(processes={7: 1}).living([7, 8]) == [8]


def said(*words: str) -> list[Said]:
    """Return the events of a short notation: ``b1@5/7``: job 1 begins at 5 in process 7; ``e`` ends it, ``l`` leaves it;
    ``o0@5/7``: the process is online."""
    events = {"b": "begin", "e": "end", "l": "left", "o": "online"}
    found = []
    for word in words:
        job, _, pid = word.partition("/")
        number, _, at = job[1:].partition("@")
        found.append(Said(int(at) * worker_history.ACK_NS * 2, events[job[0]], "keyed", "g", int(number), int(pid)))
    return found


@pytest.mark.parametrize(
    ("history", "kills", "text"),
    [
        (["b1@1/7", "e1@2/7", "b2@3/8", "e2@4/8"], Kills(), None),
        (["b1@1/7", "l1@2/7", "b1@3/8", "e1@4/8", "b2@5/7"], Kills(), None),
        (["b1@1/7", "b1@3/8", "e1@4/8"], Kills(), "while"),
        (["o0@1/7", "b1@3/7", "b1@4/8", "e1@5/8"], Kills(broker=[2]), None),
        (["o0@1/7", "o0@3/7", "b1@4/7", "b1@5/8", "e1@6/8"], Kills(broker=[2]), "while"),
        (["b1@1/7", "b1@3/8", "e1@4/8"], Kills(processes={7: 2}), None),
        (["b1@1/7", "b1@3/8", "e1@4/8"], Kills(processes={9: 2}), "while"),
        (["b1@1/7", "b1@3/8", "e1@4/8", "e1@5/7"], Kills(broker=[2]), None),
        (["b1@1/7", "e1@2/7", "b1@4/8", "b2@5/7", "e2@6/7", "e1@7/8"], Kills(broker=[2]), None),
        (["b1@1/7", "e1@2/7", "b2@4/8", "b1@5/7", "e2@6/8", "e1@7/7"], Kills(broker=[2]), "while"),
        (["b2@1/7", "e2@2/7", "b1@3/7", "e1@4/7"], Kills(), "2 begins before 1 has been done"),
        (["b1@1/7", "l1@2/7", "b2@3/7", "e2@4/7", "b1@5/7", "e1@6/7"], Kills(), "2 begins before 1 has been done"),
        (["b1@1/7", "e1@2/7", "b1@4/8", "e1@5/8"], Kills(), "although it was done"),
        (["b1@1/7", "e1@2/7", "b1@4/8", "e1@5/8"], Kills(processes={7: 3}), None),
        (["b1@2/7", "e1@3/7", "b1@5/8", "e1@6/8"], Kills(broker=[1]), "although it was done"),
        (["b1@1/7", "e1@5/7", "b1@6/8", "e1@7/8"], Kills(broker=[2]), None),
        (["o0@1/7", "b1@4/7", "e1@5/7", "b1@6/8", "e1@7/8"], Kills(broker=[2]), None),
        (["o0@1/7", "o0@3/7", "b1@4/7", "e1@5/7", "b1@6/8", "e1@7/8"], Kills(broker=[2]), "although it was done"),
    ],
)
def test_the_rules_find_what_breaks_them(history: list[str], kills: Kills, text: str | None) -> None:
    unit = worker_history.ACK_NS * 2
    times = Kills([at * unit for at in kills.broker], {pid: at * unit for pid, at in kills.processes.items()})
    found = broken_rules(said(*history), times)
    assert (found == []) if text is None else (text in str(found)), found
