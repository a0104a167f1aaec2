"""Users of AMQP: logins by a client certificate (SASL EXTERNAL), and ``user-id`` of what they publish. ADR 0163."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.credentials import ExternalCredentials

from tests.support.amqp_wire import AmqpWire, declare
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import CERT, KEY, NAMED_CERT, client_context, named_context
from tests.support.tokens import table, token
from toymq_py.amqp import methods, properties
from toymq_py.amqp.frames import PROTOCOL_HEADER

RIGHTS = 'publish = ["orders"]\nsubscribe = ["orders"]\nadmin = true'
CERTIFIED = f"{RIGHTS}\ncertificate = true"


@pytest.fixture
def auth(tmp_path: Path) -> Path:
    path = tmp_path / "auth.toml"
    path.write_text(table("billing", CERTIFIED) + table("billing.example", RIGHTS))
    path.chmod(0o600)
    return path


@pytest.fixture
def broker(tmp_path: Path, auth: Path) -> Iterator[BrokerProcess]:
    options = (
        "--amqp", "127.0.0.1:0", "--amqps", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY,
        "--tls-client-ca", NAMED_CERT, "--auth-file", str(auth), "--http", "127.0.0.1:0",
    )  # fmt: skip
    with BrokerProcess(tmp_path / "d", *options) as broker:
        yield broker


def over_tls(broker: BrokerProcess) -> str:
    (url,) = (address for address in broker.addresses if address.startswith("amqps://"))
    return url


def begun(wire: AmqpWire) -> str:
    """Begin a connection. Returns: the mechanisms that the broker offers."""
    wire.socket.sendall(PROTOCOL_HEADER)
    offered: bytes = wire.expect("connection.start")["mechanisms"]
    return offered.decode()


def log_in(wire: AmqpWire, response: bytes = b"") -> None:
    """Log in by the client certificate."""
    begun(wire)
    wire.send(0, "connection.start-ok", mechanism="EXTERNAL", response=response, locale="en_US", client_properties={})


def go_on(wire: AmqpWire) -> AmqpWire:
    wire.expect("connection.tune")
    wire.send(0, "connection.tune-ok", channel_max=10, frame_max=131_072, heartbeat=0)
    wire.ask(0, "connection.open", virtual_host="/")
    wire.open(1)
    return wire


def with_pika(broker: BrokerProcess, credentials: Any) -> Any:
    url = over_tls(broker)
    parameters = pika.ConnectionParameters(
        "127.0.0.1", int(url.rpartition(":")[2]), credentials=credentials,
        ssl_options=pika.SSLOptions(named_context(), "127.0.0.1"),
    )  # fmt: skip
    return pika.BlockingConnection(parameters)


def test_a_certificate_with_the_name_of_a_token_has_its_rights(broker: BrokerProcess) -> None:
    with with_pika(broker, ExternalCredentials()) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"paid", pika.BasicProperties(user_id="billing"))
        assert channel.basic_get("orders")[2] == b"paid"
        channel.queue_declare("other", durable=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="it may not publish there") as refused:
            channel.basic_publish("", "other", b"x")
        assert refused.value.reply_code == 403


def test_it_is_offered_where_there_is_a_certificate(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp) as plain:
        assert begun(plain) == "PLAIN AMQPLAIN"
        plain.send(0, "connection.start-ok", mechanism="EXTERNAL", response=b"", locale="en_US", client_properties={})
        code, text = plain.closed_with("connection.close")
        assert (code, "wants a client certificate: connect to --amqps" in text) == (403, True)
    with AmqpWire(over_tls(broker), named_context()) as wire:
        assert begun(wire) == "PLAIN AMQPLAIN EXTERNAL"
        response = f"\0anyone\0{token('billing.example')}".encode()
        wire.send(0, "connection.start-ok", mechanism="PLAIN", response=response, locale="en_US", client_properties={})
        declare(go_on(wire), "orders")


def test_a_name_that_is_asked_for_is_that_of_the_certificate(broker: BrokerProcess) -> None:
    with AmqpWire(over_tls(broker), named_context()) as wire:
        log_in(wire, b"billing")
        declare(go_on(wire), "orders")
    with AmqpWire(over_tls(broker), named_context()) as wire:
        log_in(wire, b"billing.example")
        code, text = wire.closed_with("connection.close")
        assert (code, "stands for billing, not for 'billing.example'" in text) == (403, True)


def test_a_token_says_that_a_certificate_stands_for_it(broker: BrokerProcess, auth: Path) -> None:
    with AmqpWire(over_tls(broker), named_context()) as wire:
        log_in(wire)
        go_on(wire)
        auth.write_text(table("billing", RIGHTS) + table("shipping", RIGHTS))
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGHUP)
        code, text = wire.closed_with("connection.close")
        assert (code, "certificates do not stand for it any more" in text) == (403, True)
        wire.socket.sendall(methods.encode(0, "connection.close-ok"))
    with AmqpWire(over_tls(broker), named_context()) as wire:
        log_in(wire)
        assert "names no token that has certificate = true" in wire.closed_with("connection.close")[1]


def test_a_certificate_of_two_tokens_is_refused(broker: BrokerProcess, auth: Path) -> None:
    auth.write_text(table("billing", CERTIFIED) + table("shipping", CERTIFIED))
    assert broker.pid is not None
    broker.stop()
    broker.start()
    with AmqpWire(over_tls(broker), named_context()) as wire:
        log_in(wire)
        assert "names several tokens: billing, shipping" in wire.closed_with("connection.close")[1]


def test_without_an_auth_file_it_is_let_in(tmp_path: Path) -> None:
    options = ("--amqps", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY)
    with BrokerProcess(tmp_path / "d", *options, "--tls-client-ca", NAMED_CERT) as broker:
        with AmqpWire(over_tls(broker), named_context()) as wire:
            log_in(wire)
            declare(go_on(wire), "q")
        broker.stop()
    with BrokerProcess(tmp_path / "d", *options) as broker, AmqpWire(over_tls(broker), client_context()) as wire:
        assert begun(wire) == "PLAIN AMQPLAIN", "no certificate was asked for"


def test_a_publish_is_of_the_user_that_it_says(tmp_path: Path) -> None:
    raw = properties.encode({"user-id": "ann"})
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0") as broker:
        with AmqpWire(broker.amqp).login("ann") as wire:
            declare(wire, "q")
            wire.ask(1, "confirm.select")
            wire.publish(b"one", "q", raw=raw)
            wire.expect("basic.ack")
            wire.send(1, "basic.get", queue="q")
            assert properties.decode(wire.content().properties)["user-id"] == "ann"
        with AmqpWire(broker.amqp).login("bob") as wire:
            wire.publish(b"two", "q", raw=raw)
            text = "PRECONDITION_FAILED - user_id property set to 'ann' but authenticated user was 'bob'"
            assert wire.closed_with() == (406, text)


def test_with_tokens_the_user_is_the_name_of_the_token(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp).login("ann", token("billing")) as wire:
        declare(wire, "orders")
        wire.ask(1, "confirm.select")
        wire.publish(b"one", "orders", raw=properties.encode({"user-id": "billing"}))
        wire.expect("basic.ack")
        wire.publish(b"two", "orders", raw=properties.encode({"user-id": "ann"}))
        assert wire.closed_with()[0] == 406, "what a client calls itself proves nothing"


def test_a_connection_over_tls_is_shown_as_one(broker: BrokerProcess) -> None:
    with AmqpWire(over_tls(broker), named_context()) as wire:
        log_in(wire)
        go_on(wire)
        headers = {"authorization": f"Bearer {token('billing')}"}
        (found,) = httpx.get(f"{broker.http}v1/connections?protocol=amqp", headers=headers).json()["connections"]
        assert (found["tls"], found["token"]) == (True, "billing")


def test_a_token_without_a_right_to_a_queue_does_not_learn_that_it_is_there(tmp_path: Path, auth: Path) -> None:
    """Found by an attack: a passive declare told every token which queues there are, and how much waits in them."""
    auth.write_text(
        table("all", RIGHTS) + table("sends", 'publish = ["orders"]') + table("takes", 'subscribe = ["orders"]')
        + table("other", 'publish = ["else"]\nsubscribe = ["else"]')
    )  # fmt: skip
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--auth-file", str(auth)) as broker:
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            declare(wire, "orders")
        for name, may in (("sends", True), ("takes", True), ("other", False)):
            for passive, queue in ((True, "orders"), (False, "orders"), (True, "none"), (False, "none")):
                with AmqpWire(broker.amqp).login(password=token(name)) as wire:
                    wire.send(1, "queue.declare", queue=queue, passive=passive, durable=True)
                    if queue == "orders" and may:
                        wire.expect("queue.declare-ok")
                    else:
                        assert wire.closed_with()[0] == 403, (name, passive, queue)


def test_no_method_tells_a_token_without_the_right_whether_a_queue_is_there(tmp_path: Path, auth: Path) -> None:
    """Found by an attack: a mandatory publish was 403 or NO_ROUTE, a get or consume 403 or 404, of a stream 540; and what was
    refused of a queue that is not there was not in the audit trail."""
    auth.write_text(table("all", RIGHTS) + table("other", 'publish = ["else"]\nsubscribe = ["else"]') + table("none", ""))
    asked = [("basic.get", "subscribe"), ("basic.consume", "subscribe"), ("basic.publish", "publish")]
    expected = []
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--auth-file", str(auth)) as broker:
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            declare(wire, "orders")
            declare(wire, "stream", arguments={"x-queue-type": "stream"})
            wire.ask(1, "queue.bind", queue="orders", exchange="amq.direct", routing_key="orders")
        for name in ("other", "none"):
            for queue in ("orders", "stream", "absent"):
                for method, action in asked:
                    with AmqpWire(broker.amqp).login(password=token(name)) as wire:
                        if method == "basic.publish":
                            wire.publish(b"x", queue, mandatory=True)
                        else:
                            wire.send(1, method, queue=queue)
                        text = f"ACCESS_REFUSED - access to '{queue}' refused for token '{name}': it may not {action} there"
                        assert wire.closed_with() == (403, text), method
                    expected.append(f"{action} topic={queue} token={name} address=127.0.0.1 via=amqp result=FORBIDDEN")
        for routing_key in ("orders", "absent"):
            with AmqpWire(broker.amqp).login(password=token("none")) as wire:
                wire.publish(b"x", routing_key, exchange="amq.direct", mandatory=True)
                assert wire.closed_with()[0] == 403, "whatever is bound to the exchange"
        with AmqpWire(broker.amqp).login(password=token("other")) as wire:
            wire.publish(b"x", "else", mandatory=True)
            assert wire.expect("basic.return")["reply_text"] == "NO_ROUTE"
        broker.terminate()
        _, trail = broker.ended()
    told = [line.partition("action=")[2] for line in trail.splitlines() if "result=FORBIDDEN" in line]
    assert told[: len(expected)] == expected
    assert told[len(expected) :] == ["publish exchange=amq.direct token=none address=127.0.0.1 via=amqp result=FORBIDDEN"] * 2


def test_a_topic_that_another_protocol_made_may_be_declared_as_it_is_with_any_right_to_it(tmp_path: Path, auth: Path) -> None:
    """Programs such as the tutorials begin with a declare. For a token without the right to administer it stores nothing, so an
    admin may still declare the queue otherwise."""
    auth.write_text(table("all", RIGHTS) + table("works", 'publish = ["orders"]\nsubscribe = ["orders"]'))
    options = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--auth-file", str(auth))
    with BrokerProcess(tmp_path / "d", *options) as broker:
        url = f"{broker.http}v1/topics/orders/messages"
        httpx.post(url, content=b"tea", headers={"authorization": f"Bearer {token('works')}"}).raise_for_status()
        for arguments in ({"x-message-ttl": 1000}, {"x-queue-type": "stream"}):
            with AmqpWire(broker.amqp).login(password=token("works")) as wire:
                wire.send(1, "queue.declare", queue="orders", durable=True, arguments=arguments)
                assert "it may not administer there" in wire.closed_with()[1], arguments
        with AmqpWire(broker.amqp).login(password=token("works")) as wire:
            wire.send(1, "queue.declare", queue="orders", auto_delete=True)
            assert wire.closed_with()[0] == 405
        with AmqpWire(broker.amqp).login(password=token("works")) as wire:
            for wanted in ({"durable": True}, {}, {"durable": True, "arguments": {"x-queue-type": "quorum"}}):
                assert wire.ask(1, "queue.declare", queue="orders", **wanted)["message_count"] == 1
            wire.send(1, "basic.get", queue="orders", no_ack=True)
            assert wire.content().body == b"tea"
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            wire.ask(1, "queue.declare", queue="orders", durable=True, arguments={"x-max-priority": 3})


def test_an_exchange_that_is_there_may_be_declared_as_it_is_by_who_may_publish(tmp_path: Path, auth: Path) -> None:
    """Found: a token that only reads could declare an exchange. Publishers begin with a declare, as the tutorials do; a declare
    that would store something needs an admin."""
    auth.write_text(table("all", RIGHTS) + table("works", 'publish = ["orders"]') + table("reads", 'subscribe = ["orders"]'))
    fanout = {"exchange": "news", "type": "fanout", "durable": True}
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--auth-file", str(auth)) as broker:
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            wire.ask(1, "exchange.declare", **fanout)
        with AmqpWire(broker.amqp).login(password=token("works")) as wire:
            for passive in (True, False):
                wire.ask(1, "exchange.declare", passive=passive, **fanout)
        for wanted, code in (({"exchange": "other"}, 403), ({"type": "topic"}, 406)):
            with AmqpWire(broker.amqp).login(password=token("works")) as wire:
                wire.send(1, "exchange.declare", **(fanout | wanted))
                assert wire.closed_with()[0] == code, wanted
        with AmqpWire(broker.amqp).login(password=token("works")) as wire:
            wire.send(1, "exchange.delete", exchange="news")
            assert wire.closed_with()[0] == 403
        for exchange, kind in (("news", "fanout"), ("amq.topic", "topic")):
            with AmqpWire(broker.amqp).login(password=token("reads")) as wire:
                wire.ask(1, "exchange.declare", exchange=exchange, passive=True)
                wire.send(1, "exchange.declare", exchange=exchange, type=kind, durable=True)
                text = f"access to '{exchange}' refused for token 'reads': it may not declare there"
                assert wire.closed_with() == (403, f"ACCESS_REFUSED - {text}")


def test_each_change_of_a_binding_is_in_the_audit_trail(tmp_path: Path, auth: Path) -> None:
    """Found: no change of a binding was in the trail, but declares and deletes were."""
    auth.write_text(table("all", RIGHTS) + table("works", 'publish = ["orders"]'))
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--auth-file", str(auth)) as broker:
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            declare(wire, "orders")
            for change in ("bind", "bind", "unbind", "unbind"):  # the second one changes nothing
                wire.ask(1, f"queue.{change}", queue="orders", exchange="amq.topic", routing_key="a.#")
                wire.ask(1, f"exchange.{change}", destination="amq.fanout", source="amq.topic", routing_key="b")
        with AmqpWire(broker.amqp).login(password=token("works")) as wire:
            wire.send(1, "queue.bind", queue="orders", exchange="amq.topic", routing_key="a.#")
            assert wire.closed_with()[0] == 403
        broker.terminate()
        _, trail = broker.ended()
    told = [line.partition("action=")[2] for line in trail.splitlines() if "action=" in line and "declare" not in line]
    of_all = "token=all address=127.0.0.1 via=amqp result=OK"
    assert told == [
        *(
            f"{kind}.{change} {about} {of_all}" for change in ("bind", "unbind")
            for kind, about in (("queue", "topic=orders source=amq.topic routing_key=a.#"),
                                ("exchange", "exchange=amq.fanout source=amq.topic routing_key=b"))
        ),
        "administer topic=orders source=amq.topic routing_key=a.# token=works address=127.0.0.1 via=amqp result=FORBIDDEN",
    ]  # fmt: skip


def test_what_changes_nothing_or_is_refused_is_told_as_what_it_is(tmp_path: Path, auth: Path) -> None:
    """Found: the trail recorded the delete of a missing exchange as done; a refusal called an exchange a topic, and lacked its
    source and routing key."""
    auth.write_text(table("all", RIGHTS) + table("reads", 'subscribe = ["orders"]'))
    refused = (
        ("exchange.declare", {"exchange": "other", "type": "fanout"}, "administer exchange=other"),
        ("exchange.declare", {"exchange": "news", "type": "fanout", "durable": True}, "declare exchange=news"),
        ("exchange.delete", {"exchange": "news"}, "administer exchange=news"),
        ("exchange.bind", {"destination": "amq.fanout", "source": "news", "routing_key": "b"},
         "administer exchange=amq.fanout source=news routing_key=b"),
        ("queue.unbind", {"queue": "orders", "exchange": "news", "routing_key": "a"},
         "administer topic=orders source=news routing_key=a"),
        ("queue.declare", {"queue": "other"}, "declare topic=other"),
        ("queue.purge", {"queue": "orders"}, "administer topic=orders"),
        ("queue.delete", {"queue": "orders"}, "administer topic=orders"),
    )  # fmt: skip
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--auth-file", str(auth)) as broker:
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            for _ in range(2):
                declare(wire, "orders")
                wire.ask(1, "exchange.declare", exchange="news", type="fanout", durable=True)
        for method, values, _ in refused:
            with AmqpWire(broker.amqp).login(password=token("reads")) as wire:
                wire.send(1, method, **values)
                assert wire.closed_with()[0] == 403, method
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            for _ in range(2):
                wire.ask(1, "exchange.delete", exchange="news")
                wire.ask(1, "queue.delete", queue="orders")
        broker.terminate()
        _, trail = broker.ended()
    told = [line.partition("action=")[2] for line in trail.splitlines() if "action=" in line]
    of_all, of_reads = (f"token={name} address=127.0.0.1 via=amqp result=" for name in ("all", "reads"))
    assert told == [
        f"queue.declare topic=orders {of_all}OK", f"exchange.declare exchange=news {of_all}OK",
        *(f"{what} {of_reads}FORBIDDEN" for _, _, what in refused),
        f"exchange.delete exchange=news {of_all}OK", f"queue.delete topic=orders {of_all}OK",
    ]  # fmt: skip


def test_each_refusal_is_in_the_audit_trail(tmp_path: Path, auth: Path) -> None:
    """Found: three refusals had no line: an unknown mechanism, a token that was removed, and a publish to dead letters, which
    the broker alone writes."""
    all_rights = table("all", 'publish = [">", "orders.dlq"]\nsubscribe = [">"]\nadmin = true')
    auth.write_text(all_rights + table("goes", RIGHTS))
    options = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--auth-file", str(auth))
    with BrokerProcess(tmp_path / "d", *options) as broker:
        with AmqpWire(broker.amqp) as wire:
            begun(wire)
            wire.send(0, "connection.start-ok", mechanism="ANONYMOUS", response=b"", locale="en_US", client_properties={})
            assert wire.closed_with("connection.close")[0] == 403
        with AmqpWire(broker.amqp).login(password=token("all")) as wire:
            httpx.put(f"{broker.http}v1/topics/orders.dlq", json={}, headers={"authorization": f"Bearer {token('all')}"})
            wire.publish(b"x", "orders.dlq")
            assert wire.closed_with()[0] == 406
        with AmqpWire(broker.amqp).login(password=token("goes")) as wire:
            auth.write_text(all_rights)
            broker.hang_up()
            assert wire.closed_with("connection.close")[0] == 403
        broker.terminate()
        _, trail = broker.ended()
        for action, name, result in (
            ("login", "-", "AUTH_REQUIRED"), ("publish topic=orders.dlq", "all", "FORBIDDEN"), ("login", "goes", "AUTH_FAILED")
        ):  # fmt: skip
            assert f"action={action} token={name} address=127.0.0.1 via=amqp result={result}" in trail
