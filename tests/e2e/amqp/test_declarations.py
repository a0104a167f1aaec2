"""Exchanges, queues and bindings of AMQP over a socket: queues are topics. Contract: amqp.md, "Model"; ADR 0123."""

from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess, run
from toymq import sync
from toymq.broker_process import StartFailed
from toymq_py.amqp import properties
from toymq_py.clock import SystemClock


def test_a_queue_is_a_topic_for_all_protocols(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "orders")
    wire.ask(1, "confirm.select")
    raw = properties.encode({"content-type": "text/plain", "headers": {"color": "red", "n": 1}})
    wire.publish(b"by amqp", "orders", raw=raw)
    assert wire.expect("basic.ack")["delivery_tag"] == 1
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        mq.pub("orders", b"by tcp", headers={"color": "blue", "content-type": "text/html"})
        (message, other) = mq.pull("orders", "reader", 2)
        assert (message.payload, message.headers["content-type"], message.headers["color"]) == (b"by amqp", "text/plain", "red")
        assert other.payload == b"by tcp"
    assert declare(wire, "orders")["message_count"] == 2
    wire.ask(1, "basic.consume", queue="orders", consumer_tag="c", no_ack=True)
    first, second = wire.content(), wire.content()
    assert (first.body, first.properties) == (b"by amqp", raw)
    assert properties.decode(second.properties) == {"content-type": "text/html", "headers": {"color": "blue"}}
    assert (second.method["exchange"], second.method["routing_key"]) == ("", "orders")


def test_a_topic_that_another_protocol_made_is_a_queue(broker: BrokerProcess, wire: AmqpWire) -> None:
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        mq.pub("jobs", b"one")
        assert declare(wire, "jobs", passive=True)["message_count"] == 1
        wire.send(1, "basic.get", queue="jobs")
        assert wire.content().body == b"one"
        wire.ask(1, "queue.bind", queue="jobs", exchange="amq.topic", routing_key="a.*")
        wire.publish(b"two", "a.b", exchange="amq.topic")
        wire.send(1, "basic.get", queue="jobs", no_ack=True)
        assert wire.content().body == b"two"


@pytest.mark.parametrize("how", [{"exclusive": True}, {"auto_delete": True}, {"arguments": {"x-expires": 1000}}], ids=str)
def test_a_queue_that_goes_by_itself_takes_no_topic_along(broker: BrokerProcess, wire: AmqpWire, how: dict[str, Any]) -> None:
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        mq.pub("orders", b"of another protocol")
        wire.send(1, "queue.declare", queue="orders", durable=True, **how)
        code, text = wire.closed_with()
        assert (code, "topic orders is there and would be deleted with queue 'orders'" in text) == (405, True)
        broker.restart()
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
        assert [message.payload for message in mq.pull("orders", "reader")] == [b"of another protocol"]


def test_a_queue_that_something_gets_from_does_not_expire(wire: AmqpWire) -> None:
    declare(wire, "q", arguments={"x-expires": 1500})
    clock = SystemClock()
    began = clock.monotonic()
    while clock.monotonic() < began + 2.5:
        wire.send(1, "basic.get", queue="q")
        wire.expect("basic.get-empty")


def test_exchanges_queues_and_messages_outlive_a_kill(broker: BrokerProcess, wire: AmqpWire) -> None:
    wire.ask(1, "exchange.declare", exchange="logs", type="fanout", durable=True)
    wire.ask(1, "exchange.declare", exchange="passing", type="fanout")
    for queue in ("a", "b@host/x"):
        declare(wire, queue)
        wire.ask(1, "queue.bind", queue=queue, exchange="logs")
    declare(wire, "mine", exclusive=True)
    declare(wire, "passing", durable=False, auto_delete=True)
    wire.ask(1, "confirm.select")
    wire.publish(b"to both", "", exchange="logs")
    wire.expect("basic.ack")
    broker.restart()
    with AmqpWire(broker.amqp).login() as again:
        for queue in ("a", "b@host/x"):
            assert declare(again, queue, passive=True)["message_count"] == 1
        again.publish(b"later", "", exchange="logs")
        again.ask(1, "basic.consume", queue="b@host/x", no_ack=True)
        assert bodies(again, 2) == [b"to both", b"later"]
        for number, queue in enumerate(("mine", "passing"), 2):
            again.open(number)
            again.send(number, "queue.declare", queue=queue, passive=True)
            assert again.closed_with()[0] == 404
        again.open(4)
        again.send(4, "exchange.declare", exchange="passing", passive=True)
        assert again.closed_with() == (404, "NOT_FOUND - no exchange 'passing' in vhost '/'")


