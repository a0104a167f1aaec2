"""Which ids of a topic count as acked for one consumer: a floor and ranges above it.

Owns the set of acked ids and its compact form. Knows nothing of deliveries, leases or the cursor:
a range may lie anywhere above the floor. Contract: delivery.md, "Ack floor".
"""

from bisect import bisect_left, bisect_right

from toymq_py.model import IdRange


class AckSet:
    """A set of ids that only grows: all below ``floor``, and ranges above it.

    The ranges are ascending, neither touch each other nor the floor, and are kept as two parallel
    lists so that one stuck message costs one range. ``floor`` is therefore always an id that is
    not in the set. Owned by one ``Consumer``.
    """

    __slots__ = ("_above", "_firsts", "_lasts", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._above = 0  # ids in all ranges together

    def add(self, first: int, last: int) -> int:
        """Put ``first`` to ``last`` into the set; returns how many of them are new to it.

        The floor rises over the contiguous prefix. Cost grows with the ranges inside, not the ids.
        """
        first = max(first, self.floor)
        if last < first:
            return 0
        firsts, lasts = self._firsts, self._lasts
        added = last + 1 - first
        if not firsts and first == self.floor:
            self.floor = last + 1
            return added
        i = bisect_left(lasts, first - 1)  # ranges i to j - 1 overlap or touch the new one
        j = bisect_right(firsts, last + 1)
        swallowed = 0
        if i < j:
            swallowed = sum(lasts[i:j]) - sum(firsts[i:j]) + j - i
            sticks_out = max(first - firsts[i], 0) + max(lasts[j - 1] - last, 0)
            added -= swallowed - sticks_out
            first = min(first, firsts[i])
            last = max(last, lasts[j - 1])
        if first == self.floor:
            self.floor = last + 1
            del firsts[i:j], lasts[i:j]
            self._above -= swallowed
        else:
            firsts[i:j] = [first]
            lasts[i:j] = [last]
            self._above += last + 1 - first - swallowed
        return added

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any id from ``first`` to ``last`` is in the set."""
        if first < self.floor:
            return True
        i = bisect_left(self._lasts, first)
        return i < len(self._firsts) and self._firsts[i] <= last

    def next_open(self, msg_id: int) -> int:
        """The lowest id at or above ``msg_id`` that is not in the set."""
        if msg_id < self.floor:
            return self.floor
        i = bisect_left(self._lasts, msg_id)
        if i < len(self._firsts) and self._firsts[i] <= msg_id:
            return self._lasts[i] + 1
        return msg_id

    def open_until(self, msg_id: int, limit: int) -> int:
        """Where the gap that holds ``msg_id`` ends: the next id in the set, ``limit`` at most.

        Assumes a gap.
        """
        i = bisect_right(self._firsts, msg_id)
        return min(self._firsts[i], limit) if i < len(self._firsts) else limit

    def open_below(self, limit: int) -> int:
        """How many ids below ``limit`` are not in the set.

        O(1) unless ranges lie beyond the limit.
        """
        if limit <= self.floor:
            return 0
        above = self._above
        for k in range(len(self._firsts) - 1, -1, -1):
            if self._lasts[k] < limit:
                break
            above -= self._lasts[k] + 1 - max(self._firsts[k], limit)
        return limit - self.floor - above

    def ranges(self) -> tuple[IdRange, ...]:
        """The ranges above the floor, ascending."""
        return tuple(zip(self._firsts, self._lasts, strict=True))
