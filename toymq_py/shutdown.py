"""Shutdown of a broker: begun work finishes, waiting work is refused, all within a deadline.

Contract: delivery.md, "Shutdown"; ADR 0083, ADR 0102. Knows no sessions. Belongs to the event loop.

1. ``begin``: deliveries end; changes that wait for others are refused.
2. Meanwhile sessions refuse all commands but acks (``session/gate.py``).
3. ``finish``: dead letters, commits and offsets go to the disk; then the ends of logs are recorded, which only makes the next
start faster.
4. At the deadline ``finish`` ends, however much the disk has taken: what was answered is stored.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from math import inf

from toymq_py.clock import Clock
from toymq_py.deadletter import DeadLetters
from toymq_py.errors import ShuttingDown
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.offsets_flusher import OffsetsFlusher
from toymq_py.subscription import SubscriptionRegistry
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.broker")

ENDS_MAX = 1_000
"""Most logs whose ends a clean stop records: each takes about 2 ms of the disk (ADR 0083)."""


class Shutdown:
    """Ends the topics of one broker."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        subscriptions: SubscriptionRegistry,
        dead_letters: DeadLetters,
        flusher: OffsetsFlusher,
        scheduler: Scheduler,
        clock: Clock,
    ) -> None:
        """``topics``: the broker's dict, which may change."""
        self._topics = topics
        self._subscriptions = subscriptions
        self._dead_letters = dead_letters
        self._flusher = flusher
        self._scheduler = scheduler
        self._clock = clock
        self._ends_at = inf
        self._finished: Callable[[], None] | None = None
        self._is_over = False

    def begin(self, ends_at: float) -> None:
        """End every subscription and poll, and refuse changes that have not begun.

        ``ends_at``: when ``finish`` ends at the latest, on the monotonic clock.
        """
        self._ends_at = ends_at
        self._subscriptions.end_all("SHUTTING_DOWN")
        for topic in self._topics.values():
            topic.stop_deliveries("SHUTTING_DOWN")
            topic.settings_queue.refuse_waiting(ShuttingDown("the broker is shutting down: change it again later"))
        self._dead_letters.stop_redrives()

    def finish(self, done: Callable[[], None]) -> None:
        """Store the dead letters that are due, commit pending batches, flush the offsets, then call ``done``; at the
        deadline call it even if some of that is not done.
        """
        self._finished = done
        if self._ends_at < inf:
            self._scheduler.later(max(self._ends_at - self._clock.monotonic(), 0.0), self._give_up)
        self._dead_letters.finish(self._commit)

    def _commit(self) -> None:
        waiting = {"", *self._topics}

        def idle(name: str) -> None:
            waiting.discard(name)
            if not waiting:
                self._flusher.flush_all(self._record_ends)

        for name, topic in list(self._topics.items()):
            topic.committer.when_idle(partial(idle, name))
        idle("")

    def _record_ends(self) -> None:
        behind = (topic for topic in self._topics.values() if topic.end_is_unrecorded)
        for topic in islice(behind, ENDS_MAX):
            topic.offsets.changed()
        self._flusher.flush_all(self._end)

    def _end(self) -> None:
        self._is_over = True
        done, self._finished = self._finished, None
        if done is not None:
            done()

    def _give_up(self) -> None:
        if self._finished is not None:
            busy = sum(not topic.committer.idle for topic in self._topics.values())
            logger.warning(
                "the shutdown ends at its deadline (--shutdown-timeout): %d topics have commits at the disk, "
                "%d consumer states are not stored; what was answered is safe, messages that were acked last may come again",
                busy, self._flusher.unsaved,
            )  # fmt: skip
            self._flusher.abandon()
            self._end()

    @property
    def is_clean(self) -> bool:
        """Whether everything was stored before the deadline."""
        return self._is_over and not self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed: files are then closed as they are."""
        return self._clock.monotonic() >= self._ends_at
