"""Topics that move to another group of a cluster, or come from one, while the broker serves its other topics. ADR 0194.

A topic and its dead-letter topic move together; both are named by the topic, the origin. Knows neither other groups nor where
topics are. Belongs to the event loop.

    leaves   quiet     wait until no dead letter is being moved
             close     sessions end, publishes are committed, offsets are stored; the files no longer change
             open      if the topic stays here after all
             remove    if the other group has the topic
    arrives  open      once its files are complete and this group has the topic
"""

import logging
from collections.abc import Callable
from functools import partial

from toymq_py.callbacks import call_all
from toymq_py.data_directory import DataDirectory, Stored
from toymq_py.deadletter import DeadLetters
from toymq_py.errors import DamagedData, DataDirectoryError, PlacementUnknown, RequestError, StorageFailed
from toymq_py.names import DEAD_LETTERS
from toymq_py.storage.moves_file import Mark
from toymq_py.storage.offsets_flusher import OffsetsFlusher
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.broker")

Closed = Callable[[OSError | RequestError | None], None]


class TopicMoves:
    """The moves of one broker's topics. ``marks``: the topics in ``moves.json``, by origin; for reading only."""

    def __init__(
        self,
        topics: dict[str, Topic],
        unopened: dict[str, StorageFailed],
        directory: DataDirectory,
        flusher: OffsetsFlusher,
        dead_letters: DeadLetters,
        *,
        open_topic: Callable[[str, str], None],
        opened: Callable[[Topic], None],
        closed: Callable[[str], None],
    ) -> None:
        """
        Args:
            topics, unopened: the broker's dicts.
            open_topic: recovers a topic from its path into ``topics``; raises OSError, DamagedData, DataDirectoryError.
            opened: called with each topic that is served from now on.
            closed: called with the name of each topic that is no longer served.
        """
        self.marks: dict[str, Mark] = {}
        self._topics = topics
        self._unopened = unopened
        self._directory = directory
        self._flusher = flusher
        self._dead_letters = dead_letters
        self._open_topic = open_topic
        self._opened = opened
        self._closed = closed
        self._storing = False
        self._to_store: list[Stored] = []

    # -- at the start

    def settle(self, is_here: Callable[[str, str], bool | None]) -> None:
        """Finish the moves that a kill has interrupted. Blocks; call it before any topic is open.

        Args:
            is_here: tells whether this group has a topic, given the cluster's UUID in its mark; None when unknown, and then
                the topic stays closed.

        Raises: DamagedData, OSError.
        """
        found = self._directory.read_moves()
        for origin, mark in found.items():
            here = is_here(origin, mark.cluster)
            if here is None:
                self.marks[origin] = mark
                self._leave_closed(origin, mark)
            elif not here:
                logger.warning("topic %s: this copy of a move %s group %s is removed", origin, mark.way, mark.group)
                for name in _pair(origin):
                    self._directory.remove_topic_now(name)
        if self.marks != found:
            self._directory.write_moves(self.marks)

    def _leave_closed(self, origin: str, mark: Mark) -> None:
        whole = "this copy is whole" if mark.way == "to" else "this copy may be half"
        why = (
            f"it was being moved {mark.way} group {mark.group}, and etcd says of no group that it has it. {whole}:"
            f" `toymqctl create {origin} group=…` names the group that is to have it, then restart its node"
        )
        for name in _pair(origin):
            if self._directory.has_topic(name):
                logger.error("topic %s stays closed: %s", name, why)
                self._unopened[name] = StorageFailed(f"{name} stays closed: {why}")

    # -- marks

    def mark(self, origin: str, mark: Mark | None, done: Stored) -> None:
        """Set or remove (None) the mark of a topic in ``moves.json``. ``done`` is called when that is on stable storage or
        failed."""
        if mark is None:
            self.marks.pop(origin, None)
        else:
            self.marks[origin] = mark
        self._to_store.append(done)
        if not self._storing:
            self._store()

    def _store(self) -> None:
        self._storing = True
        calls, self._to_store = self._to_store, []

        def stored(error: OSError | None) -> None:
            self._storing = False
            if self._to_store:
                self._store()
            call_all(calls, error)

        self._directory.store_moves(self.marks, stored)

    # -- a topic that goes

    def names(self, origin: str) -> list[str]:
        """The open topics of a move: the topic, its dead-letter topic, or both."""
        return [name for name in _pair(origin) if name in self._topics]

    def is_stored(self, origin: str) -> bool:
        """Whether files of the topic exist here."""
        return any(self._directory.has_topic(name) for name in _pair(origin))

    def refusal(self, origin: str) -> str | None:
        """Why a topic cannot move away: a copy of a damaged topic, for example, would lack records that a repair may find
        here."""
        for name in _pair(origin):
            if (error := self._unopened.get(name)) is not None:
                return str(error)
            topic = self._topics.get(name)
            if topic is not None and (topic.deleted or topic.state != "ok"):
                return f"{name} is {'being deleted' if topic.deleted else topic.state}: see `toymqctl describe {name}`"
            if topic is not None and any(segment.sha256 is not None for segment in topic.log.segments):
                return f"{name} has segments in the bucket of --tier alone, which stays with this group"
        return None

    def quiet(self, origin: str, done: Callable[[], None]) -> None:
        """Stop moving dead letters to and from the topic, and call ``done`` when no move of one is under way."""
        self._dead_letters.suspend(self._pair_open(origin), _gone(origin), done)

    def resume(self, origin: str) -> None:
        """End ``quiet``, for a topic that was not closed."""
        self._dead_letters.resume(self._pair_open(origin))

    def close(self, origin: str, done: Closed) -> None:
        """End a topic as a clean stop does, and close its files. It leaves ``topics`` at once. ``done`` is called when nothing
        writes its files any more, with the error if its offsets could not be stored. Assumes that ``quiet`` is done."""
        closing = [self._topics.pop(name) for name in self.names(origin)]
        waiting = set(closing)
        errors: list[OSError | RequestError] = []
        for topic in closing:
            topic.committer.refuse(_gone(origin))
            topic.settings_queue.refuse_waiting(_gone(origin))
            topic.stop_deliveries("MOVED")
            topic.commits.notify_waiters()

        def closed(topic: Topic) -> None:
            topic.close()
            topic.publisher.clear()
            self._dead_letters.forget(topic)
            self._closed(topic.name)
            waiting.discard(topic)
            if not waiting:
                done(errors[0] if errors else None)

        def stored(topic: Topic, error: OSError | RequestError | None) -> None:
            if error is not None:
                errors.append(error)
            topic.context.moved = _gone(origin)
            topic.context.topic_deleted = True  # whatever still knows it finds nothing to do
            for channel in topic.channels.values():
                channel.close("MOVED")
            topic.delays.close()
            topic.offsets.close()
            # What the offsets allow to remove is being removed.
            self._flusher.when_quiet(lambda: topic.committer.when_idle(partial(closed, topic)))

        def committed(topic: Topic) -> None:
            if topic.unused:
                stored(topic, None)
            else:
                topic.flush_offsets(partial(stored, topic))

        if not closing:
            done(None)
        for topic in closing:
            topic.settings_queue.when_idle(partial(topic.committer.when_idle, partial(committed, topic)))

    def remove(self, origin: str, done: Stored) -> None:
        """Remove the files of a topic that is not open; ``done`` is called when its names are free, or with the error."""
        for name in _pair(origin):
            self._unopened.pop(name, None)
        name, letters = _pair(origin)

        def removed(error: OSError | None) -> None:
            if error is not None:
                done(error)
            else:
                self._directory.remove_topic(name, done)

        self._directory.remove_topic(letters, removed)

    # -- a topic that comes, or stays

    def open(self, origin: str) -> None:
        """Open the files of a topic, and serve it. Blocks for its recovery. A topic that cannot be opened stays closed."""
        for name in _pair(origin):
            if not self._directory.has_topic(name):
                continue
            try:
                self._open_topic(name, self._directory.topic_path(name))
            except (OSError, DamagedData, DataDirectoryError) as error:
                logger.error("topic %s was moved and cannot be opened, it stays closed until a restart: %s", name, error)  # noqa: TRY400 (one line)
                self._unopened[name] = StorageFailed(f"{name} could not be opened when it was moved: {error}")
        self._dead_letters.settle_moves(self._topics)
        for topic in self._pair_open(origin):
            topic.opened()
            self._opened(topic)

    def _pair_open(self, origin: str) -> list[Topic]:
        return [self._topics[name] for name in self.names(origin)]


def _pair(origin: str) -> tuple[str, str]:
    return origin, origin + DEAD_LETTERS


def _gone(origin: str) -> PlacementUnknown:
    """The error for subscriptions and waiting requests of a topic that is closed for its move; new commands wait."""
    return PlacementUnknown(f"{origin} is being moved to another group: send it again")
