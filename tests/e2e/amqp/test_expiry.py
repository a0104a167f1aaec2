"""Messages that expire, wait or are replies, as RabbitMQ's clients use them. Contract: amqp.md, "Model"."""

from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from toymq_py.amqp import properties
from toymq_py.amqp.connection import Content
from toymq_py.clock import SystemClock

TO_Q = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}


def expiring(ms: int, **others: Any) -> bytes:
    return properties.encode({"expiration": str(ms), **others})


def headers(content: Content) -> dict[str, Any]:
    found: dict[str, Any] = properties.decode(content.properties)["headers"]
    return found


# -- delays by dead letters


def test_what_expires_goes_to_the_dead_letter_exchange_without_a_consumer(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "wait", arguments=TO_Q)
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    for number in range(200):
        wire.publish(b"%d" % number, "wait", raw=expiring(50, headers={"n": number}))
    found = [wire.content() for _ in range(200)]
    assert [one.body for one in found] == [b"%d" % number for number in range(200)]
    death = headers(found[7])["x-death"][0]
    assert (death["queue"], death["reason"], death["original-expiration"]) == ("wait", "expired", "50")
    assert headers(found[7])["n"] == 7
    assert "expiration" not in properties.decode(found[7].properties)
    assert declare(wire, "wait", arguments=TO_Q)["message_count"] == 0


def test_the_ttl_of_a_queue_counts_beside_that_of_a_message(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "wait", arguments={**TO_Q, "x-message-ttl": 100})
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    wire.publish(b"a", "wait", raw=expiring(600_000))
    wire.publish(b"b", "wait")
    wire.publish(b"c", "wait", raw=expiring(1))
    assert bodies(wire, 3) == [b"a", b"b", b"c"]


def test_what_is_consumed_in_time_does_not_expire(wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "wait", arguments={**TO_Q, "x-message-ttl": 300})
    wire.publish(b"in hand", "wait")
    wire.publish(b"acked", "wait")
    wire.publish(b"waits", "wait")
    wire.ask(1, "basic.qos", prefetch_count=2)
    wire.ask(1, "basic.consume", queue="wait", consumer_tag="w")
    assert bodies(wire, 2) == [b"in hand", b"acked"]
    wire.ask(1, "basic.cancel", consumer_tag="w")
    wire.send(1, "basic.ack", delivery_tag=2)
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    assert bodies(wire, 1) == [b"waits"]
    wire.send(1, "basic.nack", delivery_tag=1, requeue=True)  # its time is over by now
    assert bodies(wire, 1) == [b"in hand"]
    assert declare(wire, "wait", passive=True)["message_count"] == 0


def test_messages_that_wait_to_expire_outlive_a_kill(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "q")
    declare(wire, "wait", arguments=TO_Q)
    wire.ask(1, "confirm.select")
    wire.publish(b"x", "wait", raw=expiring(500))
    wire.expect("basic.ack")
    broker.restart()
    with AmqpWire(broker.amqp).login() as again:
        again.ask(1, "basic.consume", queue="q", no_ack=True)
        assert bodies(again, 1) == [b"x"]


def test_an_expiration_that_ends_before_the_delay_is_over_is_not_forgotten(wire: AmqpWire) -> None:
    later = {"x-delayed-type": "direct"}
    wire.ask(1, "exchange.declare", exchange="later", type="x-delayed-message", arguments=later)
    declare(wire, "q")
    declare(wire, "wait", arguments=TO_Q)
    wire.ask(1, "queue.bind", queue="wait", exchange="later", routing_key="wait")
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    wire.publish(b"x", "wait", exchange="later", raw=expiring(100, headers={"x-delay": 600}))
    assert bodies(wire, 1) == [b"x"]


def test_an_expiration_of_nothing_is_at_once(broker: BrokerProcess, wire: AmqpWire) -> None:
    """Found: uvloop's handle of a timer without a delay has no time, so an expiration of 0 was logged as a bug."""
    declare(wire, "q")
    declare(wire, "wait", arguments={**TO_Q, "x-message-ttl": 0})
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    for _ in range(50):
        wire.publish(b"x", "wait", raw=expiring(0))
        wire.publish(b"x", "wait")
    assert bodies(wire, 100) == [b"x"] * 100
    wire.close()
    broker.stop()
    _, errors = broker.ended()
    assert "Traceback" not in errors


