"""Queues with x-max-priority: the highest priority of what is ready comes first. Contract: amqp.md, "Model"; ADR 0160."""

from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq_py.amqp import properties
from toymq_py.amqp.connection import Content

RANKED = {"x-max-priority": 9}


def publish(wire: AmqpWire, *priorities: int, queue: str = "q", **more: Any) -> None:
    """Publish one message for each priority; the body is the priority."""
    for priority in priorities:
        wire.publish(b"%d" % priority, queue, raw=properties.encode({"priority": priority, **more}))


def got(wire: AmqpWire, queue: str = "q") -> bytes | None:
    wire.send(1, "basic.get", queue=queue, no_ack=True)
    found = wire.event()
    return found.body if isinstance(found, Content) else None


def test_the_highest_comes_first_and_what_has_none_last(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=RANKED)
    wire.publish(b"none", "q")
    publish(wire, 1, 9, 5, 9, 200, 1)
    assert declare(wire, "q", passive=True)["message_count"] == 7
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    assert bodies(wire, 7) == [b"9", b"9", b"200", b"5", b"1", b"1", b"none"]


def test_a_message_overtakes_those_that_wait_for_credit(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=RANKED)
    publish(wire, *[1] * 3000)
    wire.ask(1, "basic.qos", prefetch_count=1)
    declare(wire, "q", passive=True)
    wire.ask(1, "basic.consume", queue="q")
    assert bodies(wire, 1) == [b"1"]
    publish(wire, 7)
    assert declare(wire, "q", passive=True)["message_count"] == 3000
    for tag, body in enumerate((b"7", b"1"), 1):
        wire.send(1, "basic.ack", delivery_tag=tag)
        assert bodies(wire, 1) == [body]


def test_a_requeued_message_goes_back_to_its_priority(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=RANKED)
    publish(wire, 3, 3)
    wire.ask(1, "basic.qos", prefetch_count=1)
    declare(wire, "q", passive=True)
    wire.ask(1, "basic.consume", queue="q")
    assert bodies(wire, 1) == [b"3"]
    publish(wire, 5)
    declare(wire, "q", passive=True)
    wire.send(1, "basic.nack", delivery_tag=1, requeue=True)
    assert bodies(wire, 1) == [b"5"]
    wire.send(1, "basic.ack", delivery_tag=2)
    again = wire.content()
    assert (again.body, again.method["redelivered"]) == (b"3", True)


def test_purge_and_get_and_a_kill(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q", arguments=RANKED)
    publish(wire, 1, 2, 3)
    assert got(wire) == b"3"
    assert wire.ask(1, "queue.purge", queue="q")["message_count"] == 2
    assert got(wire) is None
    publish(wire, 4, 6, 5)
    declare(wire, "q", passive=True)
    broker.restart()
    with AmqpWire(broker.amqp).login() as again:
        assert declare(again, "q", arguments=RANKED)["message_count"] == 3
        assert [got(again) for _ in range(4)] == [b"6", b"5", b"4", None]


def test_what_expires_leaves_by_the_head_of_the_order(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "ranked", arguments={**RANKED, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    publish(wire, 1, 8, queue="ranked", expiration="50")
    wire.ask(1, "basic.consume", queue="q", no_ack=True, consumer_tag="c")
    assert sorted(bodies(wire, 2)) == [b"1", b"8"]
    wire.ask(1, "basic.cancel", consumer_tag="c")
    publish(wire, 3, queue="ranked")
    publish(wire, 2, queue="ranked", expiration="1")
    assert got(wire, "ranked") == b"3", "which the other one waits behind, as in RabbitMQ"
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    assert bodies(wire, 1) == [b"2"]


def test_kills_lose_nothing_and_leave_the_order(broker: BrokerProcess) -> None:
    """Messages of mixed priorities are published, some are acked, and the broker is killed in between: the others are delivered
    by priority."""
    left: list[int] = []
    for turn in range(4):
        with AmqpWire(broker.amqp).login() as wire:
            declare(wire, "q", arguments=RANKED)
            wire.ask(1, "confirm.select")
            priorities = [(number * 7 + turn) % 10 for number in range(200)]
            publish(wire, *priorities)
            while wire.expect("basic.ack")["delivery_tag"] < 200:
                pass
            left = sorted([*left, *priorities], reverse=True)
            wire.ask(1, "basic.qos", prefetch_count=50)
            wire.ask(1, "basic.consume", queue="q")
            taken = [int(body) for body in bodies(wire, 50)]
            assert taken == left[:50]
            wire.send(1, "basic.ack", delivery_tag=50, multiple=True)
            left = left[50:]
            assert int(wire.content().body) == left[0]
            with broker.connect() as client:  # the acks are on the disk, which a kill may lose those of the last 100 ms of
                assert client.ask(b"ACK q amqp 7 sync=1\n") == b"OK 0"
        broker.restart()
    with AmqpWire(broker.amqp).login() as wire:
        declare(wire, "q", arguments=RANKED)
        wire.ask(1, "basic.consume", queue="q", no_ack=True)
        found = [int(body) for body in bodies(wire, len(left))]
        assert found == left


@pytest.mark.parametrize("value", [-1, 256, "a", 2**63 - 1, True, 1.5], ids=str)
def test_hostile_priorities_are_refused_by_name(wire: AmqpWire, value: Any) -> None:
    wire.send(1, "queue.declare", queue="q", arguments={"x-max-priority": value})
    code, text = wire.closed_with()
    assert (code, text.startswith("PRECONDITION_FAILED - invalid arg 'x-max-priority'")) == (406, True)


@pytest.mark.parametrize("again", [{}, {"x-max-priority": 5}], ids=str)
def test_another_priority_is_another_queue(wire: AmqpWire, again: dict[str, int]) -> None:
    declare(wire, "q", arguments=RANKED)
    wire.send(1, "queue.declare", queue="q", durable=True, arguments=again)
    code, text = wire.closed_with()
    assert (code, "inequivalent arg 'x-max-priority'" in text) == (406, True)


@require("amqp-clients")
def test_pika_and_kombu_get_the_highest_first(broker: BrokerProcess) -> None:
    pika = pytest.importorskip("pika")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 10})
        for priority in (1, 10, 5):
            channel.basic_publish("", "ranked", b"%d" % priority, pika.BasicProperties(priority=priority))
        assert [channel.basic_get("ranked", auto_ack=True)[2] for _ in range(3)] == [b"10", b"5", b"1"]
