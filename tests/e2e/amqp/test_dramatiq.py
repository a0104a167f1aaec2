"""Dramatiq, unchanged, with a worker process of its own. Skipped by name where it is not installed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.framework_rig import WorkerProcess, do_all_under_kills, done, run_page, until
from tests.support.plain_tasks import GO
from tests.support.requirements import require
from toymq import sync

pytestmark = require("dramatiq")


@pytest.fixture(scope="module")
def worker(broker_of_the_file: BrokerProcess, said_of_the_file: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(
        "dramatiq", "tests.support.dramatiq_tasks:broker", "-p", "1", "-t", "4", broker_url=broker_of_the_file.amqp,
        said=said_of_the_file, dramatiq_restart_delay="50",
    ) as process:  # fmt: skip
        yield process


@pytest.fixture
def actors(broker_of_the_file: BrokerProcess) -> Iterator[Any]:
    """Yield the actors of a publisher by name."""
    from tests.support.dramatiq_tasks import make_broker

    publisher = make_broker(broker_of_the_file.amqp)
    yield publisher.actors
    publisher.close()


def test_messages_retries_and_delays(worker: WorkerProcess, actors: Any, said_of_the_file: Path) -> None:
    for number in range(20):
        actors["add"].send(number)
    actors["flaky"].send(7)
    actors["add"].send_with_options(args=(99,), delay=200)
    until(lambda: done(said_of_the_file) >= {*(f"add {number}" for number in (*range(20), 99)), "flaky 7"})


def test_a_message_that_failed_is_a_dead_letter(worker: WorkerProcess, actors: Any, broker_of_the_file: BrokerProcess) -> None:
    """The message is in Dramatiq's dead-letter queue, and so in a topic."""
    actors["broken"].send(3)
    with sync.connect(f"toymq://127.0.0.1:{broker_of_the_file.port}") as mq:
        (letter,) = mq.pull("default.XQ", "look", 1, wait=60)
    assert json.loads(letter.payload)["actor_name"] == "broken"


def test_a_message_that_a_killed_worker_had_is_done_by_the_next(
    worker: WorkerProcess, actors: Any, said_of_the_file: Path
) -> None:
    actors["held"].send(1)
    until(lambda: "begun 1" in done(said_of_the_file))
    worker.kill()
    (said_of_the_file / GO).touch()
    worker.start()
    until(lambda: "held 1" in done(said_of_the_file))


def test_every_message_is_done_under_kills_of_broker_and_worker(
    worker: WorkerProcess, actors: Any, broker_of_the_file: BrokerProcess, said_of_the_file: Path
) -> None:
    do_all_under_kills(broker_of_the_file, worker, actors["add"].send, said_of_the_file, kills=2, count=40)


def test_the_programs_of_the_guide_do_what_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    stderr, stdout, said = run_page("dramatiq", "shop.py", "dramatiq", tmp_path, {"amqp://127.0.0.1:5672": broker.amqp})
    assert (stderr, stdout) == ("", said)
