"""Deduplication: the message id of each key, and the highest sequence of each producer. Pure state, no I/O.

Contract: delivery.md, "Dedupe". Holds the newest keys of a topic and evicts the least recently used; rebuilt from the log at
start. The message of an entry may not be committed yet: the topic decides for which commit a duplicate waits.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from itertools import chain

LONG_RUN = 16
"""A run of at least so many keys is kept as a list of its own; shorter ones are joined, up to ``JOINED_MAX``."""
JOINED_MAX = 1024

SHARE_FREED = 16
"""When all topics together hold too many keys, the one with the most gives up at least this part of them: a sixteenth."""


class KeyBudget:
    """The limit of keys of all topics together (``--dedupe-keys-total``). Beyond it the largest table evicts keys, not the one
    that commits at that moment."""

    __slots__ = ("limit", "tables", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.tables: dict[DedupeTable | ProducerTable, None] = {}

    def settle(self) -> None:
        """Evict keys of the largest tables until the limit holds."""
        while (over := self.used - self.limit) > 0:
            largest = max(self.tables, key=lambda table: len(table) - table.kept, default=None)
            if largest is None or not largest.give(max(over, len(largest) // SHARE_FREED)):
                return  # the rest belongs to batches that may still fail


class DedupeTable:
    """The message id of each key, for the newest ``capacity`` keys.

    The order of use is kept beside the dict, because repeated deletion of the oldest entry of a large dict walks over its
    deleted slots. A key that was used again is in the order more than once; ``_repeats`` counts the extra entries, and the
    order is rebuilt before it reaches twice the capacity. Keys of uncommitted batches (``_pending``) are never evicted, and
    cause no eviction.
    """

    __slots__ = ("_budget", "_gone", "_ids", "_joined", "_order", "_ordered", "_pending", "_repeats", "capacity", "kept")

    def __init__(self, capacity: int, budget: KeyBudget | None = None, *, kept: int = 0) -> None:
        """``capacity``: in keys; 0 switches deduplication off. ``kept``: the number of keys kept despite capacity and
        budget."""
        self.capacity = max(capacity, kept)
        self.kept = kept
        self._budget = budget or KeyBudget(1 << 62)
        self._ids: dict[bytes, int] = {}
        self._order: deque[Sequence[bytes]] = deque()  # run by run, as they came: a key by itself would cost more than its use
        self._joined: list[bytes] = []  # the last run in it, when that is made of short ones
        self._ordered = 0  # keys in it
        self._gone = 0  # of the first run
        self._repeats: dict[bytes, int] = {}
        self._pending: deque[tuple[int, int]] = deque()  # first id and count of runs that may still fail

    def __len__(self) -> int:
        return len(self._ids)

    def remember_new(self, keys: Sequence[bytes], first_id: int) -> bool:
        """Enter keys under consecutive ids, if none of them is known and none is given twice.

        Nothing is evicted yet, as the batch may still fail. Each key costs one dict operation, which looks up and inserts.

        Args:
            keys: kept by reference; they must not change.
            first_id: the id of the first key, above all ids so far.

        Returns: whether the keys were entered; if not, nothing has changed.
        """
        ids = self._ids
        count = len(keys)
        before = len(ids)
        if count == 1:
            ids.setdefault(keys[0], first_id)
            if len(ids) == before:
                return False
        else:
            deque(map(ids.setdefault, keys, range(first_id, first_id + count)), 0)
            if len(ids) - before != count:  # one was known, or stands twice: take back what is of this run
                for key in keys:
                    if ids.get(key, -1) >= first_id:
                        del ids[key]
                return False
        self._enqueue(keys)
        self._pending.append((first_id, count))
        self._budget.used += count
        return True

    def _enqueue(self, keys: Sequence[bytes]) -> None:
        """Append keys as the newest ones."""
        self._ordered += len(keys)
        if len(keys) >= LONG_RUN:
            self._order.append(keys)
            self._joined = []
            return
        if not self._joined or len(self._joined) >= JOINED_MAX:
            self._joined = []
            self._order.append(self._joined)
        self._joined.extend(keys)

    def find(self, key: bytes) -> int | None:
        """The id of the message that was published with a key; None if unknown. Does not count as a use."""
        return self._ids.get(key)

    def touch(self, key: bytes) -> None:
        """Mark a key, of which a duplicate came, as the newest. Assumes that it is known."""
        self._enqueue((key,))
        self._repeats[key] = self._repeats.get(key, 0) + 1
        if self._ordered > 2 * max(self.capacity, len(self._ids)) + 16:
            self._rebuild()

    def replace(self, key: bytes, msg_id: int) -> None:
        """Enter one key, known or not, as the newest one."""
        if not self.remember_new((key,), msg_id):
            self._ids[key] = msg_id
            self.touch(key)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Remove the keys of a failed batch. Unknown keys are ignored."""
        gone = [key for key in keys if self._ids.pop(key, None) is not None]
        self._budget.used -= len(gone)
        if gone:
            self._rebuild(set(gone))

    def withdraw(self, keys: Sequence[bytes]) -> None:
        """Remove the keys that ``remember_new`` has just entered, as their records were refused."""
        count = len(keys)
        for key in keys:
            del self._ids[key]
        self._pending.pop()
        self._budget.used -= count
        self._ordered -= count
        if count >= LONG_RUN:
            self._order.pop()
            return
        del self._joined[-count:]
        if not self._joined:
            self._order.pop()

    def settle(self, committed_id: int) -> None:
        """Evict the oldest keys beyond the capacity, after a batch has committed. Keys with ids from ``committed_id`` on
        stay."""
        pending = self._pending
        while pending and pending[0][0] + pending[0][1] <= committed_id:
            pending.popleft()
        self.give(len(self._ids) - self._unsettled() - self.capacity)
        if self._ids:
            self._budget.tables[self] = None
            self._budget.settle()

    def fail(self) -> None:
        """Drop the record of pending batches: all failed. ``forget``, called for each batch, removes its keys."""
        self._pending.clear()

    def _unsettled(self) -> int:
        return sum(count for _, count in self._pending)

    def give(self, count: int) -> int:
        """Evict up to ``count`` of the oldest committed keys. Returns: how many were evicted."""
        excess = min(count, len(self._ids) - self._unsettled() - self.kept)
        if excess <= 0:
            return 0
        self._budget.used -= excess
        ids, order, repeats = self._ids, self._order, self._repeats
        left = excess
        while left:
            run = order[0]
            first = self._gone
            stop = min(len(run), first + left)
            if not repeats:
                for key in run if stop - first == len(run) else run[first:stop]:
                    del ids[key]
                left -= stop - first
            else:
                left -= self._give_repeated(run[first:stop])
            self._ordered -= stop - first
            self._gone = stop
            if stop == len(run):
                if order.popleft() is self._joined:
                    self._joined = []
                self._gone = 0
        return excess

    def _give_repeated(self, keys: Sequence[bytes]) -> int:
        """Drop the oldest entries of the order. Returns: how many keys had no newer entry and so were evicted."""
        ids, repeats = self._ids, self._repeats
        gone = 0
        for key in keys:
            if key not in repeats:
                del ids[key]
                gone += 1
                continue
            repeats[key] -= 1
            if not repeats[key]:
                del repeats[key]
        return gone

    def resize(self, capacity: int) -> None:
        """Apply a changed ``dedupe_keys`` setting."""
        self.capacity = max(capacity, self.kept)
        self.give(len(self._ids) - self._unsettled() - self.capacity)

    def clear(self) -> None:
        """Forget everything: the topic is deleted."""
        self._budget.used -= len(self._ids)
        self._budget.tables.pop(self, None)
        self._ids.clear()
        self._order.clear()
        self._joined = []
        self._ordered = self._gone = 0
        self._repeats.clear()
        self._pending.clear()

    def _rebuild(self, gone: set[bytes] | None = None) -> None:
        keys = list(chain.from_iterable(self._order))[self._gone :]
        newest_first = dict.fromkeys(key for key in reversed(keys) if not gone or key not in gone)
        newest_last = list(reversed(newest_first))
        # in pieces: evicted keys stay in memory until their whole run is evicted
        self._order = deque(newest_last[at : at + JOINED_MAX] for at in range(0, len(newest_last), JOINED_MAX))
        self._joined = []
        self._ordered, self._gone = len(newest_last), 0
        self._repeats.clear()


