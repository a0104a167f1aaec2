"""Drivers that archive into a table are killed, or paused while another one goes on: every record is there once. No Spark."""

import os
import random
import select
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.spark.conftest import WAIT_S
from tests.support.broker_process import environment
from tests.support.tables import KINDS, ROWS, ids

BATCHES = 6
STOPS = 4
WITHIN_S = 0.3
"""A batch takes 50 to 200 ms on a machine that is not busy: a driver is stopped at any moment of one."""
HELD_UP = 0.3
"""Share of drivers that are not killed, but go on when another has done their work."""


class Drivers:
    """Processes of ``tests.support.tables``."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout.fileno()
        self._rest = b""
        self._said: dict[int, list[str]] = defaultdict(list)

    def start(self, kind: str, place: Path, checkpoint: Path) -> int:
        known = set(self._said)
        self._to.write(f"{kind} {place} {checkpoint} {BATCHES}\n".encode())
        self._to.flush()
        while not set(self._said) - known:
            assert self._read(WAIT_S), "it did not start"
        (pid,) = set(self._said) - known
        return pid

    def wait(self, pid: int, batches: int, more_s: float) -> bool:
        """Wait for some batches of a driver and a time. Returns: whether it has ended."""
        while self._said[pid].count("archived") < batches and not self._ended(pid):
            assert self._read(WAIT_S), f"it hangs: {self._said[pid]}"
        while not self._ended(pid) and self._read(more_s):
            pass
        return self._ended(pid)

    def _ended(self, pid: int) -> bool:
        assert not [said for said in self._said[pid] if said.startswith("failed")], self._said[pid]
        return "ended" in self._said[pid] or self.locked(pid)

    def locked(self, pid: int) -> bool:
        """Return whether a driver gave up because a paused one holds the lock of Iceberg's catalog."""
        return self._said[pid][-1].startswith("locked")

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._from], [], [], timeout_s)[0]:
            return False
        *lines, self._rest = (self._rest + os.read(self._from, 1 << 16)).split(b"\n")
        for line in lines:
            pid, _, said = line.decode().partition(" ")
            self._said[int(pid)].append(said)
        return True


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    with running() as found:
        yield found


@contextmanager
def running() -> Iterator[Drivers]:
    words = [sys.executable, "-m", "tests.support.tables"]
    with subprocess.Popen(
        words, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield Drivers(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def stopped_and_resumed(kind: str, seed: int, drivers: Drivers, tmp_path: Path) -> None:
    rng = random.Random(seed)
    place, checkpoint = tmp_path / f"table-{seed}", tmp_path / f"done-{seed}"
    held_up = []
    for _ in range(STOPS):
        pid = drivers.start(kind, place, checkpoint)
        if drivers.wait(pid, rng.randrange(2), rng.uniform(0, WITHIN_S)):
            if not drivers.locked(pid):
                break
            go_on(held_up)
            continue
        if rng.random() < HELD_UP:
            os.kill(pid, signal.SIGSTOP)
            held_up.append(pid)
        else:
            os.kill(pid, signal.SIGKILL)
    while drivers.wait(last := drivers.start(kind, place, checkpoint), BATCHES, WAIT_S) and drivers.locked(last):
        go_on(held_up)
    assert ids(kind, place) == list(range(BATCHES * ROWS)), f"seed {seed}"
    go_on(held_up)
    for pid in held_up:
        assert drivers.wait(pid, BATCHES, WAIT_S)
    assert ids(kind, place) == list(range(BATCHES * ROWS)), f"seed {seed}: drivers that come late changed something"


def go_on(held_up: list[int]) -> None:
    for pid in held_up:
        with suppress(ProcessLookupError):  # it went on before, and has ended
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", KINDS[:1])
def test_drivers_that_are_killed_or_held_up(kind: str, drivers: Drivers, tmp_path: Path) -> None:
    """The short form of the torture test below."""
    stopped_and_resumed(kind, 2, drivers, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_drivers_that_are_killed_or_held_up_by_seed(kind: str, seed: int, drivers: Drivers, tmp_path: Path) -> None:
    stopped_and_resumed(kind, seed, drivers, tmp_path)
