"""Return freed heap to the OS after many connections close.

Ten thousand connections take a hundred MiB. They free all of it, but nearly none would go back: the interpreter's allocator
returns only whole arenas of a MiB, and some hundred small objects that the interpreter and the loop cache for reuse are
scattered over all of them. Owns all calls of the allocators; of connections it knows only their number.
"""

import asyncio
import ctypes
import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

KEPT_OBJECTS = 600
"""More objects than any free list holds: uvloop caches 250 objects of a kind, asyncio 255."""
KEPT_CALLS = 32
"""The same for coroutine objects, of which Cython caches eight for each function."""
ROUND_S = 0.1
PATIENCE = 3
ROUNDS_MAX = 30
"""Most rounds in a row: under load memory comes and goes, so that each round seems to help."""
MUCH_MORE = 1.1
WATCH_S = 0.5
BUSY = 0.25
"""CPU share above which the broker is busy: a round blocks the loop for 10 ms and more."""
WAITS_MAX = 20
"""How many times trimming waits while connections go on closing. A round would look at all objects of the open ones, 100 ms for
ten thousand connections, and the objects that it renews would lie between theirs and pin what they free later (ADR 0203)."""
LATER_S = 8.0
"""The time after a crowd's rounds at which one more begins. Something may hold the objects of closed connections for seconds: a
check of 10,000 for dead peers takes three."""
CROWD = 256
"""The number of closed connections that freed 3 MiB and more (ADR 0011): trim even if the broker is busy."""
WORTH_IT_BYTES = 512 * 1024
LARGE_BYTES = 1024 * 1024
"""The size above which blocks are mapped alone, and unmapped when freed. By default glibc raises this bound up to 32 MiB, and a
FETCH of a MiB leaves a hole in the heap. Writes of 256 KiB stay below."""
TRIM_BYTES = 8 * 1024 * 1024
"""Free memory to keep at the top of the heap, so that not every large write needs a system call."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def _glibc() -> ctypes.CDLL | None:
    """The C library when it is glibc; others return memory by rules of their own."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
    except OSError:
        return None


_GLIBC = _glibc()


def set_up() -> None:
    """Configure the allocator and the garbage collector; call it before threads start.

    With glibc all threads share one arena. By default each thread has one and keeps some MiB of freed memory: 16 sync threads
    held 30 MiB. Under the GIL threads do not allocate in parallel anyway.
    """
    if _GLIBC is not None:
        _GLIBC.mallopt(_M_ARENA_MAX, 1)
        _GLIBC.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    # Sessions leave no reference cycles. A full collection with ten thousand connections takes 100 ms, so it is rare.
    gc.set_threshold(10_000, 10, 1_000)


