"""Measures the limit of the disk itself, in the same run and directory as a broker."""

import os
import time
from pathlib import Path

RECORD_OVERHEAD_BYTES = 40
"""About the overhead of a record beside payload and key."""
FILE_BYTES_MAX = 1 << 30
"""Size of the file, which is then overwritten from its start."""
GROUP = 1024
"""Records per commit, as with perfect batching."""


def records_per_commit(outstanding: int) -> int:
    """The number of records per group commit to assume: one when clients have one unanswered publish, else ``GROUP``."""
    return 1 if outstanding == 1 else GROUP


def records_per_s(directory: Path, record_bytes: int, records_per_commit: int, seconds: float) -> float:
    """Measure how many records per second the disk takes with one pwrite and one fdatasync per commit.

    The Python loop adds about 2 µs per commit, little beside a real disk. Raises: OSError.
    """
    path = directory / "disk-limit.tmp"
    data = b"x" * (record_bytes * records_per_commit)
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    try:
        commits = position = 0
        began = now = time.perf_counter()
        while now - began < seconds:
            if position + len(data) > FILE_BYTES_MAX:
                position = 0
            position += os.pwrite(descriptor, data, position)
            os.fdatasync(descriptor)
            commits += 1
            now = time.perf_counter()
        return commits * records_per_commit / (now - began)
    finally:
        os.close(descriptor)
        path.unlink()
