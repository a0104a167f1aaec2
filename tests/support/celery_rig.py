"""Celery with worker processes of its own, under kills of them and of the broker: for a test and for ``make celery-demo``."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment

PROCESSES = 2


class Worker:
    """``celery worker`` with two processes, killed as a whole."""

    def __init__(self, broker: BrokerProcess, said: Path) -> None:
        """``said``: a directory in which the tasks say that they are done."""
        self._variables = {**environment(), "TEST_BROKER": f"{broker.amqp}//", "TEST_SAID": str(said)}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tests.support.celery_tasks", "worker", "-c", str(PROCESSES),
             "--without-mingle"],
            env=self._variables, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def done(said: Path) -> set[str]:
    """The tasks that were done."""
    return {line for path in said.glob("*.txt") for line in path.read_text().splitlines()}


def until(ready: Callable[[], object], within_s: float = TIMEOUT_S) -> None:
    """Wait for other processes."""
    ends = time.monotonic() + within_s  # noqa: TID251 (of other processes)
    while not ready():
        assert time.monotonic() < ends, "too late"  # noqa: TID251
        time.sleep(0.05)


def do_all_under_kills(
    broker: BrokerProcess, tasks: Mapping[str, Any], said: Path, *, kills: int, count: int, within_s: float = TIMEOUT_S
) -> None:
    """Publish ``count`` tasks, kill the broker and the worker in turn meanwhile, and wait until every task is done."""
    worker, kill = Worker(broker, said), 0
    try:
        for number in range(count):
            tasks["add"].apply_async((number,), retry=True, retry_policy={"max_retries": 100, "interval_start": 0.1})
            if number % (count // kills) == count // kills - 1:
                kill += 1
                before, sent = len(done(said)), number + 1
                until(lambda before=before, sent=sent: before < len(done(said)) or len(done(said)) == sent)  # type: ignore[misc]
                if kill % 2:
                    broker.restart()
                else:
                    worker.kill()
                    worker.start()
        until(lambda: done(said) == {f"add {number}" for number in range(count)}, within_s)
    finally:
        worker.kill()
