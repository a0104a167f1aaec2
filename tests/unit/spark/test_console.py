"""Which output of Spark's processes is shown, and how a job ends when it is told to; a shell replaces the JVM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import TIMEOUT_S, environment
from toymq_spark.console import _ENDED, _STARTED, Console

BROKEN = b"""Traceback (most recent call last):
  File "pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = BROKEN.replace(b"BrokenPipeError: [Errno 32] Broken pipe", b"ValueError: no")


def shown_of(*said: bytes) -> bytes:
    console = Console()
    return b"".join(console.take(part) for part in (_STARTED, *said))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"records 3 to 4 are gone\n", b"records 3 to 4 are gone\n"),
        (BROKEN + b"more\n", b"more\n"),
        (OTHER + b"more\n", OTHER + b"more\n"),
        (OTHER + BROKEN[:40] + b"\n" + _ENDED + BROKEN[40:], OTHER),
        (OTHER[:60] + b"\n" + BROKEN, OTHER[:60] + b"\n"),
        (BROKEN.replace(b"daemon", b"mine"), BROKEN.replace(b"daemon", b"mine")),
    ],
    ids=["a warning", "a worker that is not needed any more", "another traceback", "at the end", "two of them", "a user's"],
)
def test_what_is_left_of_what_workers_say(said: bytes, shown: bytes) -> None:
    assert shown_of(said) == shown_of(*said.splitlines(keepends=True)) == shown


def test_what_was_said_before_the_end_is_handed_on_before_it() -> None:
    program = "from toymq_spark.console import Console; import os; c = Console()\nwith c.starting(): pass\n"
    program += "for n in range(2000): os.write(c._pipe, b'x' * 50 + b'\\n')\nc.drain(); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=True)
    assert done.stderr == (b"x" * 50 + b"\n") * 2000


def test_when_nobody_reads_any_more_nobody_waits() -> None:
    """Found: the output pump died, and a worker blocked in its write."""
    program = "from toymq_spark.console import Console; import os; c = Console()\nwith c.starting(): pass\n"
    program += "for n in range(2000): os.write(c._pipe, b'x' * 500 + b'\\n')\nprint('done')"
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=write, timeout=TIMEOUT_S, check=False)
    finally:
        os.close(write)
    assert done.stdout == b"done\n"


def test_how_a_jvm_starts_is_told_only_if_it_does_not() -> None:
    console = Console()
    with console.starting():
        command = "echo WARNING: incubator modules >&2; echo 'Error: Master must be yarn' >&2; printf rest >&2"
        subprocess.run(["sh", "-c", command], check=True)
    assert console.last_words() is None, "it has started"
    console = Console()
    console.take(b"WARN NativeCodeLoader\n" + b'Exception in thread "main" org.apache.spark.SparkException: no such master\n')
    assert console.last_words() == "no such master"


PROGRAM = """
import logging, signal, subprocess, sys
from toymq_spark.console import Console, Ending

console = Console()
ending = Ending(console)
with console.starting():
    script = 'trap "echo late words >&2; echo removed > $0; exit" TERM; echo first >&2; echo up; while :; do sleep 0.05; done'
    jvm = subprocess.Popen(["sh", "-c", script, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    jvm.stdout.readline()
ending.watch(jvm)
print("ready", flush=True)
try:
    signal.pause()
finally:
    logging.exception("what follows from it")
    print("more of it", file=sys.stderr)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_job_that_is_told_to_end_says_nothing(number: int, code: int, tmp_path: Path) -> None:
    """Found: the job ended with code 1 and up to 1,215 lines, because it called the JVM in the middle of another call."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "jvm")], env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        os.kill(job.pid, number)
        _, said = job.communicate(timeout=TIMEOUT_S)
    assert (job.returncode, said) == (code, "")
    assert (tmp_path / "jvm").read_text() == "removed\n", "the JVM was told, and waited for"
