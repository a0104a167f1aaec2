"""Deletion of topics: writing ends, the directory is removed, the name becomes free.

Contract: storage.md, "DELETE"; protocol.md, "DELETE"; ADR 0103. Belongs to the event loop.
"""

import logging
from collections.abc import Callable
from functools import partial

from toymq_py.callbacks import call_all
from toymq_py.data_directory import DataDirectory
from toymq_py.deadletter import DeadLetters
from toymq_py.disk_errors import NO_SPACE
from toymq_py.errors import BeingDeleted, StorageFailed
from toymq_py.storage.offsets_flusher import OffsetsFlusher
from toymq_py.subscription.registry import SubscriptionRegistry
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.broker")

RETRY_S = 5.0
"""The time between two tries to remove a topic from a full disk."""
UNSTORED_S = 1.0
"""The delay after a refused publish before a new topic goes that has nothing else: a publisher that tries again finds it."""
Deleted = Callable[[int, OSError | None], None]
"""Called with the number of messages that were deleted, or why the directory was not."""


class Deletions:
    """Removes topics. A name is taken until the topic's directory is removed; requests that would make the topic anew wait."""

    def __init__(
        self,
        topics: dict[str, Topic],
        unopened: dict[str, StorageFailed],
        directory: DataDirectory,
        flusher: OffsetsFlusher,
        dead_letters: DeadLetters,
        forget: Callable[[str], None],
        subscriptions: SubscriptionRegistry,
    ) -> None:
        """
        Args:
            topics, unopened: the broker's dicts: a deleted topic leaves ``topics``; one whose removal failed enters
                ``unopened``.
            forget: called with the name of each topic that was removed.
        """
        self._topics = topics
        self._unopened = unopened
        self._directory = directory
        self._flusher = flusher
        self._dead_letters = dead_letters
        self._forget = forget
        self._subscriptions = subscriptions
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._doubted: set[str] = set()

    def watched(self, topic: Topic) -> Topic:
        """Watch a topic that a client has just made, and return it: it is removed if the disk refuses all its publishes, since
        a restart would find its empty directory."""
        topic.commits.on_failed = partial(self._doubt, topic, frozenset(topic.channels))
        return topic

    def _doubt(self, topic: Topic, of_patterns: frozenset[str]) -> None:
        if topic.name not in self._doubted and not topic.next_id:
            self._doubted.add(topic.name)
            self._subscriptions.later(UNSTORED_S, partial(self._delete_unstored, topic, of_patterns))

    def _delete_unstored(self, topic: Topic, of_patterns: frozenset[str]) -> None:
        self._doubted.discard(topic.name)
        if self._topics.get(topic.name) is not topic or topic.deleted or topic.committer.failed is not None:
            return
        is_empty = not topic.committer.next_id and not topic.settings_queue.asked
        if is_empty and topic.channels.keys() <= of_patterns and self._subscriptions.are_of_patterns(topic):
            logger.info("topic %s is removed: all that was published to it was refused", topic.name)
            self.delete(topic, lambda messages, error: None)

    def busy(self, name: str) -> BeingDeleted:
        """The error for a request that would make the topic again. Its ``when_done`` tells when the deletion ended or
        failed."""
        return BeingDeleted(name, partial(self._when_ended, name))

    def _when_ended(self, name: str, call: Callable[[], None]) -> None:
        if name in self._waiting:
            self._waiting[name].append(call)
        else:
            call()

    def delete(self, topic: Topic, done: Deleted) -> None:
        """Remove a topic with its messages and consumers; ``done`` is called once the name is free, or with an error."""
        name = topic.name
        self._waiting[name] = []
        topic.begin_delete()

        def removed(error: OSError | None) -> None:
            messages = topic.log.messages()
            topic.close()
            topic.publisher.clear()
            del self._topics[name]
            self._dead_letters.forget(topic)
            if error is None:
                self._forget(name)
            else:
                self._keep_closed(name, error)
            done(messages, error)
            call_all(self._waiting.pop(name))

        # First wait for everything that writes into the directory: settings, commits, offsets.
        remove = partial(self._directory.remove_topic, name, removed)
        topic.settings_queue.when_idle(lambda: topic.committer.when_idle(lambda: self._flusher.when_quiet(remove)))

    def _keep_closed(self, name: str, error: OSError) -> None:
        """Keep a name taken because the topic's directory could not be removed, so that new files do not mix with the old ones.
        On a full disk the removal is retried until it succeeds."""
        is_full = error.errno in NO_SPACE
        remedy = f"it is tried again every {RETRY_S:g} s: make room" if is_full else "restart the broker"
        if name not in self._unopened:  # else it was said
            logger.error("topic %s not removed (%s): it is closed; %s", name, error, remedy)
        self._unopened[name] = StorageFailed(f"{name} could not be deleted ({error.strerror}): {remedy}")
        if is_full:
            self._subscriptions.later(RETRY_S, partial(self._directory.remove_topic, name, partial(self._tried_again, name)))

    def _tried_again(self, name: str, error: OSError | None) -> None:
        if error is not None:
            self._keep_closed(name, error)
            return
        logger.info("topic %s is removed now", name)
        self._unopened.pop(name, None)
        self._forget(name)
