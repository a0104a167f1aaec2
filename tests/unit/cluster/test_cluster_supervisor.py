"""The parent of a node's process. Each test forks a program of its own, with a node of a few lines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.broker_process import environment
from toymq_py.clock import SystemClock

PROGRAM = """
import os, signal, sys, time
from toymq_py.clock import SystemClock
from toymq_py.cluster.supervisor import Supervisor

def node(lives):
    log = open(sys.argv[1], "a")
    count = len(open(sys.argv[1]).readlines())
    log.write(f"{os.getpid()}\\n")
    log.flush()
%s

sys.exit(Supervisor(node, print, SystemClock()).supervise())
"""
WITHIN_S = 30.0


def start(tmp_path: Path, *node: str) -> "subprocess.Popen[str]":
    """Start a supervisor. ``node``: the node's program; in it ``count`` is the number of earlier nodes, and ``lives`` the
    descriptor."""
    body = "\n".join(f"    {line}" for line in node)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM % body, str(tmp_path / "log")], env=environment(), stdout=subprocess.PIPE, text=True
    )


def pids(tmp_path: Path, count: int) -> list[int]:
    """Return the process ids of the nodes, once there are so many."""
    until = SystemClock.monotonic() + WITHIN_S
    while SystemClock.monotonic() < until:
        found = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        if len(found) >= count:
            return list(map(int, found))
        time.sleep(0.02)
    raise AssertionError(f"no {count} nodes")


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_a_node_whose_term_has_ended_starts_again_and_a_stopped_one_does_not(tmp_path: Path) -> None:
    with start(tmp_path, "return 3 if count < 2 else 0") as supervisor:
        said, _ = supervisor.communicate(timeout=WITHIN_S)
    assert supervisor.returncode == 0
    assert said.count("leads no longer") == 2
    assert len(pids(tmp_path, 3)) == 3


def test_a_node_that_cannot_be_started_ends_it(tmp_path: Path) -> None:
    with start(tmp_path, "return 2") as supervisor:
        supervisor.communicate(timeout=WITHIN_S)
    assert supervisor.returncode == 2
    assert len(pids(tmp_path, 1)) == 1


def test_a_bug_and_a_signal_start_it_again(tmp_path: Path) -> None:
    node = ("if not count: raise KeyError('a bug')", "if count == 1: os.kill(os.getpid(), signal.SIGKILL)", "return 0")
    with start(tmp_path, *node) as supervisor:
        said, _ = supervisor.communicate(timeout=WITHIN_S)
    assert "has exited with 4" in said
    assert "was ended by SIGKILL" in said
    assert supervisor.returncode == 0


def test_signals_reach_the_node_and_end_the_supervisor(tmp_path: Path) -> None:
    node = (
        "hung = []",
        "signal.signal(signal.SIGHUP, lambda *_: hung.append(1))",
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if hung else 9))",
        "log.write('ready\\n'.replace('ready', '1'))",
        "log.flush()",
        "while True: time.sleep(0.02)",
    )
    with start(tmp_path, *node) as supervisor:
        pids(tmp_path, 2)
        supervisor.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=WITHIN_S)
    assert supervisor.returncode == 0, "the node had both signals, in this order"


def test_a_hang_up_ends_a_node_that_reads_nothing_again(tmp_path: Path) -> None:
    """Without options to reload, SIGHUP means that the terminal is gone: the node must not be started again."""
    with start(tmp_path, "time.sleep(60)") as supervisor:
        pids(tmp_path, 1)
        time.sleep(0.2)
        supervisor.send_signal(signal.SIGHUP)
        supervisor.communicate(timeout=WITHIN_S)
    assert supervisor.returncode == 0
    assert len(pids(tmp_path, 1)) == 1


def test_a_killed_supervisor_is_noticed(tmp_path: Path) -> None:
    node = ("os.read(lives, 1)", "os._exit(0)")
    with start(tmp_path, *node) as supervisor:
        (pid,) = pids(tmp_path, 1)
        assert runs(pid)
        supervisor.kill()
        supervisor.communicate(timeout=WITHIN_S)
        until = SystemClock.monotonic() + WITHIN_S
        while runs(pid) and SystemClock.monotonic() < until:
            time.sleep(0.02)
        assert not runs(pid)


def test_a_node_has_a_process_group_of_its_own(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to its whole process group. The supervisor passes it on, and two signals would end a node at
    once."""
    with start(tmp_path, "time.sleep(60)") as supervisor:
        (pid,) = pids(tmp_path, 1)
        time.sleep(0.1)
        assert os.getpgid(pid) == pid
        supervisor.terminate()
        supervisor.communicate(timeout=WITHIN_S)