def test_a_full_target_is_tried_now_and_then_until_it_has_room(broker: BrokerProcess, wire: AmqpWire) -> None:
    """Found: each dead letter that waited for room was tried once a second, which took a core. These tries do not count as
    attempts either."""
    declare(wire, "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    declare(wire, "wait", arguments={**TO_Q, "x-message-ttl": 1})
    for number in range(300):
        wire.publish(b"%d" % number, "wait")
    declare(wire, "wait", passive=True)
    wire.ask(1, "basic.qos", prefetch_count=1)
    wire.ask(1, "basic.consume", queue="q", consumer_tag="q")
    for number in range(3):  # each makes room for one
        assert wire.content().body == b"%d" % number
        wire.send(1, "basic.ack", delivery_tag=number + 1)
    wire.ask(1, "basic.cancel", consumer_tag="q")
    wire.close()
    broker.stop()
    _, errors = broker.ended()
    assert errors.count("not dead-lettered yet") < 30


def test_what_a_consumer_without_acks_would_get_too_late_waits_for_its_dead_letter(wire: AmqpWire) -> None:
    """Found: a message that expired before it could be written to a no-ack consumer was acked with the written ones, before its
    dead letter was stored."""
    declare(wire, "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    declare(wire, "wait", arguments={**TO_Q, "x-message-ttl": 1000})
    wire.publish(b"in the way", "q")
    wire.publish(b"late", "wait")
    declare(wire, "wait", passive=True)
    wire.ask(1, "basic.qos", prefetch_count=1)
    wire.ask(1, "basic.consume", queue="wait", consumer_tag="holds")
    assert bodies(wire, 1) == [b"late"]
    clock = SystemClock()
    began = clock.monotonic()
    while clock.monotonic() < began + 1.1:
        wire.ask(1, "basic.qos", prefetch_count=1)
    wire.ask(1, "basic.cancel", consumer_tag="holds")
    wire.ask(1, "basic.consume", queue="wait", consumer_tag="no acks", no_ack=True)
    wire.send(1, "basic.nack", delivery_tag=1, requeue=True)
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    assert bodies(wire, 2) == [b"in the way", b"late"]


def test_what_comes_back_by_time_alone_is_dropped(broker: BrokerProcess, wire: AmqpWire) -> None:
    """A message that expires from queue to queue and back, without a rejection, is dropped as in RabbitMQ; otherwise it would
    go round for ever."""
    declare(wire, "there", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "back"})
    declare(wire, "back", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "there"})
    declare(wire, "q")
    wire.publish(b"round", "there")
    clock = SystemClock()
    latest = clock.monotonic() + 60
    while "dropped, without a rejection it goes round" not in broker.said():
        assert clock.monotonic() < latest
        declare(wire, "there", passive=True)
    assert [declare(wire, name, passive=True)["message_count"] for name in ("there", "back")] == [0, 0]


def test_an_exchange_that_delays(wire: AmqpWire) -> None:
    later = {"x-delayed-type": "topic"}
    wire.ask(1, "exchange.declare", exchange="later", type="x-delayed-message", durable=True, arguments=later)
    declare(wire, "q")
    wire.ask(1, "queue.bind", queue="q", exchange="later", routing_key="a.*")
    wire.ask(1, "basic.consume", queue="q", no_ack=True)
    wire.publish(b"second", "a.b", exchange="later", raw=properties.encode({"headers": {"x-delay": 400}}))
    wire.publish(b"first", "a.b", exchange="later")
    wire.publish(b"unknown", "b", exchange="later", raw=properties.encode({"headers": {"x-delay": 1}}))
    assert bodies(wire, 2) == [b"first", b"second"]
    wire.publish(b"", "a.b", exchange="later", raw=properties.encode({"headers": {"x-delay": "soon"}}))
    assert wire.closed_with() == (406, "PRECONDITION_FAILED - invalid x-delay 'soon': write milliseconds, as a number")


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}], ids=str)
def test_an_exchange_that_delays_has_a_type(wire: AmqpWire, arguments: dict[str, Any]) -> None:
    wire.send(1, "exchange.declare", exchange="later", type="x-delayed-message", arguments=arguments)
    assert wire.closed_with()[1].startswith("PRECONDITION_FAILED - invalid arg 'x-delayed-type'")


