"""The limit of the disk itself, measured in the same run and directory as a broker."""

import os
import time
from pathlib import Path

RECORD_OVERHEAD_BYTES = 40
"""About what a record adds to its payload and key."""
FILE_BYTES_MAX = 1 << 30
"""The file grows to here and is then overwritten from its beginning."""
GROUP = 1024
"""Records of one commit: what a broker with no protocol and perfect batching would have."""


def records_per_commit(outstanding: int) -> int:
    """Records of the commits that the limit is measured with: a client with one outstanding publish gets one each."""
    return 1 if outstanding == 1 else GROUP


def records_per_s(directory: Path, record_bytes: int, records_per_commit: int, seconds: float) -> float:
    """Records a second that one pwrite and one fdatasync per commit reach, over and over.

    The loop is Python's: it adds about 2 µs to each commit, nothing beside a real disk. Raises: OSError.
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
