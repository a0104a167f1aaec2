"""The harness leaves nothing behind, however it ends, and prints in one line what it cannot do."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.shares import one_in
from toymq_chaos.supervisor import BrokerFailed, Supervisor

CHAOS = Path(sys.executable).with_name("toymq-chaos")
PATIENCE_S = 60.0


def until(true: Callable[[], bool]) -> None:
    give_up = time.perf_counter() + PATIENCE_S
    while not true():
        assert time.perf_counter() < give_up, "it never happened"


def brokers(out: Path) -> list[str]:
    """Return the command lines of the brokers that have their data below a folder."""
    found = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if str(out) in line and " serve --data-dir " in line]


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "out"
    yield path
    if (path / "data").is_mount():
        subprocess.run(["umount", "-l", path / "data"], check=True)


def begin(out: Path, command: str) -> "subprocess.Popen[str]":
    """Start a harness, and wait until its broker is up. It is in a session of its own: no other process signals the broker."""
    harness = subprocess.Popen(
        [CHAOS, command, "--seed", "1", "--duration", "600s", "--out", out],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell that started us in the background ignores it
    )  # fmt: skip
    until(lambda: (bool(brokers(out)) and (out / "data").exists()) or harness.poll() is not None)
    return harness


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("run", signal.SIGTERM), ("soak", signal.SIGINT),
        pytest.param("run", signal.SIGINT, marks=pytest.mark.torture),
        pytest.param("soak", signal.SIGTERM, marks=pytest.mark.torture),
    ],
)  # fmt: skip
def test_a_harness_that_is_told_to_end_cleans_up(out: Path, command: str, number: signal.Signals) -> None:
    harness = begin(out, command)
    harness.send_signal(number)
    _, stderr = harness.communicate(timeout=PATIENCE_S)
    assert harness.returncode == 128 + number, stderr
    assert stderr.splitlines()[-1] == f"toymq-chaos: ended by {number.name}"
    assert not brokers(out)
    assert not (out / "data").is_mount()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the broker is left behind")
@pytest.mark.parametrize("command", ["run", pytest.param("soak", marks=pytest.mark.torture)])
def test_the_broker_dies_with_a_harness_that_is_killed(out: Path, command: str) -> None:
    harness = begin(out, command)
    harness.kill()
    harness.communicate(timeout=PATIENCE_S)
    until(lambda: not brokers(out))
    again = subprocess.run([CHAOS, command, "--out", out], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert again.returncode == 2
    (said,) = [line for line in again.stderr.splitlines() if line.startswith("toymq-chaos: ")]
    mounted = (out / "data").is_mount()
    why = "still mounted: umount it" if mounted else "the data directory of an earlier run exists: choose another --out"
    assert said.startswith(f"toymq-chaos: {out / 'data'}: ")
    assert said.endswith(why)


@one_in(3)
async def test_a_signal_that_comes_when_the_broker_has_just_died_does_not_hide_how(tmp_path: Path, share: int) -> None:
    """asyncio's ``send_signal`` first checks whether the process has ended, which takes the exit status away from the event
    loop; the loop then reports 255."""
    broker = Supervisor(tmp_path / "d", tmp_path / "log", tmp_path / "clock", [])
    for n in range(0, 8, share):
        assert await broker.come_up(None)
        os.kill(broker.pid, signal.SIGKILL)
        until_s = time.perf_counter() + n * 0.001
        while time.perf_counter() < until_s:
            pass
        broker.signal(signal.SIGKILL)
        assert await broker.ended() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [(0o644, "the broker cannot be executed: Permission denied"), (0o755, "the broker cannot be executed: No such file")],
)
async def test_a_broker_that_cannot_be_executed_is_one_line(tmp_path: Path, mode: int, complaint: str) -> None:
    (tmp_path / "toymq").write_text("#!/no/such/python\n")
    (tmp_path / "toymq").chmod(mode)
    broker = Supervisor(tmp_path / "d", tmp_path / "log", tmp_path / "clock", [])
    broker.program = [str(tmp_path / "toymq")]
    with pytest.raises(BrokerFailed, match=complaint):
        await broker.come_up(None)
    assert await broker.ended() == 0, "there is none"


async def test_a_start_that_is_given_up_leaves_no_broker(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    (tmp_path / "toymq").write_text(f'#!/bin/sh\necho $$ > "{pid}"\nexec sleep 600\n')
    (tmp_path / "toymq").chmod(0o755)
    broker = Supervisor(tmp_path / "d", tmp_path / "log", tmp_path / "clock", [])
    broker.program = [str(tmp_path / "toymq")]
    async with asyncio.TaskGroup() as tasks:
        start = tasks.create_task(broker.come_up(None))
        never_ready = int(await asyncio.to_thread(pid.read_text))
        start.cancel()
    await broker.ended()
    with pytest.raises(ProcessLookupError):
        os.kill(never_ready, 0)
