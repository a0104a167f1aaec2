"""Taskiq for RabbitMQ, unchanged, with a worker process of its own. Skipped by name where it is not installed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.framework_rig import WorkerProcess, do_all_under_kills, done, lines_said, run_page, until, until_confirmed
from tests.support.plain_tasks import GO
from tests.support.requirements import require

pytestmark = require("taskiq")


@pytest.fixture(scope="module")
def worker(broker_of_the_file: BrokerProcess, said_of_the_file: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(
        "taskiq", "worker", "tests.support.taskiq_tasks:broker", "-w", "1", broker_url=broker_of_the_file.amqp,
        said=said_of_the_file,
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
async def publisher(broker_of_the_file: BrokerProcess) -> AsyncIterator[Any]:
    from tests.support.taskiq_tasks import make_broker

    broker = make_broker(broker_of_the_file.amqp)
    await broker.startup()
    yield broker
    await broker.shutdown()


async def kiq(broker: Any, name: str, number: int) -> None:
    await broker.find_task(name).kiq(number)


async def test_tasks_and_retries(worker: WorkerProcess, publisher: Any, said_of_the_file: Path) -> None:
    for number in range(20):
        await kiq(publisher, "add", number)
    await kiq(publisher, "flaky", 7)
    await asyncio.to_thread(
        until, lambda: done(said_of_the_file) >= {*(f"add {number}" for number in range(20)), "flaky 7"}
    )


@pytest.mark.parametrize("way", [0, 1], ids=["delayed-exchange", "delay-queue"])
async def test_delays(worker: WorkerProcess, broker_of_the_file: BrokerProcess, said_of_the_file: Path, way: int) -> None:
    from tests.support.taskiq_tasks import DELAYS, make_broker

    broker = make_broker(broker_of_the_file.amqp, **DELAYS[way])
    await broker.startup()
    task, number = broker.find_task("add"), 100 + 10 * way
    assert task is not None
    await task.kicker().with_labels(delay=0.3).kiq(number)
    await task.kiq(number + 1)
    expected = [f"add {number + 1}", f"add {number}"]
    await asyncio.to_thread(until, lambda: done(said_of_the_file) >= set(expected))
    assert [line for line in lines_said(said_of_the_file) if line in expected] == expected, "the delayed one is the later one"
    await broker.shutdown()


async def test_a_task_that_a_killed_worker_had_is_done_by_the_next(
    worker: WorkerProcess, publisher: Any, said_of_the_file: Path
) -> None:
    await kiq(publisher, "held", 1)
    await asyncio.to_thread(until, lambda: "begun 1" in done(said_of_the_file))
    worker.kill()
    (said_of_the_file / GO).touch()
    worker.start()
    await asyncio.to_thread(until, lambda: "held 1" in done(said_of_the_file))


async def test_every_task_is_done_under_kills_of_broker_and_worker(
    worker: WorkerProcess, publisher: Any, broker_of_the_file: BrokerProcess, said_of_the_file: Path
) -> None:
    send = until_confirmed(lambda number: kiq(publisher, "add", number))
    await asyncio.to_thread(do_all_under_kills, broker_of_the_file, worker, send, said_of_the_file, kills=2, count=40)


def test_the_programs_of_the_guide_do_what_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    stderr, stdout, said = run_page("taskiq", "shop.py", "taskiq", tmp_path, {"amqp://127.0.0.1:5672": broker.amqp})
    assert (stderr, stdout) == ("", said)
