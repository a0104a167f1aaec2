"""pytest fixtures: a real broker for the tests of an application. pytest loads them itself, once ``toymq`` is installed.

The broker is a process of its own, as in production: it can be killed and started again under the code that is tested. It
starts in about a quarter of a second, on a free port and in a directory that goes with the test.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from toymq.broker_process import BrokerProcess
from toymq.client import Client, connect
from toymq.sync.client import Client as BlockingClient
from toymq.sync.client import connect as connect_blocking


class BrokerUnderTest(BrokerProcess):
    """``toymq serve``. It listens on the same port again after ``start``, and data stays until the test is over."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        """
        Args:
            data_dir: made by the broker. Its log stands beside it, with ``.log`` behind the name.
            options: of ``toymq serve``, for example ``"--max-payload", "1MiB"``.
        """
        super().__init__(data_dir, "--min-free-bytes", "0", *options, log=data_dir.with_name(data_dir.name + ".log"))


@pytest.fixture
def toymq_broker(tmp_path: Path) -> Iterator[BrokerUnderTest]:
    """A broker that runs while the test does: ``url``, ``port``, ``data_dir``, ``kill()``, ``start()``, ``restart()``,
    ``stop()``.
    """
    broker = BrokerUnderTest(tmp_path / "toymq-data")
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def toymq_client(toymq_broker: BrokerUnderTest) -> Client:
    """An asyncio client of that broker, to be entered by the test, in the test's own event loop: ``async with
    toymq_client as mq``.
    """
    return connect(toymq_broker.url)


@pytest.fixture
def toymq_sync_client(toymq_broker: BrokerUnderTest) -> Iterator[BlockingClient]:
    """A blocking client of that broker, connected."""
    client = connect_blocking(toymq_broker.url)
    try:
        yield client
    finally:
        client.close()  # without draining: the test may have killed the broker
