"""Samples of a broker's resources: memory, descriptors, tasks, threads, disk. One line of ``soak.jsonl`` each.

Reads them from ``/proc``, STATS and the data directory; ``leaks`` judges them.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from toymq_py.errors import DamagedData, LocalError

BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """One sample of the broker's resources.

    ``t_s``: seconds since the start. ``round_number``: 0 is the warm-up. ``disk_bytes``: allocated by the data directory. The
    ping times are those since the previous sample; None if there were none.
    """

    t_s: float
    round_number: int
    at_rest: bool
    rss_bytes: int
    descriptors: int
    tasks: int
    threads: int
    disk_bytes: int
    ping_p50_s: float | None
    ping_p99_s: float | None
    connections: int
    topics: int
    publish_total: int

    def to_json(self) -> str:
        """The sample as one line of JSON."""
        return json.dumps(asdict(self))


_NAMES = {field.name for field in fields(Vitals)}


def parse(line: str, number: int) -> Vitals:
    """Parse a line of ``soak.jsonl``. Raises: DamagedData, with the line's number."""
    try:
        found: dict[str, Any] = json.loads(line)
        return Vitals(**{name: value for name, value in found.items() if name in _NAMES})
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedData(f"line {number} of the samples: {error}") from None


def take(
    pid: int, data_dir: Path, stats: dict[str, Any], pings_s: Iterable[float], *, t_s: float, round_number: int, at_rest: bool
) -> Vitals:
    """Take a sample; ``stats`` is a fresh answer to STATS.

    Raises: OSError when the process is gone; LocalError where there is no ``/proc``.
    """
    pings = sorted(pings_s)
    return Vitals(
        t_s=round(t_s, 3),
        round_number=round_number,
        at_rest=at_rest,
        rss_bytes=_rss_bytes(pid),
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        tasks=stats["tasks"],
        threads=sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()),
        disk_bytes=disk_bytes(data_dir),
        ping_p50_s=percentile(pings, 50),
        ping_p99_s=percentile(pings, 99),
        connections=stats["connections"],
        topics=len(stats["topics"]),
        publish_total=stats["publish_total"],
    )


def require_proc() -> None:
    """Check that the machine has ``/proc``. Raises: LocalError."""
    if not Path("/proc/self/statm").exists():
        raise LocalError("a soak reads the broker's resources from /proc, which this system does not have")


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(directory: Path) -> int:
    """Allocated bytes below a directory; files may vanish meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            with suppress(FileNotFoundError):
                total += os.stat(path).st_blocks * BLOCK_BYTES  # noqa: PTH116 (a string is what there is)
    return total


def percentile(ascending: Sequence[float], percent: int) -> float | None:
    """Return a percentile of ascending values; None without values."""
    return ascending[(len(ascending) - 1) * percent // 100] if ascending else None
