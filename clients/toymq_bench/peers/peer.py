"""The interface of a peer (a broker to compare with) to the runner, and its server process."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from toymq_bench import process
from toymq_bench.broker import connect
from toymq_bench.errors import BenchError, WrongReply
from toymq_bench.frames import BLOCK, Consuming, Producing, Template

HOST = "127.0.0.1"
READY_S = 90.0
RETRY_S = 0.02
READ_BYTES = 1 << 16


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Read until the data contains ``end``. Raises: WrongReply at the end of the stream; TimeoutError."""
    data = b""
    while end not in data:
        more = connection.recv(READ_BYTES)
        if not more:
            raise WrongReply(f"the connection was closed after {data[-200:].decode(errors='replace')!r}")
        data += more
    return data


class Peer(ABC):
    """A server on a new directory and a free port. As a context manager it starts the server, and kills it at the end."""

    name: ClassVar[str]
    program: ClassVar[str]
    """The executable; the peer is skipped when it is not installed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()  # the server runs in it, so a relative path would be another one there
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def installed(cls) -> str | None:
        """Return the path of the server's program; None when it is not installed."""
        return shutil.which(cls.program)

    def __enter__(self) -> "Peer":
        """Start the server and wait until it answers. Raises: BenchError when it does not start; OSError."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.directory, env={**os.environ, **self.environment()}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.perf_counter() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() > deadline:
                self.__exit__()
                output = (self.directory / "log").read_text(errors="replace").strip().splitlines()
                raise BenchError(f"{self.name} did not start: {output[-1] if output else 'no output'}")
            time.sleep(RETRY_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the server and all its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pids(self) -> list[int]:
        """Process ids of the server and its descendants, for CPU time and memory."""
        assert self._process is not None
        return process.family(self._process.pid)

    def connect(self) -> socket.socket:
        """Open a TCP connection to the server. Raises: OSError."""
        return connect(HOST, self.port)

    def _answers(self) -> bool:
        try:
            self.ready()
        except (OSError, WrongReply):
            return False
        return True

    @property
    @abstractmethod
    def durability(self) -> str:
        """What the server's reply to a publish guarantees, in the mode used here."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The server's command line, which puts its data below ``directory``."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables for the server, added to those of this process."""
        return {}

    @abstractmethod
    def ready(self) -> None:
        """Check that the server answers. Raises: OSError, WrongReply."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Create a queue, stream or topic, if needed."""

    @abstractmethod
    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        """Open a publishing connection; its payloads begin with the send time."""

    @abstractmethod
    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        """Open the connections of one consumer, which acks each message separately."""


class CountingProducer:
    """Implements ``frames.Producing`` for wire formats in which one token occurs exactly once per reply."""

    def __init__(self, frame: bytes, window: int, token: bytes, wrong: bytes) -> None:
        """``token``: occurs once in each reply; ``wrong``: a pattern that only errors match."""
        self.template = Template([frame] * min(window, BLOCK))
        self._token = token
        self._wrong = re.compile(wrong)
        self._tail = b""

    def replies(self, data: bytes) -> int:
        """Count the replies in the received bytes. Raises: WrongReply."""
        data = self._tail + data
        if self._wrong.search(data) is not None:
            raise WrongReply(f"a publish was answered with: {data[-200:].decode(errors='replace')!r}")
        # Too short for a whole token, so nothing is counted twice.
        self._tail = data[max(len(data) - len(self._token) + 1, 0) :]
        return data.count(self._token)