def test_damaged_exchanges_stop_the_start_until_they_are_put_aside(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    assert broker.stop() == 0
    file = broker.data_dir / "amqp.json"
    file.write_bytes(file.read_bytes().replace(b'"q"', b'"p"'))
    with pytest.raises(StartFailed, match=r"amqp.json: checksum of the amqp does not fit; `toymq repair` puts it aside"):
        broker.start()
    assert run("verify", str(broker.data_dir)).returncode == 1
    assert "no exchange, queue or binding is declared" in run("repair", str(broker.data_dir)).stdout
    broker.start()
    with AmqpWire(broker.amqp).login() as again:
        declare(again, "q", passive=True)


def test_queues_of_a_connection_go_with_it(broker: BrokerProcess, wire: AmqpWire) -> None:
    name = declare(wire, "", exclusive=True, durable=False)["queue"]
    assert name.startswith("amq.gen-")
    with AmqpWire(broker.amqp).login() as other:
        other.send(1, "basic.consume", queue=name)
        assert other.closed_with()[0] == 405
        declare(wire, "once", auto_delete=True)
        wire.ask(1, "basic.consume", queue="once", consumer_tag="t")
        wire.ask(1, "basic.cancel", consumer_tag="t")
        wire.send(0, "connection.close")
        wire.expect("connection.close-ok")
        assert wire.at_end()
    with AmqpWire(broker.amqp).login() as third:
        for number, queue in enumerate((name, "once"), 2):
            third.open(number)
            third.send(number, "queue.declare", queue=queue, passive=True)
            assert third.closed_with()[0] == 404


def test_a_queue_that_is_deleted_tells_its_consumers(wire: AmqpWire) -> None:
    declare(wire, "q")
    wire.ask(1, "basic.consume", queue="q", consumer_tag="t")
    wire.send(1, "queue.delete", queue="q")
    assert wire.expect("queue.delete-ok")["message_count"] == 0
    assert wire.expect("basic.cancel")["consumer_tag"] == "t"


def test_a_client_that_knows_no_cancel_gets_none(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp) as wire:
        wire.knows_cancels = False
        wire.login()
        declare(wire, "q")
        wire.ask(1, "basic.consume", queue="q", consumer_tag="t")
        wire.ask(1, "queue.delete", queue="q")
        declare(wire, "q")


@pytest.mark.parametrize(
    ("again", "code", "text"),
    [
        ({"durable": False}, 406, "arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        ({"arguments": {"x-message-ttl": 5}}, 406, "inequivalent arg 'x-message-ttl'"),
        ({"queue": "amq.mine"}, 403, "reserved prefix"),
        ({"queue": "absent", "passive": True}, 404, "no queue 'absent' in vhost '/'"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_closes_the_channel(wire: AmqpWire, again: dict[str, Any], code: int, text: str) -> None:
    declare(wire, "q")
    wire.send(1, "queue.declare", **{"queue": "q", "durable": True, **again})
    closed = wire.closed_with()
    assert closed[0] == code
    assert text in closed[1]
    wire.send(1, "channel.close-ok")
    wire.open(1)
    declare(wire, "q")


def test_what_is_declared_again_otherwise_is_named_in_the_words_of_rabbitmq(wire: AmqpWire) -> None:
    declare(wire, "q")
    how = {"exchange": "e", "type": "fanout", "durable": True}
    wire.ask(1, "exchange.declare", **how, arguments={"alternate-exchange": "a"})
    unlike = "received none but current is the value 'a' of type 'longstr'"
    for name, values, text in (
        ("queue.declare", {"queue": "q", "durable": True, "arguments": {"x-message-ttl": 6}},
         "arg 'x-message-ttl' for queue 'q' in vhost '/': received the value '6' of type 'signedint' but current is none"),
        ("exchange.declare", how,
         f"arg 'alternate-exchange' for exchange 'e' in vhost '/': {unlike}"),
    ):  # fmt: skip
        wire.send(1, name, **values)
        assert wire.closed_with() == (406, f"PRECONDITION_FAILED - inequivalent {text}")
        wire.send(1, "channel.close-ok")
        wire.open(1)
