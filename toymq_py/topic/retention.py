"""Removal of messages by acks, age, size, ttl and backlog limit, and of all messages with PURGE.

Contract: storage.md, "Retention". Which segments may go is decided in ``storage.retention``. Belongs to the event loop.

Ages count by the believed time (ADR 0219): a wall clock that is ahead for a moment removes nothing.

Every removal has the same order, so that a crash between any two steps leaves more than was wanted and never a gap that looks
like a loss (ADR 0008): out of the log in memory, offsets that say so, then unlink, oldest first.
"""

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.disk_errors import NO_SPACE
from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.records import IdRange
from toymq_py.storage import retention
from toymq_py.storage.commit.committer import Committer
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.evicted import EvictedFile
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets import AckedView, OffsetsState
from toymq_py.storage.segment import Segment, removed_name
from toymq_py.topic.backlog import Backlog
from toymq_py.topic.channel import Channel
from toymq_py.topic.delays import Delays
from toymq_py.topic.deliverer import ChannelContext
from toymq_py.topic.redrive_consumer import RedriveConsumer

MS_NS = 1_000_000
LEASED_RETRY_S = 10.0
"""The delay before a segment is looked at again with a lease on a message that expired."""
REST_ABOVE_S, REST_FACTOR = 0.001, 100
"""A check that took longer than this rests for so many times what it took: each looks at all segments, which is 3 µs for each,
and follows each write of the offsets."""
Flushed = Callable[[OSError | RequestError | None], None]
Purged = Callable[[int, OSError | RequestError | None], None]
"""Called with the number of messages that went, once that is on stable storage, or with why it is not."""


