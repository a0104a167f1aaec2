"""Memory that goes back to the system when a crowd has left.

Ten thousand connections take a hundred MiB, freed to the last byte when they end; and nearly all of it would stay ours. The
interpreter's allocator returns only whole arenas of a MiB, and some hundred small things that the interpreter and the loop keep
to use again lie scattered over all of them, wherever the last connections happened to leave them. Owns what is said to the
allocators; of connections it knows how many there are.
"""

import asyncio
import ctypes
import gc
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

KEPT_OBJECTS = 600
"""More than any list of spare objects holds: uvloop keeps 250 of a kind, asyncio 255."""
KEPT_CALLS = 32
"""The same for what Cython keeps of each coroutine function: eight."""
ROUND_S = 0.1
PATIENCE = 3
ROUNDS_MAX = 30
"""Under load memory comes and goes, and each round seems to help."""
MUCH_MORE = 1.1
WATCH_S = 0.5
BUSY = 0.25
"""This part of a core. A round holds the loop for 10 ms and more: with 16 producers x 256 rounds took 6 to 9 % of the time."""
CROWD = 256
"""So many hold 3 MiB and more (ADR 0011), and may have left a busy broker."""
WORTH_IT_BYTES = 512 * 1024
LARGE_BYTES = 1024 * 1024
"""From here on a block is mapped by itself and unmapped when it is freed. Left alone, glibc moves this bound up to 32 MiB the
first time such a block is freed, and a FETCH of a MiB leaves a hole in the heap. Writes of 256 KiB stay below."""
TRIM_BYTES = 8 * 1024 * 1024
"""Free memory at the top of the heap that is kept: without it every large write would ask the system anew."""
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
    """Before the broker starts and makes threads; nothing happens without glibc.

    All threads allocate from one arena. By default each has its own, and each keeps some MiB of what was freed: after minutes
    of mixed load 16 sync threads held 30 MiB of nothing. What they are for, threads that allocate side by side, the GIL rules
    out.
    """
    if _GLIBC is not None:
        _GLIBC.mallopt(_M_ARENA_MAX, 1)
        _GLIBC.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    # Nothing here depends on the collector: what sessions leave is freed when its last user goes. A look at everything that
    # ten thousand connections hold takes 100 ms, so it is rare.
    gc.set_threshold(10_000, 10, 1_000)


class HeapTrimmer:
    """Gives memory back, when there is much and the broker has time, or when a crowd has gone. Belongs to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._usual = rss_bytes()
        self._rounds_left = 0
        self._rounds = 0  # since it was decided that there is something to do
        self._watching = False
        self._most = self._now = 0  # connections, since then

    def look(self, most: int, now: int) -> None:
        """For the moment after connections have ended: what is in use by then is what there is to do.

        Args:
            most: how many there were since the last look.
            now: how many there are. If that is not ``CROWD`` fewer, it waits until the broker has little to do.
        """
        self._most, self._now = max(self._most, most), now
        if not self._watching and not self._rounds_left:
            self._watch()

    @property
    def _crowd(self) -> bool:
        """Whether enough connections closed since the last round, at once or one by one, to be worth another."""
        return self._most - self._now >= CROWD

    def _watch(self) -> None:
        self._watching = True
        self._loop.call_later(WATCH_S, self._decide, time.process_time(), self._loop.time())

    def _decide(self, cpu_s: float, began: float) -> None:
        self._watching = False
        # The usual is what remaining connections hold: a crowd's memory may be less than much more.
        if self._crowd or rss_bytes() > self._usual * MUCH_MORE:
            if not self._crowd and time.process_time() - cpu_s > BUSY * (self._loop.time() - began):
                self._watch()
                return
            gc.collect()
            self._rounds = 0
            self._most = self._now
            self._begin_round(PATIENCE)

    def _begin_round(self, rounds_left: int) -> None:
        """The lists of spare objects are emptied by taking more from them than they hold and giving those back first that
        were made last: these lie close together, where something is anyway. What others use meanwhile moves a little each
        time, so there are rounds until some of them did not help.
        """
        self._rounds_left = rounds_left
        loop = self._loop
        handles = [loop.call_soon(_nothing) for _ in range(KEPT_OBJECTS)]
        timers = [loop.call_later(ROUND_S / 2, _nothing) for _ in range(KEPT_OBJECTS)]
        loop.call_later(ROUND_S, self._end_round, handles, timers)

    def _end_round(self, *spares: list[Any]) -> None:
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


def _forget_names() -> None:
    """The interpreter's cache of attributes holds on to up to 4096 names."""
    clear: Callable[[], None] | None = getattr(sys, "_clear_internal_caches", None)  # from 3.13 on
    (clear or sys._clear_type_cache)()


def _nothing() -> None:
    pass


def trim() -> None:
    """Give back what is free, whatever the loop does meanwhile."""
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)


def available_bytes(root: Path = Path("/")) -> int:
    """Memory of this machine, or of the cgroup where that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int((root / path).read_text()))
        except (OSError, ValueError):
            continue  # there is none, or "max"
    return min(found)


def rss_bytes() -> int:
    """Resident memory of this process, 0 where it cannot be told.

    Without a file object: each that is made leaves a name in the interpreter's cache of attributes, up to 4096 of them, which
    here and there keep a MiB of the allocator from going back.
    """
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            return int(os.read(statm, 100).split()[1]) * os.sysconf("SC_PAGE_SIZE")
        finally:
            os.close(statm)
    except (OSError, ValueError, IndexError):
        return 0
