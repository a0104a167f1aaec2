"""The last failure that a NACK reported for each message, for its dead letter.

Kept in memory only, bounded, and lost with a restart. A message whose failure is not known still becomes a dead letter, without
the headers of the failure. Contract: delivery.md, "Attempts"; ADR 0062.
"""

from bisect import bisect_left, bisect_right

from toymq_py.failure import Failure

Failed = tuple[Failure, int]
"""A failure, and when it was reported, in unix milliseconds."""

ENTRY_BYTES = 400
"""The memory of an entry in addition to its texts, about."""
CONSUMER_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of one consumer's failures: some thousand messages with tracebacks. A message that was given up waits here only
for its letter's commit, and the next of them is stored within milliseconds."""
TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of the failures of all consumers of a broker."""


class FailureBudget:
    """The bytes that the failure books of all consumers use together."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class FailureBook:
    """The last failures of messages, by id range: messages that failed together are one entry. At a limit the oldest entries
    are dropped."""

    __slots__ = ("_budget", "_bytes", "_entries", "_firsts")

    def __init__(self, budget: FailureBudget) -> None:
        self._budget = budget
        self._bytes = 0
        self._firsts: list[int] = []  # ascending
        self._entries: dict[int, tuple[int, Failed]] = {}  # by first id: last id, failure; the oldest first

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, last: int, failed: Failed) -> None:
        """Store the failure of the ids ``first`` to ``last``; it replaces earlier failures of these ids."""
        self.discard(first, last)
        self._put(first, last, failed)
        while self._bytes > CONSUMER_BYTES_MAX or (self._budget.bytes > TOTAL_BYTES_MAX and self._firsts):
            oldest = next(iter(self._entries))
            del self._firsts[bisect_left(self._firsts, oldest)]
            self._drop(oldest)

    def find(self, msg_id: int) -> Failed | None:
        """The last failure of a message."""
        at = bisect_right(self._firsts, msg_id) - 1
        if at < 0:
            return None
        last, failed = self._entries[self._firsts[at]]
        return failed if msg_id <= last else None

    def discard(self, first: int, last: int) -> None:
        """Drop the failures of these ids."""
        low = bisect_right(self._firsts, first) - 1
        if low < 0 or self._entries[self._firsts[low]][0] < first:
            low += 1
        high = bisect_right(self._firsts, last, low)
        if low == high:
            return
        gone = self._firsts[low:high]
        del self._firsts[low:high]
        rest = [(begin, *self._entries[begin]) for begin in {gone[0], gone[-1]}]
        for begin in gone:
            self._drop(begin)
        for begin, end, failed in rest:
            if begin < first:
                self._put(begin, first - 1, failed)
            if end > last:
                self._put(last + 1, end, failed)

    def __del__(self) -> None:
        """Return the book's bytes to the budget: its consumer was deleted or moved."""
        self._budget.bytes -= self._bytes

    def _put(self, first: int, last: int, failed: Failed) -> None:
        at = bisect_left(self._firsts, first)
        self._firsts.insert(at, first)
        self._entries[first] = last, failed
        self._count(_size(failed))

    def _drop(self, first: int) -> None:
        self._count(-_size(self._entries.pop(first)[1]))

    def _count(self, size: int) -> None:
        self._bytes += size
        self._budget.bytes += size


def _size(failed: Failed) -> int:
    failure = failed[0]
    texts = (failure.reason, failure.error_type, failure.error, failure.traceback)
    return ENTRY_BYTES + sum(4 * len(text) if not text.isascii() else len(text) for text in texts if text is not None)
