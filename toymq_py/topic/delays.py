"""Delayed messages of a topic: ids in the order of ``deliver_at``, which become ready for the consumers when they are due.

Contract: delivery.md, "Delay" and "Clocks". Belongs to the loop. Times are the wall clock's nanoseconds; the ``Schedule`` is
pure state and gets ``now`` passed in.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from toymq_py.clock import Clock
from toymq_py.consumer import IdSet
from toymq_py.topic.channel import Channel

DUE_PER_SLICE = 1024
"""Most messages that fall due in one piece, fewer where there are many consumers: about two milliseconds."""
NEXT_SLICE_S = 0.002
"""The delay before the next piece: it makes a message late by so much, and saves the ticker CPU where thousands fall due."""
CLOCK_CHECK_S = 10.0
"""How soon a wall clock that is set forward is noticed by what waits for it."""
BLOCK_ROWS_MAX = 1024
"""Rows at which a block of times is split: sorting so many takes a third of a millisecond."""


class _Block:
    """Times and ids in columns: 16 bytes a row, where a tuple in a heap takes 150. Sorted only when it is the first block."""

    __slots__ = ("at_ns", "descending", "ids")

    def __init__(self, at_ns: "array[int]", ids: "array[int]", *, descending: bool) -> None:
        self.at_ns = at_ns
        self.ids = ids
        self.descending = descending

    def sort(self) -> None:
        """Sort the latest first, so that due rows are popped from the end. Of equal times the lowest id is popped first."""
        if not self.descending:
            rows = sorted(zip(self.at_ns, self.ids, strict=True), reverse=True)
            self.at_ns = array("Q", [at_ns for at_ns, _ in rows])
            self.ids = array("Q", [msg_id for _, msg_id in rows])
            self.descending = True


class Schedule:
    """Delayed message ids: a set (``ids``, which the consumers read) and an order by time.

    The order is a row of blocks, each later than the one before it; inside, only the first is sorted. The cost does not depend
    on how the times are spread over ten years: a call sorts one block at most, and handles the rows that it is asked for. An id
    that leaves the set early (retention, damage) stays in its block until its time, and is then passed over.
    """

    __slots__ = ("_blocks", "_starts", "ids")

    def __init__(self) -> None:
        self.ids = IdSet()
        self._blocks: list[_Block] = []
        self._starts: list[int] = []  # no time in a block is below its start, and none in the one before above it

    def add(self, ids: Sequence[int], deliver_at_ns: Sequence[int], now_ns: int) -> None:
        """Add records, except those that are due already."""
        put, add = self._put, self.ids.add
        for msg_id, at_ns in zip(ids, deliver_at_ns, strict=True):
            if at_ns > now_ns:
                add(msg_id)
                put(at_ns, msg_id)

    def _put(self, at_ns: int, msg_id: int) -> None:
        blocks, starts = self._blocks, self._starts
        at = bisect_right(starts, at_ns) - 1
        if at < 0:
            if not blocks:
                blocks.append(_Block(array("Q", (at_ns,)), array("Q", (msg_id,)), descending=True))
                starts.append(at_ns)
                return
            starts[0] = at_ns
            at = 0
        block = blocks[at]
        block.descending = block.descending and at_ns < block.at_ns[-1]
        block.at_ns.append(at_ns)
        block.ids.append(msg_id)
        if len(block.ids) >= BLOCK_ROWS_MAX:
            self._split(at)

    def _split(self, at: int) -> None:
        block = self._blocks[at]
        block.sort()
        half = len(block.ids) // 2
        later = _Block(block.at_ns[:half], block.ids[:half], descending=True)
        del block.at_ns[:half], block.ids[:half]
        self._blocks.insert(at + 1, later)
        self._starts.insert(at + 1, later.at_ns[-1])

    def next_at_ns(self) -> int | None:
        """Time before which no message is due; None when none waits."""
        return self._starts[0] if self._starts else None

    def take_due(self, now_ns: int, max_count: int) -> list[int]:
        """Remove up to ``max_count`` ids that are due, the earliest first, of equal times the lowest."""
        due: list[int] = []
        while self._starts and self._starts[0] <= now_ns and len(due) < max_count:
            block = self._blocks[0]
            block.sort()
            at_ns, ids = block.at_ns, block.ids
            keep = len(ids)
            least = max(keep - (max_count - len(due)), 0)
            while keep > least and at_ns[keep - 1] <= now_ns:
                keep -= 1
            due += reversed(ids[keep:])
            del at_ns[keep:], ids[keep:]
            if ids:
                self._starts[0] = at_ns[-1]
            else:
                del self._blocks[0], self._starts[0]
        discard = self.ids.discard
        return [msg_id for msg_id in due if discard(msg_id)]

    def drop(self, first: int, last: int) -> None:
        """Remove ids that have no record any more."""
        self.ids.discard_range(first, last)
        if not self.ids:
            self._blocks.clear()
            self._starts.clear()


class Delays:
    """Makes due messages of a topic ready for its consumers, in slices: a million at one moment do not block the loop."""

    def __init__(
        self,
        clock: Clock,
        channels: Mapping[str, Channel],
        *,
        arm: Callable[["Delays", float], None],
    ) -> None:
        """``arm`` schedules a call of ``due`` at a monotonic time, in seconds."""
        self.schedule = Schedule()
        self._clock = clock
        self._channels = channels
        self._arm = arm
        self._closed = False

    def enter(self, ids: Sequence[int], deliver_at_ns: Sequence[int]) -> None:
        """Schedule records that are committed, or were found by recovery."""
        if ids:
            self.schedule.add(ids, deliver_at_ns, self._clock.wall_ns())
            self._arm_next()

    def due(self, now: float) -> None:
        """Make due messages ready, and arm for the next ones."""
        if self._closed:
            return
        channels = self._channels.values()
        due = self.schedule.take_due(self._clock.wall_ns(), max(DUE_PER_SLICE // max(len(channels) // 8, 1), 1))
        if due:
            for channel in channels:
                channel.consumer.fall_due(due)
                channel.notify_ready()
        self._arm_next()

    def close(self) -> None:
        """Stop, since the topic is deleted."""
        self._closed = True

    def _arm_next(self) -> None:
        at_ns = self.schedule.next_at_ns()
        if at_ns is not None:
            wait_s = (at_ns - self._clock.wall_ns()) / 1e9
            self._arm(self, self._clock.monotonic() + min(max(wait_s, NEXT_SLICE_S), CLOCK_CHECK_S))
