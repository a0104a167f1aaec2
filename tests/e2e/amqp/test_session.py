"""AMQP 0-9-1 over a socket, method by method. Contract: amqp.md, "Model"; ADR 0123."""

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.framework_rig import until
from tests.support.tokens import table, token
from toymq import sync
from toymq_py.amqp import methods, properties
from toymq_py.amqp.connection import Content
from toymq_py.amqp.frames import BODY, HEADER, HEARTBEAT, PROTOCOL_HEADER, frame
from toymq_py.amqp.methods import Method

# -- publishing


def test_confirms_come_in_order_and_a_return_before_its_confirm(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "confirm.select")
    for number in range(200):
        wire.publish(b"%d" % number, "q")
    wire.publish(b"lost", "nowhere", mandatory=True)
    tags: list[int] = []
    while 200 not in tags:
        found = wire.event()
        if isinstance(found, Content):
            assert (found.method.name, found.method["reply_text"], found.body) == ("basic.return", "NO_ROUTE", b"lost")
            break
        tags.append(found["delivery_tag"])
    while not tags or tags[-1] < 201:
        tags.append(wire.expect("basic.ack")["delivery_tag"])
    assert tags == sorted(set(tags))
    assert declare(wire, "q", passive=True)["message_count"] == 200


def test_a_publish_that_is_refused_is_nacked_or_closes_its_channel(broker: BrokerProcess, wire: AmqpWire) -> None:
    """The publish is refused by a limit that an operator has set. A queue declared with a limit refuses without an error, as in
    RabbitMQ."""
    with broker.connect() as client:
        assert client.ask(b"CREATE q backlog_max_messages=1 when_full=reject\n").startswith(b"OK")
    declare(wire, "q")
    wire.ask(1, "confirm.select")
    wire.publish(b"fits", "q")
    assert wire.expect("basic.ack")["delivery_tag"] == 1
    wire.publish(b"does not", "q")
    assert wire.expect("basic.nack")["delivery_tag"] == 2
    wire.open(2)
    wire.publish(b"nor this", "q", channel=2)
    code, text = wire.closed_with()
    assert code == 406
    assert "QUEUE_FULL" in text


