"""Streams: each consumer reads by itself, from where it wants. Contract: amqp.md, "Model"; ADR 0161."""

import json
from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire, declare
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq_py.amqp import properties
from toymq_py.amqp.connection import Content
from toymq_py.amqp.timestamp import Timestamp
from toymq_py.clock import SystemClock

STREAM = {"x-queue-type": "stream"}


def stored(wire: AmqpWire, *numbers: int, raw: bytes = properties.NOTHING) -> None:
    for number in numbers:
        wire.publish(b"%d" % number, "s", raw=raw)
    wire.send(1, "queue.declare", queue="s", passive=True)  # its answer comes when they are stored


def consumes(wire: AmqpWire, offset: Any = None, *, tag: str = "c", prefetch: int = 100, no_ack: bool = False) -> None:
    wire.send(1, "basic.qos", prefetch_count=prefetch)
    arguments = {} if offset is None else {"x-stream-offset": offset}
    wire.send(1, "basic.consume", queue="s", consumer_tag=tag, arguments=arguments, no_ack=no_ack)
    while True:
        found = wire.event()
        if not isinstance(found, Content) and found.name == "basic.consume-ok":
            return


def received(wire: AmqpWire, count: int) -> list[int]:
    """Return the numbers in the bodies of the next deliveries; each must equal its x-stream-offset."""
    found: list[int] = []
    while len(found) < count:
        if isinstance(what := wire.event(), Content):
            assert properties.decode(what.properties)["headers"]["x-stream-offset"] == int(what.body)
            assert what.method["redelivered"] is False
            found.append(int(what.body))
    return found


def test_each_consumer_reads_all_from_where_it_wants(broker: BrokerProcess, wire: AmqpWire) -> None:
    assert declare(wire, "s", arguments=STREAM)["message_count"] == 0
    stored(wire, *range(10))
    for offset, first in (("first", 0), ("last", 9), (4, 4), (Timestamp(0), 0), ("1h", 0)):
        with AmqpWire(broker.amqp).login() as other:
            consumes(other, offset)
            assert received(other, 10 - first) == list(range(first, 10))
    assert declare(wire, "s", passive=True)["message_count"] == 10


@pytest.mark.parametrize("offset", [None, "next", 1 << 60, Timestamp(1 << 40), Timestamp((1 << 63) - 1)], ids=str)
def test_what_comes_next_alone(wire: AmqpWire, offset: Any) -> None:
    declare(wire, "s", arguments=STREAM)
    stored(wire, *range(5))
    consumes(wire, offset)
    stored(wire, 5, 6)
    assert received(wire, 2) == [5, 6]


def test_a_time_is_where_to_begin(wire: AmqpWire) -> None:
    declare(wire, "s", arguments=STREAM)
    for number in (0, 1):
        wire.publish(b"%d" % number, "s")
    assert declare(wire, "s", passive=True)["message_count"] == 2
    clock = SystemClock()
    second = clock.wall_ns() // 1_000_000_000 + 1
    while clock.wall_ns() < second * 1_000_000_000:
        wire.ask(1, "basic.qos", prefetch_count=1)
    stored(wire, 2, 3)
    consumes(wire, Timestamp(second))
    assert received(wire, 2) == [2, 3]


def test_acks_are_credit_and_nothing_more(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "s", arguments=STREAM)
    stored(wire, *range(20))
    consumes(wire, "first", prefetch=3)
    assert received(wire, 3) == [0, 1, 2]
    assert declare(wire, "s", passive=True)["message_count"] == 20, "no more came meanwhile"
    wire.send(1, "basic.ack", delivery_tag=2, multiple=True)
    assert received(wire, 2) == [3, 4]
    wire.send(1, "basic.nack", delivery_tag=3, requeue=True)
    assert received(wire, 1) == [5], "nothing is delivered again"
    wire.send(1, "basic.reject", delivery_tag=4, requeue=False)
    assert received(wire, 1) == [6]
    wire.ask(1, "basic.recover", requeue=True)
    assert received(wire, 3) == [7, 8, 9]
    with AmqpWire(broker.amqp).login() as other:
        consumes(other, "first", no_ack=True, prefetch=1)
        assert received(other, 20) == list(range(20))


def test_large_streams_are_read_as_far_as_the_client_reads(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "s", arguments=STREAM)
    for _ in range(400):
        wire.publish(bytes(100_000), "s")
    declare(wire, "s", passive=True)
    before = broker.rss_bytes()
    with AmqpWire(broker.amqp).login() as deaf:
        consumes(deaf, "first", no_ack=True, prefetch=10_000)
        with AmqpWire(broker.amqp).login() as other:
            consumes(other, "first", prefetch=1000)
            assert [len(other.content().body) for _ in range(400)] == [100_000] * 400
        assert broker.rss_bytes() - before < 30 << 20


def test_a_kill_and_what_others_do_leave_the_offsets(broker: BrokerProcess) -> None:
    for turn in range(3):
        with AmqpWire(broker.amqp).login() as wire:
            declare(wire, "s", arguments=STREAM)
            wire.ask(1, "confirm.select")
            for number in range(turn * 50, turn * 50 + 50):
                wire.publish(b"%d" % number, "s")
            while wire.expect("basic.ack")["delivery_tag"] < 50:
                pass
            consumes(wire, "first", prefetch=1000)
            assert received(wire, 50 * (turn + 1)) == list(range(50 * (turn + 1)))
            wire.send(1, "basic.ack", delivery_tag=10, multiple=True)
        broker.restart()
    with AmqpWire(broker.amqp).login() as wire:
        assert declare(wire, "s", arguments=STREAM)["message_count"] == 150
        consumes(wire, 140)
        assert received(wire, 10) == list(range(140, 150))


