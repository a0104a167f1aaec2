"""Applies the leader's stream to a follower's files, in order, and reports what is synced.

Contract: replication.md, section 4; ADR 0098. Belongs to the event loop; syncs run on sync threads.

A sync must end here before later operations begin, or a power cut could leave a state that the leader's disk never had, such as
a new segment with the one before it torn. Topics do not depend on each other, so each is a lane of its own:

    SYNC, SYNCDIR, REPLACE, RMDIR   run on a sync thread; later operations of the lane wait for them, other lanes go on
    other changes of files          run at once, unless their lane is busy
    SYNCDIR of the directory of topics or of the data directory, a topic's RENAME, MKDIR of ``topics``
                                    belong to every lane: they wait for all lanes, and all lanes wait for them
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import get_args

from toymq_py.errors import BadOperation
from toymq_py.replication.acks import Failed, Report, Synced
from toymq_py.replication.disk_calls import Offload
from toymq_py.replication.operations import (
    Beat,
    Change,
    Create,
    Mkdir,
    Operation,
    Rename,
    Replace,
    Rmdir,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    Write,
)
from toymq_py.replication.paths import is_file, is_topic_directory
from toymq_py.replication.replica_files import ReplicaFiles

BACKLOG_BYTES_MAX = 64 << 20
"""Most bytes that wait for lanes. Above, the link stops reading, and the leader's own queue fills."""
BASE_BYTES = 200
"""The memory of an operation without data, about."""


class _Mark:
    """The place of a BEAT in each busy lane; the last lane to reach it reports the BEAT as applied."""

    def __init__(self, seq: int, lanes: int) -> None:
        self.seq = seq
        self.lanes = lanes


SYNCS = (Sync, SyncDir)
CHANGES: tuple[type[Change], ...] = get_args(Change)
LIVE = (*CHANGES, *SYNCS, Beat)
"""The operations that a follower gets after its bulk copy, but for BYE. Tuples: ``isinstance`` of a union takes several times
as long."""
BLOCKING = (*SYNCS, Replace, Rmdir)
WITH_DATA = (Write, Replace)


