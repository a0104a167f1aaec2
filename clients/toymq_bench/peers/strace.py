"""Counts the fsync calls of processes with strace."""

import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from toymq_bench.errors import BenchError

CALLS = ("fsync", "fdatasync", "msync", "sync_file_range")
END_S = 30.0


class SyncCounter:
    """Runs ``strace -c`` on running processes. A context manager; ``syncs``, the count, is set at its end.

    strace slows the processes down: do not measure a rate at the same time. It does not see syncs by O_DSYNC and io_uring.
    """

    def __init__(self, pids: Sequence[int], directory: Path) -> None:
        self.syncs = 0
        self._out = directory / "strace"
        attach = [word for pid in pids for word in ("-p", str(pid))]
        self._command = ["strace", "-c", "-f", "-o", str(self._out), "-e", f"trace={','.join(CALLS)}", *attach]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SyncCounter":
        """Start strace. Raises: BenchError when strace is not installed or may not attach."""
        if shutil.which("strace") is None:
            raise BenchError("--strace needs strace, which is not installed")
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if "attached" not in line:
            self._process.kill()
            self._process.communicate()
            raise BenchError(f"strace did not attach: {line.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=END_S)
        self.syncs = count(self._out.read_text())


def count(summary: str) -> int:
    """Return the sum of the sync calls in the output of ``strace -c``."""
    found = re.findall(rf"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(?:{'|'.join(CALLS)})$", summary, re.MULTILINE)
    return sum(map(int, found))
