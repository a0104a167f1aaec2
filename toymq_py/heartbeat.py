"""The heartbeat of a worker process of ``--workers``: it counts up each second in memory that it shares with its supervisor.

A worker that stands still, because it was stopped or its disk hangs, has not ended, so nothing else would show it. ADR 0273.
"""

import asyncio
from collections.abc import MutableSequence

BEAT_S = 1.0
LOOK_AT_BEATS_S = 2.0
SILENT_LOOKS = 5
"""A worker that has not beaten for so many looks stands still. Looks are counted and no time is measured: if the whole machine
paused, there was one look."""


def keep_beating(beats: "MutableSequence[int] | memoryview[int]", worker: int) -> None:
    """Count up for a worker, now and each second, as long as the running event loop runs."""
    beats[worker] += 1
    asyncio.get_running_loop().call_later(BEAT_S, keep_beating, beats, worker)


class Beats:
    """The heartbeats of one worker, as its supervisor sees them."""

    def __init__(self) -> None:
        self._count = 0
        self._silent = 0
        self._said = False

    def seen(self, count: int, pid: int) -> str:
        """Look at the counter (0: the worker does not serve yet) and at the process that counts. Returns: a warning, or ""."""
        if count != self._count or not count:
            was_silent = self._said and count > self._count  # else it is another process
            self._count, self._silent, self._said = count, 0, False
            return "answers again" if was_silent else ""
        self._silent += 1
        if self._silent < SILENT_LOOKS or self._said:
            return ""
        self._said = True
        return (
            f"has not answered for {LOOK_AT_BEATS_S * SILENT_LOOKS:.0f} s: it is stopped, or waits for what hangs, as a disk; "
            f"its topics wait. `kill -9 {pid}` ends it, and it starts again"
        )