def test_a_deleted_stream_tells_its_consumers(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "s", arguments=STREAM)
    consumes(wire)
    with broker.connect() as client:
        assert client.ask(b"DELETE s\n").startswith(b"OK")
    assert wire.expect("basic.cancel")["consumer_tag"] == "c"
    declare(wire, "s", arguments=STREAM)
    consumes(wire)
    wire.send(1, "queue.delete", queue="s")
    assert [wire.event().name for _ in range(2)] == ["queue.delete-ok", "basic.cancel"]  # type: ignore[union-attr]


def test_a_bound_stream_and_a_queue_get_the_same(wire: AmqpWire) -> None:
    wire.ask(1, "exchange.declare", exchange="news", type="fanout", durable=True)
    declare(wire, "s", arguments=STREAM)
    declare(wire, "q")
    for queue in ("s", "q"):
        wire.ask(1, "queue.bind", queue=queue, exchange="news")
    wire.publish(b"0", "", exchange="news", raw=properties.encode({"expiration": "1", "headers": {"x": 1}}))
    declare(wire, "s", passive=True)
    consumes(wire, "first")
    assert received(wire, 1) == [0], "a stream knows no expiration"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable'"), ({"exclusive": True}, "invalid property 'exclusive-owner'"),
        ({"auto_delete": True}, "invalid property 'auto-delete'"),
        ({"arguments": {**STREAM, "x-max-priority": 5}}, "invalid arg 'x-max-priority'"),
        ({"arguments": {**STREAM, "x-dead-letter-exchange": ""}}, "invalid arg 'x-dead-letter-exchange'"),
        ({"arguments": {**STREAM, "x-max-age": "soon"}}, "invalid arg 'x-max-age'"),
        ({"arguments": {**STREAM, "x-max-length-bytes": "many"}}, "invalid arg 'x-max-length-bytes'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_stream_cannot_be_is_refused(wire: AmqpWire, how: dict[str, Any], text: str) -> None:
    wire.send(1, "queue.declare", **{"queue": "s", "durable": True, "arguments": STREAM, **how})
    code, said = wire.closed_with()
    assert (code, text in said) == (406, True), said


@pytest.mark.parametrize("offset", ["soon", -1, True, 1.5, [1], {"first": 1}, "99999999999999999999D"], ids=str)
def test_an_offset_that_is_none_is_refused(wire: AmqpWire, offset: Any) -> None:
    declare(wire, "s", arguments=STREAM)
    wire.ask(1, "basic.qos", prefetch_count=1)
    wire.send(1, "basic.consume", queue="s", arguments={"x-stream-offset": offset})
    code, said = wire.closed_with()
    assert (code, "invalid arg 'x-stream-offset'" in said) == (406, True)


def test_a_consumer_of_a_stream_has_a_prefetch(wire: AmqpWire) -> None:
    declare(wire, "s", arguments=STREAM)
    wire.send(1, "basic.consume", queue="s")
    assert wire.closed_with() == (
        406, "PRECONDITION_FAILED - consumer prefetch count is not set for stream queue 's' in vhost '/'",
    )  # fmt: skip


@pytest.mark.parametrize("method", ["basic.get", "queue.purge"])
def test_a_stream_is_not_taken_from(wire: AmqpWire, method: str) -> None:
    declare(wire, "s", arguments=STREAM)
    wire.send(1, method, queue="s")
    code, said = wire.closed_with("connection.close")
    assert (code, f"{method} not supported by stream queues" in said) == (540, True)


def test_an_offset_on_a_queue_and_another_type_are_refused(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.send(1, "queue.declare", queue="q", durable=True, arguments=STREAM)
    code, said = wire.closed_with()
    assert (code, "inequivalent arg 'x-queue-type'" in said) == (406, True)
    wire.open(2)
    wire.send(2, "basic.consume", queue="q", arguments={"x-stream-offset": "first"})
    code, said = wire.closed_with("connection.close")
    assert (code, "queue 'q' is not a stream" in said) == (540, True)


@require("amqp-clients")
def test_pika_reads_a_stream(broker: BrokerProcess) -> None:
    pika = pytest.importorskip("pika")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp)) as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments={**STREAM, "x-max-age": "7D", "x-max-length-bytes": 1 << 30})
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", "s", b"%d" % number)
        channel.basic_qos(prefetch_count=2)
        found = []
        for method, given, body in channel.consume("s", arguments={"x-stream-offset": 2}):
            found.append((given.headers["x-stream-offset"], body))
            channel.basic_ack(method.delivery_tag)
            if len(found) == 3:
                break
        assert found == [(2, b"2"), (3, b"3"), (4, b"4")]


def test_it_is_described_as_one_and_nothing_waits_in_it(broker: BrokerProcess, wire: AmqpWire) -> None:
    """Found: the alert for a backlog without a consumer fired for each stream (ADR 0175)."""
    declare(wire, "s", arguments=STREAM)
    declare(wire, "q")
    wire.publish(b"0", "s")
    assert declare(wire, "s", passive=True)["message_count"] == 1
    for _ in range(2):
        with broker.connect() as text:
            text.send(b"TOPICS\n")
            _, size = text.line().split()
            described = {each["topic"]: each for each in json.loads(text.read(int(size)))}
        assert (described["s"].get("stream"), described["s"]["messages"], described["q"].get("stream")) == (True, 1, None)
        broker.restart()
