"""The broker that is measured: one that this harness starts, or one that runs already."""

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from toymq import sync
from toymq_bench import process
from toymq_bench.errors import BenchError
from toymq_chaos.supervisor import find_toymq

STOP_S = 60.0
"""Longer than any shutdown; then it is killed."""


def connect(host: str, port: int) -> socket.socket:
    """Raises: OSError."""
    connection = socket.create_connection((host, port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Broker:
    """An address and a process. As it is: a broker that somebody else runs."""

    def __init__(self, host: str, port: int, pid: int) -> None:
        """Raises: BenchError when there is no such process."""
        process.require_proc(pid)
        self.host = host
        self.port = port
        self.pid = pid
        self.data_dir: Path | None = None
        """None: somewhere that we do not know."""

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """A broker of somebody else stays."""

    def connect(self) -> socket.socket:
        return connect(self.host, self.port)

    def client(self) -> sync.Client:
        """For all that is not measured."""
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
            source: a checkout whose broker is to run instead of the installed one.

        Raises: BenchError when it does not start; OSError.
        """
        self._root = Path(tempfile.mkdtemp(prefix="toymq-bench-", dir=parent))
        self._options = options
        self._source = source
        self._process: subprocess.Popen[str] | None = None
        self.http_port = 0
        """Of the gateway, with ``--http`` among the options."""
        try:
            super().__init__("127.0.0.1", *self._launch())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.data_dir = self._root / "data"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def start(self) -> None:
        """Again, after ``stop`` or ``kill``."""
        self.port, self.pid = self._launch()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and wait. Raises: BenchError when it does not end."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the broker did not end within {STOP_S:.0f} s") from None
        self._process = None

    def _launch(self) -> tuple[int, int]:
        """Port and pid."""
        environment = dict(os.environ)
        toymq = [str(find_toymq())]
        if self._source is not None:  # not the script: it names a module that an older commit may not have
            toymq = [sys.executable, "-P", "-c", "from toymq_py.cli import main; main()"]
            environment["PYTHONPATH"] = os.pathsep.join([str(self._source), str(self._source / "clients")])
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*toymq, "serve", "--data-dir", str(self._root / "data"), "--listen", "127.0.0.1:0", *self._options],
                env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if " ready" not in line:
            self._process.wait()
            said = (self._root / "log").read_text(errors="replace").strip().splitlines()
            raise BenchError(f"the broker did not start: {said[-1] if said else 'it said nothing'}")
        words = line.split()
        http = next((word for word in words if word.startswith("http://") and word.endswith("/")), None)  # not the metrics
        self.http_port = int(http.rstrip("/").rpartition(":")[2]) if http is not None else 0
        return int(words[1].rpartition(":")[2]), self._process.pid


def allow_descriptors(count: int) -> None:
    """For this process and what it starts. Raises: BenchError when the machine does not give so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and count > hard:
        raise BenchError(f"{count} descriptors are needed and the hard limit is {hard}: raise it with ulimit -Hn")
    if soft != resource.RLIM_INFINITY and count > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