class Applier:
    """Applies operations to ``files``. Reports the first failure, and does nothing more after it."""

    def __init__(
        self, files: ReplicaFiles, scheduler: Offload, *, after: int, report: Callable[[Report], None],
        on_room: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """
        Args:
            after: the seq of the last operation that the files have.
            report: called with ``Synced`` for each SYNC, SYNCDIR and BEAT, in any order, and at most once with ``Failed``.
            on_room: called when the backlog is no longer ``full``, and when a job ended after ``stop``; must not call
                ``apply``.
        """
        self._files = files
        self._scheduler = scheduler
        self._report = report
        self._on_room = on_room
        self.received = after
        """The seq of the last operation that came."""
        self.failed: Failed | None = None
        self.running = 0
        """The number of operations on threads."""
        self._stopped = False
        self._lanes: dict[str, deque[Operation | _Mark]] = {}  # busy ones, and what waits in each
        self._held: deque[Operation] = deque()  # the first waits for all lanes, or runs in all; the others wait for it
        self._backlog_bytes = 0
        self._was_full = False

    @property
    def full(self) -> bool:
        """Whether the backlog is too long; then pause reading until ``on_room`` is called."""
        return self._backlog_bytes > BACKLOG_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Whether all received operations are done."""
        return not self._lanes and not self._held

    def stop(self) -> None:
        """Begin nothing more. Jobs on threads finish: ``running`` counts them, and ``on_room`` is called at the end of each."""
        self._stopped = True
        self._held.clear()
        self._lanes.clear()

    def apply(self, operation: Operation) -> None:
        """Take the next operation of the stream. Raises: BadOperation when it is not the next, or not one of ``LIVE``."""
        if self._stopped:
            return
        if not isinstance(operation, LIVE):
            raise BadOperation(f"{type(operation).__name__.upper()} {operation.seq} outside of a bulk copy")
        if operation.seq != self.received + 1:
            raise BadOperation(f"operation {operation.seq} came after {self.received}: one is missing or came twice")
        self.received = operation.seq
        if self._held:
            self._wait(self._held, operation)
        else:
            self._route(operation)

    # -- where an operation runs

    def _route(self, operation: Operation) -> None:
        """Run an operation, or let it wait in its lane. Assumes that no operation for all lanes waits."""
        if isinstance(operation, Beat):
            self._mark(operation.seq)
            return
        lane = _lane_of(operation)
        if lane is None:
            if self._lanes:
                self._wait(self._held, operation)
            else:
                self._run_alone(operation)
        elif lane in self._lanes:
            self._wait(self._lanes[lane], operation)
        elif _blocks(operation):
            self._lanes[lane] = deque()
            self._start(lane, operation)
        else:
            self._do(operation)
            self._files.make_room(self._lanes)

    def _wait(self, queue: "deque[Operation | _Mark] | deque[Operation]", operation: Operation) -> None:
        queue.append(operation)
        self._backlog_bytes += _size(operation)
        self._was_full = self._was_full or self.full

    def _mark(self, seq: int) -> None:
        if not self._lanes:
            self._report(Synced(seq))
            return
        mark = _Mark(seq, len(self._lanes))
        for queue in self._lanes.values():
            queue.append(mark)

    # -- lanes

    def _start(self, lane: str, operation: Operation) -> None:
        self._offload(operation, lambda: self._advance(lane))

    def _advance(self, lane: str) -> None:
        """Run the operations of a lane until one runs on a thread, or none waits."""
        queue = self._lanes[lane]
        while queue:
            operation = queue.popleft()
            if isinstance(operation, _Mark):
                operation.lanes -= 1
                if not operation.lanes:
                    self._report(Synced(operation.seq))
                continue
            self._taken(operation)
            if _blocks(operation):
                self._start(lane, operation)
                return
            self._do(operation)
            if self._stopped:
                return
        del self._lanes[lane]
        if not self._lanes and self._held:
            operation = self._held[0]
            self._taken(operation)
            self._held.popleft()
            self._run_alone(operation)

    def _run_alone(self, operation: Operation) -> None:
        """Run an operation that belongs to every lane, then those that wait for it."""
        self._held.appendleft(operation)
        self._offload(operation, self._release)

    def _release(self) -> None:
        self._held.popleft()
        waiting, self._held = self._held, deque()
        while waiting:
            operation = waiting.popleft()
            self._taken(operation)
            self._route(operation)
            if self._stopped:
                return
            if self._held:
                self._held.extend(waiting)
                return

    def _taken(self, operation: Operation) -> None:
        self._backlog_bytes -= _size(operation)
        if self._was_full and self._backlog_bytes <= BACKLOG_BYTES_MAX // 2:
            self._was_full = False
            self._on_room()

    # -- doing it

    def _do(self, operation: Operation) -> None:
        try:
            self._perform(operation)
        except OSError as error:
            self._fail(operation, error)

    def _offload(self, operation: Operation, done: Callable[[], None]) -> None:
        failures: list[OSError | None] = [OSError(errno.EIO, "the job ended without an outcome")]

        def job() -> None:
            try:
                self._perform(operation)
                failures[0] = None
            except OSError as error:
                failures[0] = error

        def ended() -> None:
            self.running -= 1
            if self._stopped:
                if failures[0] is not None and self.failed is None:  # the link ends: it is not reported, but known
                    self.failed = Failed(operation.seq, failures[0].errno or errno.EIO)
                self._on_room()
                return
            if failures[0] is not None:
                self._fail(operation, failures[0])
                return
            if isinstance(operation, SYNCS):
                self._report(Synced(operation.seq))
            done()

        self.running += 1
        self._scheduler.offload(job, ended)

    def _perform(self, operation: Operation) -> None:
        if isinstance(operation, Sync):
            self._files.sync(operation.path)
        elif isinstance(operation, SyncDir):
            self._files.sync_dir(operation.path)
        elif isinstance(operation, CHANGES):
            self._files.apply(operation)

    def _fail(self, operation: Operation, error: OSError) -> None:
        self.failed = Failed(operation.seq, error.errno or errno.EIO)
        self.stop()
        self._report(self.failed)


def _lane_of(operation: Operation) -> str | None:
    """The topic's directory whose order an operation keeps; None for one that belongs to every lane."""
    match operation:
        case Rename(_, path, _):
            return _directory(path) if is_file(path) else None
        case SyncDir(_, path) | Mkdir(_, path) | Rmdir(_, path):
            return path if is_topic_directory(path) else None
        case Write() | Truncate() | Create() | Replace() | Unlink() | Sync():
            return _directory(operation.path)
        case _:
            return None


def _directory(path: str) -> str:
    return path.rpartition("/")[0]


def _blocks(operation: Operation) -> bool:
    return isinstance(operation, BLOCKING)


def _size(operation: Operation) -> int:
    return BASE_BYTES + (len(operation.data) if isinstance(operation, WITH_DATA) else 0)