def test_a_message_expires_by_its_own_time(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.publish(b"gone", "q", raw=properties.encode({"expiration": "1"}))
    wire.publish(b"stays", "q", raw=properties.encode({"expiration": "60000"}))
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    assert wire.content().body in (b"gone", b"stays")
    wire.publish(b"x", "q", raw=properties.encode({"expiration": "soon"}))
    while isinstance(found := wire.event(), Content):
        assert found.body == b"stays"
    assert found["reply_text"] == "PRECONDITION_FAILED - invalid expiration 'soon': write milliseconds"


def test_a_transaction_is_held_until_its_commit(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "tx.select")
    wire.publish(b"one", "q")
    wire.ask(1, "tx.rollback")
    wire.publish(b"two", "q")
    wire.publish(b"three", "q")
    assert declare(wire, "q", passive=True)["message_count"] == 0
    wire.ask(1, "tx.commit")
    assert declare(wire, "q", passive=True)["message_count"] == 2


def test_a_transaction_holds_a_bounded_part(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "tx.select")
    for _ in range(17):
        wire.publish(bytes(1_000_000), "q")
    code, text = wire.closed_with()
    assert (code, text) == (406, "PRECONDITION_FAILED - a transaction holds 16777216 bytes at most: commit before")


def test_a_channel_finds_what_it_published_before(wire: AmqpWire) -> None:
    declare(wire, "q")
    for number in range(1, 20):
        wire.publish(b"x", "q")
        assert declare(wire, "q", passive=True)["message_count"] == 1, f"round {number}"
        wire.publish(b"x", "q")
        assert wire.ask(1, "queue.purge", queue="q")["message_count"] == 2, f"round {number}"


# -- consuming


def test_prefetch_of_a_consumer_and_of_a_channel(wire: AmqpWire) -> None:
    declare(wire, "q")
    for number in range(9):
        wire.publish(b"%d" % number, "q")
    wire.ask(1, "basic.qos", prefetch_count=2)
    wire.ask(1, "basic.consume", queue="q", consumer_tag="t")
    assert bodies(wire, 2) == [b"0", b"1"]
    declare(wire, "q")  # nothing was delivered meanwhile
    wire.send(1, "basic.ack", delivery_tag=1)
    assert bodies(wire, 1) == [b"2"]
    wire.send(1, "basic.ack", delivery_tag=3, multiple=True)
    assert bodies(wire, 2) == [b"3", b"4"]
    wire.open(2)
    wire.ask(2, "basic.qos", prefetch_count=3, **{"global": True})
    wire.ask(2, "basic.consume", queue="q", consumer_tag="u")
    assert bodies(wire, 3) == [b"5", b"6", b"7"]
    declare(wire, "q")
    wire.send(2, "basic.ack", delivery_tag=1)
    assert bodies(wire, 1) == [b"8"]


def test_nack_reject_and_recover(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.publish(b"x", "q")
    wire.publish(b"y", "q")
    wire.ask(1, "basic.consume", queue="q")
    first, _ = wire.content(), wire.content()
    assert not first.method["redelivered"]
    wire.send(1, "basic.nack", delivery_tag=1, requeue=True)
    again = wire.content()
    assert (again.body, again.method["redelivered"]) == (b"x", True)
    assert properties.decode(again.properties)["headers"]["x-delivery-count"] == 1
    wire.send(1, "basic.reject", delivery_tag=again.method["delivery_tag"])
    wire.send(1, "basic.recover", requeue=True)
    found = [wire.event(), wire.event()]
    assert {one.body if isinstance(one, Content) else one.name for one in found} == {b"y", "basic.recover-ok"}
    wire.send(1, "basic.ack", delivery_tag=0, multiple=True)
    assert declare(wire, "q")["message_count"] == 0
    wire.send(1, "basic.ack", delivery_tag=99)
    assert wire.closed_with() == (406, "PRECONDITION_FAILED - unknown delivery tag 99")


def test_what_a_connection_held_is_ready_again_when_it_ends(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    for number in range(3):
        wire.publish(b"%d" % number, "q")
    wire.ask(1, "basic.consume", queue="q")
    assert len(bodies(wire, 3)) == 3
    wire.send(1, "basic.ack", delivery_tag=1)
    declare(wire, "q")
    wire.socket.close()
    with AmqpWire(broker.amqp).login() as other:
        other.ask(1, "basic.consume", queue="q")
        again = [other.content() for _ in range(2)]
        assert [(found.body, found.method["redelivered"]) for found in again] == [(b"1", True), (b"2", False)]


def test_a_cancelled_consumer_keeps_what_it_has_until_it_is_settled(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.publish(b"x", "q")
    wire.ask(1, "basic.consume", queue="q", consumer_tag="t")
    assert bodies(wire, 1) == [b"x"]
    wire.ask(1, "basic.cancel", consumer_tag="t")
    with AmqpWire(broker.amqp).login() as other:
        other.send(1, "basic.get", queue="q")
        other.expect("basic.get-empty")
    wire.send(1, "basic.ack", delivery_tag=1)
    assert declare(wire, "q")["message_count"] == 0


def test_subscriptions_of_a_connection_are_bounded(tmp_path: Path) -> None:
    """The limit counts all channels of a connection together, and also cancelled consumers that still hold messages."""
    with (
        BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--max-subscriptions", "3") as broker,
        AmqpWire(broker.amqp).login() as wire,
    ):
        for queue in "abcd":
            declare(wire, queue)
        wire.publish(b"x", "a")
        wire.ask(1, "basic.consume", queue="a", consumer_tag="held")
        wire.content()
        wire.ask(1, "basic.cancel", consumer_tag="held")
        wire.ask(1, "basic.consume", queue="b")
        wire.open(2)
        wire.send(2, "basic.get", queue="c")
        wire.expect("basic.get-empty")
        wire.send(2, "basic.consume", queue="d")
        code, text = wire.closed_with()
        assert (code, text.endswith("the limit (--max-subscriptions)")) == (406, True)
        wire.ask(1, "basic.consume", queue="d")


def test_a_message_that_is_never_acked_is_a_dead_letter_after_twenty_deliveries(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.publish(b"x", "q")
    declare(wire, "q", passive=True)
    for attempt in range(20):
        wire.send(1, "basic.get", queue="q")
        found = wire.content()
        assert properties.decode(found.properties).get("headers", {}).get("x-delivery-count", 0) == attempt
        wire.send(1, "basic.nack", delivery_tag=attempt + 1, requeue=True)
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        until(lambda: "q.dlq" in {topic["topic"] for topic in mq.topics()})
    wire.ask(1, "basic.consume", queue="q.dlq", consumer_tag="t")
    letter = wire.content()
    assert (letter.body, properties.decode(letter.properties)["headers"]["toymq-attempts"]) == (b"x", "20")
    assert declare(wire, "q", passive=True)["message_count"] == 0


def test_an_exclusive_consumer_is_alone(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "basic.consume", queue="q", exclusive=True)
    wire.send(1, "basic.consume", queue="q")
    assert wire.closed_with() == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")


def test_a_rejected_message_goes_to_the_dead_letter_exchange(wire: AmqpWire) -> None:
    declare(wire, "dead")
    declare(wire, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-delivery-limit": 1})
    wire.publish(b"x", "q", raw=properties.encode({"headers": {"n": 1}, "expiration": "60000"}))
    wire.publish(b"poison", "q")
    wire.ask(1, "basic.consume", queue="q", consumer_tag="t")
    bodies(wire, 2)
    wire.send(1, "basic.nack", delivery_tag=1)
    wire.send(1, "basic.nack", delivery_tag=2, requeue=True)
    again = wire.content()
    assert again.body == b"poison"
    wire.send(1, "basic.nack", delivery_tag=again.method["delivery_tag"], requeue=True)
    wire.ask(1, "basic.consume", queue="dead", no_ack=True)
    letters = {content.body: properties.decode(content.properties) for content in (wire.content(), wire.content())}
    death = letters[b"x"]["headers"]["x-death"][0]
    assert (death["queue"], death["reason"], death["count"], death["routing-keys"]) == ("q", "rejected", 1, ["q"])
    assert (letters[b"x"]["headers"]["n"], "expiration" in letters[b"x"]) == (1, False)
    assert letters[b"poison"]["headers"]["x-first-death-reason"] == "delivery_limit"
    assert declare(wire, "q", passive=True)["message_count"] == 0


# -- the connection


def test_heartbeats_go_both_ways(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp).login(heartbeat=1) as wire:
        wire.socket.settimeout(30)
        assert wire.socket.recv(8) == frame(HEARTBEAT, 0, b"")
        while wire.socket.recv(64):  # of a client that is silent for two of them the broker takes leave
            pass


def test_another_version_is_answered_with_ours(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp) as wire:
        wire.socket.sendall(b"AMQP\0\1\0\0")
        assert wire.socket.recv(8) == PROTOCOL_HEADER
        assert wire.at_end()


def test_another_vhost_is_refused(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp) as wire, pytest.raises(AssertionError, match="vhost 'other' not found"):
        wire.login(vhost="other")


def test_tokens_are_passwords_and_have_their_rights(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    rights = 'publish = ["jobs"]\nsubscribe = ["jobs"]'
    auth.write_text(table("worker", rights) + table("boss", 'publish = [">"]\nsubscribe = [">"]\nadmin = true'))
    auth.chmod(0o600)
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--auth-file", str(auth)) as broker:
        with AmqpWire(broker.amqp) as stranger, pytest.raises(AssertionError, match="ACCESS_REFUSED - login was refused"):
            stranger.login(password="guess")
        with AmqpWire(broker.amqp).login(password=token("worker")) as wire:
            wire.send(1, "queue.declare", queue="jobs")
            code, text = wire.closed_with()
            assert (code, "may not administer" in text) == (403, True)
        with AmqpWire(broker.amqp).login(password=token("boss")) as wire:
            declare(wire, "jobs")
            declare(wire, "other")
        with AmqpWire(broker.amqp).login(user="any", password=token("worker")) as wire:
            declare(wire, "jobs")  # it is there
            wire.publish(b"x", "jobs")
            wire.send(1, "basic.get", queue="jobs")
            assert wire.content().body == b"x"
            for number, name in enumerate(("basic.consume", "queue.purge", "queue.delete"), 2):
                wire.open(number)
                wire.send(number, name, queue="other")
                assert wire.closed_with()[0] == 403
            wire.open(9)
            wire.publish(b"x", "other", channel=9)
            assert wire.closed_with()[0] == 403
        assert broker.stop() == 0


def test_a_broker_that_stops_says_so(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "confirm.select")
    wire.publish(b"x", "q")
    broker.terminate()
    seen = [wire.event()]
    while seen[-1].name != "connection.close":  # type: ignore[union-attr]
        seen.append(wire.event())
    wire.send(0, "connection.close-ok")
    assert [one.name for one in seen] == ["basic.ack", "connection.close"]  # type: ignore[union-attr]
    assert seen[-1]["reply_code"] == 320  # type: ignore[index]
    code, errors = broker.ended()
    assert (code, "Traceback" in errors) == (0, False)


# -- hostile ones


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff" * 64, 501), (frame(3, 1, b"x"), 505), (methods.encode(2, "basic.qos"), 504),
        (methods.encode(1, "channel.open"), 503), (frame(1, 1, b"\0\x32\0\x0a\0\0\xff"), 502),
        (methods.encode(3000, "channel.open"), 504), (b"\x01\0\x01\xff\xff\xff\xff", 501),
        (methods.encode(1, "queue.declare-ok"), 503),
        (methods.encode(1, "basic.deliver") + frame(HEADER, 1, b"\0\x3c" + bytes(12)), 503),
        (methods.encode(1, "basic.qos", prefetch_size=9), 540),
    ],
    ids=["no frames", "body", "closed channel", "open twice", "cut", "channel 3000", "4 GB", "server's", "content", "qos"],
)  # fmt: skip
def test_hostile_bytes_end_their_connection_alone(broker: BrokerProcess, wire: AmqpWire, data: bytes, code: int) -> None:
    with AmqpWire(broker.amqp).login() as other:
        wire.socket.sendall(data)
        assert wire.closed_with("connection.close")[0] == code
        declare(other, "q")
        other.publish(b"x", "q")
        other.send(1, "basic.get", queue="q")
        assert other.content().body == b"x"
    wire.close()
    broker.stop()
    _, errors = broker.ended()
    assert "Traceback" not in errors


def test_channels_count_as_held_memory(tmp_path: Path) -> None:
    """Found: the channels of one connection, which any client may open, took eleven megabytes."""
    with (
        BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--max-held-bytes", "1MiB") as broker,
        AmqpWire(broker.amqp).login() as wire,
    ):
        wire.socket.sendall(b"".join(methods.encode(channel, "channel.open") for channel in range(2, 1001)))
        found = wire.event()
        while isinstance(found, Method) and found.name == "channel.open-ok":
            found = wire.event()
        assert isinstance(found, Method)
        assert (found.name, found["reply_code"]) == ("connection.close", 506)
        with AmqpWire(broker.amqp).login() as other:
            declare(other, "q")


def test_half_a_body_is_not_held_beyond_the_end_of_its_connection(tmp_path: Path) -> None:
    """Found: half a body was held until the client had answered connection.close, for up to 5 s: 2.8 times
    ``--max-held-bytes``."""
    limits = ("--max-held-bytes", "4MiB", "--http", "127.0.0.1:0")
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", *limits) as broker, contextlib.ExitStack() as open_wires:
        for _ in range(12):
            wire = open_wires.enter_context(AmqpWire(broker.amqp)).login()
            head = frame(HEADER, 1, b"\0\x3c\0\0" + (2_000_000).to_bytes(8) + b"\0\0")
            wire.socket.sendall(methods.encode(1, "basic.publish", routing_key="q") + head)
            wire.socket.sendall(frame(BODY, 1, b"x" * 100_000) * 19)
            wire.send(1, "basic.qos")
            assert wire.closed_with("connection.close")[0] == 505  # which is not answered
        (held,) = [each for each in httpx.get(f"{broker.http}v1/broker").json()["limits"] if each["limit"] == "held_bytes"]
        assert held["used"] <= held["max"]


def test_a_body_of_sixteen_exabytes_is_refused_by_its_header(broker: BrokerProcess, wire: AmqpWire) -> None:
    before = broker.rss_bytes()
    for channel in range(2, 200):
        wire.open(channel)
        head = frame(HEADER, channel, b"\0\x3c\0\0" + (2**64 - 1).to_bytes(8) + b"\0\0")
        wire.socket.sendall(methods.encode(channel, "basic.publish") + head)
        assert wire.closed_with()[0] == 406
    assert broker.rss_bytes() - before < 30 << 20


def test_a_consumer_that_never_reads_holds_a_bounded_part(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "confirm.select")
    for _ in range(2000):
        wire.publish(bytes(10_000), "q")
    answered = 0
    while answered < 2000:
        answered = wire.expect("basic.ack")["delivery_tag"]
    before = broker.rss_bytes()
    with AmqpWire(broker.amqp).login() as lazy:
        lazy.send(1, "basic.consume", queue="q", no_ack=True)
        for _ in range(50):
            declare(wire, "q")
        assert broker.rss_bytes() - before < 40 << 20
    with AmqpWire(broker.amqp).login() as reader:
        reader.send(1, "basic.consume", queue="q", no_ack=True)
        reader.expect("basic.consume-ok")
        assert len(bodies(reader, 1000)) == 1000, "what the socket did not take is there"


def test_clients_that_go_on_sending_behind_a_refusal_are_not_read_ahead(tmp_path: Path) -> None:
    """Found by an attack: bodies came faster than 200 connections had their turns, and behind connection.close the socket was
    read without a limit: 7 GB with ``--max-held-bytes 64MiB``."""
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--max-held-bytes", "4MiB") as broker:
        before = broker.rss_bytes()
        head = frame(HEADER, 1, b"\0\x3c\0\0" + (2_000_000).to_bytes(8) + b"\0\0")
        body = methods.encode(1, "basic.publish", routing_key="q") + head + frame(BODY, 1, b"x" * 100_000) * 19

        def send(wire: AmqpWire) -> None:
            with contextlib.suppress(OSError):  # it is ended
                for _ in range(8):
                    wire.socket.sendall(body)

        with contextlib.ExitStack() as open_wires, ThreadPoolExecutor(40) as senders:
            wires = [open_wires.enter_context(AmqpWire(broker.amqp)).login() for _ in range(40)]
            sending = [senders.submit(send, wire) for wire in wires]
            most = before
            while wait(sending, 0.01).not_done:
                most = max(most, broker.rss_bytes())
        assert most - before < 120 << 20
