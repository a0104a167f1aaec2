"""The Taskiq broker of tests/e2e/amqp/test_taskiq.py. A worker reads the environment variables ``TEST_BROKER`` (the URL) and
``TEST_SAID`` (a directory)."""

import os
from typing import Any

from taskiq import SimpleRetryMiddleware
from taskiq_aio_pika import AioPikaBroker, Queue

from tests.support import plain_tasks
from tests.support.framework_rig import BROKER


def make_broker(url: str, **options: Any) -> AioPikaBroker:
    """Make a Taskiq broker with the tasks and its own connections."""
    broker = AioPikaBroker(url, reconnect_interval=0.05, **options)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=4))
    # functions of its own: it changes their names
    broker.register_task(lambda number: plain_tasks.add(number), "add")
    broker.register_task(lambda number: plain_tasks.held(number), "held")
    broker.register_task(lambda number: plain_tasks.flaky(number), "flaky", retry_on_error=True)
    return broker


DELAYS: tuple[dict[str, Any], ...] = ({"delayed_message_exchange_plugin": True}, {"delay_queue": Queue(name="taskiq.delay")})
"""Taskiq's two ways to delay a task; a worker needs the first."""
broker = make_broker(os.environ.get(BROKER, "amqp://127.0.0.1"), **DELAYS[0])
