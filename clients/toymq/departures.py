"""Moves publishes to the connection of another worker, when MOVED says that it has their topic. Sans-IO; ADR 0155.

A broker of several workers answers a publish to a topic of another one with MOVED, and has not stored it. The topic's stream
continues on the other connection with its producer name and numbers, so that a publish with an unknown outcome is still
recognised there. The order is kept: nothing is sent there while a publish is unanswered here.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

from toymq.delivery_window import AckList, Feed
from toymq.pending_publishes import PublishSlot, Stream
from toymq.pending_replies import Slot
from toymq_py.errors import Moved


class Target(Protocol):
    """The conversation that a stream moves to."""

    def adopt(self, stream: Stream, size: int) -> bool:
        """Take a stream with ``size`` unanswered bytes. Later publishes to it wait until all earlier ones are here, in order.

        Returns: False when this conversation also has waiting publishes to the topic.
        """
        ...

    def accept(self, stream: Stream, slots: Sequence[PublishSlot]) -> None:
        """Send publishes of a stream, now or once there is a connection."""
        ...

    def forsake(self, stream: Stream) -> None:
        """Note that a stream does not come after all: later publishes to its topic have another stream."""
        ...

    def adopt_feed(self, feed: Feed, acks: Sequence[AckList]) -> None:
        """Subscribe, behind the acks that the other connection has not sent."""
        ...

    def adopt_acks(self, acks: Sequence[AckList]) -> None:
        """Send the acks of another connection."""
        ...


class Elsewhere(Protocol):
    """Finds the connection on which publishes to a topic, or a subscription, continue.

    Returns: None where there is none: the caller gets the error.
    """

    def publishes(self, topic: str, moved: Moved) -> Target | None: ...
    def subscribes(self, feed: Feed, moved: Moved) -> Target | None: ...


def place_of(moved: Moved) -> str:
    """The words in a MOVED, behind the addresses, about the place that has the topic: "group b has the topic orders"; "" for
    none."""
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
    """The moving streams of one conversation."""

    def __init__(self) -> None:
        self._leaving: dict[Stream, _Departure] = {}

    def __bool__(self) -> bool:
        return bool(self._leaving)

    def begin(self, stream: Stream, target: Target) -> None:
        """Begin to move a stream: a first publish of it was refused."""
        departure = self._leaving[stream] = _Departure(target)
        stream.send = departure.new.extend

    def take(self, slot: Slot) -> bool:
        """Keep a publish that was not stored here, if its stream is moving. Returns: whether it is."""
        departure = self._leaving.get(slot.stream) if isinstance(slot, PublishSlot) else None
        if departure is None:
            return False
        assert isinstance(slot, PublishSlot)
        departure.returned.append(slot)
        return True

    def has(self, topic: str) -> bool:
        """Whether publishes to a topic still have to be answered here."""
        return any(stream.topic == topic for stream in self._leaving)

    def slots(self) -> Iterator[PublishSlot]:
        """All kept publishes."""
        for departure in self._leaving.values():
            yield from departure.returned
            yield from departure.new

    def go(self, unanswered: Collection[Slot]) -> None:
        """Send on the streams without unanswered publishes."""
        busy = {slot.stream for slot in unanswered if isinstance(slot, PublishSlot)}
        for stream in [one for one in self._leaving if one not in busy]:
            departure = self._leaving.pop(stream)
            departure.target.accept(stream, list(_living([*departure.returned, *departure.new])))

    def forget(self) -> None:
        """Drop all kept publishes."""
        leaving, self._leaving = self._leaving, {}
        for stream, departure in leaving.items():
            departure.target.forsake(stream)


def _living(slots: Iterable[PublishSlot]) -> Iterator[PublishSlot]:
    """The publishes that a caller waits for."""
    for slot in slots:
        if slot.done:
            slot.dropped()
        else:
            yield slot
