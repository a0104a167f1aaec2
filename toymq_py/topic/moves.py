"""What was moved from a topic to another and is not stored as done there: who keeps it known, and how a restart finds it.

Contract: delivery.md, "Attempts" (a crash makes no second copy); ADR 0033. A dead letter, or a record on its way back, is
stored in its target first and then counts as acked where it came from. Until that is on stable storage, the record's key in the
target's log is the only witness. Belongs to the event loop.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from toymq_py.model import DEAD_LETTERS
from toymq_py.storage.recovery import KeyRun
from toymq_py.topic.moving import LETTER_KEY, REDRIVE_KEY, Reading
from toymq_py.topic.returning import is_there, return_of

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic

Witness = tuple[int, list[bytes]]
"""A record's id, and what its key says behind the names of the two topics."""


class Moves:
    """What left one topic and is not stored as done there. Its target lets no segment go from the first of these records on."""

    __slots__ = ("_forgotten", "_moved", "_target", "_writing")

    def __init__(self) -> None:
        self._forgotten = False
        self._target: Topic | None = None
        self._moved: int | None = None  # the lowest id there since the offsets were last looked at
        self._writing: int | None = None  # and of those before, which are being stored

    def add(self, target: "Topic", first_id: int) -> None:
        """From this id on, records of the target stand for messages that were moved."""
        if self._forgotten:  # a commit was under way
            return
        if target is not self._target:  # none, or one that was deleted
            self._target, self._moved, self._writing = target, None, None
            target.arrivals = self
        self._moved = first_id if self._moved is None else min(first_id, self._moved)

    def first_unstored(self, target: "Topic") -> int | None:
        """The lowest id of such a record."""
        if target is not self._target:
            return None
        return min((first for first in (self._moved, self._writing) if first is not None), default=None)

    def writing(self) -> None:
        """What was added so far is in the offsets that are written now."""
        if self._target is not None:
            self._writing, self._moved = self.first_unstored(self._target), None

    def written(self) -> None:
        """They are on stable storage."""
        target = self._target
        if self._writing is not None and target is not None:
            self._writing = None
            if self._moved is None:
                self._target = None
            target.apply_retention()

    def forget(self) -> None:
        """The topic that they left is deleted: nothing is stored there any more, and nothing comes from it again."""
        self._forgotten = True
        target, self._target = self._target, None
        if target is not None:
            target.apply_retention()


def witnesses(keys: Sequence[KeyRun], topic: str) -> list[Witness]:
    """Which of the records that recovery found were moved to ``topic``: dead letters, or what came back from them."""
    if topic.endswith(DEAD_LETTERS):
        prefix = b"%b%b:" % (LETTER_KEY, topic.removesuffix(DEAD_LETTERS).encode())
    else:
        prefix = b"%b%b%b:" % (REDRIVE_KEY, topic.encode(), DEAD_LETTERS.encode())
    return [
        (first_id + row, key.removeprefix(prefix).split(b":"))
        for first_id, run in keys
        for row, key in enumerate(run)
        if key.startswith(prefix)
    ]


def settle_letters(source: "Topic", target: "Topic") -> None:
    """Messages of which the dead letter is there are done, also if the broker died before it could say so."""
    for record_id, (name, *numbers) in target.witnesses:
        consumer = source.consumers.get(name.decode())
        msg_id, _, since_ns = _integers(numbers, 3)
        if consumer is not None and consumer.since_ns == since_ns and not consumer.has_acked_all(msg_id, msg_id):
            consumer.skip(msg_id, msg_id)
            source.moves.add(target, record_id)
            source.changed()


def settle_returns(source: "Topic", target: "Topic") -> None:
    """Letters of which the record is back went back, also if the broker died before it could say so."""
    reading, arrived = Reading(source), Reading(target)
    went = set[int]()
    for record_id, numbers in target.witnesses:
        msg_id, _ = _integers(numbers, 2)
        if not source.log.first_id <= msg_id < source.log.committed_id or source.redriven.has(msg_id):
            continue
        with suppress(OSError):  # what cannot be read cannot go back now, either
            run, row = reading.find(msg_id)
            # Else it is a letter of a topic that was deleted since, or no letter at all.
            if run is not None and is_there(target, arrived, record_id, return_of(source.name, run, row)):
                went.add(msg_id)
                source.moves.add(target, record_id)
    if went:
        source.redriven.add(sorted(went))
        source.changed()


def _integers(numbers: Sequence[bytes], count: int) -> list[int]:
    """-1 for all where a key was not made by the broker."""
    if len(numbers) != count or not all(number.isdigit() for number in numbers):
        return [-1] * count
    return [int(number) for number in numbers]
