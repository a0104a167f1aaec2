"""The newest records of a log, and records read ahead, in memory. Contract: storage.md, "Segments". Does no I/O."""

from bisect import bisect_right

from toymq_py.records import Records

AHEAD_ROWS = 64
"""Rows that are read for a reader that goes on where the last read ended, however few are asked for: one by one each would be
read, checked and parsed by itself, at a sixth more CPU than from the tail."""
AHEAD_RUNS = 8
AHEAD_BYTES_MIN = 16 * 1024


class TailBudget:
    """Memory for the tails of all topics: each topic with subscribers may use an equal share."""

    TOPIC_BYTES_MAX = 8 * 1024 * 1024
    TOTAL_BYTES_MAX = 128 * 1024 * 1024

    __slots__ = ("topics",)

    def __init__(self) -> None:
        self.topics = 0

    def share(self) -> int:
        return min(self.TOPIC_BYTES_MAX, self.TOTAL_BYTES_MAX // max(self.topics, 1))


class TailCache:
    """The newest committed records in memory, for subscribers that keep up, and records that were read ahead for the others.

    Bounded by its share of the budget: the oldest run is dropped first, and one run is always kept. Records read ahead take at
    most half of the share in addition. Empty while the topic has no subscription.
    """

    __slots__ = ("_ahead", "_budget", "_first_ids", "_runs", "bytes", "enabled")

    ROW_OVERHEAD = 200  # bytes objects, list slots and the encoded frame that a session may keep beside a row

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._runs: list[Records] = []
        self._first_ids: list[int] = []
        self._ahead: list[Records] = []
        self.bytes = 0
        self.enabled = False

    def enable(self, enabled: bool) -> None:
        """Switch the cache on with the first subscriber, off with the last."""
        if enabled != self.enabled:
            self.enabled = enabled
            self._budget.topics += 1 if enabled else -1
            if not enabled:
                self.clear()

    def push(self, run: Records) -> None:
        """Add a run of committed records. If its ids do not follow the newest one, the cache starts anew."""
        if self._runs and self._runs[-1].ids[-1] + 1 != run.ids[0]:
            self.clear()
        self._runs.append(run)
        self._first_ids.append(run.ids[0])
        self.bytes += self._cost(run)
        if self.bytes > (share := self._budget.share()):
            self._trim(share)

    def ahead_bytes(self) -> int:
        """How many bytes may be read ahead at a time; 0 when thousands of topics share the memory."""
        share = self._budget.share() // (2 * AHEAD_RUNS)
        return share if self.enabled and share >= AHEAD_BYTES_MIN else 0

    def keep(self, run: Records) -> None:
        """Keep records that were read ahead."""
        self._ahead = [*self._ahead[1 - AHEAD_RUNS :], run]

    def find(self, msg_id: int) -> tuple[Records, int] | None:
        """The run that holds an id, and the row in it; None when it is not in memory."""
        if self._runs and msg_id >= self._first_ids[0]:
            run = self._runs[bisect_right(self._first_ids, msg_id) - 1]
            row = msg_id - run.ids[0]
            return (run, row) if row < len(run.ids) else None
        for run in self._ahead:
            if run.ids[0] <= msg_id <= run.ids[-1]:
                return run, msg_id - run.ids[0]
        return None

    def clear(self) -> None:
        self._ahead.clear()
        self._runs.clear()
        self._first_ids.clear()
        self.bytes = 0

    def _cost(self, run: Records) -> int:
        return 2 * run.payload_bytes + self.ROW_OVERHEAD * len(run)

    def _trim(self, limit_bytes: int) -> None:
        drop = 0
        while self.bytes > limit_bytes and drop < len(self._runs) - 1:
            self.bytes -= self._cost(self._runs[drop])
            drop += 1
        if drop:
            del self._runs[:drop]
            del self._first_ids[:drop]
