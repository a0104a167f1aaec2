"""The Celery app of tests/e2e/amqp/test_celery.py and ``make celery-demo``. A worker reads the environment variables
``TEST_BROKER`` (the URL) and ``TEST_SAID`` (a directory)."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from tests.support.broker_process import BrokerProcess
from tests.support.framework_rig import BROKER, WorkerProcess
from tests.support.plain_tasks import add, flaky

PROCESSES = 2


def make_app(broker_url: str) -> Celery:
    """An app with its tasks and its own connections."""
    app = Celery("tests", broker=broker_url)
    app.conf.update(
        task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=4, task_ignore_result=True,
        broker_connection_retry_on_startup=True, broker_connection_max_retries=None, broker_connection_timeout=2,
        broker_heartbeat=10, broker_transport_options={"confirm_publish": True}, task_default_queue="tasks",
    )  # fmt: skip
    app.task(add, name="add")
    app.task(retried, name="flaky", bind=True, max_retries=3)
    return app


def retried(self: Any, number: int) -> None:
    try:
        flaky(number)
    except OSError as error:
        raise self.retry(countdown=0.1) from error


def worker(broker: BrokerProcess, said: Path, *options: str) -> WorkerProcess:
    """Start ``celery worker`` with two processes. ``said``: a directory in which the tasks report that they are done."""
    return WorkerProcess(
        "celery", "-A", "tests.support.celery_tasks", "worker", "-c", str(PROCESSES), "--without-mingle", *options,
        broker_url=f"{broker.amqp}//", said=said,
    )  # fmt: skip


def sender(tasks: Mapping[str, Any]) -> Callable[[int], object]:
    """Return a function that sends a task "add", and retries while the broker is away."""
    policy = {"max_retries": 100, "interval_start": 0.1}
    return lambda number: tasks["add"].apply_async((number,), retry=True, retry_policy=policy)


app = make_app(os.environ.get(BROKER, "amqp://"))
