"""The event loop as the storage layer sees it (``Scheduler``), and the sync threads.

Both come in from outside, so that a simulated loop can run the whole broker in one thread.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from toymq_py.threads import start_thread

logger = logging.getLogger("toymq_py.storage")


class Ticket(Protocol):
    """A receipt for a job's syncs that the disks of other nodes have yet to repeat (ADR 0098). No thread waits for it."""

    def when_settled(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the loop when every required disk has the syncs; at once when all have. Called on the loop, once."""


RunJob = Callable[[Callable[[], None]], Ticket | None]
"""Runs a job, whatever becomes of it. Returns: a ticket when more disks than this one have to sync what the job synced."""


class Scheduler(Protocol):
    """What the event loop, real or simulated, offers to the layers below it.

    With replication, ``done`` of ``offload`` and ``run_here`` is held back until the job's ticket is settled. So "on stable
    storage" in a ``done`` is true of every required disk, and no job can forget its ticket (ADR 0098).
    """

    def soon(self, call: Callable[[], None]) -> None:
        """Run ``call`` at the end of this loop pass, after what is already due."""

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run ``call`` after a time on the monotonic clock."""

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run ``job`` on a sync thread, then ``done`` on the loop, also if ``job`` failed."""

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run ``job`` at once, on the loop, then ``done``: before this method returns, unless there is a ticket to wait for."""


def run_guarded(job: Callable[[], None]) -> None:
    """Run a job for the disk. A bug in it, or a lack of memory, is logged: its caller only knows that nothing was done."""
    try:
        job()
    except Exception:
        logger.exception("a job for the disk failed")


_Work = tuple[Callable[[], None], Callable[[], None]]


class _Worker:
    """A sync thread, and the lock by which it alone is woken."""

    __slots__ = ("_awake", "_work", "thread")

    def __init__(self, run: Callable[["_Worker"], None], name: str) -> None:
        """Raises: OSError when no thread can be started."""
        self._work: _Work | None = None
        self._awake = threading.Lock()
        self._awake.acquire()
        self.thread = start_thread(lambda: run(self), name)

    def give(self, work: _Work | None) -> None:
        """Wake the thread for work, or with None to end. It must be idle."""
        self._work = work
        self._awake.release()

    def wait(self) -> _Work | None:
        self._awake.acquire()
        work, self._work = self._work, None
        return work


class SyncThreads:
    """A small pool of dedicated threads for the disk; started as they are needed.

    Each job runs whole; jobs of different logs run side by side, so that the file system merges their journal commits. The
    thread that became idle last gets the next job. Each thread waits for a lock of its own: with one shared queue, each job
    would wake a second thread for nothing, which costs as much as the hand-over.
    """

    def __init__(
        self, post: Callable[[Callable[[], None]], object], threads_max: int = 16, run_job: RunJob = run_guarded
    ) -> None:
        """
        Args:
            post: runs a call on the loop, from any thread (``loop.call_soon_threadsafe``).
            run_job: runs each job.

        Raises: OSError when not one thread can be started.
        """
        self._post = post
        self._threads_max = threads_max
        self._run_job = run_job
        self._guard = threading.Lock()  # of what the threads change, too: _idle and _waiting
        self._idle: list[_Worker] = []
        self._waiting: deque[_Work] = deque()
        self._closing = False
        self._workers = [_Worker(self._run, "sync-0")]
        self._idle.append(self._workers[0])

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """As ``Scheduler.offload``: called on the loop. After ``close`` it does nothing."""
        with self._guard:
            if self._closing:
                # What still runs on a loop that ends asks for more, when the directory's lock is released or about to be, and
                # the loop may be closed before the job could tell it.
                return
            worker = self._idle.pop() if self._idle else self._started()
            if worker is None:
                self._waiting.append((job, done))
                return
        worker.give((job, done))

    def _started(self) -> _Worker | None:
        if len(self._workers) == self._threads_max:
            return None
        try:
            worker = _Worker(self._run, f"sync-{len(self._workers)}")
        except OSError as error:
            self._threads_max = len(self._workers)
            logger.warning("the disk has %d threads instead of more: %s", self._threads_max, error.strerror)
            return None
        self._workers.append(worker)
        return worker

    def close(self, *, drop_waiting: bool = False) -> None:
        """Let all jobs end, and stop the threads. ``drop_waiting``: only jobs that run already are carried out; ``done`` of the
        others is never called."""
        with self._guard:
            self._closing = True
            if drop_waiting:
                self._waiting.clear()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.give(None)
        for worker in self._workers:
            worker.thread.join()
        self._workers.clear()

    def _run(self, worker: _Worker) -> None:
        work = worker.wait()
        while work is not None:
            job, done = work
            ticket = self._run_job(job)
            with self._guard:
                work = self._waiting.popleft() if self._waiting else None
                is_idle = work is None and not self._closing
                if is_idle:
                    self._idle.append(worker)
            self._post(done if ticket is None else partial(ticket.when_settled, done))
            del job, done, ticket  # a thread that waits would hold its last batch, some MiB
            if is_idle:
                work = worker.wait()
