"""AMQP connections: over TLS, in the list of connections, and ended by an operator."""

import socket
from pathlib import Path

import httpx

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import CERT, KEY, client_context
from toymq_py.amqp import methods
from toymq_py.amqp.frames import PROTOCOL_HEADER


def test_an_operator_sees_and_closes_an_amqp_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0") as broker:
        path = f"{broker.http}v1/connections"
        with AmqpWire(broker.amqp) as wire:
            wire.socket.sendall(PROTOCOL_HEADER)
            wire.expect("connection.start")
            told = {"product": "a library", "connection_name": "mailer"}
            login = {"mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US", "client_properties": told}
            wire.send(0, "connection.start-ok", **login)
            wire.expect("connection.tune")
            wire.send(0, "connection.tune-ok", channel_max=10, frame_max=131_072, heartbeat=0)
            wire.ask(0, "connection.open", virtual_host="/")
            wire.open(1)
            declare(wire, "q")
            wire.publish(b"a", "q")
            wire.ask(1, "basic.consume", queue="q")
            assert bodies(wire, 1) == [b"a"]
            (found,) = httpx.get(path, params={"search": "mailer"}).json()["connections"]
            host, port = wire.socket.getsockname()
            assert (found["protocol"], found["address"], found["tls"]) == ("amqp", f"{host}:{port}", False)
            assert [(each["topic"], each["inflight"]) for each in found["subscriptions"]] == [("q", 1)]
            assert httpx.delete(f"{path}/{found['connection']}").status_code == 204
            code, text = wire.closed_with("connection.close")
            assert (code, text) == (320, "CONNECTION_FORCED - an operator closed this connection")
            wire.socket.sendall(methods.encode(0, "connection.close-ok"))
            assert wire.at_end()
        with AmqpWire(broker.amqp) as again:
            again.login()
            again.ask(1, "basic.consume", queue="q")
            assert bodies(again, 1) == [b"a"], "what it had not acked is delivered again"
            again.socket.shutdown(socket.SHUT_WR)


def test_messages_come_over_tls_one_by_one(tmp_path: Path) -> None:
    """Found: after an odd number of writes the TLS transport was taken for full, and no message came."""
    options = ("--amqp", "127.0.0.1:0", "--amqps", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY)
    with BrokerProcess(tmp_path / "d", *options) as broker:
        (url,) = (address for address in broker.addresses if address.startswith("amqps://"))
        for writes in range(4):
            with AmqpWire(url, client_context()) as wire:
                wire.login()
                declare(wire, "q")
                for _ in range(writes):
                    wire.ask(1, "basic.qos", prefetch_count=10)
                wire.ask(1, "basic.consume", queue="q", no_ack=True)
                for number in range(4):
                    wire.publish(b"%d" % number, "q")
                    assert bodies(wire, 1) == [b"%d" % number]
                wire.publish(b"x" * 1_000_000, "q")
                assert [len(body) for body in bodies(wire, 1)] == [1_000_000]
