"""CPU seconds and resident memory of processes, from ``/proc``."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from toymq_bench.errors import BenchError

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def require_proc(pid: int) -> None:
    """Check that ``/proc`` has the process. Raises: BenchError when there is no /proc, or no such process."""
    if not Path("/proc/self/stat").exists():
        raise BenchError("CPU time and memory are read from /proc, which this system does not have")
    if not Path(f"/proc/{pid}/stat").exists():
        raise BenchError(f"process {pid} does not exist: write the broker's process id as --pid")


def cpu_s(pids: Iterable[int]) -> float:
    """Return user and system CPU seconds of the processes that still run, in steps of 10 ms."""
    ticks = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def rss_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory, in bytes, of the processes that still run."""
    pages = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE_BYTES


def family(pid: int) -> list[int]:
    """Return the process ids of a process and its descendants."""
    found = [pid]
    for parent in found:  # grows while it is walked
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found
