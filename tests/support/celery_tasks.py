"""Celery's app of tests/e2e/amqp/test_celery.py and ``make celery-demo``; a worker's has ``TEST_BROKER``, ``TEST_SAID``."""

import os
from pathlib import Path
from typing import Any

from celery import Celery


def make_app(broker_url: str) -> Celery:
    """An app with its tasks and its own connections."""
    app = Celery("tests", broker=broker_url)
    app.conf.update(
        task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=4, task_ignore_result=True,
        broker_connection_retry_on_startup=True, broker_connection_max_retries=None, broker_connection_timeout=2,
        broker_heartbeat=10, broker_transport_options={"confirm_publish": True}, task_default_queue="tasks",
    )  # fmt: skip
    app.task(add, name="add")
    app.task(flaky, name="flaky", bind=True, max_retries=3)
    return app


def add(number: int) -> None:
    _say(f"add {number}")


def flaky(self: Any, number: int) -> None:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    _say(f"flaky {number}")


def _say(text: str) -> None:
    path = Path(os.environ["TEST_SAID"]) / f"{os.getpid()}.txt"
    with path.open("a") as file:
        file.write(f"{text}\n")


app = make_app(os.environ.get("TEST_BROKER", "amqp://"))
