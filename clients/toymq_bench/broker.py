"""The broker that is measured: one that this harness starts, or one that runs already."""

import json
import os
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from toymq import sync
from toymq.broker_process import READY_S, BrokerProcess
from toymq_bench import process
from toymq_bench.errors import BenchError


def connect(host: str, port: int) -> socket.socket:
    """Open a TCP connection to a broker. Raises: OSError."""
    connection = socket.create_connection((host, port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _patiently(host: str, port: int) -> socket.socket:
    """Connect to a worker, which may still be starting. Raises: OSError."""
    until = time.perf_counter() + READY_S
    while True:
        try:
            return connect(host, port)
        except ConnectionRefusedError:
            if time.perf_counter() > until:
                raise
        time.sleep(0.02)


class Broker:
    """A running broker: its address and its process."""

    def __init__(self, host: str, port: int, pid: int) -> None:
        """Find the broker's process. Raises: BenchError when there is no such process."""
        process.require_proc(pid)
        self.host = host
        self.port = port
        self.pid = pid
        self.data_dir: Path | None = None
        """None: unknown."""
        self.workers = False
        """It is several processes."""

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Do nothing: a broker that this harness did not start keeps running."""

    def connect(self, topic: str | None = None) -> socket.socket:
        """Connect to the broker; with several workers, to the one that has ``topic``. Raises: OSError."""
        connection = connect(self.host, self.port)
        if topic is None or not self.workers:
            return connection
        connection.sendall(b"CLUSTER moved=1\nDESCRIBE %b\n" % topic.encode())
        connection.shutdown(socket.SHUT_WR)
        with connection, connection.makefile("rb") as replies:
            _, cluster, described = replies.read().split(b"\n")[:3]
        here = json.loads(cluster)
        moved = described.startswith(b"ERR MOVED ")
        host, _, port = (described.split()[2].decode() if moved else here["workers"][here["worker"]][0]).rpartition(":")
        return _patiently(host, int(port))

    def client(self) -> sync.Client:
        """Connect a blocking client, for requests that are not measured."""
        return sync.connect(f"toymq://{self.host}:{self.port}", timeout_s=60)

    def stats(self) -> dict[str, Any]:
        with self.client() as client:
            return client.stats()

    def cpu_s(self) -> float:
        return process.cpu_s(process.family(self.pid))

    def rss_bytes(self) -> int:
        return process.rss_bytes(process.family(self.pid))


class StartedBroker(Broker):
    """A ``toymq serve`` on a directory of its own, which is removed at the end of the context."""

    def __init__(self, parent: Path, options: Sequence[str], source: Path | None = None) -> None:
        """
        Args:
            source: a checkout whose broker is run instead of the installed one.

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
        self.workers = "--workers" in options

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def http_port(self) -> int:
        """Port of the gateway. Assumes ``--http`` among the options."""
        return int(self._process.http.rstrip("/").rpartition(":")[2])

    def start(self) -> None:
        """Start the broker again, after ``stop`` or ``kill``. Raises: StartFailed; OSError."""
        self._process.start()
        self.pid = self._process.pid

    def kill(self) -> None:
        """Kill the broker with SIGKILL, and wait until it is gone."""
        self._process.kill()

    def stop(self) -> None:
        """Stop the broker with SIGTERM, and wait until it is gone. Raises: BenchError when it does not end."""
        try:
            self._process.stop()
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the broker did not end within {error.timeout:.0f} s") from None


def allow_descriptors(count: int) -> None:
    """Raise the limit of file descriptors, for this process and its children, to ``count``. Raises: BenchError when the hard
    limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise BenchError(f"{count} descriptors are needed and the hard limit is {hard}: raise it with ulimit -Hn")
    if soft != resource.RLIM_INFINITY and count > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
