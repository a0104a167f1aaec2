"""kombu, unchanged, over py-amqp. Skipped by name where it is not installed."""

import pytest

from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from tests.support.requirements import require

pytestmark = require("amqp-clients")
kombu = pytest.importorskip("kombu")


def test_a_producer_and_a_consumer_of_a_topic_exchange(broker: BrokerProcess) -> None:
    exchange = kombu.Exchange("media", "topic", durable=True)
    queues = [kombu.Queue("videos", exchange, "video.#"), kombu.Queue("all", exchange, "#")]
    with kombu.Connection(f"{broker.amqp}//", transport_options={"confirm_publish": True}) as connection:
        producer, seen = connection.Producer(serializer="json"), []
        for number in range(10):
            producer.publish(
                {"n": number}, exchange=exchange, routing_key="video.new" if number % 2 else "audio", declare=queues,
                headers={"n": number}, compression="zlib",
            )  # fmt: skip

        def on_message(body: object, message: kombu.Message) -> None:
            seen.append((message.delivery_info["routing_key"], body, message.headers["n"]))
            message.ack()

        with connection.Consumer(queues, callbacks=[on_message], accept=["json"], prefetch_count=3):
            while len(seen) < 15:
                connection.drain_events(timeout=TIMEOUT_S)
    videos = [("video.new", {"n": number}, number) for number in range(1, 10, 2)]
    audios = [("audio", {"n": number}, number) for number in range(0, 10, 2)]
    assert sorted(seen, key=str) == sorted([*videos, *videos, *audios], key=str)


def test_a_simple_queue(broker: BrokerProcess) -> None:
    with kombu.Connection(f"{broker.amqp}//") as connection, connection.SimpleQueue("simple") as queue:
        queue.put({"hello": "world"})
        message = queue.get(timeout=TIMEOUT_S)
        assert message.payload == {"hello": "world"}
        message.requeue()
        again = queue.get(timeout=TIMEOUT_S)
        assert (again.payload, again.delivery_info["redelivered"]) == ({"hello": "world"}, True)
        again.ack()
        assert queue.qsize() == 0
