"""Celery, unchanged, with worker processes of its own. Skipped by name where it is not installed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.framework_rig import do_all_under_kills, done, run_page, until
from tests.support.requirements import require
from toymq import sync

pytestmark = require("amqp-clients")


@pytest.fixture
def said(tmp_path: Path) -> Path:
    path = tmp_path / "said"
    path.mkdir()
    return path


@pytest.fixture
def tasks(broker: BrokerProcess) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks of a publisher by name."""
    from tests.support.celery_tasks import make_app

    app = make_app(f"{broker.amqp}//")
    yield app.tasks
    app.pool.force_close_all()


def test_tasks_retries_and_countdowns_are_done(broker: BrokerProcess, tasks: Mapping[str, Any], said: Path) -> None:
    from tests.support.celery_tasks import worker

    with worker(broker, said):
        for number in range(30):
            tasks["add"].delay(number)
        tasks["flaky"].delay(7)
        tasks["add"].apply_async((99,), countdown=0.5)
        until(lambda: done(said) == {*(f"add {number}" for number in (*range(30), 99)), "try 7", "flaky 7"})
        until(lambda: tasks["add"].app.control.ping(timeout=1))
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
            assert "tasks" in {topic["topic"] for topic in mq.topics()}, "a queue is a topic for everything else"


def do_all(broker: BrokerProcess, tasks: Mapping[str, Any], said: Path, *, kills: int, count: int) -> None:
    from tests.support.celery_tasks import sender, worker

    with worker(broker, said) as workers:
        do_all_under_kills(broker, workers, sender(tasks), said, kills=kills, count=count)


def test_every_task_is_done_under_kills_of_worker_and_broker(
    broker: BrokerProcess, tasks: Mapping[str, Any], said: Path
) -> None:
    do_all(broker, tasks, said, kills=2, count=60)


@pytest.mark.torture
def test_every_task_is_done_under_fifty_kills(broker: BrokerProcess, tasks: Mapping[str, Any], said: Path) -> None:
    do_all(broker, tasks, said, kills=50, count=2000)


def test_the_programs_of_the_guide_do_what_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    replaced = {"amqp://guest:guest@127.0.0.1:5672": broker.amqp}
    stderr, stdout, said = run_page("celery", "shop.py", "celery", tmp_path, replaced)
    assert (stderr, stdout) == ("", said)
