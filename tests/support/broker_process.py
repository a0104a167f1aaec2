"""A real broker in a process of its own, and a connection that sends and receives bytes."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tests.support import forked_broker
from tests.support.forked_broker import ForkedBroker, can_fork
from toymq import broker_process
from toymq_py.build import FROM_SOURCE

COMMAND = list(broker_process.TOYMQ)
TIMEOUT_S = 120
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Return environment variables with which subprocesses find the packages, whether they are installed or not."""
    paths = [str(ROOT), str(ROOT / "clients"), str(ROOT / "chaos"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(*arguments: str, timeout_s: float = TIMEOUT_S, executed: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run a ``toymq`` command to its end. ``executed``: start it by exec, never forked."""
    if not executed and can_fork(environment()):
        return forked_broker.run(forked_broker.TOYMQ, *arguments, environment=environment(), timeout_s=timeout_s)
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def run_program(
    program: str, folder: Path, *, preloaded: tuple[str, ...], warnings: str = "error"
) -> "subprocess.CompletedProcess[str]":
    """Run a Python program to its end, in a folder."""
    if can_fork(environment()):
        return forked_broker.run(
            program, environment=environment(), timeout_s=TIMEOUT_S, folder=folder, preloaded=preloaded, warnings=warnings
        )
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", program], env=environment(), cwd=folder,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


class BrokerProcess(broker_process.BrokerProcess):
    """A ``toymq serve`` on a free port. A context manager, which kills the broker at its end."""

    def __init__(
        self, data_dir: Path | str, *options: str, descriptors: int | None = None, executed: bool = False
    ) -> None:
        """``descriptors``: how many file descriptors the process may have. ``executed``: start it by exec, never forked. After
        a restart the broker listens on the same port."""
        self._executed = executed
        self._descriptors = descriptors
        limited = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *COMMAND]
        super().__init__(
            data_dir,
            # fewer connections than by default, so that 4,096 descriptors are enough for them: else the broker warns
            "--min-free-bytes", "0", "--max-connections", "1000", *options,
            program=COMMAND if descriptors is None or self._forks() else limited, environment=environment(),
        )  # fmt: skip

    def _forks(self) -> bool:
        return not self._executed and can_fork(environment())

    def _popen(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        count = len(COMMAND)
        if command[:count] == COMMAND and not self._executed and can_fork(environment):
            forked = ForkedBroker(command[count:], environment, self._log.fileno(), descriptors=self._descriptors)
            return cast("subprocess.Popen[str]", forked)
        return super()._popen(command, environment)

    def terminate(self) -> None:
        """Send SIGTERM, without waiting."""
        self.signal(signal.SIGTERM)

    def hang_up(self) -> None:
        """Send SIGHUP: the broker reads its files again."""
        self.signal(signal.SIGHUP)

    def said(self) -> str:
        """The broker's stderr so far."""
        log = self._log.fileno()
        return os.pread(log, os.fstat(log).st_size, self._log_start).decode()

    def ended(self) -> tuple[int, str]:
        """Wait for the broker's end, also after ``stop``. Returns: exit code and stderr, without the line that says that the
        tests run from source."""
        code = self.wait(TIMEOUT_S)
        return code, "".join(line for line in self.stderr.splitlines(keepends=True) if FROM_SOURCE not in line)

    def restart(self, *, kill: bool = True) -> None:
        if kill:
            self.kill()
        else:
            assert self.stop() == 0
        self.start()

    def connect(self, tls: ssl.SSLContext | None = None) -> "Wire":
        """Connect to the broker; with ``tls`` to its TLS port."""
        return Wire(self.port) if tls is None else Wire(self.tls_port, tls)

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 (a count)


class Wire:
    """A blocking connection that sends bytes and reads lines."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        """The next line without its newline; b"" at the end of the stream."""
        return self._reader.readline().removesuffix(b"\n")

    def follow(self, transcript: str) -> None:
        """Play a transcript of a documentation page: send the lines that begin with "> ". Raises: AssertionError when the
        answers differ from the other lines."""
        for line in transcript.splitlines():
            if line.startswith("> "):
                self.send(line[2:].encode() + b"\n")
            else:
                assert self.line().decode() == line[2:]

    def read(self, count: int) -> bytes:
        return self._reader.read(count)

    def ask(self, data: bytes) -> bytes:
        """Send a command and read one line."""
        self.send(data)
        return self.line()

    def message(self) -> tuple[int, int, bytes]:
        """Read the next line, which must be a MSG, as (id, attempt, body)."""
        line = self.line()
        tokens = line.split(b" ")
        assert tokens[0] == b"MSG", f"a delivery was expected, not {line!r}"
        body = self.read(int(tokens[6]))
        assert self.read(1) == b"\n", "a body is followed by a newline"
        return int(tokens[2]), int(tokens[3]), body

    def nothing_before_pong(self) -> None:
        """Check that nothing was pushed: the next line is the answer to PING. (Deliveries to this session that are due are
        written before it.)"""
        answer = self.ask(b"PING\n")
        assert answer == b"PONG", f"nothing was expected, {answer!r} came"

    def at_end(self) -> bool:
        return self._reader.read(1) == b""

    def close(self) -> None:
        self._reader.close()
        self.socket.close()