Entry = tuple[int, int]
"""A producer's highest sequence, and the id of its record."""


class ProducerTable:
    """The highest sequence of each producer and the id of that record, for the ``capacity`` most recently used producers.

    Committed entries and pending ones are kept apart. When a batch fails, all later ones fail, too, so all pending entries are
    forgotten at once. Only committed entries count towards the capacity; pending ones are bounded by what sessions may have
    in flight.
    """

    __slots__ = ("_budget", "_committed", "_pending", "capacity", "kept")

    def __init__(self, capacity: int, budget: KeyBudget | None = None) -> None:
        """``capacity``: in producers."""
        self.capacity = capacity
        self.kept = 0
        self._budget = budget or KeyBudget(1 << 62)
        self._committed: OrderedDict[bytes, Entry] = OrderedDict()
        self._pending: dict[bytes, Entry] = {}

    def __len__(self) -> int:
        """The number of committed producers."""
        return len(self._committed)

    def __bool__(self) -> bool:
        return bool(self._committed or self._pending)

    def find(self, producer: bytes, first_id: int) -> Entry | None:
        """The last sequence of a producer, pending ones included. An entry whose record is below ``first_id`` is forgotten."""
        return self._pending.get(producer) or self.committed(producer, first_id)

    def committed(self, producer: bytes, first_id: int) -> Entry | None:
        """The last sequence of a producer that is on stable storage. An entry whose record is below ``first_id`` is
        forgotten."""
        entry = self._committed.get(producer)
        return entry if entry is not None and entry[1] >= first_id else None

    def any_of(self, keys: Sequence[bytes]) -> bool:
        """Whether one of the keys is that of a known producer."""
        return not (self._committed.keys().isdisjoint(keys) and self._pending.keys().isdisjoint(keys))

    def since(self, first_id: int) -> dict[bytes, Entry]:
        """The committed producers with a record at or above an id."""
        return {producer: entry for producer, entry in self._committed.items() if entry[1] >= first_id}

    def remember(self, entries: Mapping[bytes, Entry]) -> None:
        """Enter the producers of a batch before it commits."""
        self._pending.update(entries)

    def touch(self, producer: bytes) -> None:
        """Mark a committed producer as the most recently used."""
        self._committed.move_to_end(producer)

    def settle(self, entries: Mapping[bytes, Entry]) -> None:
        """Move the producers of a batch that has committed from the pending to the committed ones."""
        committed, pending = self._committed, self._pending
        before = len(committed)
        for producer, entry in entries.items():
            committed[producer] = entry
            committed.move_to_end(producer)
            if pending.get(producer) == entry:
                del pending[producer]
        self._budget.used += len(committed) - before
        self.give(len(committed) - self.capacity)
        if committed:
            self._budget.tables[self] = None
            self._budget.settle()

    def forget(self, producers: Sequence[bytes]) -> None:
        """Forget producers. Unknown ones are ignored."""
        for producer in producers:
            self._pending.pop(producer, None)
            self._budget.used -= self._committed.pop(producer, None) is not None

    def fail(self) -> None:
        """Forget all pending entries, as their batches failed."""
        self._pending.clear()

    def give(self, count: int) -> int:
        """Evict up to ``count`` of the least recently used producers. Returns: how many were evicted."""
        gone = max(min(count, len(self._committed)), 0)
        for _ in range(gone):
            self._committed.popitem(last=False)
        self._budget.used -= gone
        return gone

    def resize(self, capacity: int) -> None:
        """Apply a changed ``dedupe_keys`` setting."""
        self.capacity = capacity
        self.give(len(self._committed) - capacity)

    def clear(self) -> None:
        """Forget everything: the topic is deleted."""
        self.give(len(self._committed))
        self._budget.tables.pop(self, None)
        self._pending.clear()
