"""Facts of the machine that a measurement ran on."""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from toymq_py import build


def facts(directory: Path) -> dict[str, Any]:
    """Return facts about this machine, the file system of a directory, this Python and this checkout, without a host name."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "file_system": _file_system(directory),
        "python": platform.python_version(),
        "build": build.describe(),
        "wheel": wheel(),
        "commit": _commit(),
    }


def line(facts: dict[str, Any]) -> str:
    """Format the facts as one line."""
    origin = f", {facts['wheel']}" if facts.get("wheel") else ""
    return (
        f"{facts['date']}, {facts['cores']} x {facts['cpu']}, Linux {facts['kernel']}, {facts['file_system']}, "
        f"Python {facts['python']} ({facts.get('build', 'as source')}{origin}), commit {facts['commit'] or 'unknown'}"
    )


def wheel() -> str | None:
    """The wheel from which toymq was installed, as ``NAME sha256:DIGEST`` (16 digits); None for an editable installation.

    A wheel that came from a package index has no digest: pip records none for it (PEP 610).
    """
    installed = distribution("toymq")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return None
    tags = re.findall(r"^Tag: (.+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    name = f"toymq-{installed.version}-{tags[0] if tags else 'unknown'}.whl"
    digest = origin.get("archive_info", {}).get("hashes", {}).get("sha256")
    return f"{name} sha256:{digest[:16]}" if digest else name


def _cpu_model() -> str:
    for found in Path("/proc/cpuinfo").read_text().splitlines():
        if found.startswith("model name"):
            return found.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The type of the file system that a directory is on, by the longest mount point above it."""
    best, kind = "", "unknown"
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        _, point, of_type, *_ = mount.split(" ")
        if len(point) >= len(best) and directory.resolve().is_relative_to(point):
            best, kind = point, of_type
    return kind


def _commit() -> str | None:
    """The git commit of the checkout that contains this file, with ``+`` when a file is changed; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