class HeapTrimmer:
    """Trims the heap when the broker is idle, or after many connections have closed. Belongs to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._usual = rss_bytes()
        self._rounds_left = 0
        self._rounds = 0  # since it was decided that there is something to do
        self._watching = False
        self._most = self._now = 0  # connections, since then
        self._then = 0  # connections, when the watch or the round began
        self._waits = 0  # in a row, for those that leave
        self._again = False  # whether a crowd left, whose rounds are repeated after LATER_S

    def look(self, most: int, now: int) -> None:
        """Begin to trim after connections have closed.

        Args:
            most: the highest number of connections since the last call.
            now: the present number. Unless it is ``CROWD`` lower, trimming waits until the broker is idle.
        """
        self._most, self._now = max(self._most, most), now
        if not self._watching and not self._rounds_left:
            self._watch()

    @property
    def _crowd(self) -> bool:
        """Whether enough connections closed since the last round, at once or one by one, to be worth another."""
        return self._most - self._now >= CROWD

    def _still_leaving(self) -> bool:
        """Whether to wait, because connections have closed since the watch or the round began and more may follow."""
        if self._now >= self._then:
            self._waits = 0
            return False
        self._waits += 1
        return self._waits <= WAITS_MAX

    def _watch(self) -> None:
        self._watching = True
        self._then = self._now
        self._loop.call_later(WATCH_S, self._decide, time.process_time(), self._loop.time())

    def _decide(self, cpu_s: float, began: float) -> None:
        self._watching = False
        # Many closed connections may have held less than MUCH_MORE of the usual.
        if self._crowd or rss_bytes() > self._usual * MUCH_MORE:
            busy = not self._crowd and time.process_time() - cpu_s > BUSY * (self._loop.time() - began)
            if busy or self._still_leaving():
                self._watch()
                return
            self._rounds = 0
            self._again = self._crowd
            self._most = self._now
            self._begin_round(PATIENCE)

    def _repeat(self) -> None:
        if not self._watching and not self._rounds_left:
            self._rounds = 0
            self._begin_round(1)

    def _begin_round(self, rounds_left: int) -> None:
        """Renew the free lists: take more objects than they hold, and free the newest first, which lie close together.

        Objects in use move a little each time, so rounds go on until ``PATIENCE`` of them freed nothing.
        """
        self._rounds_left = rounds_left
        self._then = self._now
        loop = self._loop
        handles = [loop.call_soon(_nothing) for _ in range(KEPT_OBJECTS)]
        timers = [loop.call_later(ROUND_S / 2, _nothing) for _ in range(KEPT_OBJECTS)]
        loop.call_later(ROUND_S, self._end_round, handles, timers)

    def _end_round(self, *spares: list[Any]) -> None:
        if self._still_leaving():
            self._rounds_left = 0
            self._most = max(self._most, self._now + CROWD)  # there is still something to do
            self._watch()
            return
        before = rss_bytes()
        loop = self._loop
        accepts = [loop.connect_accepted_socket(asyncio.Protocol, cast("socket.socket", None)) for _ in range(KEPT_CALLS)]
        while accepts:
            accepts.pop().close()  # never begun
        future = loop.create_future()
        for kind in (*spares, [iter(future) for _ in range(KEPT_OBJECTS)]):
            while kind:
                kind.pop()  # the newest first: ``clear`` would begin with the oldest
        _forget_names()
        gc.collect()  # empties the interpreter's own lists, too
        if _GLIBC is not None:
            _GLIBC.malloc_trim(0)
        self._usual = rss_bytes()
        self._rounds_left -= 1
        self._rounds += 1
        if before - self._usual > WORTH_IT_BYTES and self._rounds < ROUNDS_MAX:
            self._rounds_left = PATIENCE
        if self._rounds_left:
            self._begin_round(self._rounds_left)
        elif self._crowd:  # they left meanwhile
            self._watch()
        elif self._again:
            self._again = False
            self._loop.call_later(LATER_S, self._repeat)


def _forget_names() -> None:
    """Clear the interpreter's attribute cache, which holds up to 4096 names."""
    clear: Callable[[], None] | None = getattr(sys, "_clear_internal_caches", None)  # from 3.13 on
    (clear or sys._clear_type_cache)()


def _nothing() -> None:
    pass


def trim() -> None:
    """Return free memory to the OS at once."""
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)


def available_bytes(root: Path = Path("/")) -> int:
    """Memory of this machine, or of a cgroup that this process is in, of either version, if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _cgroup_limits(root):
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):
            continue  # there is none, or "max"
    return min(found)


def _cgroup_limits(root: Path) -> Iterator[Path]:
    """Files with the limits of this process's cgroups and those above them. In a container its own is the root of what it
    sees."""
    yield root / "sys/fs/cgroup/memory.max"
    yield root / "sys/fs/cgroup/memory/memory.limit_in_bytes"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        of = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}
        if (known := of.get(controllers)) is not None:
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts)):
                yield root.joinpath(known[0], *parts[: depth + 1], known[1])


def rss_bytes() -> int:
    """Resident memory of this process, 0 where it is unknown.

    Uses no file object: each leaves a name in the interpreter's attribute cache, which may keep a MiB from going back.
    """
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            return int(os.read(statm, 100).split()[1]) * os.sysconf("SC_PAGE_SIZE")
        finally:
            os.close(statm)
    except (OSError, ValueError, IndexError):
        return 0
