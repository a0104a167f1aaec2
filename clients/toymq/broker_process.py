"""A broker in its own process: start it, wait until it is ready, signal it, restart it on the same port.

The pytest fixtures, the demos, the benchmark, the chaos harness and this repository's tests launch ``toymq serve`` with it.
This module does not speak toymq's protocol.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Self

from toymq import arguments
from toymq.sockets import reserved_port
from toymq_py.errors import BadArgument, LocalError

TOYMQ = (sys.executable, "-P", "-c", "from toymq_py.cli import main; main(prog_name='toymq')")
"""The command ``toymq`` of this interpreter. ``-P``: sources in the working directory do not replace the installed ones."""
TOYMQ_WITH_PARENT = (*TOYMQ[:3], f"from toymq_py.forking import end_with_parent; end_with_parent(); {TOYMQ[3]}")
"""The same command, which is killed when the process that has started it as a ``BrokerProcess`` is gone, however that ended."""
READY_S = 60.0
"""The time after which a start has failed: longer than the recovery of a large directory on a busy machine."""
Option = str | int | float | os.PathLike[str]
STOP_S = 60.0
"""The time for a shutdown, longer than any takes."""


class StartFailed(LocalError, RuntimeError):
    """The broker exited before it was ready, or was not ready in time."""


def _ports(options: Sequence[str]) -> int:
    """Return how many consecutive ports a broker with these options listens on: ``--workers N`` takes N + 1 (ADR 0177)."""
    count = dict(pairwise(options)).get("--workers", "")
    return int(count) + 1 if count.isdecimal() else 1  # toymq itself says what is wrong


def _word(option: object) -> str:
    """Convert an option to a word of the command line. Raises: TypeError, BadArgument."""
    if isinstance(option, bool) or not isinstance(option, str | int | float | os.PathLike):
        raise TypeError(f"an option is a text, a number or a path, \"--max-payload\", 1024 say, not {arguments.shown(option)}")
    word = str(option)
    if "\0" in word:
        raise BadArgument(f"no option has a null character, as {arguments.shown(word)} has")
    return word


def _path(data_dir: object) -> Path:
    """Check the path of a data directory. Raises: TypeError, BadArgument."""
    text = f"data_dir is a path, tmp_path / \"data\" say, not {arguments.shown(data_dir)}"
    if not isinstance(data_dir, str | os.PathLike):
        raise TypeError(text)
    if not str(data_dir) or "\0" in str(data_dir):
        raise BadArgument(text)
    return Path(data_dir)


def serve_command(data_dir: Path | str, listen: str, *options: str, program: Sequence[str] = TOYMQ) -> list[str]:
    return [*program, "serve", "--data-dir", str(data_dir), "--listen", listen, *options]


class BrokerProcess:
    """``toymq serve`` on one data directory and one port of 127.0.0.1. As a context manager it starts the broker, and kills it
    at the end.

    The broker's stderr goes to a file, since a full pipe would block the broker. An instance belongs to one thread.
    """

    def __init__(
        self,
        data_dir: os.PathLike[str] | str,
        *options: Option,
        log: Path | None = None,
        program: Sequence[str] = TOYMQ,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            options: of ``toymq serve``, for example ``"--max-payload", "1MiB"``, ``"--workers", 2``.
            log: the file that stderr is appended to; a temporary file by default.
            program: the command to run instead of ``toymq``.
            environment: variables on top of this process's own. The user's ``toymq.toml`` is never read.

        Raises: TypeError, BadArgument.
        """
        self.data_dir = _path(data_dir)
        self.options = list(map(_word, options))
        self.program = program
        self.environment = {"TOYMQ_CONFIG": os.devnull, **(environment or {})}
        self.port = reserved_port(self, _ports(self.options))
        self.ready_line = ""
        """The line that it printed when it was ready; empty while it does not run."""
        self.returncode = 0
        """Exit code of the last process; -N when signal N ended it."""
        self.stderr = ""
        """Stderr of the last process, once it has ended."""
        self._log_file = log
        self._log: IO[bytes]
        self._log_start = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- where it listens

    @property
    def url(self) -> str:
        """The broker's URL for ``toymq.connect`` and ``toymq.sync.connect``."""
        return f"toymq://127.0.0.1:{self.port}"

    @property
    def addresses(self) -> list[str]:
        """The addresses in the broker's ready line, that of toymq's own protocol first; empty while the broker does not run."""
        return self.ready_line.partition(" ready")[0].split()[1:]

    @property
    def http(self) -> str:
        """URL of the gateway, ending with a slash; empty without ``--http``."""
        return next((address for address in self.addresses if address.startswith("http://") and address.endswith("/")), "")

    @property
    def https(self) -> str:
        """URL of the gateway with TLS; empty without ``--https``."""
        return next((address for address in self.addresses if address.startswith("https://")), "")

    @property
    def tls_port(self) -> int:
        """Port of toymq's protocol over TLS; 0 when the broker has none."""
        return next((int(address.rpartition(":")[2]) for address in self.addresses if address.startswith("toymqs://")), 0)

    @property
    def amqp(self) -> str:
        """URL for AMQP clients; empty without ``--amqp``."""
        return next((address for address in self.addresses if address.startswith("amqp://")), "")

    @property
    def amqps(self) -> str:
        """URL for AMQP clients with TLS; empty without ``--amqps``."""
        return next((address for address in self.addresses if address.startswith("amqps://")), "")

    # -- its life

    @property
    def pid(self) -> int:
        """The broker's process id. Raises: ProcessLookupError when it does not run."""
        if self._process is None:
            raise ProcessLookupError("the broker does not run: start() it")
        return self._process.pid

    def start(self, *options: Option) -> None:
        """Start the broker, with extra options, and wait until it accepts connections. Raises: StartFailed, OSError."""
        self.launch(*options)
        self.take_ready_line(self.read_ready_line())

    def launch(self, *options: Option) -> None:
        """Start the broker without waiting until it is ready. Raises: StartFailed when it runs already, OSError."""
        if self._process is not None:
            if self._process.poll() is None:
                raise StartFailed(f"the broker runs already, process {self._process.pid}: stop() or restart() it")
            self.wait()  # it ended by itself
        words = [*self.options, *map(_word, options)]
        command = serve_command(self.data_dir, f"127.0.0.1:{self.port}", *words, program=self.program)
        self._log = tempfile.TemporaryFile() if self._log_file is None else self._log_file.open("a+b")  # noqa: SIM115 (see wait)
        self._log_start = self._log.seek(0, os.SEEK_END)
        try:
            self._process = self._popen(command, {**os.environ, **self.environment})
        except BaseException:
            self._log.close()
            raise

    def _popen(self, command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        watched = pipe if self.program == TOYMQ_WITH_PARENT else None
        return subprocess.Popen(command, env=environment, stdin=watched, stdout=pipe, stderr=self._log, text=True)

    def read_ready_line(self) -> str | None:
        """Wait for the line on stdout by which the broker says that it is ready. Changes no state, so any thread may call it.

        Returns: the line; "" when the broker exited; None when it was not ready after ``READY_S`` seconds.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.readline() if selector.select(READY_S) else None

    def take_ready_line(self, line: str | None) -> None:
        """Take the addresses from the broker's ready line. Raises: StartFailed, with the last line of stderr, for any other
        line."""
        if line is None:
            self.kill()
            raise StartFailed(f"the broker was not ready after {READY_S:.0f} s: {self.last_line()}")
        if " ready" not in line:
            self.wait()
            raise StartFailed(f"the broker did not start: {self.last_line()}")
        self.ready_line = line
        self.port = int(self.addresses[0].rpartition(":")[2])  # of a --listen among the options

    def signal(self, number: signal.Signals) -> None:
        """Send the broker a signal, for example SIGSTOP, SIGCONT, SIGHUP. Without effect when the process is gone."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Wait until the broker exits. Returns: its exit code, at once when it does not run. Raises:
        subprocess.TimeoutExpired."""
        if self._process is not None:
            self.returncode = self._process.wait(timeout_s)
            assert self._process.stdout is not None
            self._process.stdout.close()
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None
            self.ready_line = ""
            with self._log:
                self._log.seek(self._log_start)
                self.stderr = self._log.read().decode(errors="replace")
        return self.returncode

    def kill(self) -> None:
        """Kill the broker with SIGKILL and wait until it is gone: unsynced data may be lost. Without effect when it does not
        run."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Send the broker SIGTERM and wait for its orderly shutdown. Returns: its exit code. Raises:
        subprocess.TimeoutExpired."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def restart(self) -> None:
        """Kill the broker and start it again. Raises: StartFailed, OSError."""
        self.kill()
        self.start()

    def last_line(self) -> str:
        """The last line of the broker's stderr, or its exit code if there is no line: usually why it exited."""
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else f"exit code {self.returncode}, nothing on stderr"
