"""pytest fixtures: a real broker for the tests of whoever uses one. Loaded by pytest itself, once ``toymq`` is installed.

The broker is a process of its own, as in production: it can be killed and started again under the code that is tested. It
starts in about a quarter of a second, on a free port and in a directory that goes with the test.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import toymq
from toymq import sync
from toymq.sockets import reserved_port

STOP_S = 10.0
SERVE = (sys.executable, "-c", "from toymq_py.cli import main; main()", "serve")


class BrokerUnderTest:
    """``toymq serve``. It listens on the same port again after ``start``, and data stays until the test is over."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        """
        Args:
            data_dir: made by the broker.
            options: of ``toymq serve``, for example ``"--max-payload", "1MiB"``.
        """
        self.data_dir = data_dir
        self.port = reserved_port(self)
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For ``toymq.connect`` and ``toymq.sync.connect``."""
        return f"toymq://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it accepts connections. Raises: RuntimeError with what it said, when it does not come up."""
        command = [*SERVE, "--config", os.devnull]  # the user's toymq.toml is not for a test
        command += ["--data-dir", str(self.data_dir), "--listen", f"127.0.0.1:{self.port}", "--min-free-bytes", "0"]
        log = self.data_dir.with_name(self.data_dir.name + ".log")
        with log.open("ab") as errors:
            self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()  # it says one line, when it is ready
        if " ready" not in line:
            self.kill()
            raise RuntimeError(f"the broker did not start: {line}{log.read_text(errors='replace')}")
        self.port = int(line.split()[1].rpartition(":")[2])  # of another --listen in the options

    def kill(self) -> None:
        """SIGKILL: what was not on the disk is gone. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait until it has written everything. Raises: subprocess.TimeoutExpired."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=STOP_S)
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()


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
def toymq_client(toymq_broker: BrokerUnderTest) -> toymq.Client:
    """An asyncio client of that broker, to be entered by the test, in the test's own event loop: ``async with
    toymq_client as mq``.
    """
    return toymq.connect(toymq_broker.url)


@pytest.fixture
def toymq_sync_client(toymq_broker: BrokerUnderTest) -> Iterator[sync.Client]:
    """A blocking client of that broker, connected."""
    client = sync.connect(toymq_broker.url)
    try:
        yield client
    finally:
        client.close()  # without draining: the test may have killed the broker
