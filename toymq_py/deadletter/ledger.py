"""Moves of messages out of a topic whose acks in that topic are not durable yet, and how a restart finds them.

Contract: delivery.md, "Attempts" (a crash makes no second copy); ADR 0033. A dead letter, or a record on its way back, is
stored in its target first; then the message counts as acked in its source. Until that ack is on stable storage, the key of the
record in the target's log is the only witness of the move. Belongs to the event loop.
"""

from collections.abc import Sequence
from contextlib import suppress

from toymq_py.deadletter.transfer import RecordReader, is_redriven_letter
from toymq_py.letter import Witness, return_of
from toymq_py.topic import Topic


class MoveLedger:
    """The moves out of one source topic whose acks are not durable yet. It watches the writes of the source's offsets; until
    they hold these acks, the target topic keeps its segments from the first moved record on."""

    __slots__ = ("_deleted", "_moved", "_target", "_writing")

    def __init__(self) -> None:
        self._deleted = False
        self._target: Topic | None = None
        self._moved: int | None = None  # the lowest id in the target since the offsets were last looked at
        self._writing: int | None = None  # and of those before, which are being stored

    def add(self, target: Topic, first_id: int) -> None:
        """Note moved messages whose acks are not durable: their copies in ``target`` begin at ``first_id``."""
        if self._deleted:  # a commit was under way
            return
        if target is not self._target:  # the first one, or the one before was deleted
            self._target, self._moved, self._writing = target, None, None
            target.retention.pinned_from = lambda: self._first_unstored(target)
        self._moved = first_id if self._moved is None else min(first_id, self._moved)

    def _first_unstored(self, target: Topic) -> int | None:
        """The lowest id in the target that is the copy of a message whose ack is not durable; None when there is none."""
        if target is not self._target:
            return None
        return min((first for first in (self._moved, self._writing) if first is not None), default=None)

    def offsets_writing(self) -> None:
        """Mark entries added so far as part of the offsets write that begins now."""
        if self._target is not None:
            self._writing, self._moved = self._first_unstored(self._target), None

    def offsets_written(self) -> None:
        """Drop the marked entries: the offsets that hold them are on stable storage."""
        target = self._target
        if self._writing is not None and target is not None:
            self._writing = None
            if self._moved is None:
                self._target = None
            target.retention.apply()

    def topic_deleted(self) -> None:
        """Release the target: the source is deleted, so its acks are not stored any more."""
        self._deleted = True
        target, self._target = self._target, None
        if target is not None:
            target.retention.apply()


def ack_moved_messages(source: Topic, target: Topic, witnesses: Sequence[Witness], ledger: MoveLedger) -> None:
    """Ack messages whose dead letters are stored already: the broker died before it stored these acks."""
    for record_id, (name, *numbers) in witnesses:
        consumer = source.consumers.get(name.decode())
        msg_id, _, since_ns = _integers(numbers, 3)
        if consumer is not None and consumer.since_ns == since_ns and not consumer.has_acked_all(msg_id, msg_id):
            consumer.skip(msg_id, msg_id)
            ledger.add(target, record_id)
            source.offsets.changed()


def ack_redriven_letters(source: Topic, target: Topic, witnesses: Sequence[Witness], ledger: MoveLedger) -> None:
    """Ack dead letters whose records are stored in their origin topic again: the broker died before it stored these acks."""
    letters, returned = RecordReader(source), RecordReader(target)
    ids = set[int]()
    for record_id, numbers in witnesses:
        msg_id, _ = _integers(numbers, 2)
        if not source.log.first_id <= msg_id < source.log.committed_id or source.redrive_consumer.has_acked(msg_id):
            continue
        with suppress(OSError):  # what cannot be read cannot go back now, either
            run, row = letters.find(msg_id)
            # Else it is a letter of a topic that was deleted since, or no letter at all.
            if run is not None and is_redriven_letter(target, returned, record_id, return_of(source.name, run, row)):
                ids.add(msg_id)
                ledger.add(target, record_id)
    if ids:
        source.redrive_consumer.ack(sorted(ids))
        source.offsets.changed()


def _integers(numbers: Sequence[bytes], count: int) -> list[int]:
    """Parse the ``count`` numbers in a record's key; all are -1 when the key is not one that the broker made."""
    if len(numbers) != count or not all(number.isdigit() for number in numbers):
        return [-1] * count
    return [int(number) for number in numbers]
