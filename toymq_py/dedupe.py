"""Which key was published as which id. Pure state, no I/O.

Contract: delivery.md, "Dedupe". A topic's newest keys in memory, least recently used out first, rebuilt from the log
at start. An entry may be newer than the committed position: the topic decides what a hit on it waits for.
"""

from collections import deque
from collections.abc import Sequence

DEFAULT_DEDUPE_KEYS = 65_536


SHARE_FREED = 16
"""When all topics together hold too many keys, the one with the most gives up at least this part of them: a sixteenth."""


class KeyBudget:
    """How many keys all topics together may hold (``--dedupe-keys-total``). Over it, the largest table gives, not the one
    that happens to commit."""

    __slots__ = ("limit", "tables", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.tables: dict[DedupeTable, None] = {}

    def settle(self) -> None:
        """Free what is over the limit."""
        while (over := self.used - self.limit) > 0:
            largest = max(self.tables, key=len, default=None)
            if largest is None or not largest.give(max(over, len(largest) // SHARE_FREED)):
                return  # what is left belongs to batches that may still fail


class DedupeTable:
    """Key to message id, for the newest ``capacity`` keys.

    The order of use is a deque beside the dict, because deleting the oldest entry of a large dict over and over walks
    over its deleted slots. A key that was used again stands in the deque more than once; ``_repeats`` counts the
    surplus, and the deque is rebuilt before it reaches twice the capacity. Keys of batches that have not committed are
    never evicted, and evict nobody: ``_pending`` counts them.
    """

    __slots__ = ("_budget", "_ids", "_order", "_pending", "_repeats", "capacity")

    def __init__(self, capacity: int, budget: KeyBudget | None = None) -> None:
        """``capacity`` in keys; 0 switches deduplication off."""
        self.capacity = capacity
        self._budget = budget or KeyBudget(1 << 62)
        self._ids: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()
        self._repeats: dict[bytes, int] = {}
        self._pending: deque[tuple[int, int]] = deque()  # first id and count of runs that may still fail

    def __len__(self) -> int:
        return len(self._ids)

    def remember_new(self, keys: Sequence[bytes], first_id: int) -> bool:
        """Enter keys under consecutive ids, if none of them is known and none stands twice.

        Nothing is evicted yet: the batch may still fail. Costs a look-up and an insertion a key, nothing more.

        Returns: whether they were entered; if not, nothing has changed.
        """
        ids = self._ids
        count = len(keys)
        before = len(ids)
        if count == 1:
            ids.setdefault(keys[0], first_id)
            if len(ids) == before:
                return False
        else:
            if not ids.keys().isdisjoint(keys):
                return False
            ids.update(zip(keys, range(first_id, first_id + count), strict=True))
            if len(ids) - before != count:  # one stands twice: take all of them back
                for key in keys:
                    ids.pop(key, None)
                return False
        self._order.extend(keys)
        self._pending.append((first_id, count))
        self._budget.used += count
        return True

    def find(self, key: bytes) -> int | None:
        """The id the key was published as. Does not count as a use."""
        return self._ids.get(key)

    def touch(self, key: bytes) -> None:
        """A hit: the key becomes the newest. Assumes it is known."""
        self._order.append(key)
        self._repeats[key] = self._repeats.get(key, 0) + 1
        if len(self._order) > 2 * max(self.capacity, len(self._ids)) + 16:
            self._rebuild()

    def replace(self, key: bytes, msg_id: int) -> None:
        """Enter one key, known or not, as the newest."""
        if not self.remember_new((key,), msg_id):
            self._ids[key] = msg_id
            self.touch(key)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Take back keys of a batch that failed. Unknown ones are passed over."""
        gone = [key for key in keys if self._ids.pop(key, None) is not None]
        self._budget.used -= len(gone)
        if gone:
            self._rebuild(set(gone))

    def settle(self, committed_id: int) -> None:
        """Drop the oldest keys beyond the capacity; called when a batch has committed. Ids below ``committed_id`` stay."""
        pending = self._pending
        while pending and pending[0][0] + pending[0][1] <= committed_id:
            pending.popleft()
        self.give(len(self._ids) - self._unsettled() - self.capacity)
        if self._ids:
            self._budget.tables[self] = None
            self._budget.settle()

    def fail(self) -> None:
        """Every batch that was pending is refused; its keys are forgotten one batch after the other."""
        self._pending.clear()

    def _unsettled(self) -> int:
        return sum(count for _, count in self._pending)

    def give(self, count: int) -> int:
        """Drop up to so many of the oldest keys that are settled. Returns: how many went."""
        excess = min(count, len(self._ids) - self._unsettled())
        if excess <= 0:
            return 0
        gone = excess
        self._budget.used -= excess
        ids, popleft, repeats = self._ids, self._order.popleft, self._repeats
        if not repeats:
            for _ in range(excess):
                del ids[popleft()]
            return gone
        while excess:
            key = popleft()
            if key in repeats:
                repeats[key] -= 1
                if not repeats[key]:
                    del repeats[key]
            else:
                del ids[key]
                excess -= 1
        return gone

    def resize(self, capacity: int) -> None:
        """A changed ``dedupe_keys`` setting."""
        self.capacity = capacity
        self.give(len(self._ids) - self._unsettled() - capacity)

    def clear(self) -> None:
        """Forget everything (topic deleted)."""
        self._budget.used -= len(self._ids)
        self._budget.tables.pop(self, None)
        self._ids.clear()
        self._order.clear()
        self._repeats.clear()
        self._pending.clear()

    def _rebuild(self, gone: set[bytes] | None = None) -> None:
        newest_first = dict.fromkeys(key for key in reversed(self._order) if not gone or key not in gone)
        self._order = deque(reversed(newest_first))
        self._repeats.clear()
