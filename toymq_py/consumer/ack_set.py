"""The ids of a topic that one consumer has acked: a floor and ranges above it.

Owns the set of acked ids and its compact form. Knows nothing of deliveries, leases or the cursor:
a range may lie anywhere above the floor. Contract: delivery.md, "Ack floor".
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from toymq_py.id_rows import IdRows
from toymq_py.records import IdRange

_BLOCK_RANGES_MAX: Final = 1024  # what an insert moves at most; half of it in a block is usual


class AckSet:
    """A set of ids that only grows: all below ``floor``, and ranges above it.

    The ranges are ascending and neither touch each other nor the floor: one stuck message costs one range. ``floor`` is
    therefore always an id that is not in the set. They are kept in blocks of two parallel arrays, so that each of 500,000
    ranges costs 16 bytes, and an insert moves one block only. Owned by one ``Consumer``.
    """

    __slots__ = ("_above", "_firsts", "_heads", "_lasts", "_tops", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._firsts: list[array[int]] = []  # by block, none of them empty
        self._lasts: list[array[int]] = []
        self._heads: list[int] = []  # the first id of each block
        self._tops: list[int] = []  # and the last
        self._above = 0  # ids in all ranges together

    def add(self, first: int, last: int) -> int:
        """Add the ids ``first`` to ``last``. Returns: how many of them are new.

        The floor rises over the contiguous prefix. Cost grows with the ranges inside, not the ids.
        """
        first = max(first, self.floor)
        if last < first:
            return 0
        added = last + 1 - first
        if not self._tops and first == self.floor:
            self.floor = last + 1
            return added
        low = bisect_left(self._tops, first - 1)  # ranges that overlap or touch the new one begin in this block
        high = bisect_right(self._heads, last + 1) - 1  # and end in this one
        if low > high:  # between two blocks, or behind the last
            if first == self.floor:
                self.floor = last + 1
                return added
            self._above += added
            self._insert(low, first, last)
            return added
        firsts, lasts = self._firsts[low], self._lasts[low]
        i = bisect_left(lasts, first - 1)
        j = bisect_right(self._firsts[high], last + 1)
        swallowed = 0
        if low < high or i < j:
            swallowed = self._ids_of(low, i, high, j)
            new_first = min(first, firsts[i])
            new_last = max(last, self._lasts[high][j - 1])
            added = new_last + 1 - new_first - swallowed
            first, last = new_first, new_last
        self._above -= swallowed
        if first == self.floor:
            self.floor = last + 1
            self._replace(low, i, high, j, None)
        else:
            self._above += last + 1 - first
            self._replace(low, i, high, j, (first, last))
        return added

    @property
    def range_count(self) -> int:
        """How many ranges the set has above the floor."""
        return sum(map(len, self._firsts))

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any id from ``first`` to ``last`` is in the set."""
        if first < self.floor:
            return True
        block = bisect_left(self._tops, first)
        if block == len(self._tops):
            return False
        return self._firsts[block][bisect_left(self._lasts[block], first)] <= last

    def next_open(self, msg_id: int) -> int:
        """The lowest id at or above ``msg_id`` that is not in the set, so not acked."""
        if msg_id < self.floor:
            return self.floor
        block = bisect_left(self._tops, msg_id)
        if block < len(self._tops):
            i = bisect_left(self._lasts[block], msg_id)
            if self._firsts[block][i] <= msg_id:
                return self._lasts[block][i] + 1
        return msg_id

    def open_until(self, msg_id: int, limit: int) -> int:
        """The end of the gap that contains ``msg_id``: the next id in the set, at most ``limit``.

        Assumes that ``msg_id`` is not in the set.
        """
        block = bisect_left(self._tops, msg_id)
        if block == len(self._tops):
            return limit
        return min(self._firsts[block][bisect_right(self._firsts[block], msg_id)], limit)

    def next_held(self, msg_id: int, limit: int) -> int:
        """The lowest id of the set at or above ``msg_id``, ``limit`` at most."""
        return msg_id if self.next_open(msg_id) > msg_id else self.open_until(msg_id, limit)

    def next_gap(self, msg_id: int, limit: int) -> IdRange | None:
        """The lowest ids from ``msg_id`` on and below ``limit`` that are not in the set: one range."""
        first = self.next_open(msg_id)
        return (first, self.open_until(first, limit) - 1) if first < limit else None

    def open_below(self, limit: int) -> int:
        """How many ids below ``limit`` are not in the set.

        Cost grows with the ranges below the limit or above it, whichever are fewer.
        """
        if limit <= self.floor:
            return 0
        above = self._above
        block, blocks = bisect_left(self._tops, limit), len(self._tops)
        if block < blocks:
            i = bisect_left(self._lasts[block], limit)
            if 2 * block < blocks:
                above = self._ids_of(0, 0, block, i)
            else:
                above -= self._ids_of(block, i, blocks - 1, len(self._lasts[-1]))
            above += max(limit - self._firsts[block][i], 0)
        return limit - self.floor - above

    def ranges(self) -> IdRows:
        """The ranges above the floor, ascending; a copy."""
        return IdRows(2, [(firsts[:], lasts[:]) for firsts, lasts in zip(self._firsts, self._lasts, strict=True)])

    @classmethod
    def restore(cls, floor: int, ranges: IdRows, limit: int) -> "AckSet":
        """Make a set of all ids below ``floor`` and of the ids in the ranges that are below ``limit``. The ranges ascend, and
        may begin below ``floor``."""
        acks = cls(floor)
        for first, last in ranges:
            acks.add(first, min(last, limit - 1))
        return acks

    def take_over(self, other: "AckSet") -> None:
        """Move the contents of another set here; the other one must not be used any more."""
        self.floor, self._above = other.floor, other._above
        self._firsts, self._lasts, self._heads, self._tops = other._firsts, other._lasts, other._heads, other._tops

    # -- inside

    def _ids_of(self, low: int, i: int, high: int, j: int) -> int:
        """How many ids the ranges hold from row ``i`` of block ``low`` up to row ``j`` of block ``high``."""
        if low == high and j == i + 1:
            return self._lasts[low][i] + 1 - self._firsts[low][i]
        total = 0
        for block in range(low, high + 1):
            rows = slice(i if block == low else 0, j if block == high else None)
            firsts, lasts = self._firsts[block][rows], self._lasts[block][rows]
            total += sum(lasts) - sum(firsts) + len(lasts)
        return total

    def _insert(self, block: int, first: int, last: int) -> None:
        """Insert a range between block ``block`` and the one before."""
        if block:
            block -= 1
            self._firsts[block].append(first)
            self._lasts[block].append(last)
            self._tops[block] = last
            self._split(block)
        elif self._tops:
            self._firsts[0].insert(0, first)
            self._lasts[0].insert(0, last)
            self._heads[0] = first
            self._split(0)
        else:
            self._firsts.append(array("Q", (first,)))
            self._lasts.append(array("Q", (last,)))
            self._heads.append(first)
            self._tops.append(last)

    def _replace(self, low: int, i: int, high: int, j: int, span: IdRange | None) -> None:
        """Put one range, or none, in place of those from row ``i`` of block ``low`` up to row ``j`` of block ``high``."""
        firsts, lasts = self._firsts[low], self._lasts[low]
        if low < high:
            firsts = firsts[:i] + self._firsts[high][j:]
            lasts = lasts[:i] + self._lasts[high][j:]
            self._firsts[low : high + 1] = [firsts]
            self._lasts[low : high + 1] = [lasts]
            del self._heads[low:high], self._tops[low:high]
            j = i
        if span is not None:
            if i == j:
                firsts.insert(i, span[0])
                lasts.insert(i, span[1])
            else:
                firsts[i], lasts[i] = span
            i += 1
        if i < j:
            del firsts[i:j], lasts[i:j]
        if firsts:
            self._heads[low], self._tops[low] = firsts[0], lasts[-1]
            if len(firsts) > _BLOCK_RANGES_MAX:
                self._split(low)
        else:
            del self._firsts[low], self._lasts[low], self._heads[low], self._tops[low]

    def _split(self, block: int) -> None:
        firsts, lasts = self._firsts[block], self._lasts[block]
        while len(firsts) > _BLOCK_RANGES_MAX:
            half = len(firsts) // 2
            self._firsts[block : block + 1] = [firsts[:half], firsts[half:]]
            self._lasts[block : block + 1] = [lasts[:half], lasts[half:]]
            self._heads.insert(block + 1, firsts[half])
            self._tops.insert(block, lasts[half - 1])
            firsts, lasts = self._firsts[block], self._lasts[block]
