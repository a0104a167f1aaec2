"""Channels of an AMQP connection that end, stall or are full, and the others beside them. Contract: amqp.md, "Model"."""

from pathlib import Path

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import CERT, KEY, client_context
from toymq_py.amqp import methods
from toymq_py.amqp.connection import Content
from toymq_py.amqp.frames import HEADER, frame
from toymq_py.amqp.properties import NOTHING


def declare_limited(broker: BrokerProcess, wire: AmqpWire, queue: str) -> None:
    """Declare a queue whose topic an operator has limited to one message. A queue that a client declares with a limit refuses
    without an error."""
    with broker.connect() as client:
        assert client.ask(b"CREATE %b backlog_max_messages=1 when_full=reject\n" % queue.encode()).startswith(b"OK")
    declare(wire, queue)


def publish(queue: str, channel: int, body: bytes = b"") -> bytes:
    """The frames of a publish with an empty body."""
    method = methods.encode(channel, "basic.publish", exchange="", routing_key=queue)
    return method + frame(HEADER, channel, b"\0\x3c\0\0" + len(body).to_bytes(8) + NOTHING)


def test_a_refused_publish_closes_its_channel_alone(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare_limited(broker, wire, "full")
    declare(wire, "q")
    wire.publish(b"fits", "full")
    for channel in range(2, 9):
        wire.open(channel)
    wire.socket.sendall(b"".join(publish("full", channel) for channel in range(2, 9)))
    for _ in range(2, 9):
        code, text = wire.closed_with()
        assert (code, "QUEUE_FULL" in text) == (406, True)
    wire.publish(b"x", "q")
    assert declare(wire, "q", passive=True)["message_count"] == 1
    wire.close()
    broker.stop()
    _, errors = broker.ended()
    assert "Traceback" not in errors


def test_publishes_behind_a_refused_one_hold_nothing(broker: BrokerProcess, wire: AmqpWire) -> None:
    """Found: bytes of publishes behind a refused one were counted for ever, and once they reached --max-inflight-bytes no
    further publish was applied."""
    declare_limited(broker, wire, "full")
    declare(wire, "q")
    wire.publish(b"fits", "full")
    body = frame(3, 2, bytes(100_000))
    head = methods.encode(2, "basic.publish", exchange="", routing_key="q")
    large = head + frame(HEADER, 2, b"\0\x3c\0\0" + (100_000).to_bytes(8) + NOTHING) + body
    for _ in range(700):  # more than 64 MiB, the most that waits (--max-inflight-bytes)
        wire.open(2)
        wire.socket.sendall(publish("full", 2) + large)
        assert wire.closed_with()[0] == 406
        wire.send(2, "channel.close-ok")
    assert declare(wire, "q", passive=True)["message_count"] == 0


def test_nothing_is_done_on_a_channel_whose_publish_was_refused(broker: BrokerProcess, wire: AmqpWire) -> None:
    """Commands that the client sent before it heard of the refusal have no effect: no message is leased to it, no consumer
    attached."""
    declare_limited(broker, wire, "full")
    declare(wire, "q")
    wire.publish(b"fits", "full")
    wire.publish(b"x", "q")
    assert declare(wire, "q", passive=True)["message_count"] == 1, "it is stored before others ask for it"
    wire.open(2)
    wire.open(3)
    for channel, name in ((2, "basic.get"), (3, "basic.consume")):
        wire.socket.sendall(publish("full", channel) + methods.encode(channel, name, queue="q"))
        assert wire.closed_with()[0] == 406
    with AmqpWire(broker.amqp).login() as other:
        assert declare(other, "q", passive=True)["consumer_count"] == 0
        other.send(1, "basic.get", queue="q")
        assert (other.content().body, declare(other, "q", passive=True)["message_count"]) == (b"x", 0)


def test_a_channel_that_is_opened_again_hears_nothing_of_the_one_before(wire: AmqpWire) -> None:
    declare(wire, "q")
    close_and_open = methods.encode(2, "channel.close", reply_code=200, reply_text="") + methods.encode(2, "channel.open")
    wire.open(2)
    for _ in range(50):
        wire.ask(2, "confirm.select")
        wire.socket.sendall(publish("q", 2) * 5 + close_and_open)
        while (found := wire.event()).name != "channel.close-ok":  # type: ignore[union-attr]
            assert found.name == "basic.ack"  # type: ignore[union-attr]
        wire.expect("channel.open-ok")
        wire.ask(2, "basic.qos")
    wire.publish(b"x", "q")
    assert declare(wire, "q", passive=True)["message_count"] == 251


def test_a_channel_that_is_full_leaves_messages_to_others(broker: BrokerProcess, wire: AmqpWire) -> None:
    """The prefetch of a channel counts for all its queues, so one of them is not taken from: another client is woken."""
    declare(wire, "a")
    declare(wire, "b")
    wire.ask(1, "basic.qos", prefetch_count=1, **{"global": True})
    for queue in "ab":
        wire.ask(1, "basic.consume", queue=queue, consumer_tag=queue)
    with AmqpWire(broker.amqp).login() as other:
        other.ask(1, "basic.consume", queue="b")
        wire.publish(b"1", "a")
        assert bodies(wire, 1) == [b"1"]
        other.publish(b"2", "b")
        assert bodies(other, 1) == [b"2"]


def test_a_channel_that_is_paused_leaves_messages_to_others(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "basic.consume", queue="q")
    wire.ask(1, "channel.flow", active=False)
    with AmqpWire(broker.amqp).login() as other:
        other.ask(1, "basic.consume", queue="q")
        other.publish(b"x", "q")
        assert bodies(other, 1) == [b"x"]


def test_a_client_that_never_reads_its_replies_holds_a_bounded_part(broker: BrokerProcess, wire: AmqpWire) -> None:
    """The broker stops reading from a client once too many replies wait for it; when the client reads, all of them are
    there."""
    declare(wire, "q")
    for _ in range(600):
        wire.publish(bytes(100_000), "q")
    declare(wire, "q", passive=True)
    before = broker.rss_bytes()
    with AmqpWire(broker.amqp).login() as lazy:
        for _ in range(600):
            lazy.send(1, "basic.get", queue="q")
            left = declare(wire, "q", passive=True)["message_count"]
        assert left > 300, "what would wait for the client is not leased to it"
        assert broker.rss_bytes() - before < 20 << 20
        assert bodies(lazy, 600) == [bytes(100_000)] * 600


def test_a_cancelled_consumer_without_acks_is_no_subscription(tmp_path: Path) -> None:
    """A cancelled no-ack consumer frees its place once the client has read what was written to it."""
    with (
        BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--max-subscriptions", "1") as broker,
        AmqpWire(broker.amqp).login() as wire,
        AmqpWire(broker.amqp).login() as other,
    ):
        declare(wire, "q")
        for _ in range(300):
            wire.publish(bytes(100_000), "q")
        declare(wire, "q", passive=True)
        for _ in range(4):
            wire.ask(1, "basic.consume", queue="q", consumer_tag="t", no_ack=True)
            left = [declare(other, "q", passive=True)["message_count"]]
            while len(left) < 200 or left[-1] != left[-200]:  # until the socket is full
                left.append(declare(other, "q", passive=True)["message_count"])
            wire.send(1, "basic.cancel", consumer_tag="t")
            while isinstance(found := wire.event(), Content):
                pass
            assert found.name == "basic.cancel-ok"


def test_amqp_over_tls(tmp_path: Path) -> None:
    """A TLS handshake that does not finish holds the place of a connection, and gives it up to newcomers."""
    options = ("--amqps", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY, "--max-connections", "3")
    with BrokerProcess(tmp_path / "d", *options) as broker:
        silent = [AmqpWire(broker.amqps) for _ in range(3)]
        with AmqpWire(broker.amqps, client_context()).login() as wire:
            declare(wire, "q")
            wire.publish(bytes(1_000_000), "q")
            wire.send(1, "basic.get", queue="q")
            assert wire.content().body == bytes(1_000_000)
            silent[0].socket.settimeout(20)
            assert silent[0].at_end()
            wire.send(0, "connection.close")
            wire.expect("connection.close-ok")
            assert wire.at_end()
        for one in silent:
            one.socket.close()
        assert broker.stop() == 0
