"""Order by priority of one consumer: which of its ready messages come first.

Pure state. Knows ids and priorities, neither leases nor records. Contract: amqp.md, "Model" (x-max-priority); ADR 0160.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from toymq_py.consumer.id_set import IdSet

AHEAD_MAX: Final = 1 << 20
"""How many ids beyond the lowest waiting one are looked at, at a byte each. A higher priority behind them waits."""
AGAIN_MAX: Final = 16_384
"""Most redeliveries in the order of their priority; further ones come first, by their ids."""
PRIORITY_MAX: Final = 254
"""The highest priority that counts; above it all are alike: a byte has one value for an id that is not ready."""
_TRIMMED: Final = 65_536


class PriorityLanes:
    """The ids below ``scanned`` that are ready, by priority.

    Messages that were never delivered take a byte each from the lowest waiting one on: the priority plus 1, or 0 when it is
    leased or acked. Redeliveries, of which there are few, are kept beside them. ``late`` are ids below ``scanned`` whose delay
    has ended since: their priority is not known yet. Memory: ``AHEAD_MAX`` bytes, and ``AGAIN_MAX`` ids.
    """

    __slots__ = ("_again", "_again_by_level", "_base", "_counts", "_hints", "_ready", "goal", "late", "scanned")

    def __init__(self, scanned: int) -> None:
        self._again: dict[int, int] = {}
        self._ready = bytearray()
        self._counts = [0]  # by priority, as far as one was seen
        self._hints = [0]  # no id of that priority is lower
        self._again_by_level: dict[int, list[int]] = {}  # heaps; an id that is not in ``_again`` any more is passed over
        self.clear(scanned)

    def clear(self, scanned: int) -> None:
        """Forget everything; ids from ``scanned`` on have to be entered again."""
        self._again.clear()
        self._again_by_level.clear()
        self._ready = bytearray()
        self._counts = [0]
        self._hints = [0]
        self._base = self.scanned = scanned
        self.goal = 0
        """Where the log ended when the present look ahead began."""
        self.late = IdSet()

    def is_beyond(self, msg_id: int) -> bool:
        """Whether an id is too far ahead of the waiting ones to be entered now."""
        ready = self._ready
        return bool(ready) and (msg_id - self._base >= AHEAD_MAX or self._base - msg_id + len(ready) > AHEAD_MAX)

    @property
    def again_full(self) -> bool:
        return len(self._again) >= AGAIN_MAX

    @property
    def again(self) -> int:
        """The number of waiting redeliveries."""
        return len(self._again)

    # -- entering

    def enter(self, msg_id: int, priority: int) -> None:
        """Enter a message that was never delivered. The caller moves ``scanned``."""
        ready = self._ready
        if not ready:
            self._base = msg_id
        at = msg_id - self._base
        if at < 0:  # it fell due late
            ready[0:0] = bytes(-at)
            self._base = msg_id
            at = 0
        elif at >= len(ready):
            ready.extend(bytes(at + 1 - len(ready)))
        if ready[at]:
            return
        level = min(priority, PRIORITY_MAX)
        if level >= len(self._counts):
            more = [0] * (level + 1 - len(self._counts))
            self._counts += more
            self._hints += more
        ready[at] = level + 1
        if not self._counts[level] or msg_id < self._hints[level]:
            self._hints[level] = msg_id
        self._counts[level] += 1

    def enter_again(self, msg_id: int, priority: int) -> None:
        """Enter a message that was delivered before."""
        level = min(priority, PRIORITY_MAX)
        self._again[msg_id] = level
        heappush(self._again_by_level.setdefault(level, []), msg_id)

    # -- leaving

    def acked(self, first: int, last: int) -> None:
        """Remove acked ids, new or redelivered."""
        self.taken_range(first, last)
        if self.late:
            self.late.discard_range(first, last)
        if not self._again:
            return
        if last - first < len(self._again):
            for msg_id in range(first, last + 1):
                self._again.pop(msg_id, None)
        else:
            for msg_id in [msg_id for msg_id in self._again if first <= msg_id <= last]:
                del self._again[msg_id]

    def taken_range(self, first: int, last: int) -> None:
        """Remove ids of the range that were never delivered from the ready ones."""
        low, high = max(first - self._base, 0), min(last + 1 - self._base, len(self._ready))
        if low >= high:
            return
        gone = self._ready[low:high]
        left = high - low - gone.count(0)
        if not left:
            return
        for level, count in enumerate(self._counts):
            if count and (here := gone.count(level + 1)):
                self._counts[level] -= here
                left -= here
                if not left:
                    break
        self._ready[low:high] = bytes(high - low)
        self._trim()

    def taken(self, ids: Sequence[int]) -> None:
        """Remove the ids that ``next_fresh`` has just returned: they are leased."""
        ready, base = self._ready, self._base
        for msg_id in ids:
            level = ready[msg_id - base] - 1
            ready[msg_id - base] = 0
            self._counts[level] -= 1
            self._hints[level] = msg_id + 1
        self._trim()

    def _trim(self) -> None:
        """Free the memory before the lowest id."""
        lowest = self._lowest_bound()
        if lowest is None:
            self._ready = bytearray()
        elif lowest - self._base >= _TRIMMED or len(self._ready) >= AHEAD_MAX - _TRIMMED:
            del self._ready[: lowest - self._base]
            self._base = lowest

    def _lowest_bound(self) -> int | None:
        lowest: int | None = None
        for level, count in enumerate(self._counts):
            if count and (lowest is None or self._hints[level] < lowest):
                lowest = self._hints[level]
        return lowest

    # -- what comes first

    def highest(self) -> int | None:
        """The highest ready priority."""
        best: int | None = None
        for level in range(len(self._counts) - 1, -1, -1):
            if self._counts[level]:
                best = level
                break
        for level in self._again_by_level:
            if (best is None or level > best) and self.first_again(level) is not None:
                best = level
        return best

    def lowest(self) -> int | None:
        """The priority of the ready message with the lowest id."""
        found: list[tuple[int, int]] = []
        for level, count in enumerate(self._counts):
            if count:
                found.append((self.next_fresh(level, 1)[0], level))
        for level in self._again_by_level:
            if (top := self.first_again(level)) is not None:
                found.append((top, level))
        return min(found)[1] if found else None

    def next_again(self, level: int, max_count: int) -> tuple[int, int] | None:
        """The lowest redeliveries of a priority with consecutive ids; None when a message that was never delivered has a lower
        id."""
        first = self.first_again(level)
        if first is None or self.next_fresh(level, 1, first):
            return None
        last = first
        while last + 1 - first < max_count and self._again.get(last + 1) == level:
            last += 1
        return first, last

    def take_again(self, first: int, last: int) -> None:
        """Remove ids that ``next_again`` has just returned: they are leased, or ready without regard to priority."""
        for msg_id in range(first, last + 1):
            del self._again[msg_id]

    def first_again(self, level: int) -> int | None:
        """The lowest id among the waiting redeliveries of a priority."""
        heap = self._again_by_level.get(level, [])
        while heap and self._again.get(heap[0]) != level:
            heappop(heap)
        return heap[0] if heap else None

    def next_fresh(self, level: int, max_count: int, below: int | None = None) -> list[int]:
        """The lowest messages of a priority that were never delivered, ascending, at most ``max_count``; with ``below`` only
        ids below it."""
        found: list[int] = []
        if level >= len(self._counts) or not self._counts[level]:
            return found
        ready, base, mark = self._ready, self._base, level + 1
        at = ready.find(mark, max(self._hints[level] - base, 0))
        if at >= 0:
            self._hints[level] = base + at
        while at >= 0 and len(found) < max_count and (below is None or base + at < below):
            found.append(base + at)
            at = ready.find(mark, at + 1)
        return found

    def first(self) -> int | None:
        """The id to deliver first: the lowest one of the highest ready priority; None when nothing is ready."""
        level = self.highest()
        if level is None:
            return None
        ids = [*self.next_fresh(level, 1)]
        if (top := self.first_again(level)) is not None:
            ids.append(top)
        return min(ids)
