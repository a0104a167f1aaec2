"""A disk that gets low, and has room again: what AMQP's publishers are told, and what becomes of their messages. ADR 0163."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import NackError

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq_py.clock import SystemClock

pytestmark = require("tmpfs")

MIB = 1024 * 1024
BODY = b"%06d" + bytes(10_000)
COUNT = 900
"""More than there is room for beside the filler, and less than without it."""


@pytest.fixture
def filler(small_disk: Path) -> Path:
    path = small_disk / "filler"
    path.write_bytes(bytes(6 * MIB))
    return path


@pytest.fixture
def broker(small_disk: Path, filler: Path) -> Iterator[BrokerProcess]:
    options = ("--amqp", "127.0.0.1:0", "--min-free-bytes", "2MiB", "--segment-bytes", "1MiB")
    with BrokerProcess(small_disk / "d", *options) as broker:
        yield broker


def count(wire: AmqpWire) -> int:
    found: int = declare(wire, "q", passive=True)["message_count"]
    return found


def fill(broker: BrokerProcess) -> None:
    """Fill the disk until publishing is refused."""
    with AmqpWire(broker.amqp).login() as wire:
        declare(wire, "rest")
        wire.ask(1, "confirm.select")
        for number in range(COUNT):
            wire.publish(BODY % number, "rest")
            if wire.event().name == "basic.nack":  # type: ignore[union-attr]
                return
    pytest.fail("the disk was not full")


def test_publishes_without_confirms_wait_and_none_is_lost(broker: BrokerProcess, filler: Path) -> None:
    with AmqpWire(broker.amqp) as wire, AmqpWire(broker.amqp).login() as other:
        wire.knows_blocked = True
        wire.login()
        declare(wire, "q")
        sender = threading.Thread(target=lambda: [wire.publish(BODY % number, "q") for number in range(COUNT)])
        sender.start()
        assert wire.expect("connection.blocked")["reason"] == "low on disk"
        stored = count(other)
        assert 300 < stored < COUNT
        other.ask(1, "basic.qos", prefetch_count=100)
        other.ask(1, "basic.consume", queue="q")
        got = bodies(other, 100)
        other.send(1, "basic.ack", delivery_tag=100, multiple=True)
        got += bodies(other, 100)  # another connection reads and acks
        filler.unlink()
        wire.expect("connection.unblocked")
        sender.join()
        for tag in range(200, COUNT, 100):
            other.send(1, "basic.ack", delivery_tag=tag, multiple=True)
            got += bodies(other, 100)
        assert got == [BODY % number for number in range(COUNT)], "in order, each once"
        wire.ask(1, "channel.close")
        wire.ask(0, "connection.close")


def test_a_client_that_closes_behind_its_publishes_has_them_stored_first(broker: BrokerProcess, filler: Path) -> None:
    with AmqpWire(broker.amqp).login() as wire, AmqpWire(broker.amqp).login() as other:
        declare(other, "q")
        fill(broker)
        for number in range(3):
            wire.publish(b"%d" % number, "q")
        wire.send(1, "channel.close")
        wire.send(0, "connection.close")
        assert count(other) == 0
        filler.unlink()
        wire.expect("channel.close-ok")
        wire.expect("connection.close-ok")
        other.ask(1, "basic.consume", queue="q")
        assert bodies(other, 3) == [b"0", b"1", b"2"]


def test_with_confirms_a_publish_is_refused_and_the_client_is_told(broker: BrokerProcess, filler: Path) -> None:
    said: list[str] = []
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.amqp))) as connection:
        connection.add_on_connection_blocked_callback(lambda _, method: said.append(method.method.reason))
        connection.add_on_connection_unblocked_callback(lambda _, method: said.append("unblocked"))
        channel: Any = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()

        def publish(count: int) -> None:
            for number in range(count):
                channel.basic_publish("", "q", BODY % number)

        with pytest.raises(NackError):
            publish(COUNT)
        connection.process_data_events(0)
        assert said == ["low on disk"]
        with pytest.raises(NackError):
            publish(1)
        filler.unlink()
        until = SystemClock().monotonic() + 30
        while said[-1] != "unblocked":
            assert SystemClock().monotonic() < until
            connection.process_data_events(1)
        channel.basic_publish("", "q", b"later")
        assert said == ["low on disk", "unblocked"]


def test_who_does_not_publish_or_does_not_know_it_is_not_told(broker: BrokerProcess, filler: Path) -> None:
    with AmqpWire(broker.amqp) as consumer, AmqpWire(broker.amqp).login() as ignorant:
        consumer.knows_blocked = True
        consumer.login()
        declare(consumer, "q")
        consumer.ask(1, "basic.consume", queue="q", no_ack=True)
        ignorant.ask(1, "confirm.select")
        fill(broker)
        ignorant.publish(b"refused", "q")
        ignorant.expect("basic.nack")
        declare(consumer, "q", passive=True)
        filler.unlink()
        for _ in range(100_000):
            ignorant.publish(b"taken", "q")
            if ignorant.event().name == "basic.ack":  # type: ignore[union-attr]
                break
        assert bodies(consumer, 1) == [b"taken"]
        ignorant.ask(1, "channel.close")
