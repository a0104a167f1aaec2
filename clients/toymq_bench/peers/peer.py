"""The interface of a broker for the runner, and the life of its server process."""

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
    """A port without a listener now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Read until what came contains ``end``. Raises: WrongReply at the end of the stream; TimeoutError."""
    data = b""
    while end not in data:
        more = connection.recv(READ_BYTES)
        if not more:
            raise WrongReply(f"the connection was closed after {data[-200:].decode(errors='replace')!r}")
        data += more
    return data


class Peer(ABC):
    """A server of its own on a fresh directory and a free port. A context manager; what is left is killed."""

    name: ClassVar[str]
    program: ClassVar[str]
    """The executable; where it is not installed, the peer is skipped."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def installed(cls) -> str | None:
        """The path of its program; None where it is not there."""
        return shutil.which(cls.program)

    def __enter__(self) -> "Peer":
        """Raises: BenchError when it does not start; OSError."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.directory, env={**os.environ, **self.environment()}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.perf_counter() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() > deadline:
                self.__exit__()
                said = (self.directory / "log").read_text(errors="replace").strip().splitlines()
                raise BenchError(f"{self.name} did not start: {said[-1] if said else 'it said nothing'}")
            time.sleep(RETRY_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it with all that it started: nothing of it is kept."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pids(self) -> list[int]:
        """The server and its descendants: CPU time and memory are counted over all of them."""
        assert self._process is not None
        return process.family(self._process.pid)

    def connect(self) -> socket.socket:
        """Raises: OSError."""
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
        """Promise of its reply to a publish, in the mode that is started here."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Command line of the server, with its data below ``directory``."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables of the server, on top of our own."""
        return {}

    @abstractmethod
    def ready(self) -> None:
        """Ask for a sign of life. Raises: OSError, WrongReply."""

    @abstractmethod
    def create(self, topic: str) -> None:
        """Make a queue, stream or topic, where that is needed."""

    @abstractmethod
    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        """A connection that is ready to publish; payloads begin with the send time."""

    @abstractmethod
    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        """Connections that together are one consumer and ack each message by itself."""


class CountingProducer:
    """``frames.Producing`` for wires with a token that stands in each reply once."""

    def __init__(self, frame: bytes, window: int, token: bytes, wrong: bytes) -> None:
        """``wrong``: a pattern that only errors match."""
        self.template = Template([frame] * min(window, BLOCK))
        self._token = token
        self._wrong = re.compile(wrong)
        self._tail = b""

    def replies(self, data: bytes) -> int:
        """Raises: WrongReply."""
        data = self._tail + data
        if self._wrong.search(data) is not None:
            raise WrongReply(f"a publish was answered with: {data[-200:].decode(errors='replace')!r}")
        # Too short for a whole token, so nothing is counted twice.
        self._tail = data[max(len(data) - len(self._token) + 1, 0) :]
        return data.count(self._token)
