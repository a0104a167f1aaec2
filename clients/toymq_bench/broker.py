"""The broker that is measured: one that this harness starts, or one that runs already."""

import os
import resource
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from toymq import sync
from toymq.broker_process import BrokerProcess
from toymq_bench import process
from toymq_bench.errors import BenchError


def connect(host: str, port: int) -> socket.socket:
    """Raises: OSError."""
    connection = socket.create_connection((host, port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Broker:
    """A broker that runs already: its address and its process."""

    def __init__(self, host: str, port: int, pid: int) -> None:
        """Raises: BenchError when there is no such process."""
        process.require_proc(pid)
        self.host = host
        self.port = port
        self.pid = pid
        self.data_dir: Path | None = None
        """None: unknown."""

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """A broker that this harness did not start stays."""

    def connect(self) -> socket.socket:
        return connect(self.host, self.port)

    def client(self) -> sync.Client:
        """A blocking client, for requests that are not measured."""
        return sync.connect(f"toymq://{self.host}:{self.port}", timeout_s=60)

    def stats(self) -> dict[str, Any]:
        with self.client() as client:
            return client.stats()

    def cpu_s(self) -> float:
        return process.cpu_s([self.pid])

    def rss_bytes(self) -> int:
        return process.rss_bytes([self.pid])


class StartedBroker(Broker):
    """``toymq serve`` on a directory of its own, which goes when the context is left."""

    def __init__(self, parent: Path, options: Sequence[str], source: Path | None = None) -> None:
        """
        Args:
            source: a checkout to run the broker of, instead of the installed one.

        Raises: StartFailed; OSError.
        """
        self._root = Path(tempfile.mkdtemp(prefix="toymq-bench-", dir=parent))
        checkout = {} if source is None else {"PYTHONPATH": os.pathsep.join([str(source), str(source / "clients")])}
        self._process = BrokerProcess(self._root / "data", *options, log=self._root / "log", environment=checkout)
        try:
            self._process.start()
            super().__init__("127.0.0.1", self._process.port, self._process.pid)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.data_dir = self._process.data_dir

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def http_port(self) -> int:
        """Port of the gateway. Assumes ``--http`` among the options."""
        return int(self._process.http.rstrip("/").rpartition(":")[2])

    def start(self) -> None:
        """Again, after ``stop`` or ``kill``. Raises: StartFailed; OSError."""
        self._process.start()
        self.pid = self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()

    def stop(self) -> None:
        """SIGTERM, and wait. Raises: BenchError when it does not end."""
        try:
            self._process.stop()
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the broker did not end within {error.timeout:.0f} s") from None


def allow_descriptors(count: int) -> None:
    """Raise the limit of descriptors of this process and its children. Raises: BenchError when the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise BenchError(f"{count} descriptors are needed and the hard limit is {hard}: raise it with ulimit -Hn")
    if soft != resource.RLIM_INFINITY and count > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
