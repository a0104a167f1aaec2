"""Children that notice the death of their parent."""

import signal
import subprocess
import sys

import pytest

from tests.support.broker_process import environment
from toymq_py.forking import how_it_ended

PROGRAM = r"""
import os, select, sys
from toymq_py.forking import LifeLine, fork
line = LifeLine()
def child(lives):
    os.write(1, b"lives\n")
    select.select([lives], [], [], 60)
    os.write(1, b"orphaned\n")
    return 0
for _ in range(2):
    fork(child, line)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def test_each_child_sees_that_its_parent_was_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["lives\n"] * 2
        said, _ = parent.communicate(timeout=30)
    assert said == "orphaned\n" * 2
    assert parent.returncode == -signal.SIGKILL


def test_a_bug_and_an_exit_have_their_codes() -> None:
    program = """
import os
from toymq_py.forking import LifeLine, fork
line = LifeLine()
def bug(lives): raise KeyError("a bug")
def leave(lives): raise SystemExit(7)
print(*(os.waitstatus_to_exitcode(os.waitpid(fork(run, line), 0)[1]) for run in (bug, leave)))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.stdout == "4 7\n"
    assert "KeyError" in ended.stderr


@pytest.mark.parametrize(("code", "said"), [(-9, "was ended by SIGKILL"), (3, "has exited with 3")])
def test_how_it_ended(code: int, said: str) -> None:
    assert how_it_ended(code) == said


def test_a_program_ends_with_its_standard_input_and_keeps_its_signals() -> None:
    program = """
import signal
from toymq_py.forking import end_with_parent
end_with_parent()
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "set()\n"
        child.communicate("what is read does not end it", timeout=30)
    assert child.returncode == -signal.SIGKILL
