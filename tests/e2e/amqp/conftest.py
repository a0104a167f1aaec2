"""A broker that speaks AMQP, for a test or for all of a file, and a raw connection to it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.amqp_wire import AmqpWire
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserved


@contextlib.contextmanager
def _amqp_broker(data_dir: Path) -> Iterator[BrokerProcess]:
    with reserved() as port, BrokerProcess(data_dir, "--amqp", f"127.0.0.1:{port}") as process:
        yield process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with _amqp_broker(tmp_path / "d") as process:
        yield process


@pytest.fixture(scope="module")
def broker_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with _amqp_broker(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module")
def said_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which the tasks of a file's worker write what they did."""
    return tmp_path_factory.mktemp("said")


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[AmqpWire]:
    with AmqpWire(broker.amqp) as connection:
        yield connection.login()
