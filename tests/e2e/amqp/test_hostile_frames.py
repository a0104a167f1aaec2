"""Peers that mean harm, beside those in ``test_session.py``: changed sessions of real clients, thousands of channels."""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.amqp_wire import TIMEOUT_S, AmqpWire, declare
from tests.support.broker_process import BrokerProcess
from tests.support.recorded_sessions import CLIENTS, mutated, sides
from toymq_py.amqp import methods
from toymq_py.amqp.methods import Method

CHANNELS = 2_047
"""Of a connection."""


def replay(broker: BrokerProcess, data: bytes) -> None:
    """Send all the data, and read until the broker or the client closes the connection."""
    with socket.create_connection(("127.0.0.1", int(broker.amqp.rpartition(":")[2])), TIMEOUT_S) as client:
        with suppress(OSError):  # it was closed in the midst
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass


def attack(broker: BrokerProcess, seed: int, count: int) -> None:
    rng = random.Random(seed)
    said = [data for client in CLIENTS for data, of_client in sides(client) if of_client]
    with AmqpWire(broker.amqp).login() as other:
        for number in range(count):
            replay(broker, mutated(rng.choice(said), rng))
            declare(other, "q")  # others go on
            assert broker.pid, number
    broker.stop()
    _, errors = broker.ended()
    assert "Traceback" not in errors, f"seed {seed}: {errors[-3000:]}"
    assert " bug" not in errors, f"seed {seed}: {errors[-3000:]}"


def test_changed_sessions_of_real_clients_end_their_connection_alone(broker: BrokerProcess) -> None:
    attack(broker, 1, 120)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_changed_sessions_end_their_connection_alone(broker: BrokerProcess, seed: int) -> None:
    attack(broker, seed, 2000)


def test_ten_thousand_channels_are_served_and_bounded(tmp_path: Path) -> None:
    """Each channel gets from a queue of its own; when the connections end, the memory is free for others."""
    limits = ("--max-held-bytes", "64MiB", "--max-subscriptions", "5000")
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0", *limits) as broker, AmqpWire(broker.amqp).login() as other:
        declare(other, "q")
        before, opened, refused = broker.rss_bytes(), 0, 0
        with ExitStack() as stack:
            for _ in range(6):
                wire = stack.enter_context(AmqpWire(broker.amqp)).login()
                wire.socket.sendall(b"".join(methods.encode(number, "channel.open") for number in range(2, CHANNELS + 1)))
                for number in range(2, CHANNELS + 1):
                    found = wire.event()
                    assert isinstance(found, Method)
                    if found.name == "connection.close":
                        assert found["reply_code"] == 506, number
                        refused += 1
                        break
                    opened += 1
                declare(other, "q", passive=True)
            assert opened > 10_000
            assert refused == 1, "six times 12 MiB are more than 64"
            assert broker.rss_bytes() - before < 130 << 20
        with AmqpWire(broker.amqp).login() as wire:
            wire.socket.sendall(b"".join(methods.encode(number, "channel.open") for number in range(2, CHANNELS + 1)))
            for _ in range(2, CHANNELS + 1):
                wire.expect("channel.open-ok")
        broker.stop()
        _, errors = broker.ended()
        assert "Traceback" not in errors
