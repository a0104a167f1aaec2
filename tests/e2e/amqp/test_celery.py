"""Celery, unchanged, with worker processes of its own. Skipped by name where it is not installed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment
from tests.support.celery_rig import Worker, do_all_under_kills, done, until
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
    """The tasks, by name, of a publisher."""
    from tests.support.celery_tasks import make_app

    app = make_app(f"{broker.amqp}//")
    yield app.tasks
    app.pool.force_close_all()


def test_tasks_retries_and_countdowns_are_done(broker: BrokerProcess, tasks: Mapping[str, Any], said: Path) -> None:
    worker = Worker(broker, said)
    try:
        for number in range(30):
            tasks["add"].delay(number)
        tasks["flaky"].delay(7)
        tasks["add"].apply_async((99,), countdown=0.5)
        until(lambda: done(said) == {*(f"add {number}" for number in (*range(30), 99)), "flaky 7"})
        until(lambda: tasks["add"].app.control.ping(timeout=1))
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
            assert "tasks" in {topic["topic"] for topic in mq.topics()}, "a queue is a topic for everything else"
    finally:
        worker.kill()


def test_every_task_is_done_under_kills_of_worker_and_broker(
    broker: BrokerProcess, tasks: Mapping[str, Any], said: Path
) -> None:
    do_all_under_kills(broker, tasks, said, kills=2, count=60)


@pytest.mark.torture
def test_every_task_is_done_under_fifty_kills(broker: BrokerProcess, tasks: Mapping[str, Any], said: Path) -> None:
    do_all_under_kills(broker, tasks, said, kills=50, count=2000)


def test_the_programs_of_the_guide_do_what_it_says(broker: BrokerProcess, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "celery.md").read_text()
    (app, client), (said,) = (
        re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL) for kind in ("python", "text")
    )
    (tmp_path / "shop.py").write_text(app.replace("amqp://guest:guest@127.0.0.1:5672", broker.amqp))
    (command,) = re.findall(r"^celery (-A shop worker.*)$", page, re.MULTILINE)
    variables = {**environment(), "PYTHONPATH": f"{tmp_path}"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", *command.split()], env=variables, cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        ran = subprocess.run(
            [sys.executable, "-c", client], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        assert (ran.stderr, ran.stdout) == ("", said)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
