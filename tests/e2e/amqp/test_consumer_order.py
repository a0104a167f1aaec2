"""Which consumer of a queue gets its messages: x-single-active-consumer, x-priority. Contract: amqp.md, "Model"."""

from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq_py.amqp import methods
from toymq_py.amqp.connection import Content

SINGLE = {"x-single-active-consumer": True}


def consumes(wire: AmqpWire, channel: int = 1, *, tag: str = "c", prefetch: int = 0, priority: int = 0, **how: Any) -> None:
    if channel != 1:
        wire.open(channel)
    wire.ask(channel, "basic.qos", prefetch_count=prefetch)
    arguments = {"x-priority": priority} if priority else {}
    wire.ask(channel, "basic.consume", queue="q", consumer_tag=tag, arguments=arguments, **how)


def stored(wire: AmqpWire, *numbers: int) -> None:
    """Publish on a new channel and wait: its passive declare is answered when the messages are stored."""
    for number in numbers:
        wire.publish(b"%d" % number, "q", channel=9)
    wire.send(9, "queue.declare", queue="q", passive=True)


def received(wire: AmqpWire, count: int) -> list[tuple[str, bytes]]:
    """Return consumer tag and body of the next deliveries; other methods are skipped."""
    found: list[tuple[str, bytes]] = []
    while len(found) < count:
        if isinstance(what := wire.event(), Content):
            found.append((what.method["consumer_tag"], what.body))
    return found


# -- a single active consumer


def test_one_consumer_is_active_and_the_next_follows_on_cancel(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=SINGLE)
    wire.open(9)
    for tag in ("a", "b", "c"):
        consumes(wire, tag=tag)
    assert declare(wire, "q", passive=True)["consumer_count"] == 3
    stored(wire, *range(50))
    assert received(wire, 50) == [("a", b"%d" % number) for number in range(50)]
    wire.send(1, "basic.ack", delivery_tag=48, multiple=True)
    wire.send(1, "basic.cancel", consumer_tag="a")
    stored(wire, 50)
    assert received(wire, 1) == [("b", b"50")]
    wire.send(1, "basic.nack", delivery_tag=49, requeue=True)  # of the cancelled one: it had it until now
    assert received(wire, 1) == [("b", b"48")]


def test_the_highest_priority_follows_and_then_the_first(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=SINGLE)
    wire.open(9)
    for tag, priority in (("a", 0), ("b", 0), ("c", 5), ("d", 5)):
        consumes(wire, tag=tag, priority=priority, no_ack=True)
    for number, tag in enumerate(("a", "c", "d", "b")):
        stored(wire, number)
        assert received(wire, 1) == [(tag, b"%d" % number)]
        wire.send(1, "basic.cancel", consumer_tag=tag)


