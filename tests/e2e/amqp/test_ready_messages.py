"""message_count: the messages of a queue that wait for a consumer, counted as RabbitMQ does."""

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq_py.amqp import properties


def count(wire: AmqpWire, queue: str = "q") -> int:
    found: int = declare(wire, queue, passive=True)["message_count"]
    return found


def test_a_delayed_message_is_not_there_yet(wire: AmqpWire) -> None:
    """Found: a delayed message was counted until a consumer was attached."""
    delayed = {"x-delayed-type": "direct"}
    wire.ask(1, "exchange.declare", exchange="later", type="x-delayed-message", arguments=delayed)
    declare(wire, "q")
    wire.ask(1, "queue.bind", queue="q", exchange="later", routing_key="q")
    wire.ask(1, "confirm.select")
    for delay_ms in (3_600_000, 3_600_000, None):
        raw = properties.encode({"headers": {} if delay_ms is None else {"x-delay": delay_ms}})
        wire.publish(b"x", "q", exchange="later", raw=raw)
        wire.expect("basic.ack")
    assert count(wire) == 1
    wire.send(1, "basic.get", queue="q")
    assert wire.content().method["message_count"] == 0
    assert count(wire) == 0
    wire.send(1, "queue.delete", queue="q", if_empty=True)
    assert wire.expect("queue.delete-ok")["message_count"] == 0


def test_a_delayed_message_of_another_protocol_is_not_either(broker: BrokerProcess, wire: AmqpWire) -> None:
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        mq.pub("jobs", b"later", delay="1h")
        mq.pub("jobs", b"now")
    assert count(wire, "jobs") == 1


def test_what_waits_for_a_full_dead_letter_target_still_is(wire: AmqpWire) -> None:
    """Found: a message that waits until its full dead-letter queue has room was not counted between the tries."""
    declare(wire, "full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    declare(wire, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"})
    wire.ask(1, "confirm.select")
    for queue, body in (("full", b"in the way"), ("q", b"1"), ("q", b"2"), ("q", b"3")):
        wire.publish(body, queue)
        wire.expect("basic.ack")
    for number in (1, 2):
        wire.send(1, "basic.get", queue="q")
        wire.content()
        wire.send(1, "basic.nack", delivery_tag=number)
    assert count(wire) == 3
    wire.ask(1, "basic.qos", prefetch_count=1)
    wire.ask(1, "basic.consume", queue="q", consumer_tag="c")
    bodies(wire, 1)
    assert count(wire) == 2, "one is with the consumer"
