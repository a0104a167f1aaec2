"""Group commit: how records become durable.

Contract: storage.md, "Append and group commit"; ADR 0002. One ``Committer`` per log.

    event loop                                        sync thread
    append(): ids, frames, keys -> open batch
      ... everything of this loop pass ...
    _start(): hand over the oldest batch  ─────────►  roll?  preallocate?  pwrite, fdatasync
    append(): the next batch fills                    (never more than one job per log)
    _finished(): advance, resolve, start the next ◄─  job

Nothing waits and there is no timer: a batch is whatever arrived while the last sync ran. The sync thread touches the
active segment's file behind the committed position, and nothing else; everything of this object belongs to the loop.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from toymq_py.callbacks import call_all
from toymq_py.clock import Clock
from toymq_py.config.options import FsyncMode
from toymq_py.disk_errors import what_passes
from toymq_py.errors import DiskFull, RequestError, StorageFailed
from toymq_py.records import Shape, shape_of
from toymq_py.storage.commit.batch import COMMITTED, PENDING, Appended, Batch, Commit
from toymq_py.storage.commit.commit_job import CommitJob
from toymq_py.storage.commit.commit_place import CommitPlace
from toymq_py.storage.commit.interval_sync import IntervalSync
from toymq_py.storage.commit.listener import CommitListener
from toymq_py.storage.commit.next_segment import NextSegment
from toymq_py.storage.commit.pass_clock import PassClock
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.fs import replace_file
from toymq_py.storage.heads_writer import HeadsWriter
from toymq_py.storage.log import Log
from toymq_py.storage.record import FRAME_OVERHEAD, Extras
from toymq_py.storage.segment import Segment, segment_name
from toymq_py.storage.segment_heads import NO_HEADS, KnownHeads

logger = logging.getLogger("toymq_py.storage")


class Committer:
    """Appends records to one log and makes them durable by group commit.

    ``next_id`` is the id of the next append; after a failed batch it returns to the committed one, and ids are not
    skipped. ``failed`` is set when the log is poisoned: a failed fsync is never retried, because Linux may have dropped
    the pages.
    """

    def __init__(
        self, log: Log, scheduler: Scheduler, clock: Clock, *,
        space: SpaceGuard,
        place: CommitPlace,
        segment_bytes: int,
        fsync: FsyncMode = "always",
        fsync_interval_s: float = 0.005,
        roll_first: bool = False,
        heads: KnownHeads = NO_HEADS,
        lost: Callable[[], str | None] = lambda: None,
    ) -> None:  # fmt: skip
        """
        Args:
            roll_first: recovery found damage in the active segment, so new records go into another one.
            heads: what ``segments.json`` says.
            lost: asked on sync threads before a new segment, see ``DirectoryLock.lost``.
        """
        self._log = log
        self._scheduler = scheduler
        self._clock = clock
        self._space = space
        self._place = place
        self.segment_bytes = segment_bytes
        self._fsync = fsync
        self._lost = lost
        self.next_id = log.committed_id
        self.failed: StorageFailed | None = None
        self.closing: RequestError | None = None
        self.listener = CommitListener()
        self._pass = PassClock(clock, log.topic, log.last_ts_ns)
        self._pending: deque[Batch] = deque()
        self._running: Batch | None = None
        self._start_due = False
        self._tail_end = 0  # where the next frame would go in the segment of the newest batch
        self._roll_next = roll_first
        self._allocated = 0  # up to where no space has to be reserved in the active file; 0 while it is not known
        self._side_jobs = 0  # sidecars and the next segment, written behind
        self._next = NextSegment(log.fs, log.path, space, self.run_behind)
        self._heads = HeadsWriter(log, heads, self.run_behind, self._are_stored, syncs=fsync == "never")
        self.name_log, self.enter_heads, self.known_head = self._heads.name, self._heads.settle, self._heads.known
        self.heads_seen = self._heads.note
        self._full = False  # the last write found no space
        self._interval: IntervalSync | None = None
        if fsync == "interval":
            self._interval = IntervalSync(log, scheduler, clock, fsync_interval_s, self.run_behind, self._interval_synced)
        self._idle_waiters: list[Callable[[], None]] = []
        self._reset_tail()

    # -- appending

    def append(
        self,
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        attributes: Sequence[bytes] | None = None,
        extras: Extras | None = None,
        sequences: Sequence[int] | None = None,
        shape: Shape | None = None,
    ) -> list[Appended]:
        """Assign ids, encode, and queue records for the next commit. Never blocks.

        Args:
            keys: b"" for none; same length as ``payloads``.
            attributes: encoded attribute blocks, b"" for none.
            extras: other attributes, for the tail in memory and for ``CommitListener.scheduled``.
            sequences: the producers' sequences, which the attributes hold, too, when the keys name producers.
            shape: the lengths that all keys and all payloads have in common, if the caller knows them.

        Returns: one entry per commit the run is spread over, in order; two or more only where a segment ends.

        Raises: StorageFailed, DiskLow, ShuttingDown, NoSuchTopic (the topic is being deleted).
        """
        if self.failed is not None:
            raise self.failed
        if self.closing is not None:
            raise self.closing
        self._space.admit()
        ts_ns = self._pass.ts_ns or self._begin_pass()
        shape = shape or shape_of(keys, payloads)
        if shape is not None:
            size = len(keys) * (FRAME_OVERHEAD + shape[0] + shape[1])
        else:
            size = FRAME_OVERHEAD * len(keys) + sum(map(len, keys)) + sum(map(len, payloads))
        if attributes is not None:
            size += sum(map(len, attributes))
        if self._tail_end + size <= self.segment_bytes and not self._roll_next:
            appended = [self._take(ts_ns, keys, payloads, attributes, extras, sequences, shape, size)]
        else:
            appended = list(self._split(ts_ns, keys, payloads, attributes, extras, sequences, shape))
        return appended

    def _begin_pass(self) -> int:
        if self._pass.begin(self.next_id):
            self._roll_next = self._roll_next or self._tail_end > 0
        self._start_soon()
        return self._pass.ts_ns

    def _split(
        self, ts_ns: int, keys: Sequence[bytes], payloads: Sequence[bytes], attributes: Sequence[bytes] | None,
        extras: Extras | None, sequences: Sequence[int] | None, shape: Shape | None,
    ) -> Iterator[Appended]:  # fmt: skip
        """Divide a run that does not fit: a batch for each segment."""
        start = size = 0

        def part(stop: int) -> Appended:
            rows = slice(start, stop)
            return self._take(
                ts_ns, keys[rows], payloads[rows], attributes and attributes[rows], extras and extras.part(rows),
                sequences and sequences[rows], shape, size,
            )  # fmt: skip

        for row in range(len(keys)):
            frame = FRAME_OVERHEAD + len(keys[row]) + len(payloads[row]) + (len(attributes[row]) if attributes else 0)
            end = self._tail_end + size
            if self._roll_next or (end and end + frame > self.segment_bytes):
                if row > start:
                    yield part(row)
                start, size = row, 0
                self._open_batch(roll=True)
            size += frame
        yield part(len(keys))

    def commit_of(self, msg_id: int) -> Commit:
        """The commit that an assigned id waits for."""
        for batch in (*self._pending, self._running):
            if batch is not None and batch.first_id <= msg_id < batch.next_id:
                return batch.commit
        return COMMITTED

    def begin_segment(self) -> tuple[int, Commit]:
        """Seal the active segment although it has room. Later records go to a new one.

        Returns: the first id of the new segment, and the commit with which it exists. An empty segment is not sealed.

        Raises: StorageFailed, NoSuchTopic (the topic is being deleted).
        """
        if (refusal := self.failed or self.closing) is not None:
            raise refusal
        if self._tail_end or (self._roll_next and self._log.segments):
            self._open_batch(roll=True)
            self._start_soon()
        newest = self._pending[-1] if self._pending else self._running
        return self.next_id, COMMITTED if newest is None else newest.commit

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not committed."""
        return sum(batch.size for batch in (self._running, *self._pending) if batch is not None)

    def _start_soon(self) -> None:
        if not self._start_due:
            self._start_due = True
            self._place.announce()
            self._scheduler.soon(self._start_announced)

    def _open_batch(self, *, roll: bool) -> Batch:
        batch = Batch(self.next_id, roll=roll)
        self._pending.append(batch)
        if roll:
            self._tail_end = 0
            self._roll_next = False
        return batch

    def _take(
        self, ts_ns: int, keys: Sequence[bytes], payloads: Sequence[bytes], attributes: Sequence[bytes] | None,
        extras: Extras | None, sequences: Sequence[int] | None, shape: Shape | None, size: int,
    ) -> Appended:  # fmt: skip
        batch = self._pending[-1] if self._pending else self._open_batch(roll=False)
        self._tail_end += size
        tail = self._log.tail.enabled
        try:
            appended = batch.add(ts_ns, keys, payloads, attributes, extras, size, tail=tail, sequences=sequences, shape=shape)
        except Exception:  # no memory, say: half a run may be in the batch
            self.poison("appending to it failed")
            self._start_soon()
            raise
        self.next_id = batch.next_id
        return appended

    # -- committing

    def _start_announced(self) -> None:
        self._start_due = False
        self._place.start()
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 (it is logged)
            batch, self._running = self._running, None
            self._give_up(batch, error)

    def _start(self, after: Batch | None = None) -> None:
        """End the loop pass: have the oldest batch written and synced, unless one is being written. ``after``: the batch before
        it, which is being finished; a batch on the loop then waits for the next pass, behind the answers to the earlier one."""
        self._pass.end()
        if self._running is not None or not self._pending:
            return
        batch = self._running = self._pending.popleft()
        batch.close()
        if self.failed is not None:
            self._running = None
            self._refuse_pending(batch, self.failed)
            self._tell_idle()
            return
        active = self._log.segments[-1] if self._log.segments else None
        roll = batch.roll or active is None or active.sealed
        job = CommitJob(
            batch, active,
            fs=self._log.fs, path=self._log.path, heads=self._log.heads, space=self._space, clock=self._clock,
            segment_bytes=self.segment_bytes,
            allocated=self._allocated,
            prepared=self._next.take() if roll else None,
            roll=roll,
            sync=self._fsync == "always",
            keep_syncing=self._fsync != "never",
            lost=self._lost,
        )  # fmt: skip
        if active is not None and not active.sealed:
            active.begin_write()
            self._log.files.use(active)
        if job.only_appends and self._place.is_loop(batch.next_id - batch.first_id, batch.size):
            if after is not None:
                after.commit.add_waiter(lambda: self._scheduler.soon(lambda: self._run_here(batch, job)))
            else:
                self._run_here(batch, job)
        else:
            self._scheduler.offload(job.run, lambda: self._ended(batch, job, on_loop=False))
            self._place.begun()

    def _run_here(self, batch: Batch, job: CommitJob) -> None:
        self._scheduler.run_here(job.run, lambda: self._ended(batch, job, on_loop=True))

    def _ended(self, batch: Batch, job: CommitJob, *, on_loop: bool) -> None:
        try:
            self._finished(batch, job, on_loop=on_loop)
        except Exception as error:  # noqa: BLE001 (it is logged)
            self._give_up(batch, error)

    def _give_up(self, batch: Batch | None, error: Exception) -> None:
        """Fail all batches after a bug, or when memory ran out, so that no publish waits for ever."""
        logger.error("topic %s: a commit did not come to its end", self._log.topic, exc_info=error)
        self._refuse_pending(batch, self.poison("committing failed"))
        self._tell_idle()

    def _finished(self, batch: Batch, job: CommitJob, *, on_loop: bool) -> None:
        log = self._log
        self._running = None
        self._place.ended(job.run_s, batch.next_id - batch.first_id, on_loop=on_loop)
        if log.segments:
            log.segments[-1].busy = self._interval is not None and self._interval.due
        if job.sealed and log.segments:
            self._seal_behind(log.segments[-1])
        if job.rolled is not None:
            path = f"{log.path}/{segment_name(batch.first_id)}"
            log.segments.append(Segment(path, batch.first_id, file=job.rolled))
            log.files.use(log.segments[-1])
            self._heads.begun()
        self._allocated = job.allocated
        if job.done:
            if self._full:
                self._full = False
                self._space.fitted()
                logger.warning("topic %s: publishing resumes", log.topic)
            for first_id, deliver_at_ns in batch.scheduled:
                self.listener.scheduled(first_id, deliver_at_ns)
            batch.append_to(log)
            if self._fsync == "always":
                self.listener.synced(job.sync_s)
            elif self._interval is not None:
                self._interval.written()
            waits = self._pass.waits(batch.first_id, batch.next_id)
            if self._pending:
                self._start(after=batch)
            if self._fsync != "interval" and self._heads.due and batch.size:
                self._heads.record()  # behind the next commit, which takes a sync thread first
            for seconds, count in waits:
                self.listener.stored(seconds, count)
            self.listener.committed(batch.first_id, batch.next_id, batch.keys, batch.producers)
            batch.commit.resolve(None)
            self._prepare_next()
        else:
            self._fail(batch, job)
        if job.sealed:
            self.listener.sealed()
        self._space.report_low()
        self._tell_idle()

    def _fail(self, batch: Batch, job: CommitJob) -> None:
        """Refuse the batch and all batches behind it, in order."""
        error: RequestError
        if job.low:
            self._space.refuse()
            error = self._space.refusal()
        elif job.error is not None and (passes := what_passes(job.error)) and not job.cut_failed:
            error = DiskFull(f"{passes}; publish later")
            if not self._full:  # once, not per batch: a flood of lines may block their writer
                logger.error("topic %s: %s, publishing is refused until there is", self._log.topic, passes)
            self._full = True
            self._space.overflowed(batch.size)
        else:
            error = self.poison("writing its log failed", job.error, ends=job.homeless)
        self._refuse_pending(batch, error)
        if batch.roll and job.rolled is None:
            self._roll_next = True  # the reason for the roll, a hole perhaps, is still there

    def _refuse_pending(self, batch: Batch | None, error: RequestError) -> None:
        failed = [each for each in (batch, *self._pending) if each is not None and each.commit.state is PENDING]
        self._pending.clear()
        self.next_id = self._log.committed_id
        self._pass.reset(self._log.last_ts_ns)
        self._reset_tail()
        for each in failed:
            self.listener.failed(each.refused_keys())
        for each in failed:
            each.commit.resolve(error)

    def _reset_tail(self) -> None:
        active = self._log.segments[-1] if self._log.segments else None
        self._tail_end = active.end if active is not None else 0
        if active is not None and active.sealed:
            self._roll_next = True

    # -- behind the commits

    def _seal_behind(self, segment: Segment) -> None:
        """Mark the segment as sealed and write its sidecar in the background; no commit waits for that."""
        segment.sealed, segment.busy, segment.stamp = True, False, None
        self._log.files.close(segment)
        if segment.unreadable:  # what the disk refuses now it may give to the next start, which has to look
            return
        fs = self._log.fs
        segment.producers = self.listener.producers_since(segment.base_id)
        data = segment.sidecar()
        segment.producers = {}

        def job() -> None:
            try:
                replace_file(fs, segment.sidecar_path, data)
            except OSError as error:
                logger.warning("sidecar of %s not written: %s", segment.path, error)

        self.run_behind(job)

    def _are_stored(self) -> bool:
        is_synced = self._interval is None or not self._log.segments or not self._log.segments[-1].busy
        return self.failed is None and is_synced

    def run_behind(self, job: Callable[[], None], done: Callable[[], None] = lambda: None) -> None:
        """Run a job on the topic's files in the background. Only ``when_idle`` waits for it: the directory must not move."""

        def finished() -> None:
            self._side_jobs -= 1
            done()
            self._tell_idle()

        self._side_jobs += 1
        self._scheduler.offload(job, finished)

    def _prepare_next(self) -> None:
        active = self._log.segments[-1]
        if active.end < self.segment_bytes * 3 // 4:
            return
        if self._running is not None and (self._running.roll or active.sealed):
            return  # a roll is under way: this segment needs no successor any more
        self._next.prepare(self.segment_bytes)

    def _interval_synced(self, active: Segment, took_s: float | None, error: OSError | None) -> None:
        """Handle the end of a sync of ``--fsync interval``."""
        unsynced = self._running is not None or (self._interval is not None and self._interval.due)
        active.busy = unsynced and not active.sealed
        if took_s is not None:
            self.listener.synced(took_s)
            if self._heads.due and self._log.segments[-1] is active:
                self._heads.record()
        elif error is None or error.errno != errno.EBADF or not active.sealed:  # that one was closed behind our back
            self.poison("syncing its log failed", error)

    # -- ending

    @property
    def idle(self) -> bool:
        """Whether no batch and no job of this log is at the disk or waits for it."""
        return self._running is None and not self._pending and not self._side_jobs and not self._start_due

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the committer is idle; at once when it is."""
        self._idle_waiters.append(call)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self._idle_waiters and self.idle:
            waiters, self._idle_waiters = self._idle_waiters, []
            call_all(waiters)

    def active_segment(self) -> Segment | None:
        """The segment that the next commit goes to, unless it begins another; None when there is none."""
        active = self._log.segments[-1] if self._log.segments else None
        return None if active is None or active.sealed or active.inode is None else active

    def lose_active(self, active: Segment, reason: str) -> None:
        """Poison the log: another file has the active one's name. If it is judged to be this log's, readers get its records."""
        self.poison(reason)
        if not active.busy:
            self._log.files.close(active)
            active.inode = None

    def poison(self, reason: str, error: OSError | None = None, *, ends: bool = False) -> StorageFailed:
        """Refuse publishes until a restart: written records may be lost. Batches in flight may still commit. ``ends``: the
        broker ends because of this, and logs it itself. Returns: the error that publishes get from now on: the first one."""
        if self.failed is None:
            if self._interval is not None:
                self._interval.stop()
            shown = reason if error is None else f"{reason} ({error.strerror})"
            until = "is refused, and the broker ends" if ends else "stays refused until a restart"
            self.failed = StorageFailed(f"{shown}: publishing to {self._log.topic} {until}")
            if not ends:
                shown = reason if error is None else f"{reason} ({error})"
                logger.critical("topic %s: %s: publishing %s", self._log.topic, shown, until)
        return self.failed

    def refuse(self, error: RequestError) -> None:
        """Refuse further appends with ``error``. Appended records still commit."""
        self.closing = error

    def finish(self) -> None:
        """Cut the preallocated tail of the active segment and drop the segment that was made ahead. Blocks; for shutdown, when
        idle. After an error zeros stay: recovery accepts them."""
        active = self._log.segments[-1] if self._log.segments else None
        ahead = self._next.abandon()
        try:
            usable = active is not None and not active.sealed and self.failed is None
            file = active.file if active is not None and usable else None
            if active is not None and usable and file is None and self._allocated > active.end:
                file = active.open(self._log.fs, write=True)  # it had given way to others
            if active is not None and file is not None and (self._interval is not None or file.size() != active.end):
                if not active.damages:
                    file.truncate(active.end)
                file.sync()
            if ahead is not None and self.failed is None:  # else the name may be another broker's by now
                self._log.fs.unlink(ahead)
            if self.failed is None:
                self._heads.finish()
        except OSError as error:
            logger.warning("topic %s: the log was not closed neatly: %s", self._log.topic, error)

    def abandon(self) -> None:
        """Close the segment that was made ahead, when idle: the topic is deleted and its files go with it."""
        self._next.abandon()
