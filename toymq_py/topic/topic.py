"""One topic: joins its log, its consumers and its publisher.

Contract: delivery.md. Knows no wire, no session beyond its ``Subscription``, no other topic. Belongs to the event loop.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.consumer import Consumer, DeliveryPolicy, Lessee
from toymq_py.consumer_options import Mode, Start
from toymq_py.errors import NoSuchTopic, RequestError, StorageFailed
from toymq_py.failure import Failure
from toymq_py.names import is_dead_letters
from toymq_py.records import IdRange
from toymq_py.storage.commit.committer import Committer
from toymq_py.storage.log import Log
from toymq_py.storage.offsets import LoadedOffsets
from toymq_py.storage.offsets_flusher import Done
from toymq_py.storage.recovery import RecoveredLog
from toymq_py.topic.backlog import Backlog, BacklogLimit
from toymq_py.topic.channel import Channel, Subscription
from toymq_py.topic.commits import TopicCommits
from toymq_py.topic.consumer_offsets import ConsumerOffsets
from toymq_py.topic.consumer_recovery import restore
from toymq_py.topic.consumer_registry import ConsumerRegistry
from toymq_py.topic.delays import Delays
from toymq_py.topic.deliverer import ChannelContext
from toymq_py.topic.description import describe_channel, describe_consumers, due_times, unconsumed
from toymq_py.topic.publisher import Publisher
from toymq_py.topic.redrive_consumer import REDRIVER, RedriveConsumer
from toymq_py.topic.registration import Registration
from toymq_py.topic.retention import Purged, Retention
from toymq_py.topic.services import TopicServices
from toymq_py.topic.settings_queue import SettingsQueue, incarnation_of_log


class Topic:
    """One topic and its parts. ``path`` is its directory, which is made with the first record or consumer."""

    def __init__(
        self,
        name: str,
        path: str,
        services: TopicServices,
        settings: TopicSettings,
        *,
        held: Callable[["Topic", Channel], None],
        keys_kept: int = 0,
        recovered: RecoveredLog | None = None,
        offsets: LoadedOffsets | None = None,
        incarnation: str | None = None,
    ) -> None:
        """
        Args:
            held: called with a channel that has messages for the dead-letter topic.
            keys_kept: how many dedupe keys are remembered at least, whatever the settings and the budget of all topics are.
        """
        recovered = recovered or RecoveredLog()
        clock, scheduler, options = services.clock, services.scheduler, services.options
        identity = incarnation_of_log(recovered, offsets, incarnation)
        self.name, self.path, self.settings = name, path, settings
        self._services, self._clock = services, clock
        self.log = Log(
            services.fs, path, name, recovered.segments,
            next_id=recovered.next_id, first_id=recovered.first_id,
            lost=recovered.lost, removed=recovered.removed, unreadable=recovered.unreadable, problems=recovered.problems,
            tail_budget=services.tail_budget, files=services.files,
        )  # fmt: skip
        self.log.on_lost = self.records_lost
        self.committer = Committer(
            self.log, scheduler, clock,
            space=services.space, place=services.place, segment_bytes=options.segment_bytes,
            fsync=options.fsync, fsync_interval_s=options.fsync_interval_ms / 1000,
            roll_first=recovered.roll_first, heads=recovered.known, lost=services.lost,
        )  # fmt: skip
        self.committer.name_log(identity)
        self.log.on_replaced = self.committer.lose_active
        self.is_dead_letters = is_dead_letters(name)
        self.publisher = Publisher(
            self.log, self.committer, clock, recovered,
            dedupe_keys=self._setting("dedupe_keys"), key_budget=services.key_budget, keys_kept=keys_kept,
        )  # fmt: skip
        self.channels: dict[str, Channel] = {}
        """The channels by consumer."""
        self.redrive_consumer = RedriveConsumer(self.log, clock)
        self.offsets = ConsumerOffsets(name, path, self.log, self.channels, self.redrive_consumer, services.flusher, identity)
        self._held: Callable[[Channel], None] = lambda channel: held(self, channel)
        self.context = ChannelContext(
            name, self.log, clock, scheduler, services.metrics, self._delivery_policy(), services.failure_budget,
            services.budget, self.offsets.changed, services.permit, services.believed,
        )
        self.delays = Delays(clock, self.channels, arm=services.arm)
        self.backlog = Backlog(self.log, self.channels)
        self.retention = Retention(
            self.context, path, self.channels,
            committer=self.committer, delays=self.delays, backlog=self.backlog, redrive_consumer=self.redrive_consumer,
            fs=services.fs, space=services.space, segment_bytes_max=options.segment_bytes, keys_kept=keys_kept,
            flush_offsets=self.offsets.flush,
        )  # fmt: skip
        self.offsets.on_stored, self.offsets.on_full = self.retention.offsets_stored, self.retention.apply_on_full_disk
        self.registry = ConsumerRegistry(
            name, self.channels, self.log, clock, self.offsets, self.delays, services,
            open_channel=self._open_channel, moved=self._backlog_moved,
        )  # fmt: skip
        self.commits = self._commit_listener()
        self.committer.listener = self.commits
        self.settings_queue = SettingsQueue(
            services.fs, scheduler, path, present=lambda: self.settings, apply=self.apply_settings,
            is_empty=lambda: self.log.committed_id == 0, incarnation=incarnation, log_incarnation=identity,
        )  # fmt: skip
        # What is a part's own, for callers that know the topic alone (ADR 0073).
        self.publish, self.publish_sequenced = self.publisher.publish, self.publisher.publish_sequenced
        self.highest_sequence = self.publisher.highest_sequence
        self.read, self.fetch, self.messages = self.log.read, self.log.read_frames, self.log.messages
        self.when_committed, self.flush_offsets = self.commits.when_committed, self.offsets.flush
        self.resolve, self.seek, self.forget = self.registry.resolve, self.registry.seek, self.registry.forget
        self.due_times = partial(due_times, self.log)
        self.unconsumed = partial(unconsumed, self.log, self.delays.schedule.ids, self.redrive_consumer.waiting, self.context)
        self.is_settled, self.discard_letters = self.redrive_consumer.has_acked, self.redrive_consumer.discard
        self._set_policy()
        self.delays.enter(recovered.scheduled_ids, recovered.deliver_at_ns)
        if offsets is not None:
            self._restore(offsets)
        else:
            self.log.run_behind = self.committer.run_behind
        if recovered.closed is not None:
            self.committer.failed = StorageFailed(f"{name}: {recovered.closed}; publishing is refused until a restart")

    def _commit_listener(self) -> TopicCommits:
        return TopicCommits(self.context, self.channels, self.publisher, self.delays, self.retention)

    def _restore(self, offsets: LoadedOffsets) -> None:
        restored = restore(offsets, self.log, self.delays.schedule.ids)
        self.retention.stored = restored.stored
        self.offsets.problem, self.offsets.lacks_consumers = restored.problem, restored.lacks_consumers
        self.offsets.generation = offsets.state.generation or 0
        for first, last in self.log.lost:
            self.delays.schedule.drop(first, last)
        for consumer in restored.consumers:
            if consumer.name == REDRIVER:
                self.redrive_consumer.consumers = [consumer]
            else:
                self.registry.add(consumer).set_mode(restored.modes.get(consumer.name, "exclusive"))

    def opened(self) -> None:
        """Start limits and retention. Assumes that all topics are recovered and moves between them settled; nothing may block
        from here on."""
        self.log.run_behind = self.committer.run_behind
        self.committer.enter_heads()
        self._set_limit()
        self.retention.apply()

    @property
    def end_is_unrecorded(self) -> bool:
        """Whether the offsets on the disk lack the log's end; False for damaged ones, which are not overwritten."""
        stored = self.retention.stored
        return self.offsets.problem is None and self.log.committed_id > (0 if stored is None else stored.next_id)

    # -- settings

    def _setting(self, name: str) -> int:
        return self.settings.value(self.name, name, self._services.options)

    def _delivery_policy(self) -> DeliveryPolicy:
        return DeliveryPolicy(
            visibility_s=self._setting("visibility") / 1000,
            nack_backoff_min_s=self._setting("nack_backoff_min") / 1000,
            nack_backoff_max_s=self._setting("nack_backoff_max") / 1000,
        )

    def _set_policy(self) -> None:
        self.context.policy = self._delivery_policy()
        self.publisher.ttl_ms = self.settings.ttl
        self.retention.settings, self.retention.keys_wanted = self.settings, self._setting("dedupe_keys")
        self.retention.retain_acked_for_ms = self._setting("retain_acked_for")
        self.registry.limit_attempts(self._setting("max_attempts"))

    def distrust_settings(self, problem: str) -> None:
        """Distrust the settings on the disk, which are damaged or another topic's: the defaults hold, and nothing is removed
        that the right ones might keep, until new ones are stored (CONFIG, or ``toymq repair``)."""
        self.settings_queue.problem = problem
        self.retention.suspended = True

    def apply_settings(self, settings: TopicSettings) -> None:
        """Take settings into use that are on stable storage."""
        self.retention.suspended = False
        self.settings = settings
        self._set_policy()
        self.publisher.resize(self._setting("dedupe_keys"))
        self._set_limit()
        self.retention.apply()

    def _set_limit(self) -> None:
        self.publisher.limit = None
        self.backlog.untrack()
        if BacklogLimit.wanted(self.settings):
            self.publisher.limit = BacklogLimit(
                self.name, self.log, self.committer, self.backlog, self._clock, self.settings, self.retention.drop_below
            )
            self._backlog_moved()

    # -- records

    @property
    def first_id(self) -> int:
        """The first retained id."""
        return self.log.first_id

    @property
    def next_id(self) -> int:
        """The id behind the last committed record."""
        return self.log.committed_id

    def id_range(self, at_ms: int | None = None) -> tuple[int, int]:
        """The first retained id and ``next_id``; with ``at_ms`` the first id that was stored at or after that time."""
        log = self.log
        return log.first_id if at_ms is None else log.id_at_time(at_ms * 1_000_000, self._clock.wall_ns()), log.committed_id

    def is_scheduled(self, msg_id: int) -> bool:
        """Whether a message waits for its ``deliver_at``."""
        return msg_id in self.delays.schedule.ids

    # -- consumers

    @property
    def deleted(self) -> bool:
        return self.context.topic_deleted

    def living(self) -> "Topic":
        """Return this topic. Raises: NoSuchTopic when it was deleted, PlacementUnknown when it was moved."""
        if self.deleted:
            raise self.context.moved or NoSuchTopic(f"{self.name} was deleted")
        return self

    @property
    def consumers(self) -> dict[str, Consumer]:
        """The consumers by name, in a new dict."""
        return {name: channel.consumer for name, channel in self.channels.items()}

    def channel(self, name: str) -> Channel:
        """The channel of a consumer. Raises: NoSuchConsumer."""
        found = self.channels.get(name)
        if found is None:
            raise self.registry.missing(name)
        return found

    def _open_channel(self, consumer: Consumer) -> Channel:
        return Channel(self.context, consumer, arm=self._services.arm, held=self._held)

    def subscribe(
        self,
        name: str,
        start: Start | None = None,
        *,
        mode: Mode | None = "exclusive",
        window: int,
        visibility_s: float | None,
        wake: Callable[[Subscription], bool],
        ended: Callable[[Subscription, str], None],
        lessee: Lessee | None = None,
        poll_mode: Mode | None = None,
    ) -> tuple[Subscription, Registration]:
        """Attach a session to a consumer, or a poll (``mode`` None). An exclusive session takes over from an older one at once.

        Args:
            start: where the consumer begins if it is new; by default at the first id.
            visibility_s: its visibility timeout; the topic's when None.
            window, wake, ended, lessee: see ``Subscription``.
            poll_mode: the mode that a poll asks for; None leaves the consumer's.

        Returns: the subscription, and what ``when_registered`` needs before the caller answers.

        Raises: ModeConflict (sessions of another mode are attached), TooManyConsumers, OSError.
        """
        channel = self.channels.get(name)
        registration = Registration.KNOWN
        if channel is None:
            at = self.registry.start_of_new(start)
            registration = Registration.NEW if at == self.log.first_id else Registration.NEW_AHEAD
            channel = self.registry.make(name, at)
            if mode is None:
                channel.mode = "shared"
        subscription = channel.attach(
            mode=mode, window=window, visibility_s=visibility_s, wake=wake, ended=ended, lessee=lessee, poll_mode=poll_mode
        )
        return subscription, registration

    def when_registered(self, subscription: Subscription, registration: Registration, done: Done) -> None:
        """Call ``done`` when the consumer of a new subscription is on stable storage; at once for a known consumer.

        A consumer that begins at the first id is served although the disk refused it: a restart would begin it there again. One
        that skips messages is not (ADR 0009): the subscription is closed, the consumer removed, and ``done`` gets the error.
        """

        def flushed(error: OSError | RequestError | None) -> None:
            if error is None or registration is Registration.NEW:
                done(None)
            else:
                subscription.close()
                self.registry.withdraw(subscription.channel)
                done(error)

        if registration is Registration.KNOWN:
            done(None)
        else:
            self.flush_offsets(flushed)

    @property
    def unused(self) -> bool:
        """Whether the topic never had a record or a consumer since the start. A refused publish may have left its segment."""
        return not self.channels and not self.committer.next_id and not any(each.end for each in self.log.segments)

    def records_lost(self, first: int, last: int) -> None:
        """Ack records that a read found lost, and keep later records out of the damaged segment."""
        self.delays.schedule.drop(first, last)
        for consumer in self.offsets.consumers():
            consumer.skip(first, last)
        self.offsets.changed()
        active = self.log.segments[-1]
        if active.damages and not active.sealed:
            with contextlib.suppress(RequestError):  # closed for publishing: nothing is appended to it
                self.committer.begin_segment()  # so that a later torn tail never shares a segment with this hole

    def ack(self, name: str, ids: Sequence[IdRange], *, unseen: bool = False) -> int:
        """Ack deliveries. With ``unseen`` also messages that the client has read from the log; a missing consumer is made then.
        Returns: how many were not acked before. Raises: NoSuchConsumer, TooManyConsumers."""
        if unseen and name not in self.channels:
            self.registry.make(name, self.log.first_id)
        return self.channel(name).ack(ids, unseen=unseen)

    def nack(
        self, name: str, ids: Sequence[IdRange], delay_s: float | None,
        *, dead: bool = False, failure: Failure | None = None, lease: int | None = None,
    ) -> int:  # fmt: skip
        """End leases without an ack. With ``dead`` the messages, and those that wait for redelivery, become dead letters at
        once, with ``failure`` in their headers. ``lease``: only leases of the subscription or poll with that number (ADR 0087).
        Returns: how many.
        Raises: NoSuchConsumer, BadArgument (``dead`` on a dead-letter topic)."""
        channel = self.channel(name)
        return channel.nack(channel.leased_under(ids, lease), delay_s, dead=dead, failure=failure)

    def touch(self, name: str, ids: Sequence[IdRange], visibility_s: float | None, *, lease: int | None = None) -> int:
        """Restart the visibility timeout of leases. ``lease``: see ``nack``. Returns: how many were inflight. Raises:
        NoSuchConsumer."""
        channel = self.channel(name)
        return channel.touch(channel.leased_under(ids, lease), visibility_s)

    # -- dead letters

    def skip_for_others(self, msg_id: int, name: str) -> None:
        """Ack a redriven message for all consumers but the one it returns to."""
        for channel in self.channels.values():
            if channel.consumer.name != name:
                channel.consumer.skip(msg_id, msg_id)
        self.offsets.changed()

    def purge(self, done: Purged) -> None:
        """Drop all messages of the topic; see ``Retention.purge``. Publishes after the answer have the room that this made."""

        def purged(count: int, error: OSError | RequestError | None) -> None:
            self._backlog_moved()
            done(count, error)

        self.retention.purge(purged)

    def mark_redriven(self, ids: Sequence[int]) -> int:
        """Ack dead letters that are stored in their origin topic again. Returns: how many were not acked before."""
        self.redrive_consumer.total += (count := self.redrive_consumer.ack(ids))
        self.offsets.changed()
        return count

    def _backlog_moved(self) -> None:
        """Check the backlog limit again: a consumer was made, removed or moved, or the topic was purged."""
        if self.publisher.limit is not None:
            self.backlog.track()
            self.publisher.limit.recount()

    # -- statistics

    @property
    def state(self) -> str:
        if self.committer.failed is not None:
            return "failed"
        harmed = self.log.degraded or self.offsets.lacks_consumers or self.settings_queue.problem is not None
        return "degraded" if harmed else "ok"

    def describe(self, *, consumers: bool = True) -> dict[str, Any]:
        """The topic's JSON object (protocol.md, "JSON shapes"). With ``consumers`` it lists them: thousands take a while."""
        log = self.log
        described = {
            "topic": self.name,
            "first_id": log.first_id,
            "next_id": log.committed_id,
            "messages": log.messages(),
            "bytes": log.size_bytes,
            "segments": len(log.segments),
            "state": self.state,
            "incarnation": self.settings_queue.incarnation,
            "settings": self.settings.to_json(),
            **(describe_consumers(self.channels, self.unconsumed) if consumers else {"consumers": []}),
            "expired_total": self.context.expired_total,
            "dead_lettered_total": self.context.dead_lettered_total,
            "dropped_total": self.retention.dropped_total,
            "lost": log.lost_count(),
            **({"stream": True} if self.context.is_stream else {}),
        }
        if self.offsets.lacks_consumers:
            described["offsets_problem"] = self.offsets.problem
        if self.settings_queue.problem is not None:
            described["settings_problem"] = self.settings_queue.problem
        return described | self.retention.describe() | (self.redrive_consumer.describe() if self.is_dead_letters else {})

    def describe_consumer(self, name: str) -> dict[str, Any]:
        """The JSON object of one consumer (protocol.md, "JSON shapes"). Raises: NoSuchConsumer."""
        return describe_channel(self.channel(name))

    # -- ending

    def stop_deliveries(self, code: str) -> None:
        """End all subscriptions and polls with a CLOSED code."""
        for channel in self.channels.values():
            channel.end_all(code)

    def begin_delete(self) -> None:
        """Refuse all requests from now on. Pending batches still commit."""
        self.context.topic_deleted = True
        self.delays.close()
        self.committer.refuse(NoSuchTopic(f"{self.name} is being deleted"))
        self.stop_deliveries("DELETED")
        self.offsets.close()
        self.commits.notify_waiters()

    def close(self, *, neatly: bool = True) -> None:
        """Close the files; ``neatly``: first cut the active segment's preallocated tail, if nothing writes there. Recovery
        accepts zeros that remain. Assumes that no job of the committer runs."""
        if self.deleted or not neatly or not self.committer.idle:
            self.committer.abandon()
        else:
            self.committer.finish()
        self.log.close()
