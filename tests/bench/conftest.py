"""One broker for all that only need some broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("bench")
    with BrokerProcess(directory / "data") as running:
        yield running


@pytest.fixture
def attach(broker: BrokerProcess) -> list[str]:
    """Options that measure that broker, shortly."""
    return ["--connect", f"127.0.0.1:{broker.port}", "--pid", str(broker.pid), "--runs", "1"]
