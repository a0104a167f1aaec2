"""The FastStream app of tests/e2e/amqp/test_faststream.py. A worker reads the environment variables ``TEST_BROKER`` (the URL)
and ``TEST_SAID`` (a directory)."""

import os

from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

from tests.support import plain_tasks
from tests.support.framework_rig import BROKER, say

broker = RabbitBroker(
    os.environ.get(BROKER, "amqp://127.0.0.1"), reconnect_interval=0.05, default_channel=Channel(prefetch_count=8)
)
app = FastStream(broker)
flaky_queue = RabbitQueue(
    "flaky", arguments={"x-delivery-limit": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
)
letters = RabbitExchange("letters", type=ExchangeType.TOPIC)
later = RabbitExchange("later", type=ExchangeType.X_DELAYED_MESSAGE, arguments={"x-delayed-type": "direct"})


@broker.subscriber("adds", ack_policy=AckPolicy.NACK_ON_ERROR)
def on_add(number: int) -> None:
    plain_tasks.add(number)


@broker.subscriber(flaky_queue, ack_policy=AckPolicy.NACK_ON_ERROR)
def on_flaky(number: int) -> None:
    if number < 0:
        say(f"try {number}")
        raise ValueError(number)
    plain_tasks.flaky(number)


@broker.subscriber("failed")
def on_failed(number: int) -> None:
    say(f"failed {number}")


@broker.subscriber("held", ack_policy=AckPolicy.NACK_ON_ERROR)
def on_held(number: int) -> None:
    plain_tasks.held(number)


@broker.subscriber(RabbitQueue("orders", routing_key="orders.*"), letters)
@broker.publisher("adds")
def on_order(number: int) -> int:
    return number + 500


@broker.subscriber("sums")
def on_sum(numbers: list[int]) -> int:
    return sum(numbers)


@broker.subscriber("delayed", later)
def on_delayed(number: int) -> None:
    say(f"delayed {number}")
