"""FastStream for RabbitMQ, unchanged, with a worker process of its own. Skipped by name where it is not installed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.framework_rig import (
    FIRST,
    WorkerProcess,
    do_all_under_kills,
    done,
    lines_said,
    run_page,
    until,
    until_confirmed,
)
from tests.support.plain_tasks import GO
from tests.support.requirements import require

pytestmark = require("faststream")


@pytest.fixture(scope="module")
def worker(broker_of_the_file: BrokerProcess, said_of_the_file: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(
        "faststream", "run", "tests.support.faststream_tasks:app", broker_url=broker_of_the_file.amqp, said=said_of_the_file
    ) as process:
        until(lambda: _has_begun(broker_of_the_file))
        yield process


def _has_begun(broker: BrokerProcess) -> bool:
    """Whether the worker's queues exist: a message published earlier would be dropped as unroutable."""
    from toymq import sync

    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        return {"adds", "flaky", "failed", "held", "orders", "sums", "delayed"} <= {topic["topic"] for topic in mq.topics()}


@pytest.fixture
async def publisher(broker_of_the_file: BrokerProcess) -> AsyncIterator[Any]:
    from faststream.rabbit import RabbitBroker

    async with RabbitBroker(broker_of_the_file.amqp, reconnect_interval=0.05) as broker:
        yield broker


async def test_messages_retries_and_dead_letters(worker: WorkerProcess, publisher: Any, said_of_the_file: Path) -> None:
    for number in range(20):
        await publisher.publish(number, "adds")
    await publisher.publish(7, "flaky")
    await publisher.publish(-1, "flaky")
    await publisher.publish(3, "orders.new", exchange="letters")
    await asyncio.to_thread(
        until,
        lambda: done(said_of_the_file) >= {*(f"add {number}" for number in (*range(20), 503)), "flaky 7", "failed -1"},
    )
    assert lines_said(said_of_the_file).count("try -1") == 6, "x-delivery-limit says how often it is delivered again"


async def test_requests_and_delays(worker: WorkerProcess, publisher: Any, said_of_the_file: Path) -> None:
    for numbers, total in (([1, 2], 3), ([4], 4)):
        answer = await publisher.request(numbers, "sums", timeout=60)
        assert await answer.decode() == total
    await publisher.publish(1, "delayed", exchange="later", headers={"x-delay": 300})
    await publisher.publish(2, "delayed", exchange="later")
    await asyncio.to_thread(until, lambda: "delayed 1" in done(said_of_the_file))
    assert [line for line in lines_said(said_of_the_file) if line.startswith("delayed")] == ["delayed 2", "delayed 1"]


async def test_a_message_that_a_killed_worker_had_is_done_by_the_next(
    worker: WorkerProcess, publisher: Any, said_of_the_file: Path
) -> None:
    await publisher.publish(1, "held")
    await asyncio.to_thread(until, lambda: "begun 1" in done(said_of_the_file))
    worker.kill()
    (said_of_the_file / GO).touch()
    worker.start()
    await asyncio.to_thread(until, lambda: "held 1" in done(said_of_the_file))


async def test_every_message_is_done_under_kills_of_broker_and_worker(
    worker: WorkerProcess, publisher: Any, broker_of_the_file: BrokerProcess, said_of_the_file: Path
) -> None:
    send = until_confirmed(lambda number: publisher.publish(number, "adds"))
    await asyncio.to_thread(do_all_under_kills, broker_of_the_file, worker, send, said_of_the_file, kills=2, count=40)
    assert f"add {FIRST}" in done(said_of_the_file)


def test_the_programs_of_the_guide_do_what_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    stderr, stdout, said = run_page("faststream", "shop.py", "faststream", tmp_path, {"amqp://127.0.0.1:5672": broker.amqp})
    assert (stderr, stdout) == ("", said)
