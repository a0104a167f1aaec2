"""A heap of runs by rank, lowest first, whose entries may be out of date. It uses only the ticket and the rank of a run."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from toymq_py.consumer.lease_run import LeaseRun

_STALE_SLACK: Final = 64  # a small heap is not worth compacting


class LazyHeap:
    """A heap of runs by rank (deadline, or first id), lowest first. Its entries may be out of date.

    An entry counts only while the run still carries its ticket; its rank is then at most the run's present rank, so a run whose
    rank rises needs no new entry. ``top`` corrects the stale entries that it finds, and ``trim`` bounds their number.
    """

    __slots__ = ("_entries", "_rank", "_tickets")

    def __init__(self, rank: Callable[[LeaseRun], float], tickets: Iterator[int]) -> None:
        self._entries: list[tuple[float, int, LeaseRun]] = []
        self._rank = rank
        self._tickets = tickets  # shared by all heaps of a table: no two entries are alike

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, run: LeaseRun) -> None:
        """Add the one entry that stands for a run. An entry of the run in another heap becomes stale."""
        run.ticket = ticket = next(self._tickets)
        heappush(self._entries, (self._rank(run), ticket, run))

    def top(self) -> LeaseRun | None:
        """The lowest run; None when there is none."""
        entries = self._entries
        while entries:
            rank, ticket, run = entries[0]
            if run.ticket != ticket:
                heappop(entries)
            elif rank != self._rank(run):
                heapreplace(entries, (self._rank(run), ticket, run))
            else:
                return run
        return None

    def pop(self) -> None:
        """Drop the entry of the run that ``top`` just returned."""
        heappop(self._entries)[2].ticket = None

    def trim(self, runs: int) -> None:
        """Compact when more than half is stale: memory follows the ``runs`` in the table."""
        if len(self._entries) > 2 * runs + _STALE_SLACK:
            self._entries = [entry for entry in self._entries if entry[2].ticket == entry[1]]
            heapify(self._entries)
