"""A broker with ``--workers N`` under test: its worker processes, and changes of their number."""

import asyncio
import itertools
import os
import random
import re
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from toymq.broker_process import READY_S, TOYMQ
from toymq.sockets import reserved_port
from toymq_chaos import fault_injection
from toymq_chaos.fault_injection import Point
from toymq_chaos.supervisor import BrokerFailed, Supervisor
from toymq_chaos.workload import Client
from toymq_py.errors import ConnectionLost
from toymq_py.protocol import Ping

ANSWER_S = 10.0
STEPS = 30
"""``toymq workers --set`` is killed at one of so many next calls, then again from where it goes on."""


class WorkerSupervisor(Supervisor):
    """Runs ``toymq serve --workers N`` again and again. Between two runs the number of workers may change, and the data
    directory is divided anew among them."""

    def __init__(self, data_dir: Path, log: Path, clock: Path, options: Sequence[str], workers: int) -> None:
        """``workers``: the largest number of workers in any run."""
        super().__init__(data_dir, log, clock, options)
        self.port = reserved_port(self, workers + 1)
        self.workers = 0
        self._pids: dict[int, int] = {}
        self._expected: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._over = asyncio.Event()
        self.surprises: list[str] = []
        """Workers that ended by themselves."""

    @property
    def ports(self) -> list[int]:
        """The port that all workers share, and the port of each worker."""
        return [self.port + at for at in range(self.workers + 1)]

    async def start_workers(self, workers: int, *options: str) -> None:
        """Start the broker and wait until all workers are ready. Raises: BrokerFailed."""
        self.workers = workers
        self._pids.clear()
        self._expected.clear()
        self._over = asyncio.Event()
        loop, over = asyncio.get_running_loop(), self._over
        try:
            self.launch("--workers", str(workers), *options)
        except OSError as error:
            raise BrokerFailed(f"the broker cannot be executed: {error.strerror}") from None
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None

        def hear() -> None:
            for line in stdout:
                loop.call_soon_threadsafe(self._heard, line)
            loop.call_soon_threadsafe(over.set)  # no process has the pipe any more

        threading.Thread(target=hear, name="toymq-chaos workers", daemon=True).start()
        try:
            async with asyncio.timeout(READY_S):
                for worker in range(workers):
                    await self._ready(worker)
        except TimeoutError:
            raise BrokerFailed(f"not all workers were ready after {READY_S:.0f} s") from None
        self.ready_line = "ready"

    def _heard(self, line: str) -> None:
        """Note a worker that the broker's output line reports as ready."""
        found = re.search(r"/workers/(\d+)\b.*\(pid (\d+)\)$", line)
        assert found is not None, line
        worker = int(found[1])
        self._pids[worker] = int(found[2])
        if self._expected[worker].is_set():
            self.surprises.append(f"worker {worker} has ended by itself")
        self._expected[worker].set()

    async def _ready(self, worker: int) -> None:
        """Wait until a worker is ready. Raises: BrokerFailed when it never will be."""
        ready = asyncio.ensure_future(self._expected[worker].wait())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((ready, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            ready.cancel()
        if not self._expected[worker].is_set():
            code = await self.ended()
            raise BrokerFailed(f"the workers did not start, exit code {code}: {self.last_line()}")

    async def answers(self, worker: int) -> None:
        """Wait until a worker answers a PING, and so has accepted all earlier connections: these die with it and do not wait
        for its successor."""
        client = Client("supervisor.1")
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", self.port + 1 + worker)
                await client.ask(Ping())
        except (OSError, ConnectionLost, TimeoutError):
            return
        finally:
            if hasattr(client, "transport"):
                client.transport.abort()

    def pid_of(self, worker: int) -> int:
        """The process id of a worker that has been ready."""
        return self._pids[worker]

    def signal_worker(self, worker: int, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self._expected[worker].clear()
        with suppress(ProcessLookupError):  # it ended by itself, and its successor says so
            os.kill(self._pids[worker], number)

    async def replaced(self, worker: int) -> None:
        """Wait until the successor of a killed worker is ready. Raises: BrokerFailed, TimeoutError."""
        async with asyncio.timeout(READY_S):
            await self._ready(worker)

    async def ended(self) -> int:
        """Wait until the supervisor and all its workers have exited. Returns: the supervisor's exit code."""
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
            await self._over.wait()
        return await super().ended()

    async def divide(self, workers: int, rng: random.Random) -> int:
        """Divide the stopped broker's directory among ``workers`` workers; the command is killed again and again until it
        succeeds. Returns: the number of kills.

        Raises: BrokerFailed.
        """
        command = [*TOYMQ, "workers", str(self.data_dir), "--set", str(workers)]
        for kills in itertools.count():
            point = Point("division", rng.randint(1, STEPS), after=rng.random() < 0.5)
            environment = {**os.environ, **self.environment, fault_injection.POINT_VARIABLE: str(point)}
            done = await asyncio.to_thread(
                subprocess.run, command, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return kills
            if done.returncode != -signal.SIGKILL:
                raise BrokerFailed(f"toymq workers --set {workers}: {(done.stderr or done.stdout).strip()}")
        raise AssertionError
