"""A broker on an event loop: its threads, clock and disk. The daemon and the embedded form share it."""

import asyncio
import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toymq_py.broker import ALONE, Broker
from toymq_py.clock import Clock
from toymq_py.config.options import BrokerOptions
from toymq_py.net.dead_peers import DeadPeers
from toymq_py.placement import Placement
from toymq_py.runtime import heap_trimming
from toymq_py.runtime.loop_lag import LoopLag
from toymq_py.storage.commit.sync_threads import RunJob, SyncThreads, run_guarded
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import FileSystem, RealFileSystem
from toymq_py.topic import Tracer

DIRECTORY_CHECK_S = 2.0
"""How often the broker checks that it still owns its directory: an OK in between is lost with it."""
RECOVERY_THREADS = 16
"""Topics that are recovered at the same time when a broker starts: what they wait for is the disk."""
DESCRIPTORS_RESERVED = 64
OPEN_FILES_MIN, OPEN_FILES_LIMIT = 16, 16_384


class LoopScheduler:
    """The ``Scheduler`` of the storage: the event loop and the sync threads. ``run_job`` runs each job."""

    def __init__(self, loop: asyncio.AbstractEventLoop, run_job: RunJob = run_guarded) -> None:
        self._loop = loop
        self._run_job = run_job
        self._threads = SyncThreads(loop.call_soon_threadsafe, run_job=run_job)

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._threads.offload(job, done)

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        ticket = self._run_job(job)
        if ticket is None:
            done()
        else:
            ticket.when_settled(done)

    def close(self, *, drop_waiting: bool) -> None:
        """Stop the sync threads; see ``SyncThreads.close``."""
        self._threads.close(drop_waiting=drop_waiting)


class DirectoryWatch:
    """Calls ``Broker.check_directory`` every few seconds, as PostgreSQL does with its lock file."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop = loop
        self._broker = broker
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check periodically, until ``stop``."""
        self._timer = self._loop.call_later(DIRECTORY_CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        self._broker.check_directory(self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def open_files_max(max_connections: int) -> int:
    """How many segment files may be open: the descriptors that connections leave, minus a reserve for accepting, offsets and
    directories. At most a quarter of all, because an embedded broker shares the process."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return OPEN_FILES_LIMIT
    reserve = max(DESCRIPTORS_RESERVED, allowed // 8)
    return max(min(allowed - max_connections - reserve, allowed // 4, OPEN_FILES_LIMIT), OPEN_FILES_MIN)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection during recovery: it would scan the growing set of recovered objects again and again, which took
    a third of a start with 16,000 segments."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def opened_broker(
    options: BrokerOptions, clock: Clock, loop: asyncio.AbstractEventLoop, tracer: Tracer | None = None,
    address: str | None = None, *, fs: FileSystem | None = None, run_job: RunJob = run_guarded,
    lock: DirectoryLock | None = None, placement: Placement = ALONE,
) -> Iterator[Broker]:  # fmt: skip
    """Open a broker, and close it at the end. Blocks.

    Args:
        tracer: follows messages, for spans; None without tracing.
        address, lock: see ``Broker.open``.
        fs, run_job: the file system, by default the machine's, and the function that runs a disk job; replication passes its
            own.
        placement: see ``Broker``.

    Raises: DirectoryLocked, DataDirectoryError.
    """
    scheduler = LoopScheduler(loop, run_job)
    lag = LoopLag(loop, clock)
    broker = Broker(
        options, fs=fs if fs is not None else RealFileSystem(), scheduler=scheduler, clock=clock,
        rss_bytes=heap_trimming.rss_bytes, tasks=lambda: len(asyncio.all_tasks(loop)), loop_lag_s=lag.worst_s,
        tracer=tracer, open_files_max=open_files_max(options.max_connections), placement=placement,
        recovery_threads=RECOVERY_THREADS,
    )  # fmt: skip
    watch, peers = DirectoryWatch(loop, broker), DeadPeers(broker.quotas.open_connections, loop, clock)
    try:
        with _without_collections():
            broker.open(os.getpid(), address, lock)
        lag.start()
        watch.start()
        peers.start()
        yield broker
    finally:
        peers.stop()
        watch.stop()
        lag.stop()
        scheduler.close(drop_waiting=broker.shutting_down)  # what matters of them was waited for, or the deadline is over
        broker.close()
