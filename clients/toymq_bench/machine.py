"""Facts of the machine that a measurement ran on."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from toymq_py.protocol import ServerConnection


def facts(directory: Path) -> dict[str, Any]:
    """Facts of this machine, the file system of a directory, this Python and this checkout; no host name."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "file_system": _file_system(directory),
        "python": platform.python_version(),
        "build": build(),
        "commit": _commit(),
    }


def line(facts: dict[str, Any]) -> str:
    """The facts in one line."""
    return (
        f"{facts['date']}, {facts['cores']} x {facts['cpu']}, Linux {facts['kernel']}, {facts['file_system']}, "
        f"Python {facts['python']} ({facts.get('build', 'as source')}), commit {facts['commit'] or 'unknown'}"
    )


def build() -> str:
    """Whether this interpreter's broker is compiled, and its accelerators (``make fast``; ADR 0015)."""
    compiled = not hasattr(ServerConnection.next_commands, "__code__")
    return ("compiled" if compiled else "as source") + (", zlib_ng" if find_spec("zlib_ng") else "")


def _cpu_model() -> str:
    for found in Path("/proc/cpuinfo").read_text().splitlines():
        if found.startswith("model name"):
            return found.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """Type of the file system, by the longest mount point above the directory."""
    best, kind = "", "unknown"
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        _, point, of_type, *_ = mount.split(" ")
        if len(point) >= len(best) and directory.resolve().is_relative_to(point):
            best, kind = point, of_type
    return kind


def _commit() -> str | None:
    """Commit of the checkout of this file; with ``+`` when a file is changed. None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
