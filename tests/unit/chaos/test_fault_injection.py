"""A named point inside the broker's work, and the call at which the process dies."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toymq_chaos.fault_injection import CLOCK_BYTES, CLOCK_VARIABLE, POINT_VARIABLE, Point

PROGRAM = """
import os, sys
from toymq_chaos.fault_injection import install
install()
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
for n in range(3):
    os.pwrite(fd, b"x", n)
"""
CLOCK_PROGRAM = """
import time
from toymq_chaos.fault_injection import install
real = time.time_ns()
install()
print(time.time_ns() - real)
"""


@pytest.mark.parametrize("point", [Point("commit", 3, after=True), Point("recovery", 1, after=False)], ids=str)
def test_a_point_is_read_as_it_is_written(point: Point) -> None:
    assert Point.parse(str(point)) == point


@pytest.mark.parametrize("text", ["nowhere/1/after", "commit/1/during", "commit/x/after", "commit"])
def test_an_invalid_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|values to unpack"):
        Point.parse(text)


@pytest.mark.parametrize(
    ("point", "written"), [("commit/2/before", 1), ("commit/2/after", 2), ("commit/9/after", 3), ("roll/1/after", 3)]
)
def test_the_process_dies_at_its_point(tmp_path: Path, point: str, written: int) -> None:
    log = tmp_path / f"{0:020}.log"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], env={POINT_VARIABLE: point}, check=False)
    assert done.returncode == (-signal.SIGKILL if written < 3 else 0)
    assert log.read_bytes() == b"x" * written


def test_the_clock_is_ahead_by_what_the_file_says(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes((10**18).to_bytes(CLOCK_BYTES, "little", signed=True))
    environment = {CLOCK_VARIABLE: str(clock)}
    done = subprocess.run([sys.executable, "-c", CLOCK_PROGRAM], env=environment, check=True, capture_output=True)
    assert 10**18 <= int(done.stdout) < 10**18 + 60 * 10**9