# -- direct replies

REPLY_TO = "amq.rabbitmq.reply-to"


def asking(correlation: str) -> bytes:
    return properties.encode({"reply-to": REPLY_TO, "correlation-id": correlation})


def test_direct_replies_go_to_the_channel_that_asked(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "jobs")
    wire.ask(1, "queue.declare", queue=REPLY_TO, passive=True)
    wire.ask(1, "basic.consume", queue=REPLY_TO, no_ack=True, consumer_tag="r")
    wire.publish(b"question", "jobs", raw=asking("7"))
    with AmqpWire(broker.amqp).login() as worker:
        worker.ask(1, "basic.consume", queue="jobs", no_ack=True)
        asked = properties.decode(worker.content().properties)
        assert asked["reply-to"].startswith(f"{REPLY_TO}.")
        assert worker.ask(1, "queue.declare", queue=asked["reply-to"], passive=True)["message_count"] == 0
        worker.ask(1, "confirm.select")
        raw = properties.encode({"correlation-id": asked["correlation-id"]})
        worker.publish(b"answer", asked["reply-to"], raw=raw, mandatory=True)
        worker.expect("basic.ack")
        answer = wire.content()
        assert (answer.method["consumer_tag"], answer.body, answer.properties) == ("r", b"answer", raw)
        wire.ask(1, "basic.cancel", consumer_tag="r")
        worker.publish(b"too late", asked["reply-to"], mandatory=True)
        assert worker.content().method["reply_text"] == "NO_ROUTE"
        worker.expect("basic.ack")
        worker.send(1, "queue.declare", queue=asked["reply-to"], passive=True)
        assert worker.closed_with()[0] == 404


def test_a_reply_in_a_transaction_comes_to_no_channel_that_is_gone(broker: BrokerProcess, wire: AmqpWire) -> None:
    """Found: the body of such a reply was sent on the closed channel, without its header frame."""
    declare(wire, "jobs")
    wire.open(2)
    wire.ask(2, "basic.consume", queue=REPLY_TO, no_ack=True)
    wire.publish(b"question", "jobs", channel=2, raw=asking("7"))
    with AmqpWire(broker.amqp).login() as worker:
        worker.ask(1, "basic.consume", queue="jobs", no_ack=True)
        name = properties.decode(worker.content().properties)["reply-to"]
        worker.ask(1, "tx.select")
        worker.publish(b"answer", name)
        worker.ask(1, "basic.qos")
        wire.ask(2, "channel.close", reply_code=200, reply_text="")
        wire.open(2)
        worker.ask(1, "tx.commit")
        wire.ask(2, "basic.qos")


def test_direct_replies_need_their_consumer_and_that_without_acks(wire: AmqpWire) -> None:
    declare(wire, "jobs")
    wire.publish(b"", "jobs", raw=asking("7"))
    assert "fast reply consumer does not exist" in wire.closed_with()[1]
    wire.open(2)
    wire.send(2, "basic.consume", queue=REPLY_TO)
    assert "reply consumer cannot acknowledge" in wire.closed_with()[1]


def test_replies_that_a_client_does_not_read_are_bounded(broker: BrokerProcess, wire: AmqpWire) -> None:
    declare(wire, "jobs")
    wire.ask(1, "basic.consume", queue=REPLY_TO, no_ack=True)
    wire.publish(b"question", "jobs", raw=asking("7"))
    with AmqpWire(broker.amqp).login() as worker:
        worker.ask(1, "basic.consume", queue="jobs", no_ack=True)
        name = properties.decode(worker.content().properties)["reply-to"]
        before = broker.rss_bytes()
        for _ in range(600):
            worker.publish(bytes(100_000), name)
        declare(worker, "jobs")
        assert broker.rss_bytes() - before < 20 << 20
