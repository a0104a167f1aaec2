"""Order per key of one consumer: which message of each key may be delivered, and which wait behind it.

Pure state. Knows ids and keys, neither leases nor records. Contract: delivery.md, "mode"; ADR 0122.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from toymq_py.consumer.id_set import IdSet

WAITING_MAX: Final = 20_000
"""Messages that one consumer knows to wait for their key, at 8 bytes each. Behind so many it looks no further until one of
their keys goes on. A hot key fills it; Pulsar's Key_Shared looks ahead as far by default."""

_NONE: Final = array("Q")


class KeyLanes:
    """A lane for each key that has a message which is not acked: its head, which alone may be delivered, and the ids behind it.

    Every id below ``scanned`` that is due and not acked was entered, or stands in ``late``; those without a key never are.
    ``turns`` are ids that have become heads and were not looked at yet; ``free`` are ids that may be delivered for the first
    time, ascending. Ids in ``turns``, ``free`` and the lanes may have been acked since: the reader checks. Memory: a lane for
    each delivered message that is not acked, and ``WAITING_MAX`` ids.
    """

    __slots__ = ("_heads", "_lanes", "_on_turn", "free", "late", "scanned", "turns", "waiting")

    def __init__(self, scanned: int, on_turn: Callable[[], None]) -> None:
        """``on_turn`` is called when ``turns`` is no longer empty."""
        self._heads: dict[int, bytes] = {}
        self._lanes: dict[bytes, array[int]] = {}  # without the heads; ascending
        self._on_turn = on_turn
        self.clear(scanned)

    def clear(self, scanned: int) -> None:
        """Forget everything; ids from ``scanned`` on have to be entered again."""
        self._heads.clear()
        self._lanes.clear()
        self.scanned = scanned
        self.turns: list[int] = []
        self.free: list[int] = []
        self.late = IdSet()
        """Ids that fell due behind ``scanned``: their keys are not known yet."""
        self.waiting = 0
        """Messages that wait for their key."""

    @property
    def full(self) -> bool:
        return self.waiting >= WAITING_MAX

    @property
    def keys(self) -> int:
        """How many keys have an entered message that is not acked."""
        return len(self._lanes)

    def enter(self, msg_id: int, key: bytes) -> bool:
        """Enter a message that is due and not acked, once or again. Returns: whether it is the head of its lane."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = _NONE
            self._heads[msg_id] = key
            return True
        if msg_id in self._heads:
            return True
        at = len(lane) if not lane or lane[-1] < msg_id else bisect_left(lane, msg_id)
        if at == len(lane) or lane[at] != msg_id:
            if lane is _NONE:
                self._lanes[key] = array("Q", (msg_id,))
            else:
                lane.insert(at, msg_id)
            self.waiting += 1
        return False

    def acked(self, first: int, last: int) -> None:
        """Remove acked ids: the next messages of their keys become heads."""
        heads = self._heads
        if last - first < len(heads):
            ended = [msg_id for msg_id in range(first, last + 1) if msg_id in heads]
        else:
            ended = [msg_id for msg_id in heads if first <= msg_id <= last]
        if self.late:
            self.late.discard_range(first, last)
        for msg_id in ended:
            key = heads.pop(msg_id)
            lane = self._lanes[key]
            if not lane:
                del self._lanes[key]
                continue
            heads[lane[0]] = key
            self.turns.append(lane[0])
            del lane[0]
            self.waiting -= 1
            if len(self.turns) == 1:
                self._on_turn()

    def release(self, msg_id: int) -> None:
        """Let a head, or a message without a key, be delivered for the first time."""
        insort(self.free, msg_id)
