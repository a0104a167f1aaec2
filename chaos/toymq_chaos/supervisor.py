"""The broker under test, as the harness's event loop drives it: its process, its fault points and its clock."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from toymq.broker_process import BrokerProcess, StartFailed
from toymq_chaos import fault_injection
from toymq_chaos.fault_injection import Point
from toymq_py.errors import LocalError


class BrokerFailed(LocalError):
    """The broker did not start, exited by itself, or refused a command that it has to accept."""


class Supervisor(BrokerProcess):
    """Runs ``toymq serve`` again and again, on one data directory and one port."""

    def __init__(self, data_dir: Path, log: Path, clock: Path, options: Sequence[str]) -> None:
        """
        Args:
            log: the file that the broker's stderr is appended to.
            clock: the file that shifts the broker's wall clock (``fault_injection``).
        """
        site = str(Path(fault_injection.__file__).with_name("site"))
        environment = {
            fault_injection.CLOCK_VARIABLE: str(clock),
            fault_injection.PARENT_VARIABLE: str(os.getpid()),
            "PYTHONPATH": os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")])),
        }
        super().__init__(data_dir, *options, log=log, environment=environment)
        self._clock = clock
        clock.write_bytes(bytes(fault_injection.CLOCK_BYTES))

    @property
    def ports(self) -> list[int]:
        """The ports on which the broker accepts connections."""
        return [self.port]

    async def come_up(self, point: Point | None, *options: str) -> bool:
        """Start the broker. Returns: False when it was killed at its kill ``point`` before it was ready.

        Raises: BrokerFailed when it cannot be executed, exited in another way, or was not ready in time.
        """
        self.environment.pop(fault_injection.POINT_VARIABLE, None)
        if point is not None:
            self.environment[fault_injection.POINT_VARIABLE] = str(point)
        try:
            self.launch(*options)
        except OSError as error:
            raise BrokerFailed(f"the broker cannot be executed: {error.strerror}") from None
        reading = asyncio.ensure_future(asyncio.to_thread(self.read_ready_line))
        try:
            self.take_ready_line(await asyncio.shield(reading))
        except asyncio.CancelledError:
            self.signal(signal.SIGKILL)
            await reading  # a thread that polls a pipe which another one closes waits for its whole time limit
            raise
        except StartFailed as error:
            if point is not None and self.returncode == -signal.SIGKILL:
                return False
            raise BrokerFailed(str(error)) from None
        return True

    async def ended(self) -> int:
        """Wait until the broker exits, for whatever reason. Returns: the exit code, at once when it does not run."""
        process = self._process
        if process is not None:
            await asyncio.to_thread(process.wait)
            if process is self._process:  # otherwise another waiting task was first
                self.wait()
        return self.returncode

    def set_clock(self, ahead_ns: int) -> None:
        """Set the broker's wall clock ahead of the harness's, also in later lives."""
        with self._clock.open("r+b") as file:
            file.write(ahead_ns.to_bytes(fault_injection.CLOCK_BYTES, "little", signed=True))
