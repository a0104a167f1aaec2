"""RabbitMQ's client pika, unchanged: its tutorials 1 to 7. Skipped by name where it is not installed."""

import threading
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require

pytestmark = require("amqp-clients")
pika = pytest.importorskip("pika")


def connect(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.URLParameters(f"{broker.amqp}/%2F?heartbeat=30"))


def received(channel: Any, queue: str, count: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=30):
        assert method is not None, "nothing more came"
        channel.basic_ack(method.delivery_tag)
        found.append((method.routing_key, body))
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_tutorial_1_hello_world(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="hello")
        channel.basic_publish(exchange="", routing_key="hello", body="Hello World!")
        assert received(channel, "hello", 1) == [("hello", b"Hello World!")]


def test_tutorial_2_work_queues(broker: BrokerProcess) -> None:
    with connect(broker) as connection, connect(broker) as another:
        channel = connection.channel()
        channel.queue_declare(queue="task_queue", durable=True)
        for number in range(10):
            properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
            channel.basic_publish(exchange="", routing_key="task_queue", body=b"%d" % number, properties=properties)
        busy, other = channel, another.channel()
        for worker in (busy, other):
            worker.basic_qos(prefetch_count=1)
        held, _, first = next(busy.consume("task_queue", inactivity_timeout=30))
        rest = [body for _, body in received(other, "task_queue", 9)]
        assert sorted([first, *rest]) == [b"%d" % number for number in range(10)], "a busy worker gets no second message"
        busy.basic_ack(held.delivery_tag)


def subscribed(channel: Any, exchange: str, kind: str, *keys: str) -> str:
    """Declare an exchange, and bind a new exclusive queue to it. Returns: the queue's name."""
    channel.exchange_declare(exchange=exchange, exchange_type=kind)
    queue: str = channel.queue_declare(queue="", exclusive=True).method.queue
    for key in keys:
        channel.queue_bind(exchange=exchange, queue=queue, routing_key=key)
    return queue


def test_tutorial_3_publish_subscribe(broker: BrokerProcess) -> None:
    with connect(broker) as connection, connect(broker) as another:
        channel, other = connection.channel(), another.channel()
        queues = [subscribed(each, "logs", "fanout", "") for each in (channel, other)]
        channel.basic_publish(exchange="logs", routing_key="", body="info: Hello World!")
        for each, queue in zip((channel, other), queues, strict=True):
            assert received(each, queue, 1) == [("", b"info: Hello World!")]


def test_tutorial_4_routing(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        some = subscribed(channel, "direct_logs", "direct", "warning", "error")
        for severity in ("info", "warning", "error"):
            channel.basic_publish(exchange="direct_logs", routing_key=severity, body=severity)
        assert received(channel, some, 2) == [("warning", b"warning"), ("error", b"error")]


def test_tutorial_5_topics(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        every, kern, critical = (subscribed(channel, "topic_logs", "topic", key) for key in ("#", "kern.*", "*.critical"))
        for key in ("kern.critical", "cron.info", "kern.info"):
            channel.basic_publish(exchange="topic_logs", routing_key=key, body=key)
        assert [key for key, _ in received(channel, every, 3)] == ["kern.critical", "cron.info", "kern.info"]
        assert [key for key, _ in received(channel, kern, 2)] == ["kern.critical", "kern.info"]
        assert [key for key, _ in received(channel, critical, 1)] == ["kern.critical"]


def test_tutorial_6_remote_procedure_call(broker: BrokerProcess) -> None:
    def serve() -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.queue_declare(queue="rpc_queue")
            ready.set()
            for method, properties, body in channel.consume("rpc_queue"):
                channel.basic_publish(
                    exchange="", routing_key=properties.reply_to, body=b"%d" % (int(body) * 2),
                    properties=pika.BasicProperties(correlation_id=properties.correlation_id),
                )  # fmt: skip
                channel.basic_ack(method.delivery_tag)
                break

    ready = threading.Event()
    server = threading.Thread(target=serve)
    server.start()
    assert ready.wait(30)
    with connect(broker) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(queue="", exclusive=True).method.queue
        properties = pika.BasicProperties(reply_to=queue, correlation_id="7")
        channel.basic_publish(exchange="", routing_key="rpc_queue", properties=properties, body=b"21")
        _, properties, body = next(channel.consume(queue, inactivity_timeout=30))
        assert (properties.correlation_id, body) == ("7", b"42")
    server.join()


def test_tutorial_7_publisher_confirms(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(queue="confirmed", durable=True).method.queue
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish(exchange="", routing_key=queue, body=b"%d" % number, mandatory=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish(exchange="", routing_key="nowhere", body=b"x", mandatory=True)
        assert channel.queue_declare(queue=queue, passive=True).method.message_count == 50


def test_a_large_message_in_many_frames(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(queue="large")
        body = bytes(range(256)) * 3000
        channel.basic_publish(exchange="", routing_key="large", body=body)
        assert received(channel, "large", 1) == [("large", body)]
        channel.basic_publish(exchange="", routing_key="large", body=bytes(2 << 20))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="larger than max size"):
            channel.queue_declare(queue="large", passive=True)
