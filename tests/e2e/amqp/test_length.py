"""Queues whose length is limited beside a dead-letter exchange: what is dropped goes there. Contract: amqp.md, "Model"."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp_wire import NOTHING, AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from toymq_py.amqp import methods, properties
from toymq_py.amqp.connection import Content
from toymq_py.amqp.frames import BODY, HEADER, frame

TO_Q = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}


def death(content: Content) -> dict[str, Any]:
    found: dict[str, Any] = properties.decode(content.properties)["headers"]["x-death"][0]
    return found


def until(wire: AmqpWire, queue: str, ready: int) -> None:
    """Wait until a queue has so many ready messages."""
    for _ in range(100_000):
        if declare(wire, queue, passive=True)["message_count"] == ready:
            return
    raise AssertionError(declare(wire, queue, passive=True))


def test_what_is_beyond_the_length_goes_to_the_exchange_from_the_head(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "short", arguments={**TO_Q, "x-max-length": 3})
    raw = properties.encode({"headers": {"n": 7}, "expiration": "600000"})
    for number in range(1000):
        wire.publish(b"%d" % number, "short", raw=raw)
    until(wire, "q", 997)
    assert declare(wire, "short", passive=True)["message_count"] == 3
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    found = [wire.content() for _ in range(997)]
    assert [one.body for one in found] == [b"%d" % number for number in range(997)]
    entry = death(found[5])
    assert (entry["queue"], entry["reason"], entry["count"], entry["routing-keys"]) == ("short", "maxlen", 1, ["short"])
    headers = properties.decode(found[5].properties)["headers"]
    assert (headers["x-first-death-reason"], headers["n"]) == ("maxlen", 7)
    wire.ask(1, "basic.consume", queue="short", no_ack=True)
    assert bodies(wire, 3) == [b"997", b"998", b"999"]


def test_bytes_are_limited_too(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "short", arguments={**TO_Q, "x-max-length-bytes": 10_000})
    for _ in range(20):
        wire.publish(bytes(3000), "short")
    until(wire, "q", 17)
    assert declare(wire, "short", passive=True)["message_count"] == 3
    wire.ask(1, "basic.consume", queue="short", no_ack=True)
    assert bodies(wire, 3) == [bytes(3000)] * 3


def test_what_consumers_hold_does_not_count(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "short", arguments={**TO_Q, "x-max-length": 1})
    wire.ask(1, "basic.qos", prefetch_count=5)
    wire.ask(1, "basic.consume", queue="short", consumer_tag="c")
    for number in range(10):
        wire.publish(b"%d" % number, "short")
        if number < 5:
            assert wire.content().body == b"%d" % number
    until(wire, "q", 4)
    assert declare(wire, "short", passive=True)["message_count"] == 1
    wire.send(1, "basic.ack", delivery_tag=1)
    assert bodies(wire, 1) == [b"9"]


def test_a_queue_is_shortened_though_its_consumer_may_have_no_more_unacked_messages(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--max-unacked", "3") as broker,
        AmqpWire(broker.amqp).login() as wire,
    ):
        declare(wire, "q")
        declare(wire, "short", arguments={**TO_Q, "x-max-length": 2})
        wire.ask(1, "basic.consume", queue="short", consumer_tag="c")
        for number in range(10):
            wire.publish(b"%d" % number, "short")
            if number < 3:
                assert wire.content().body == b"%d" % number
        until(wire, "q", 5)
        assert declare(wire, "short", passive=True)["message_count"] == 2
        wire.send(1, "basic.ack", delivery_tag=1)
        assert bodies(wire, 1) == [b"8"]


def test_reject_publish_beside_a_dead_letter_exchange_refuses(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "full", arguments={**TO_Q, "x-max-length": 1, "x-overflow": "reject-publish"})
    wire.ask(1, "confirm.select")
    wire.publish(b"fits", "full")
    wire.expect("basic.ack")
    wire.publish(b"refused", "full")
    wire.expect("basic.nack")
    assert [declare(wire, name, passive=True)["message_count"] for name in ("full", "q")] == [1, 0]


def test_a_publisher_without_confirms_hears_nothing_of_a_queue_that_refuses(wire: AmqpWire) -> None:
    """Found: its channel was closed. RabbitMQ 3.10, beside which this was tried, does not close it."""
    declare(wire, "full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    declare(wire, "full@host", arguments={"x-max-length-bytes": 200, "x-overflow": "reject-publish"})
    declare(wire, "short", arguments={"x-max-length-bytes": 10})
    for name, fit in (("full", 1), ("full@host", 1), ("short", 0)):
        for _ in range(3):
            wire.publish(bytes(80), name)
        assert declare(wire, name, passive=True)["message_count"] == fit


@pytest.mark.parametrize("consumers", [0, 1])
def test_a_queue_is_never_seen_longer_than_its_limit(broker: BrokerProcess, wire: AmqpWire, consumers: int) -> None:
    """Three connections publish faster than dead letters are stored; consumers without credit do not change the length."""
    declare(wire, "q")
    declare(wire, "short", arguments={**TO_Q, "x-max-length": 100})
    if consumers:
        wire.ask(1, "basic.qos", prefetch_count=1)
        wire.ask(1, "basic.consume", queue="short", consumer_tag="c")
        wire.publish(b"held", "short")
        assert wire.content().body == b"held"
    method = methods.encode(1, "basic.publish", exchange="", routing_key="short")
    one = method + frame(HEADER, 1, b"\0\x3c\0\0" + (5).to_bytes(8) + NOTHING) + frame(BODY, 1, b"12345")
    with contextlib.ExitStack() as stack:
        publishers = [stack.enter_context(AmqpWire(broker.amqp)).login() for _ in range(3)]
        for publisher in publishers:
            publisher.socket.sendall(one * 2000)
        lengths = []
        while not lengths or declare(publishers[0], "q", passive=True)["message_count"] < 5900:
            lengths.append(declare(wire, "short", passive=True)["message_count"])
    assert max(lengths) <= 100, f"{max(lengths)} of {len(lengths)} looks"


def test_what_a_full_queue_refuses_goes_to_the_exchange(wire: AmqpWire) -> None:
    """The refused message becomes a dead letter, and its publisher gets a nack, as from RabbitMQ."""
    declare(wire, "q")
    declare(wire, "full", arguments={**TO_Q, "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    wire.ask(1, "confirm.select")
    wire.publish(b"fits", "full")
    wire.expect("basic.ack")
    raw = properties.encode({"headers": {"n": 7}, "message-id": "m"})
    wire.publish(b"refused", "full", raw=raw)
    wire.expect("basic.nack")
    until(wire, "q", 1)
    assert declare(wire, "full", passive=True)["message_count"] == 1
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    found = wire.content()
    entry, given = death(found), properties.decode(found.properties)
    assert found.body == b"refused"
    assert (entry["queue"], entry["reason"], entry["count"], entry["routing-keys"]) == ("full", "maxlen", 1, ["full"])
    assert (given["message-id"], given["headers"]["n"]) == ("m", 7)


def test_a_publisher_without_confirms_goes_on_where_the_exchange_has_what_was_refused(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "full", arguments={**TO_Q, "x-max-length": 2, "x-overflow": "reject-publish-dlx"})
    for number in range(1000):
        wire.publish(b"%d" % number, "full")
    until(wire, "q", 998)
    wire.ask(1, "tx.select")
    wire.publish(b"in a transaction", "full")
    wire.send(1, "tx.commit")
    assert wire.closed_with()[0] == 406, "it is not stored where it was to be"


def test_each_full_queue_of_an_exchange_gives_what_it_refuses_to_its_own(wire: AmqpWire) -> None:
    """Found: only the first full queue dead-lettered the message, since a refusal ended the publish. One of the queues is too
    short for the message at all."""
    wire.ask(1, "exchange.declare", exchange="all", type="fanout")
    limits = {"a": {"x-max-length": 1}, "b": {"x-max-length-bytes": 10}, "c": {"x-max-length": 1}, "d": {}}
    for name, limit in limits.items():
        declare(wire, f"{name}-letters")
        to_own = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-letters"}
        declare(wire, name, arguments={**to_own, **limit, "x-overflow": "reject-publish-dlx"} if limit else {})
        wire.ask(1, "queue.bind", queue=name, exchange="all")
    wire.ask(1, "confirm.select")
    for number in range(3):
        wire.publish(b"%d" % number, "", exchange="all")
        wire.expect("basic.nack")
    for name, ready in {"a": 1, "b": 0, "c": 1, "d": 3, "a-letters": 2, "b-letters": 3, "c-letters": 2, "d-letters": 0}.items():
        until(wire, name, ready)


def test_a_queue_that_refuses_to_itself_ends(broker: BrokerProcess, wire: AmqpWire) -> None:
    to_itself = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "own"}
    declare(wire, "own", arguments={**to_itself, "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    wire.ask(1, "confirm.select")
    for _ in range(3):
        wire.publish(b"x", "own")
    assert wire.expect("basic.ack")["delivery_tag"] == 1
    while wire.expect("basic.nack")["delivery_tag"] < 3:
        pass
    assert declare(wire, "own", passive=True)["message_count"] == 1
    broker.stop()
    _, errors = broker.ended()
    assert "Traceback" not in errors


def test_a_refused_message_whose_target_is_full_too_is_dropped(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    declare(wire, "full", arguments={**TO_Q, "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    wire.ask(1, "confirm.select")
    for name in ("basic.ack", "basic.nack", "basic.nack", "basic.nack"):
        wire.publish(b"x", "full")
        wire.expect(name)
    until(wire, "q", 1)
    assert declare(wire, "full", passive=True)["message_count"] == 1
    broker.stop()
    _, errors = broker.ended()
    assert errors.count("queue full is full: 1 refused messages were not dead-lettered") == 1


def test_a_queue_that_drops_to_itself_ends(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "own", arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "own"})
    for _ in range(5):
        wire.publish(b"x", "own")
    until(wire, "own", 1)
    broker.stop()
    _, errors = broker.ended()
    assert "dropped, without a rejection it goes round" in errors
    assert "Traceback" not in errors


def test_what_another_protocol_publishes_counts(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "short", arguments={**TO_Q, "x-max-length": 2})
    with broker.connect() as client:
        client.send(b"PUB short - 1\nx\n" * 5)
    until(wire, "q", 3)


def test_a_kill_loses_nothing_of_what_is_dropped(broker: BrokerProcess) -> None:
    """A dead letter is stored before its message is removed: after a kill each message is in one of the two queues, perhaps in
    both."""
    published = 0
    for _ in range(4):
        with AmqpWire(broker.amqp).login() as wire:
            declare(wire, "q")
            declare(wire, "short", arguments={**TO_Q, "x-max-length": 10})
            wire.ask(1, "confirm.select")
            for number in range(published, published + 300):
                wire.publish(b"%d" % number, "short")
            while wire.expect("basic.ack")["delivery_tag"] < 300:
                pass
            published += 300
            broker.restart()  # kill -9, in the midst of dropping
    with AmqpWire(broker.amqp).login() as wire:
        until(wire, "short", 10)
        wire.send(1, "basic.consume", queue="q", no_ack=True)
        wire.send(1, "basic.consume", queue="short", no_ack=True)
        missing = {b"%d" % number for number in range(published)}
        while missing:
            if isinstance(found := wire.event(), Content):
                missing.discard(found.body)


@require("amqp-clients")
def test_pika_reads_what_was_dropped(broker: BrokerProcess) -> None:
    pika = pytest.importorskip("pika")
    with pika.BlockingConnection(pika.URLParameters(broker.amqp)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("dropped", "fanout")
        channel.queue_declare("letters", durable=True)
        channel.queue_bind("letters", "dropped")
        channel.queue_declare("short", durable=True, arguments={"x-dead-letter-exchange": "dropped", "x-max-length": 1})
        for number in range(3):
            channel.basic_publish("", "short", b"%d" % number)
        found = []
        for _, given, body in channel.consume("letters", auto_ack=True):
            found.append((body, given.headers["x-death"][0]["reason"]))
            if len(found) == 2:
                break
        assert found == [(b"0", "maxlen"), (b"1", "maxlen")]
