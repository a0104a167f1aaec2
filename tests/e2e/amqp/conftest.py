"""A broker that speaks AMQP, and a raw connection to it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.amqp_wire import AmqpWire
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with socket.socket() as unused:  # a port that it has again after a restart
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with BrokerProcess(tmp_path / "d", "--amqp", f"127.0.0.1:{port}") as process:
        yield process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[AmqpWire]:
    with AmqpWire(broker.amqp) as connection:
        yield connection.login()
