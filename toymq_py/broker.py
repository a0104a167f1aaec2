"""The broker: the topics of one data directory, and the operations that span topics.

Contract: architecture.md, delivery.md, storage.md. Sessions and the HTTP gateway call its methods; it knows no protocol.
Belongs to the event loop; the scheduler, clock and file system are passed in.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from toymq_py import broker_stats
from toymq_py.auth.holder import acting_token
from toymq_py.auth.quotas import Quotas
from toymq_py.callbacks import call_all
from toymq_py.clock import Clock
from toymq_py.config.options import BrokerOptions
from toymq_py.config.topic_settings import TopicSettings, check_dead_letter_settings
from toymq_py.consumer import FailureBudget
from toymq_py.consumer_options import Mode
from toymq_py.data_directory import DataDirectory
from toymq_py.deadletter import LETTER_KEYS, DeadLetters, RedriveDone
from toymq_py.dedupe import KeyBudget
from toymq_py.deletions import Deletions
from toymq_py.directory_check import DirectoryCheck
from toymq_py.errors import (
    DamagedData,
    DataDirectoryError,
    DirectoryLost,
    Forbidden,
    NoSuchTopic,
    NotEnoughReplicas,
    RequestError,
    ShuttingDown,
    StorageFailed,
    TooManyTopics,
    TopicExists,
)
from toymq_py.metrics import Metrics
from toymq_py.names import DEAD_LETTERS, TopicPattern, is_dead_letters, is_pattern
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.placement import Placement
from toymq_py.records import IdRange
from toymq_py.shutdown import Shutdown
from toymq_py.storage.commit.commit_place import CommitPlace
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets_flusher import OffsetsFlusher
from toymq_py.storage.open_files import OPEN_FILES_MAX, OpenFiles
from toymq_py.storage.tail_cache import TailBudget
from toymq_py.subscription import AnyPoll, PatternPoll, PatternSubscription, Poll, SubscriptionRegistry
from toymq_py.topic import DeliveryPermit, Ticker, Topic, TopicServices, TracedTopic, Tracer, begin_carefully, unopened_topic
from toymq_py.topic_moves import TopicMoves
from toymq_py.topic_opener import TopicOpener

logger = logging.getLogger("toymq_py.broker")

ALONE = Placement()
"""The placement of a single broker: every topic is here."""
Done = Callable[[OSError | RequestError | None], None]
"""Called when an effect is on stable storage, or with the error that prevented it."""


class Broker:
    """One broker. Serves after ``open``; ``topics`` by name is for reading only."""

    def __init__(
        self, options: BrokerOptions, *, fs: FileSystem, scheduler: Scheduler, clock: Clock,
        rss_bytes: Callable[[], int] = lambda: 0, tasks: Callable[[], int] = lambda: 0,
        loop_lag_s: Callable[[], float] = lambda: 0.0, tracer: Tracer | None = None, open_files_max: int = OPEN_FILES_MAX,
        placement: Placement = ALONE, recovery_threads: int = 0,
    ) -> None:  # fmt: skip
        """
        Args:
            rss_bytes, tasks, loop_lag_s: for STATS: resident memory, tasks of the event loop, and its worst recent delay.
            tracer: makes spans of messages; None for no tracing.
            open_files_max: how many segment files of all topics are open at a time.
            placement: tells which topics other workers or groups have, and which are therefore not opened here.
            recovery_threads: the number of threads that recover topics in ``open``; 0: the caller's thread does.
        """
        self.options = options
        self.metrics = Metrics()
        self.quotas = Quotas(options, self.metrics)
        self.topics: dict[str, Topic] = {}
        self.unopened: dict[str, StorageFailed] = {}
        """Topics whose files could not be read or are lost, by name, with the error that every command on them gets."""
        self.on_deadline: Callable[[float], None] = lambda at: None
        """Called with a time at which ``tick`` must run, if that is before the time it returned last."""
        self.gateways: list[str] = []
        """The URLs of its own HTTP listeners, as they are bound."""
        self.shutting_down = False
        self.too_few_replicas: str | None = None
        """Why publishes are refused with NOT_ENOUGH_REPLICAS; None: they are taken. Gates publishes of clients only: what the
        broker writes by itself goes on, or a start could wait for itself."""
        self.permit = DeliveryPermit()
        self._fs, self._scheduler, self._clock = fs, scheduler, clock
        self._rss_bytes, self._tasks, self._loop_lag_s = rss_bytes, tasks, loop_lag_s
        self._tracer = tracer
        if tracer is not None:
            tracer.exemplify(self.metrics)
        self.directory = DataDirectory(fs, scheduler, options.data_dir)
        self.space = SpaceGuard(fs, options.data_dir, options.min_free_bytes, clock)
        self.space.on_low = lambda: call_all(topic.retention.apply for topic in self.topics.values())
        self.commit_place = CommitPlace(options.commit, self.metrics.loop_held_seconds.observe)
        self._flusher = OffsetsFlusher(fs, scheduler, clock)
        self._dead_letters = DeadLetters(scheduler, clock, self._dead_letter_topic)
        self.on_topic_created: Callable[[str], Done] = lambda name: lambda error: None
        """Called with the name when a request creates a topic. What it returns is called with the outcome."""
        self.placement = placement
        """Asked only for topics that are not here."""
        self.partitioned = PartitionedTopics(fs, self.directory, lambda: self.placement, self.topics, self.unopened)
        self._started = clock.monotonic()
        self._ticker = Ticker(lambda at: self.on_deadline(at))
        self._subscriptions = SubscriptionRegistry(scheduler)
        self._deletions = Deletions(
            self.topics, self.unopened, self.directory, self._flusher, self._dead_letters, self._topic_gone, self._subscriptions
        )
        self._opener = TopicOpener(
            fs, clock, options, self.directory, self.topics, self.unopened, self.quotas, self._dead_letters, self._make,
            recovery_threads,
        )  # fmt: skip
        self.moves = TopicMoves(self.topics, self.unopened, self.directory, self._flusher, self._dead_letters,
                                open_topic=self._opener.open, opened=self._subscriptions.topic_made,
                                closed=self.quotas.topic_gone)  # fmt: skip
        self._shutdown = Shutdown(self.topics, self._subscriptions, self._dead_letters, self._flusher, scheduler, clock)
        self._directory_check: DirectoryCheck | None = None
        self.files = OpenFiles(open_files_max)
        self._services = TopicServices(
            fs, scheduler, clock, options, self.metrics, self.quotas, self.space, self.commit_place, self._flusher,
            files=self.files, key_budget=KeyBudget(options.dedupe_keys_total), failure_budget=FailureBudget(),
            tail_budget=TailBudget(), permit=self.permit, arm=self._ticker.arm, lost=self.directory.lost,
            rejoin=lambda name, ended: self._subscriptions.rejoin(self.topics[name], ended),
        )  # fmt: skip
        self.lost: DirectoryLost | None = None
        """Set when the data directory is no longer this broker's: nothing that it writes is kept."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once, when ``lost`` is set; the process must end then."""

    # -- opening

    def open(self, pid: int, address: str | None = None, lock: DirectoryLock | None = None) -> None:
        """Lock the directory and recover every topic (storage.md, "Recovery"). Blocks; accept connections only afterwards.

        Args:
            address: where clients will reach the broker; shown to a process that finds the directory locked.
            lock: the lock of the directory, if this process already holds it; the broker then owns it.

        Raises:
            DirectoryLocked: another process holds the lock.
            DataDirectoryError: the directory cannot be used, or is damaged and ``strict_recovery`` is on.
        """
        self.directory.open(pid, address, lock, is_part=self.placement.is_divided)
        self._directory_check = DirectoryCheck(self._fs, self._scheduler, self.directory, self.topics, self._lose)
        try:
            self._open_topics()
        except (OSError, DamagedData, DataDirectoryError) as error:
            self.directory.close()
            if isinstance(error, DataDirectoryError):
                raise
            text = "cannot open {}: {}" if isinstance(error, OSError) else "{} is damaged: {}"
            raise DataDirectoryError(text.format(self.directory.path, error)) from error

    def _open_topics(self) -> None:
        self.directory.refuse_no_directories(self.unopened, strict=self.options.strict_recovery)
        self.moves.settle(self.placement.is_here_by_record)
        self.partitioned.open()
        self.partitioned.note_lost(names := list(self.directory.topic_names()))
        moved = {name: self.placement.moved(name) for name in names if name not in self.unopened}
        self.directory.refuse_strays({name: error for name, error in moved.items() if error is not None}, self.unopened)
        self._opener.open_all([name for name in names if name not in self.unopened])
        self._dead_letters.settle_moves(self.topics)
        call_all(topic.opened for topic in self.topics.values())
        begin_carefully(self.topics.values(), self.directory.unclean_ends)

    def _make(self, name: str, settings: TopicSettings, **recovered: Any) -> Topic:
        make = Topic if self._tracer is None else partial(TracedTopic, self._tracer)
        return make(
            name, self.directory.topic_path(name), self._services, settings,
            held=self._dead_letters.move_held, keys_kept=LETTER_KEYS if is_dead_letters(name) else 0, **recovered,
        )  # fmt: skip

    def check_directory(self, done: Callable[[], None] = lambda: None) -> None:
        """Check on a sync thread that the directory, ``LOCK`` and the active segments were not removed or replaced. A missing
        segment closes its topic for publishing, a missing directory ends the broker. A low disk makes retention act."""
        if self._directory_check is not None and self.lost is None:
            self.space.look()
            self._services.believed.now_ns()  # a jump of the clock is seen soon
            self._directory_check.run(done)

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = DirectoryLost(f"{reason}: what is published would not be kept, the broker ends")
            for topic in self.topics.values():
                topic.committer.poison(reason, ends=True)
            self._flusher.stop(StorageFailed(reason))
            self.on_lost()

    # -- topics

    def topic(self, name: str) -> Topic:
        """Find an open topic by its name. Raises: NoSuchTopic, Moved, IsPartitioned."""
        topic = self.topics.get(name)
        if topic is None:
            error = self.partitioned.is_whole(name) or self.placement.moved(name) or self.unopened.get(name)
            raise error or self.partitioned.is_none(name) or NoSuchTopic(f"there is no topic {name}")
        if topic.deleted:
            raise NoSuchTopic(f"{name} is being deleted")
        return topic

    def has(self, name: str) -> bool:
        """Whether a topic of this name exists and is not being deleted."""
        return (topic := self.topics.get(name)) is not None and not topic.deleted

    def topic_or_new(self, name: str) -> Topic:
        """Find a topic, or create it in memory if it does not exist. Assumes that the name is legal.

        Raises: TooManyTopics, BeingDeleted, StorageFailed (the topic could not be opened, or not be removed).
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = self._new_topic(name)
            self.on_topic_created(name)(None)
        elif topic.deleted:
            raise self._deletions.busy(name)
        return topic

    def topic_to_publish(self, name: str) -> Topic:
        """Find or create the topic to publish to, as ``topic_or_new``.

        Raises: also Forbidden for a dead-letter topic, QueueFull while memory is high, DiskLow before it is created,
            NotEnoughReplicas.
        """
        if self.too_few_replicas is not None:
            raise NotEnoughReplicas(self.too_few_replicas)
        if self.quotas.memory_high:
            raise self.quotas.memory_refusal()
        if name.endswith(DEAD_LETTERS):  # is_dead_letters would be a call more in each publish
            origin = name.removesuffix(DEAD_LETTERS)
            raise Forbidden(f"{name} holds dead letters, which the broker alone writes: publish to {origin}")
        if name not in self.topics and name not in self.unopened:
            self.space.admit_topic()
        return self.topic_or_new(name)

    def _dead_letter_topic(self, name: str) -> Topic:
        """Find or create a dead-letter topic, even beyond the limit of topics: without it a message would wait for ever. A
        topic has at most one, which does not count (ADR 0074)."""
        if name in self.topics or name in self.unopened:
            return self.topic_or_new(name)
        return self._add_topic(name, TopicSettings())

    def redrive(self, name: str, ids: Sequence[IdRange] | None, max_count: int | None, done: RedriveDone) -> None:
        """Move dead letters back to the topic they came from, which is created if it is missing.

        ``done`` gets the number of moved letters once they are on stable storage, and an error if others could not be moved.

        Raises: NoSuchTopic, BadArgument, ShuttingDown; then ``done`` is not called.
        """
        self._dead_letters.redrive(self.topic(name), ids, max_count, done)

    def when_letters_are_stored(self, topic: Topic, call: Callable[[], None]) -> Callable[[], object]:
        """Call ``call`` once, when the next dead letters of a topic are stored. Returns: a function that cancels it."""
        return self._dead_letters.when_stored(topic, call)

    def _new_topic(self, name: str, group: str | None = None) -> Topic:
        """Create a topic.

        Raises: Moved, BeingPlaced, PlacementUnknown, TooManyTopics, StorageFailed, IsPartitioned, NoSuchTopic.
        """
        known = name in self.unopened
        error: RequestError | None = self.partitioned.is_whole(name) or (None if known else self.partitioned.is_none(name))
        if error is None:
            self.placement.admit(name, group)
        if (error := error or self.unopened.get(name)) is not None:
            raise error
        if self.lost is not None:
            raise StorageFailed(str(self.lost))
        try:
            self.quotas.admit_topic(name, len(self.topics))
        except TooManyTopics:
            self.placement.gone(name)
            raise
        return self._deletions.watched(self._add_topic(name, TopicSettings()))

    def _topic_gone(self, name: str) -> None:
        self.quotas.topic_gone(name)
        self.placement.gone(name)

    def _add_topic(self, name: str, settings: TopicSettings) -> Topic:
        topic = self.topics[name] = self._make(name, settings)
        self.quotas.topic_there(name, self.topics)
        token = acting_token.set(None)  # the consumers that patterns make here do not count for the client that made the topic
        try:
            self._subscriptions.topic_made(topic)
        finally:
            acting_token.reset(token)
        return topic

    def watch_new_topics(self, made: Callable[[Topic], None]) -> Callable[[], object]:
        """Call ``made`` with every new topic from now on. Returns: a function that stops the calls."""
        return self._subscriptions.watch(made)

    def poll(
        self, name: str, consumer: str, *, visibility_s: float | None = None, wake: Callable[[], bool], mode: Mode | None = None
    ) -> AnyPoll:
        """Lease messages of a topic, or of all topics that match a pattern, without a subscription (``Poll``). A single topic
        is created if it is missing; a new consumer begins at the first id. Assumes that the names are legal.

            poll = broker.poll("jobs", "worker", visibility_s=60, wake=look)
            poll.when_registered(registered)      # a new consumer is on the disk; maybe at once
            for delivery in poll.take(10, 1 << 20): ...
            poll.close()

        Args:
            visibility_s: the visibility timeout of the leases; by default the topic's.
            wake: called when there may be messages after there were none, or no more will come (``poll.closed``, or ``take``
                raises). Returns whether the caller takes messages in this pass of the event loop or the next; if not, another
                poll is woken.
            mode: shared or keyed; None keeps the consumer's mode.

        Raises: ModeConflict, ShuttingDown, TooManyTopics, TooManyConsumers, BeingDeleted, StorageFailed, OSError.
        """
        self.refuse_late()
        if (pattern := self.partitioned.pattern_of(name)) is not None:
            polls = PatternPoll(pattern, consumer, visibility_s=visibility_s, wake=wake, mode=mode)
            self._subscriptions.poll(polls, self.topics)
            return polls
        poll = Poll(name, consumer, visibility_s=visibility_s, wake=wake, mode=mode)
        self._subscriptions.attach_one(poll, self.topic_or_new(name))
        return poll

    def follow(self, subscription: PatternSubscription) -> None:
        """Subscribe a pattern to all matching topics, present and future; ``subscription.when_registered`` tells when that is
        done."""
        self._subscriptions.follow(subscription, self.topics)

    def create(self, name: str, changes: Mapping[str, str], done: Done) -> None:
        """Create a topic, or confirm one that has these settings; ``done`` gets TopicExists if it has others. ``changes``: the
        settings, and perhaps ``group``, the group of the cluster that is to have the topic.

        Raises: BadArgument, TooManyTopics, BeingDeleted, ShuttingDown, TopicExists, and the errors of ``Placement.admit``;
            then ``done`` is not called.
        """
        self.refuse_late()
        if (group := changes.get("group")) is not None:
            changes = {option: value for option, value in changes.items() if option != "group"}
        TopicSettings().changed(changes)
        check_dead_letter_settings(name, changes)
        if (known := name in self.topics) and self.topics[name].deleted:
            raise self._deletions.busy(name)
        if known and group is not None:
            self.placement.admit(name, group)
        topic = self.topics[name] if known else self._new_topic(name, group)
        announce = None if known else self.on_topic_created(name)

        def changed(present: TopicSettings) -> TopicSettings | None:
            settings = present.changed(changes)
            if known and (topic.settings_queue.problem is not None or settings != present):
                found = topic.settings_queue.problem or present.differences(settings)
                raise TopicExists(f"{name} exists with {found}: config changes it, over HTTP PATCH")
            # without an incarnation on the disk an existing topic may be in memory only
            return None if settings == present and topic.settings_queue.incarnation is not None else settings

        def answer(error: OSError | RequestError | None) -> None:
            if announce is not None:
                announce(error)
            done(error)

        def created(error: OSError | RequestError | None) -> None:
            if error is not None and not known and topic.unused and self.topics.get(name) is topic:
                # its directory would be a topic after a restart
                self._deletions.delete(topic, lambda messages, failed: answer(error))
            else:
                answer(error)

        topic.settings_queue.change(changed, created)

    def configure(self, name: str, changes: Mapping[str, str], done: Done) -> None:
        """Change settings of a topic. Raises: NoSuchTopic, BadArgument, ShuttingDown; then ``done`` is not called."""
        self.refuse_late()
        topic = self.topic(name)
        topic.settings.changed(changes)
        check_dead_letter_settings(name, changes)

        def changed(present: TopicSettings) -> TopicSettings | None:
            settings = present.changed(changes)
            return None if settings == present and topic.settings_queue.problem is None else settings

        topic.settings_queue.change(changed, done)

    def delete(self, name: str, done: Callable[[int, OSError | None], None]) -> None:
        """Remove a topic with its messages and consumers; ``done`` gets the number of messages once the name is free.

        Raises: NoSuchTopic, ShuttingDown.
        """
        self.refuse_late()
        self._deletions.delete(self.topic(name), done)

    def describe(self, pattern: str | None, sees: Callable[[str], bool] | None = None) -> Iterator[dict[str, Any]]:
        """The JSON objects of TOPICS for a name or pattern, in the order of names, with the topics that could not be opened.
        An iterator, since thousands of topics take a while. ``sees`` filters names. Raises: BadName, at once."""
        names = {*self.topics, *self.unopened}
        if pattern is not None:
            names = set(filter(TopicPattern(pattern).matches, names)) if is_pattern(pattern) else names & {pattern}
        return self._describe_each(filter(sees, sorted(names)))  # filter(None) takes them all: none is empty

    def _describe_each(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        for name in names:
            topic = self.topics.get(name)
            if topic is not None and not topic.deleted:
                yield topic.describe()
            elif (error := self.unopened.get(name)) is not None:
                yield unopened_topic(name, str(error))

    # -- time

    def tick(self, now: float) -> float | None:
        """Do all work that is due at ``now`` (monotonic seconds). Returns: when work is due next, None for never."""
        return self._ticker.tick(now)

    # -- statistics

    def stats(self) -> dict[str, Any]:
        """The JSON object of STATS, without topics (``broker_stats``)."""
        return broker_stats.stats(self.options, self.metrics, self.space, self._fs, self._clock, self.gateways, {
            "uptime_s": round(self._clock.monotonic() - self._started, 3), "rss_bytes": self._rss_bytes(),
            "tasks": self._tasks(), "loop_lag_s": round(self._loop_lag_s(), 6),
        })  # fmt: skip

    # -- ending

    def refuse_late(self) -> None:
        """Refuse new work during the shutdown. Raises: ShuttingDown."""
        if self.shutting_down:
            raise ShuttingDown("the broker is shutting down: try again later")

    def stop_deliveries(self, *, ends_at: float = inf) -> None:
        """Begin the shutdown: end every subscription and poll with SHUTTING_DOWN, and refuse changes that have not begun.
        ``ends_at``: the monotonic time at which ``finish`` ends at the latest."""
        self.shutting_down = True
        self._shutdown.begin(ends_at)

    def finish(self, done: Callable[[], None]) -> None:
        """Store and flush all state, then call ``done`` (``Shutdown.finish``); ``close`` may follow."""
        self._shutdown.finish(done)

    def close(self) -> None:
        """Close every file and release the directory. Idempotent."""
        for topic in self.topics.values():
            topic.close(neatly=not self._shutdown.is_late)
        self.topics.clear()
        self.directory.close(clean=self._shutdown.is_clean)
        self._directory_check = None
