"""Heartbeats of the worker processes of ``--workers``: each increments a counter once a second, in shared memory.

A worker that stands still, because it was stopped or its disk hangs, has not ended, so nothing else would reveal it. ADR 0273.
The supervisor decides that a worker stands still; meanwhile the other workers pass no requests on to it. ADR 0274.
"""

import mmap
from collections.abc import Callable
from functools import partial

BEAT_S = 1.0
LOOK_AT_BEATS_S = 2.0
SILENT_LOOKS = 5
"""A worker whose counter has not changed for so many looks stands still. Looks are counted, not time: if the whole machine
paused, there was one look."""


def standstill(pid: int) -> str:
    """The text that says, after a worker's name, that the worker stands still."""
    return (
        f"has not answered for {LOOK_AT_BEATS_S * SILENT_LOOKS:.0f} s: process {pid} is stopped, or waits for what hangs, as a "
        f"disk (`kill -9 {pid}` ends it, and it starts again)"
    )


class Heartbeats:
    """The heartbeats of all workers, in shared memory. Made before the processes fork: each worker writes its own
    count, the supervisor the marks of silent workers."""

    def __init__(self, workers: int) -> None:
        self._beats, self._silent_at = (memoryview(mmap.mmap(-1, 8 * workers)).cast("Q") for _ in range(2))

    def keep_beating(self, worker: int, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Increment a worker's counter, now and each second, as long as its event loop runs. ``later``: the loop's
        ``call_later``."""
        self._beats[worker] += 1
        later(BEAT_S, partial(self.keep_beating, worker, later))

    def count(self, worker: int) -> int:
        """The counter of a worker; 0: it does not serve yet."""
        return self._beats[worker]

    def begins(self, worker: int) -> None:
        """Reset the count of a worker that gets a new process."""
        self._beats[worker] = 0

    def found_silent(self, worker: int, count: int) -> None:
        """Mark a worker as standing still at this count, or as running (0). Called by the supervisor."""
        self._silent_at[worker] = count

    def stands_still(self, worker: int) -> bool:
        """Whether a worker was found silent and its counter has not changed since. Cheap, as it is called for each command that
        is passed on."""
        return (count := self._silent_at[worker]) != 0 and count == self._beats[worker]


class Beats:
    """What the supervisor remembers of one worker's heartbeats."""

    def __init__(self) -> None:
        self._count = 0
        self._silent = 0
        self._said = False

    @property
    def silent_at(self) -> int:
        """The count at which the worker stands still; 0 if it does not."""
        return self._count if self._said else 0

    def seen(self, count: int, pid: int) -> str:
        """Compare the worker's counter with the last look. ``count`` 0: it does not serve yet. Returns: a warning, or ""."""
        if count != self._count or not count:
            was_silent = self._said and count > self._count  # else it is another process
            self._count, self._silent, self._said = count, 0, False
            return "answers again" if was_silent else ""
        self._silent += 1
        if self._silent < SILENT_LOOKS or self._said:
            return ""
        self._said = True
        return f"{standstill(pid)}; what is for its topics is refused"
