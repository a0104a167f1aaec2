"""Faults inside the broker's process: SIGKILL at a named point or with the harness, and a wall clock that jumps.

The broker's code is unchanged: ``sitecustomize`` wraps functions of ``os`` and ``time``. This runs only in brokers that the
harness starts.
"""

import functools
import mmap
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

POINT_VARIABLE = "TOYMQ_CHAOS_POINT"
CLOCK_VARIABLE = "TOYMQ_CHAOS_CLOCK"
PARENT_VARIABLE = "TOYMQ_CHAOS_PARENT"
"""The process id of the harness: the broker dies with it."""
CLOCK_BYTES = 8
"""The file that the clock variable names holds nanoseconds to add, signed, little endian."""

PR_SET_PDEATHSIG = 1
CALLS = ("open", "pwrite", "pread", "fdatasync", "fsync", "ftruncate", "replace", "unlink", "mkdir", "rmdir")
"""Functions of ``os`` at which the process can die."""


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the broker's work, such as the commit, recognised by the ``os`` function that it calls and the path."""

    calls: tuple[str, ...]
    path: str
    """A regular expression for the path."""
    within: int
    """The number of first calls at one of which a seed kills."""


PLACES = {
    "commit": Place(("pwrite", "fdatasync"), r"\d{20}\.log$", 300),
    "roll": Place(("ftruncate", "replace"), r"\d{20}\.log$|next-\d+\.tmp$", 12),
    "seal": Place(("open", "pwrite", "fdatasync", "replace"), r"\.idx\.tmp$", 12),
    "flush": Place(("pwrite", "fdatasync", "replace"), r"offsets\.json", 60),
    "retention": Place(("unlink",), r"\d{20}\.(log|idx)$", 6),
    "recovery": Place(CALLS, r"/topics/|LOCK$", 40),
    "division": Place(("pwrite", "fdatasync", "fsync", "replace", "unlink", "mkdir", "rmdir"), r"/workers|/topics/", 12),
}
SERVING = tuple(name for name in PLACES if name != "division")
"""The places in a broker that serves; the other one is in ``toymq workers --set``."""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment at which the broker is killed: before or after the n-th call (from 1) at a place."""

    place: str
    nth: int
    after: bool

    def __str__(self) -> str:
        return f"{self.place}/{self.nth}/{'after' if self.after else 'before'}"

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Parse a point. Raises: ValueError."""
        place, nth, side = text.split("/")
        if place not in PLACES or side not in ("after", "before"):
            raise ValueError(f"invalid point {text!r}: write PLACE/N/before or PLACE/N/after")
        return cls(place, int(nth), side == "after")


class _Mortality:
    """Counts the calls at a place, and kills the process at its point."""

    def __init__(self, point: Point) -> None:
        self._place = PLACES[point.place]
        self._path = re.compile(self._place.path)
        self._left = point.nth
        self._after = point.after
        self._paths: dict[int, str] = {}  # by descriptor
        self._lock = threading.Lock()

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def mortal(target: Any, *arguments: Any, **options: Any) -> Any:
            strikes = name in self._place.calls and self._strikes(target)
            if strikes and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(target, *arguments, **options)
            if name == "open":
                self._paths[result] = os.fspath(target)
            if strikes:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return mortal

    def _strikes(self, target: Any) -> bool:
        path = self._paths.get(target, "") if isinstance(target, int) else os.fspath(target)
        if self._path.search(str(path)) is None:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0


def _die_with(parent: int) -> None:
    """SIGKILL this process when its parent ends. Linux only: elsewhere a broker may outlive a killed harness."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Install the faults that environment variables name; do nothing without such variables."""
    if (parent := os.environ.get(PARENT_VARIABLE)) and sys.platform == "linux":
        _die_with(int(parent))
    if point := os.environ.get(POINT_VARIABLE):
        mortality = _Mortality(Point.parse(point))
        for name in CALLS:
            if hasattr(os, name):
                setattr(os, name, mortality.wrap(name, getattr(os, name)))
    if path := os.environ.get(CLOCK_VARIABLE):
        with open(path, "rb") as file:  # noqa: PTH123 (pathlib would be imported by every process)
            shared = mmap.mmap(file.fileno(), CLOCK_BYTES, access=mmap.ACCESS_READ)
        real = time.time_ns  # noqa: TID251 (the clock that is bent)

        def bent() -> int:
            return real() + int.from_bytes(shared[:CLOCK_BYTES], "little", signed=True)

        time.time_ns = bent  # noqa: TID251
        time.time = lambda: bent() / 1e9  # noqa: TID251
