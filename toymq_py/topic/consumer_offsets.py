"""Consumer state of a topic on disk: written behind by the flusher.

Contract: storage.md, "offsets.json"; ADR 0008, 0051. Belongs to the event loop.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from toymq_py.consumer import Consumer
from toymq_py.disk_errors import NO_SPACE
from toymq_py.errors import NoSuchTopic
from toymq_py.storage.log import Log
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.offsets_flusher import Done, OffsetsFlusher
from toymq_py.topic.channel import Channel
from toymq_py.topic.redrive_consumer import RedriveConsumer


class OffsetsWatch(Protocol):
    """Observes the writes of one topic's offsets."""

    def offsets_writing(self) -> None:
        """Called when the write of the present state begins."""

    def offsets_written(self) -> None:
        """Called when the state of the last ``offsets_writing`` is on stable storage."""

    def topic_deleted(self) -> None:
        """Called when the topic is deleted: no more writes follow."""


class ConsumerOffsets:
    """Offsets of the consumers of one topic: a source for the flusher."""

    def __init__(
        self,
        topic: str,
        path: str,
        log: Log,
        channels: Mapping[str, Channel],
        redrive_consumer: RedriveConsumer,
        flusher: OffsetsFlusher,
        incarnation: str,
    ) -> None:
        """``channels``: the topic's own mapping, which changes as consumers come and go. ``incarnation``: of the log."""
        self.path = path
        self.problem: str | None = None
        """The fault of the file at the last start."""
        self.lacks_consumers = False
        """Whether the file was damaged: new consumers may be missing ones, and begin at the first id until the next restart."""
        self.generation = 0
        """The generation of the last write."""
        self.watch: OffsetsWatch | None = None
        self.on_stored: Callable[[OffsetsState], None] = lambda state: None
        """Called when a state is on stable storage."""
        self.on_full: Callable[[OffsetsState], None] = lambda present: None
        """Called when the disk has no space for the present state."""
        self._topic = topic
        self._log = log
        self._channels = channels
        self._redriver = redrive_consumer
        self._flusher = flusher
        self._incarnation = incarnation
        self._moved_back = False
        self._closed = False

    def consumers(self) -> list[Consumer]:
        """All consumers: those of clients, and ``#redrive``."""
        return [*(channel.consumer for channel in self._channels.values()), *self._redriver.consumers]

    def changed(self) -> None:
        """Mark the consumer state as unsaved. A deleted topic has nothing to save."""
        if not self._closed:
            self._flusher.mark(self)

    def moved_back(self) -> None:
        """Have the next flush write both generations. After SEEK and FORGET the previous one would ack messages that the
        consumer shall see again."""
        self._moved_back = True

    def flush(self, done: Done) -> None:
        """Store the present state, in both generations after ``moved_back``. ``done`` gets None when it is on stable storage,
        or the error."""
        if self._closed:
            done(NoSuchTopic(f"{self._topic} was deleted"))
        elif self._moved_back:
            self._moved_back = False
            self._flusher.flush(self, lambda error: self.flush(done) if error is None else done(error))
        else:
            self._flusher.flush(self, done)

    def close(self) -> None:
        """Stop writing: the topic is deleted."""
        self._closed = True
        self._flusher.discard(self)
        if self.watch is not None:
            self.watch.topic_deleted()

    # -- asked by the flusher

    def offsets_snapshot(self) -> OffsetsState:
        if self.watch is not None:
            self.watch.offsets_writing()
        self.generation += 1
        return self._state()

    def _state(self) -> OffsetsState:
        return OffsetsState(
            self._log.first_id,
            self._log.committed_id,
            {consumer.name: consumer.snapshot().to_json() for consumer in self.consumers()},
            tuple(self._log.removed),
            self._incarnation,
            self.generation,
            {name: channel.mode for name, channel in self._channels.items() if channel.mode != "exclusive"},
        )

    def offsets_flushed(self, state: OffsetsState) -> None:
        if self.watch is not None:
            self.watch.offsets_written()
        self.on_stored(state)

    def offsets_refused(self, error: OSError) -> None:
        if error.errno in NO_SPACE:
            self.on_full(self._state())
