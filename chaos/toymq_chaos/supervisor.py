"""The broker's process: started, stopped, killed, frozen. The broker is the ``toymq`` beside this interpreter."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from toymq.sockets import reserved_port
from toymq_chaos import fault_injection
from toymq_chaos.fault_injection import Point
from toymq_py.errors import LocalError

READY_S = 60.0
"""Longer than any recovery that the harness causes, on a machine that has other things to do."""
TELLTALE_BYTES = 2000


class BrokerFailed(LocalError):
    """The broker did not start, or ended although nobody had touched it."""


def find_toymq() -> Path:
    """Raises: BrokerFailed when no ``toymq`` is installed beside this interpreter."""
    path = Path(sys.executable).with_name("toymq")
    if not path.is_file():
        raise BrokerFailed(f"there is no toymq beside {sys.executable}: install toymq_py into the same environment")
    if not os.access(path, os.X_OK):
        raise BrokerFailed(f"{path} may not be executed")
    return path


class BrokerProcess:
    """One ``toymq serve`` after the other, on one data directory."""

    def __init__(self, data_dir: Path, log: Path, clock: Path, options: Sequence[str]) -> None:
        """
        Args:
            log: its stderr is appended there.
            clock: the file that bends its wall clock (``fault_injection``).
        """
        self.port: int | None = None
        """Where it listens; None while it does not."""
        self.returncode = 0
        """How the last process ended: minus the signal that killed it."""
        self.address = f"127.0.0.1:{reserved_port(self)}"
        """Of all of them: who was connected may connect again."""
        self._command = [str(find_toymq()), "serve", "--data-dir", str(data_dir), "--listen", self.address]
        self._options = options
        self._log = log
        self._clock = clock
        clock.write_bytes(bytes(fault_injection.CLOCK_BYTES))
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Assumes that it was started."""
        assert self._process is not None
        return self._process.pid

    async def start(self, point: Point | None, *options: str) -> bool:
        """Start it. Returns whether it listens: False when it died at its ``point`` before.

        Raises: BrokerFailed when it cannot be executed, ended in another way, or did not come up.
        """
        self._process = None
        environment = {
            **os.environ,
            fault_injection.CLOCK_VARIABLE: str(self._clock),
            fault_injection.PARENT_VARIABLE: str(os.getpid()),
            "TOYMQ_CONFIG": os.devnull,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(Path(fault_injection.__file__).with_name("site")), os.environ.get("PYTHONPATH")])
            ),
        }
        if point is not None:
            environment[fault_injection.POINT_VARIABLE] = str(point)
        with self._log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, *self._options, *options, env=environment, stdout=asyncio.subprocess.PIPE, stderr=log
                )
            except OSError as error:
                raise BrokerFailed(f"{self._command[0]} cannot be executed: {error.strerror}") from None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_S):
                line = (await self._process.stdout.readline()).decode()
        except asyncio.CancelledError:
            self.signal(signal.SIGKILL)
            raise
        except TimeoutError:
            self.signal(signal.SIGKILL)
            raise BrokerFailed(f"the broker was not ready after {READY_S:.0f} s") from None
        if " ready" not in line:
            await self.ended()
            if point is not None and self.returncode == -signal.SIGKILL:
                return False
            raise BrokerFailed(f"the broker did not start: {self.telltale()}")
        self.port = int(line.split()[1].rpartition(":")[2])
        return True

    async def ended(self) -> int:
        """Wait for its end, whoever causes it; returns the code. At once when there is none."""
        if self._process is not None:
            self.returncode = await self._process.wait()
        self.port = None
        return self.returncode

    def signal(self, number: signal.Signals) -> None:
        """No error when it is gone already, or never was.

        Not by asyncio's ``send_signal``: that looks first whether the process has ended, and what it finds out, the event loop
        never hears of: it makes up the code 255.
        """
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def set_clock(self, ahead_ns: int) -> None:
        """Its wall clock is so far ahead of ours from now on, also in its next lives."""
        with self._clock.open("r+b") as file:
            file.write(ahead_ns.to_bytes(fault_injection.CLOCK_BYTES, "little", signed=True))

    def telltale(self) -> str:
        """The last line that it wrote to stderr."""
        lines = self._log.read_bytes()[-TELLTALE_BYTES:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.returncode}, and not a word"
