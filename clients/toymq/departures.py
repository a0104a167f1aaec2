"""Moves publishes to the connection of another worker, after the broker's MOVED said that it has their topic. Sans-IO; ADR
0155.

In a broker with several workers, a worker answers a publish to another worker's topic with MOVED, and has not stored it. The
topic's stream of publishes continues on that worker's connection with the same producer name and numbers, so that a repeated
publish is still recognised there. The order is kept: nothing is sent there while a publish is unanswered here.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from toymq.delivery_window import AckList, Feed
from toymq.pending_publishes import PublishSlot, Stream
from toymq.pending_replies import Slot
from toymq_py.errors import Moved


class Target(Protocol):
    """The conversation that a stream of publishes, or a subscription, moves to."""

    def adopt(self, stream: Stream, size: int) -> bool:
        """Take over a stream with ``size`` unanswered bytes. Its later publishes wait until all earlier ones have arrived here,
        in order.

        Returns: False when this conversation already has waiting publishes to the topic.
        """
        ...

    def accept(self, stream: Stream, slots: Sequence[PublishSlot]) -> None:
        """Send the publishes of an adopted stream, now or once there is a connection."""
        ...

    def forsake(self, stream: Stream) -> None:
        """Note that an adopted stream does not come after all: later publishes to its topic begin another stream."""
        ...

    def adopt_feed(self, feed: Feed, acks: Sequence[AckList]) -> None:
        """Subscribe, after sending the acks that the feed's former connection has not sent."""
        ...

    def adopt_acks(self, acks: Sequence[AckList]) -> None:
        """Send acks that another connection has not sent."""
        ...


class Elsewhere(Protocol):
    """Finds the connection on which publishes to a topic, or a subscription, continue after a MOVED.

    Its methods return None when there is no such connection: the caller then gets the MOVED as an error.
    """

    def publishes(self, topic: str, moved: Moved) -> Target | None: ...
    def subscribes(self, feed: Feed, moved: Moved) -> Target | None: ...


def place_of(moved: Moved) -> str:
    """Return the words of a MOVED, after the addresses, that say who has the topic: "group b has the topic orders"; "" if it
    has none."""
    return str(moved).partition(" (")[2].replace(")", "", 1)


class _Departure:
    __slots__ = ("new", "returned", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.returned: list[PublishSlot] = []
        """The publishes that were refused here, in their order."""
        self.new: list[PublishSlot] = []
        """The publishes that were made meanwhile."""


class Departures:
    """Publishes of one topic that change to another worker's connection after MOVED."""

    def __init__(self) -> None:
        self._leaving: dict[Stream, _Departure] = {}

    def __bool__(self) -> bool:
        return bool(self._leaving)

    def begin(self, stream: Stream, target: Target) -> None:
        """Begin to move a stream: the broker has refused a first publish of it."""
        departure = self._leaving[stream] = _Departure(target)
        stream.send = departure.new.extend

    def take(self, slot: Slot) -> bool:
        """Keep a refused publish if its stream is moving. Returns: whether it was kept."""
        departure = self._leaving.get(slot.stream) if isinstance(slot, PublishSlot) else None
        if departure is None:
            return False
        assert isinstance(slot, PublishSlot)
        departure.returned.append(slot)
        return True

    def has(self, topic: str) -> bool:
        """Whether publishes to a topic still await answers on this connection."""
        return any(stream.topic == topic for stream in self._leaving)

    def slots(self) -> Iterator[PublishSlot]:
        """All publishes that are kept for their move."""
        for departure in self._leaving.values():
            yield from departure.returned
            yield from departure.new

    def go(self, unanswered: Collection[Slot]) -> None:
        """Hand each stream over that has no unanswered publish left here, with its kept publishes."""
        busy = {slot.stream for slot in unanswered if isinstance(slot, PublishSlot)}
        for stream in [one for one in self._leaving if one not in busy]:
            departure = self._leaving.pop(stream)
            departure.target.accept(stream, list(_living([*departure.returned, *departure.new])))

    def forget(self) -> None:
        """Drop all kept publishes, and tell the targets that their streams do not come."""
        leaving, self._leaving = self._leaving, {}
        for stream, departure in leaving.items():
            departure.target.forsake(stream)


def _living(slots: Iterable[PublishSlot]) -> Iterator[PublishSlot]:
    """Yield the publishes whose callers still wait; drop the others."""
    for slot in slots:
        if slot.done:
            slot.dropped()
        else:
            yield slot
