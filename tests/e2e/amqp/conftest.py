"""A broker that speaks AMQP, and a raw connection to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.amqp_wire import AmqpWire
from tests.support.broker_process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0") as process:
        yield process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[AmqpWire]:
    with AmqpWire(broker.amqp) as connection:
        yield connection.login()
