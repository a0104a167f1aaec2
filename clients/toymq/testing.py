"""pytest fixtures: a real broker for the tests of an application. pytest loads them when ``toymq`` is installed.

The broker is a process of its own, as in production: a test can kill and restart it. It starts in about a quarter of a second,
on a free port and in a directory that is removed after the test.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from toymq.broker_process import TOYMQ_WITH_PARENT, BrokerProcess, Option
from toymq.client import Client
from toymq.connecting import connect
from toymq.sync.client import Client as BlockingClient
from toymq.sync.client import connect as connect_blocking


class BrokerUnderTest(BrokerProcess):
    """A ``toymq serve`` process for one test. A restart keeps port and data; both are gone after the test. The broker is killed
    when this process ends."""

    def __init__(self, data_dir: os.PathLike[str] | str, *options: Option) -> None:
        """
        Args:
            data_dir: created by the broker; its log is beside it, ``<name>.log``.
            options: of ``toymq serve``, for example ``"--max-payload", "1MiB"``.

        Raises: TypeError, BadArgument.
        """
        super().__init__(data_dir, "--min-free-bytes", "0", *options, program=TOYMQ_WITH_PARENT)
        self._log_file = Path(f"{self.data_dir.absolute()}.log")


@pytest.fixture
def toymq_broker(tmp_path: Path) -> Iterator[BrokerUnderTest]:
    """A running broker: ``url``, ``port``, ``data_dir``, ``kill()``, ``start()``, ``restart()``, ``stop()``."""
    broker = BrokerUnderTest(tmp_path / "toymq-data")
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def toymq_client(toymq_broker: BrokerUnderTest) -> Client:
    """An asyncio client of ``toymq_broker``, for ``async with toymq_client as mq`` in the test's event loop."""
    return connect(toymq_broker.url)


@pytest.fixture
def toymq_sync_client(toymq_broker: BrokerUnderTest) -> Iterator[BlockingClient]:
    """A blocking client of ``toymq_broker``, connected."""
    client = connect_blocking(toymq_broker.url)
    try:
        yield client
    finally:
        client.close()  # without draining: the test may have killed the broker