def test_another_connection_follows_one_that_is_lost(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q", arguments=SINGLE)
    with AmqpWire(broker.amqp).login() as first:
        consumes(first, tag="first")
        consumes(wire, tag="second")
        wire.open(9)
        stored(wire, 0, 1, 2)
        assert received(first, 3) == [("first", b"%d" % number) for number in range(3)]
        first.send(1, "basic.ack", delivery_tag=1)
        first.ask(1, "basic.qos", prefetch_count=0)
    assert received(wire, 2) == [("second", b"1"), ("second", b"2")]


def test_the_order_of_a_queue_holds_over_channels_that_end(wire: AmqpWire) -> None:
    """Each message is settled by the consumer that holds it, or is delivered to the next one, in order."""
    declare(wire, "q", arguments=SINGLE)
    wire.open(9)
    for channel in range(2, 6):
        consumes(wire, channel, tag=f"c{channel}", prefetch=10)
    stored(wire, *range(100))
    for channel in range(2, 5):
        first = (channel - 2) * 10
        assert received(wire, 10) == [(f"c{channel}", b"%d" % number) for number in range(first, first + 10)]
        wire.send(channel, "basic.ack", delivery_tag=10, multiple=True)
        assert received(wire, 10)[-1][0] == f"c{channel}"
        wire.send(channel, "channel.close", reply_code=200, reply_text="")


def test_single_active_consumers_outlive_a_kill(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp).login() as wire:
        declare(wire, "q", arguments=SINGLE)
        consumes(wire)
        wire.open(9)
        stored(wire, 0, 1)
        assert len(received(wire, 2)) == 2
        broker.restart()
    with AmqpWire(broker.amqp).login() as wire, AmqpWire(broker.amqp).login() as other:
        declare(wire, "q", arguments=SINGLE)
        consumes(wire, tag="a", prefetch=1)
        consumes(other, tag="b")
        assert received(wire, 1) == [("a", b"0")]
        assert declare(wire, "q", passive=True)["message_count"] == 1, "the other one stands by"


def test_a_deleted_queue_tells_those_that_stand_by(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q", arguments=SINGLE)
    consumes(wire, tag="a")
    with AmqpWire(broker.amqp).login() as other, broker.connect() as client:
        consumes(other, tag="b")
        consumes(other, tag="c")
        assert client.ask(b"DELETE q\n").startswith(b"OK")
        assert wire.expect("basic.cancel")["consumer_tag"] == "a"
        assert {other.expect("basic.cancel")["consumer_tag"] for _ in range(2)} == {"b", "c"}


def test_an_exclusive_consumer_beside_single_active_ones_is_refused(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=SINGLE)
    wire.send(1, "basic.consume", queue="q", exclusive=True)
    assert wire.closed_with() == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")


def test_a_redeclaration_without_it_is_another_queue(wire: AmqpWire) -> None:
    declare(wire, "q", arguments=SINGLE)
    wire.send(1, "queue.declare", queue="q", durable=True)
    code, text = wire.closed_with()
    assert (code, "inequivalent arg 'x-single-active-consumer'" in text) == (406, True)


# -- priorities of consumers


def test_a_higher_consumer_gets_messages_while_it_has_credit(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    with AmqpWire(broker.amqp).login() as higher:
        consumes(wire, tag="low")
        consumes(higher, tag="high", prefetch=3, priority=10)
        wire.open(9)
        stored(wire, *range(10))
        assert received(higher, 3) == [("high", b"%d" % number) for number in range(3)]
        assert received(wire, 7) == [("low", b"%d" % number) for number in range(3, 10)]
        higher.send(1, "basic.ack", delivery_tag=2, multiple=True)
        higher.ask(1, "basic.qos", prefetch_count=3)
        for number in (10, 11, 12):
            stored(wire, number)
        assert received(higher, 2) == [("high", b"10"), ("high", b"11")]
        assert received(wire, 1) == [("low", b"12")]
        higher.ask(1, "basic.cancel", consumer_tag="high")
        stored(wire, 13)
        assert received(wire, 1) == [("low", b"13")]


def test_a_higher_consumer_that_is_paused_leaves_messages(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.open(9)
    consumes(wire, tag="low", no_ack=True)
    with AmqpWire(broker.amqp).login() as paused:
        consumes(paused, tag="high", priority=1)
        paused.ask(1, "channel.flow", active=False)
        stored(wire, 1)
        assert received(wire, 1) == [("low", b"1")]
        paused.ask(1, "channel.flow", active=True)
        stored(wire, 2)
        assert received(paused, 1) == [("high", b"2")]


def test_a_higher_consumer_that_reads_nothing_leaves_messages(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.open(9)
    consumes(wire, tag="low", no_ack=True)
    with AmqpWire(broker.amqp).login() as deaf:
        consumes(deaf, tag="deaf", priority=2, no_ack=True)
        for _ in range(300):
            wire.publish(bytes(100_000), "q", channel=9)
        assert [tag for tag, _ in received(wire, 100)] == ["low"] * 100


def test_a_higher_consumer_may_be_of_the_same_channel(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.open(9)
    for tag, priority in (("low", -5), ("high", 5), ("middle", 0)):
        wire.ask(1, "basic.qos", prefetch_count=2)
        wire.ask(1, "basic.consume", queue="q", consumer_tag=tag, arguments={"x-priority": priority})
    stored(wire, *range(6))
    tags = [tag for tag, _ in received(wire, 6)]
    assert sorted(tags) == ["high"] * 2 + ["low"] * 2 + ["middle"] * 2
    assert tags[:2] == ["high"] * 2


@pytest.mark.parametrize("priority", ["high", True, 1.5], ids=str)
def test_a_priority_that_is_no_number_is_refused(wire: AmqpWire, priority: Any) -> None:
    declare(wire, "q")
    wire.send(1, "basic.consume", queue="q", arguments={"x-priority": priority})
    code, text = wire.closed_with()
    assert (code, "invalid arg 'x-priority'" in text) == (406, True)


def test_a_thousand_consumers_with_priorities_get_all(wire: AmqpWire) -> None:
    declare(wire, "q")
    consume = b"".join(
        methods.encode(1, "basic.consume", queue="q", consumer_tag=f"c{number}", no_ack=True, no_wait=True,
                       arguments={"x-priority": number % 7})
        for number in range(900)
    )  # fmt: skip
    wire.socket.sendall(consume)
    wire.ask(1, "basic.qos", prefetch_count=0)
    for number in range(500):
        wire.publish(b"%d" % number, "q")
    assert sorted(bodies(wire, 500), key=int) == [b"%d" % number for number in range(500)]


@require("amqp-clients")
def test_pika_consumes_by_priority(broker: BrokerProcess) -> None:
    pika = pytest.importorskip("pika")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp)) as connection:
        channel = connection.channel()
        channel.queue_declare("single", durable=True, arguments=SINGLE)
        found: list[tuple[str, bytes]] = []
        for tag in ("a", "b"):
            channel.basic_consume(
                "single", lambda _, method, __, body: found.append((method.consumer_tag, body)), auto_ack=True,
                consumer_tag=tag, arguments={"x-priority": 3},
            )  # fmt: skip
        for body in (b"1", b"2"):
            channel.basic_publish("", "single", body)
        while len(found) < 2:
            connection.process_data_events(1)
        channel.basic_cancel("a")
        channel.basic_publish("", "single", b"3")
        while len(found) < 3:
            connection.process_data_events(1)
        assert found == [("a", b"1"), ("a", b"2"), ("b", b"3")]
