"""Celery, unchanged, with worker processes of its own. Skipped by name where it is not installed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment
from toymq import sync

pytest.importorskip("celery")


class Worker:
    """``celery worker`` with two processes, killed as a whole."""

    def __init__(self, broker: BrokerProcess, said: Path) -> None:
        self._variables = {**environment(), "TEST_BROKER": f"{broker.amqp}//", "TEST_SAID": str(said)}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.support.celery_tasks", "worker", "-c", "2", "--without-mingle"],
            env=self._variables, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def said(tmp_path: Path) -> Path:
    path = tmp_path / "said"
    path.mkdir()
    return path


@pytest.fixture
def tasks(broker: BrokerProcess) -> Any:
    from tests.support import celery_tasks

    celery_tasks.app.conf.broker_url = f"{broker.amqp}//"
    celery_tasks.app._after_fork()  # it forgets the connections to the broker of another test
    return celery_tasks


def done(said: Path) -> set[str]:
    return {line for path in said.glob("*.txt") for line in path.read_text().splitlines()}


def until(ready: Callable[[], object]) -> None:
    ends = time.monotonic() + TIMEOUT_S  # noqa: TID251 (of other processes)
    while not ready():
        assert time.monotonic() < ends, "too late"  # noqa: TID251
        time.sleep(0.05)


def test_tasks_retries_and_countdowns_are_done(broker: BrokerProcess, tasks: Any, said: Path) -> None:
    worker = Worker(broker, said)
    try:
        for number in range(30):
            tasks.add.delay(number)
        tasks.flaky.delay(7)
        tasks.add.apply_async((99,), countdown=0.5)
        until(lambda: done(said) == {*(f"add {number}" for number in (*range(30), 99)), "flaky 7"})
        until(lambda: tasks.app.control.ping(timeout=1))
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
            assert "tasks" in {topic["topic"] for topic in mq.topics()}, "a queue is a topic for everything else"
    finally:
        worker.kill()


def all_is_done(broker: BrokerProcess, tasks: Any, said: Path, kills: int, count: int) -> None:
    worker, kill = Worker(broker, said), 0
    try:
        for number in range(count):
            tasks.add.apply_async((number,), retry=True, retry_policy={"max_retries": 100, "interval_start": 0.1})
            if number % (count // kills) == count // kills - 1:
                kill += 1
                before = len(done(said))
                until(lambda before=before: len(done(said)) > before or len(done(said)) == count)  # type: ignore[misc]
                if kill % 2:
                    broker.restart()
                else:
                    worker.kill()
                    worker.start()
        until(lambda: done(said) == {f"add {number}" for number in range(count)})
    finally:
        worker.kill()


def test_every_task_is_done_under_kills_of_worker_and_broker(broker: BrokerProcess, tasks: Any, said: Path) -> None:
    all_is_done(broker, tasks, said, 2, 60)


@pytest.mark.torture
def test_every_task_is_done_under_fifty_kills(broker: BrokerProcess, tasks: Any, said: Path) -> None:
    all_is_done(broker, tasks, said, 50, 2000)
