"""A broker in its own process, and a blocking client of it."""

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq.sync import Client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as connected:
        yield connected