class Retention:
    """Removes segments of one topic by acks, age, size and ttl, and all messages with PURGE. Checks after each change that may
    free a segment, and when one gets old enough.

    ``pinned_from`` returns the id, if any, from which on acks and limits remove no segment: only the records there prove that
    messages were moved here from another topic. ``stored`` is the consumers' state on stable storage, None when there is none.
    """

    def __init__(
        self,
        context: ChannelContext,
        path: str,
        channels: Mapping[str, Channel],
        *,
        committer: Committer,
        delays: Delays,
        backlog: Backlog,
        redrive_consumer: RedriveConsumer,
        fs: FileSystem,
        space: SpaceGuard,
        segment_bytes_max: int,
        keys_kept: int,
        flush_offsets: Callable[[Flushed], None],
    ) -> None:
        """``channels``: the topic's own mapping, which changes as consumers come and go. ``flush_offsets`` stores the present
        state of the consumers, then calls its argument with None or the error."""
        self.settings = TopicSettings()
        self.retain_acked_for_ms = 0
        self.keys_wanted = 0
        """The number of keys that the next start reads from the log, but ``keys_kept`` at least."""
        self._keys_kept = keys_kept
        self.stored: OffsetsState | None = None
        self.suspended = False
        """Whether the settings cannot be trusted: nothing is removed."""
        self.pinned_from: Callable[[], int | None] = lambda: None
        self.dropped_total = 0
        """Messages that a limit dropped unacked, since the start of the broker."""
        self._context = context
        self._log = context.log
        self._path = path
        self._channels = channels
        self._committer = committer
        self._delays = delays
        self._backlog = backlog
        self._redriver = redrive_consumer
        self._fs = fs
        self._space = space
        self._segment_bytes_max = segment_bytes_max
        self._flush_offsets = flush_offsets
        self._apply_at: float | None = None
        self._rests_until = 0.0
        self._evicted = EvictedFile(fs, path, self._log.segments, committer.run_behind, self._log.files.close)
        self._waiting: list[Segment] = []
        """Segments that are out of the log; their files wait for offsets that justify it."""
        self._marks: list[IdRange] = []
        """The marks of segments whose files were taken before the offsets could say so."""

    def apply(self) -> None:
        """Remove the segments that may go, and roll the active one when it is old or large; soon, if it took long before."""
        if self._context.topic_deleted or self.suspended:
            return
        began = self._context.clock.monotonic()
        if began < self._rests_until:
            self._apply_later(self._rests_until - began)
            return
        self._apply(self.stored, full=False)
        took_s = self._context.clock.monotonic() - began
        self._rests_until = began + REST_FACTOR * took_s if took_s > REST_ABOVE_S else 0.0

    def apply_on_full_disk(self, present: OffsetsState) -> None:
        """Remove what all consumers have acked in memory: the disk is too full to store that state."""
        if not self._context.topic_deleted and not self.suspended:
            self._apply(present, full=True)

    def _apply(self, stored: OffsetsState | None, *, full: bool) -> None:
        log, settings, now_ns = self._log, self.settings, self._context.believed.now_ns()
        retain_acked_for_ms = self.retain_acked_for_ms
        retention.date(log.segments, self._context.clock.wall_ns())  # by the clock that dates records
        self._committer.segment_bytes = retention.segment_bytes(self._segment_bytes_max, settings.retain_max_bytes)
        views: list[AckedView] = []
        consumers = [channel.consumer for channel in self._channels.values()]
        if stored is not None:
            stored, consumers = self._redriver.pinning(stored, consumers)
        if stored is not None and consumers:
            views = [AckedView.of(raw) for raw in stored.consumers.values()]
        low = full or self._space.getting_low()
        sealed = log.segments[:-1] if full else self._unpinned(log.segments[:-1])
        self._expire(now_ns)
        # one without a record is damaged: it stands for its first id
        going = [segment for segment in sealed if max(segment.next_id, segment.base_id + 1) <= log.first_id]
        going += [
            segment for segment in retention.removable_by_acks(
                sealed, views, now_ns=now_ns, retain_acked_for_ns=retain_acked_for_ms * MS_NS, disk_low=low
            )
            # SEEK and FORGET may have taken back what is stored
            if all(consumer.has_acked_all(segment.base_id, segment.next_id - 1) for consumer in consumers)
        ]  # fmt: skip
        gone = {segment.base_id for segment in going}
        dropped = self._over([segment for segment in sealed if segment.base_id not in gone], now_ns)
        for segment in dropped:
            self.drop(segment.base_id, segment.next_id - 1)
        gone.update(segment.base_id for segment in dropped)
        if gone:
            self._remove([segment for segment in log.segments if segment.base_id in gone])
        self._roll(now_ns, [retain_acked_for_ms] if views else [], views, low=low)

    def _expire(self, now_ns: int) -> None:
        """Ack segments in which all messages have expired. Otherwise messages expire in their turn, which never comes where no
        session takes."""
        for segment in self._log.segments[:-1]:
            if retention.expired(segment, now_ns) and not self._ack_expired(segment.base_id, segment.next_id - 1):
                self._apply_later(LEASED_RETRY_S)

    def _ack_expired(self, first: int, last: int) -> bool:
        """Ack expired records except leased ones. Returns: whether none remain."""
        over = True
        for channel in self._channels.values():
            consumer = channel.consumer
            if consumer.has_acked_all(first, last):
                continue
            if expired := consumer.expire(first, last):
                self._context.expired_total += expired
                self._context.changed()
                channel.notify_ready()
            over = over and consumer.has_acked_all(first, last)
        return over

    def _unpinned(self, segments: list[Segment]) -> list[Segment]:
        kept_from = self.pinned_from()
        return segments if kept_from is None else [segment for segment in segments if segment.next_id <= kept_from]

    def _over(self, segments: list[Segment], now_ns: int) -> list[Segment]:
        """Segments beyond the limits of the topic, acked or not."""
        settings = self.settings
        dropped: list[Segment] = []
        if settings.retain_max_age is not None:
            dropped = retention.removable_by_age(segments, now_ns=now_ns, retain_max_age_ns=settings.retain_max_age * MS_NS)
        if settings.retain_max_bytes is not None:
            old = {segment.base_id for segment in dropped}
            rest = [segment for segment in segments if segment.base_id not in old]
            bytes_max = max(settings.retain_max_bytes - self._committer.segment_bytes, 0)  # room for the active one
            dropped += retention.removable_by_bytes(rest, now_ns=now_ns, bytes_max=bytes_max)
        return dropped

    def _roll(self, now_ns: int, retain_ms: list[int], views: Sequence[AckedView], *, low: bool) -> None:
        """Seal the active segment when it is old or large or, while the disk is ``low``, acked. Then arm the next check."""
        segments, committer, settings = self._log.segments, self._committer, self.settings
        if settings.retain_max_age is not None:
            retain_ms = [*retain_ms, settings.retain_max_age]
        if not segments or not (retain_ms or settings.retain_max_bytes is not None):
            return
        active = segments[-1]
        due_ns = [segment.age_ts_ns + ms * MS_NS - now_ns for segment in segments[:-1] for ms in retain_ms]
        due_ns += [segment.newest_deliver_at_ns - now_ns for segment in segments[:-1]]
        due_ns += [(segment.expires_at_ns or 0) - now_ns for segment in segments[:-1] if segment.expiring]
        if active.end and not active.sealed:
            oldest_ns = min([*active.index_ts_ns[:1], active.age_ts_ns])
            wait_ns = oldest_ns + retention.roll_age_ns(min(retain_ms) * MS_NS) - now_ns if retain_ms else 1
            acked = bool(views) and all(view.covers(active.base_id, active.next_id - 1) for view in views)
            large = active.end > committer.segment_bytes
            if not (large or (low and acked) or (retain_ms and wait_ns <= 0)):
                due_ns += [wait_ns] if retain_ms else []
            elif committer.idle:
                with contextlib.suppress(RequestError):  # closed for publishing: it stays as it is
                    committer.begin_segment()
            else:
                due_ns.append(1)
        waiting = [ns for ns in due_ns if ns > 0]
        if waiting:
            settles_in_s = self._context.believed.settles_in_s
            self._apply_later(max(min(min(waiting) / 1e9, inf if settles_in_s is None else settles_in_s), 1.0))

    def committed(self) -> None:
        """Check the age after a commit: on a topic without consumers no other event arms that check."""
        if self._apply_at is None and self.settings.retain_max_age is not None:
            self.apply()

    def _apply_later(self, delay_s: float) -> None:
        at = self._context.clock.monotonic() + delay_s
        if self._apply_at is not None and self._apply_at <= at:
            return
        self._apply_at = at
        itself = weakref.ref(self)  # the timer outlives the topic, by up to the retention time, and must not keep it

        def due() -> None:
            keeper = itself()
            if keeper is not None and keeper._apply_at == at:
                keeper._apply_at = None
                keeper.apply()

        self._context.scheduler.later(delay_s, due)

    # -- the bucket of --tier

    def evictable(self) -> list[IdRange]:
        """The id ranges of the segments that shall leave the disk as soon as the bucket has them."""
        settings = self.settings
        local_bytes, local_age = settings.tier_local_bytes, settings.tier_local_age
        if (local_bytes is None and local_age is None) or self.suspended or self._context.topic_deleted:
            return []
        now_ns, segments = self._context.believed.now_ns(), self._log.segments
        retention.date(segments, self._context.clock.wall_ns())
        found = retention.evictable(
            segments, now_ns=now_ns, local_bytes=local_bytes, keys_wanted=max(self.keys_wanted, self._keys_kept),
            local_age_ns=None if local_age is None else local_age * MS_NS,
        )  # fmt: skip
        examined = self._log.examinations.concern
        return [(each.base_id, each.next_id) for each in self._unpinned(found) if not examined(each.base_id)]

    def evict(self, proven: Mapping[int, str]) -> None:
        """Unlink segments that are in the bucket, if they may still leave the disk. ``proven``: their SHA-256 by first id."""
        going = {first: proven[first] for first, _ in self.evictable() if first in proven}
        if going:
            self._evicted.change(going)

    def describe(self) -> dict[str, Any]:
        """The fields ``removed`` and ``evicted`` of DESCRIBE, if there are any."""
        removed = {"removed": self._log.removed} if self._log.removed else {}
        away = [segment for segment in self._log.segments if segment.sha256 is not None]
        if not away:
            return removed
        problem = self._log.files.cold.problem(away)
        return removed | {"evicted": {"segments": len(away), "bytes": sum(each.end for each in away), "problem": problem}}

    # -- removing

    def drop(self, first: int, last: int) -> None:
        """Ack the unacked messages of the range for all consumers, inflight or not, and count them as dropped."""
        self.dropped_total += self._backlog.messages(first, last + 1)
        for channel in self._channels.values():
            channel.consumer.skip(first, last)
        self._notify_gone()

    def drop_below(self, msg_id: int) -> None:
        """Drop all messages below ``msg_id`` (``when_full=drop-oldest``). Without consumers, the log begins at this id then."""
        self.drop(self._log.first_id, msg_id - 1)
        if not self._channels:
            self._forget_below(msg_id)
            self.apply()

    def _forget_below(self, first_id: int) -> None:
        """Move the first retained id: ids below it count as acked for all consumers."""
        self._log.forget_below(first_id)
        for channel in self._channels.values():
            channel.consumer.drop_below(self._log.first_id)
        self._delays.schedule.drop(0, self._log.first_id - 1)
        self._notify_gone()

    def _notify_gone(self) -> None:
        """Wake sessions and polls: messages were acked without an ACK, so windows may have room."""
        self._context.changed()
        for channel in self._channels.values():
            channel.notify_ready()

    def purge(self, done: Purged) -> None:
        """Drop all messages, those that wait for their commit included; ids go on. ``done`` gets the number of committed ones.

        Raises: StorageFailed, NoSuchTopic; then ``done`` is not called.
        """
        log = self._log
        first_id, commit = self._committer.begin_segment()

        def begun() -> None:
            if self._context.topic_deleted:
                done(0, NoSuchTopic(f"{self._context.topic} was deleted"))
            elif commit.error is not None:
                done(0, commit.error)
            elif not self._channels and not self._committer.next_id and not log.segments:
                done(0, None)  # neither records nor consumers: there is nothing on the disk
            else:
                count = sum(last - first + 1 for first, last in log.retained(log.first_id, first_id))
                going = [segment for segment in log.segments if segment.base_id < first_id]
                self._forget_below(first_id)
                self._remove(going, lambda error: done(count, error))

        commit.add_waiter(begun)

    def _remove(self, going: list[Segment], done: Flushed = lambda error: None) -> None:
        """Take segments out of the log, store the offsets, then unlink the files. On a full disk the files go first: they hold
        the space that the offsets need."""
        self._log.take_out(going)
        self._forget_below(self._log.first_id)
        self._waiting += going

        def stored(error: OSError | RequestError | None) -> None:
            if isinstance(error, OSError) and error.errno in NO_SPACE and self._waiting and not self._context.topic_deleted:
                going, self._waiting = self._waiting, []
                self._unlink(going, lambda: self._flush_offsets(done), marked=True)
            else:
                done(error)

        self._flush_offsets(stored)

    def offsets_stored(self, state: OffsetsState) -> None:
        """Unlink the removed segments that the stored offsets account for, then check for more."""
        self.stored = state
        waiting, self._waiting = self._waiting, []
        justified: list[Segment] = []

        def gone(msg_id: int) -> bool:
            return msg_id < state.first_id or any(a <= msg_id <= b for a, b in state.removed)

        for segment in waiting:
            (justified if gone(segment.base_id) else self._waiting).append(segment)
        marks = [ids for ids in self._marks if gone(ids[0])]
        self._marks = [ids for ids in self._marks if not gone(ids[0])]
        if justified or marks:
            self._unlink(justified, lambda: None, marks=marks)
        self.apply()

    def _unlink(
        self, going: Sequence[Segment], done: Callable[[], None], *, marked: bool = False, marks: Sequence[IdRange] = ()
    ) -> None:
        """Unlink files, oldest first, each durably before the next: without the offsets a gap would look like a loss.

        Args:
            marked: the offsets cannot be written: each file is cut to nothing and stays, to say what was removed (ADR 0065).
            marks: earlier marks that the offsets know by now; they are removed.
        """
        fs, path = self._fs, self._path
        if any(segment.sha256 is not None for segment in going):
            self._evicted.change({})
            going = [segment for segment in going if segment.sha256 is None]
        if marked:
            self._marks += [(segment.base_id, segment.next_id - 1) for segment in going if segment.next_id > segment.base_id]

        def job() -> None:
            for mark in marks:
                with contextlib.suppress(OSError):  # the next start removes it
                    fs.unlink(f"{path}/{removed_name(mark)}")
            for segment in going:
                if marked and segment.next_id > segment.base_id:
                    with contextlib.suppress(OSError):
                        _empty(fs, path, segment)
                    with contextlib.suppress(OSError):
                        fs.unlink(segment.sidecar_path)
                    continue
                for name in (segment.path, segment.sidecar_path):
                    with contextlib.suppress(OSError):  # a sidecar that is not there; a segment that stays goes another time
                        fs.unlink(name)
                with contextlib.suppress(OSError):
                    fs.sync_dir(path)

        self._committer.run_behind(job, done)


def _empty(fs: FileSystem, path: str, segment: Segment) -> None:
    """Turn a segment file into a mark: a rename and a cut need no space on a full disk. Raises: OSError."""
    mark = f"{path}/{removed_name((segment.base_id, segment.next_id - 1))}"
    fs.rename(segment.path, mark)
    fs.sync_dir(path)  # a segment that is cut and has its name would look damaged
    file = fs.open(mark)
    try:
        file.truncate(0)
    finally:
        file.close()
