"""The Dramatiq actors of tests/e2e/amqp/test_dramatiq.py. A worker reads the environment variables ``TEST_BROKER`` (the URL)
and ``TEST_SAID`` (a directory)."""

import os

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from tests.support import plain_tasks
from tests.support.framework_rig import BROKER


def make_broker(url: str) -> RabbitmqBroker:
    """Make a Dramatiq broker with the actors and its own connections."""
    broker = RabbitmqBroker(url=url, confirm_delivery=True)
    for task in (plain_tasks.add, plain_tasks.held):
        dramatiq.actor(task, broker=broker)
    dramatiq.actor(plain_tasks.flaky, broker=broker, max_retries=3, min_backoff=20, max_backoff=40)
    dramatiq.actor(broken, broker=broker, max_retries=0)
    return broker


def broken(number: int) -> None:
    raise ValueError(number)


broker = make_broker(os.environ.get(BROKER, "amqp://127.0.0.1"))
