"""The ids that several consumers have all acked, updated with each ack.

For topics with a backlog limit and several consumers; other topics pay nothing. Contract: delivery.md, "Backlog limits"; ADR
0043.
"""

from collections.abc import Callable, Sequence

from toymq_py.consumer.ack_set import AckSet
from toymq_py.records import MSG_ID_MAX, IdRange


class WatchedAcks(AckSet):
    """An ack set that reports each addition. Takes over the contents of another set, which must not be used afterwards."""

    __slots__ = ("_on_added",)

    def __init__(self, acks: AckSet, on_added: Callable[[int, int], None]) -> None:
        """``on_added`` gets the first and the last id; some of them may have been in the set before."""
        AckSet.__init__(self, acks.floor)
        self.take_over(acks)
        self._on_added = on_added

    def add(self, first: int, last: int) -> int:
        first = max(first, self.floor)
        added = AckSet.add(self, first, last)
        if added:
            self._on_added(first, last)
        return added


class CommonAcks:
    """The intersection of several ack sets, while they only grow. After any other change of one, make a new object."""

    __slots__ = ("_acks", "_members")

    def __init__(self) -> None:
        self._acks = AckSet(0)
        self._members: list[AckSet] = []  # the one that last kept an id open comes first

    @property
    def floor(self) -> int:
        """The lowest id that not all consumers have acked."""
        return self._acks.floor

    def next_unacked(self, from_id: int, limit: int) -> IdRange | None:
        """The lowest range of ids from ``from_id`` on and below ``limit`` that not all consumers have acked."""
        return self._acks.next_gap(from_id, limit)

    def unacked(self, limit: int) -> int:
        """How many ids below ``limit`` not all consumers have acked."""
        return self._acks.open_below(limit)

    def track(self, members: Sequence[AckSet]) -> None:
        """Take these sets as members; ``added`` is called for each addition from now on. Cost grows with all of their
        ranges."""
        self._members = list(members)
        self.added(0, MSG_ID_MAX)

    def added(self, first: int, last: int) -> None:
        """Update the intersection after one set got these ids. Cost grows with the ranges, in this stretch, of the sets that
        still lack an id."""
        acks, members = self._acks, self._members
        at = acks.next_open(first)
        while at <= last:
            for place, each in enumerate(members):
                begin = each.next_held(at, last + 1)
                if begin > at:
                    if place:  # a set that lacks these ids mostly lacks the next ones, too: ask it first
                        members.insert(0, members.pop(place))
                    break
            else:
                begin = min([each.next_open(at) for each in members])
                acks.add(at, begin - 1)
            at = acks.next_open(begin)
