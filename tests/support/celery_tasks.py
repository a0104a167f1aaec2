"""Tasks of tests/e2e/amqp/test_celery.py, and the app of its worker processes: ``TEST_BROKER``, ``TEST_SAID``."""

import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("tests", broker=os.environ.get("TEST_BROKER", "amqp://"))
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=4, broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None, task_ignore_result=True, task_publish_retry=True, broker_connection_timeout=2,
    task_default_queue="tasks", broker_heartbeat=10, broker_transport_options={"confirm_publish": True},
)  # fmt: skip


def _say(text: str) -> None:
    path = Path(os.environ["TEST_SAID"]) / f"{os.getpid()}.txt"
    with path.open("a") as file:
        file.write(f"{text}\n")


@app.task
def add(number: int) -> None:
    _say(f"add {number}")


@app.task(bind=True, max_retries=3)
def flaky(self: Any, number: int) -> None:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    _say(f"flaky {number}")
