"""Runs blocking calls for the event loop: each is one job on a thread, and is awaited to its end.

A job may change files of the data directory. Once the caller returns, the directory may have another owner, so a cancelled
caller waits for the job's end, too.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """What replication needs of ``Scheduler``."""

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run ``job`` on a sync thread, then ``done`` on the event loop, even if the job raised."""


class Stopped(Exception):
    """A job ended early, because its caller was cancelled."""


class StopFlag:
    """Tells running jobs to stop, as their outcome is not needed any more, and counts their progress. ``is_set`` and ``jobs``
    belong to the event loop, ``steps`` is counted on the jobs' threads."""

    __slots__ = ("is_set", "jobs", "steps")

    def __init__(self) -> None:
        self.is_set = False
        self.jobs = 0
        """The number of jobs that run or wait for a thread."""
        self.steps = 0

    def check(self) -> None:
        """Count a step; the job calls this between two steps. Raises: Stopped when the flag is set."""
        self.steps += 1
        if self.is_set:
            raise Stopped


async def run_on_thread(offload: Offload, job: Callable[[], T], stop: StopFlag | None = None) -> T:
    """Run a job and return its outcome, or raise what it raised.

    A cancellation sets ``stop``, waits for the job's end, and takes effect then.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    over: asyncio.Future[None] = loop.create_future()
    """Done when the job has returned, if the caller was cancelled: code after the job may never run, as of a ticket that is
    not settled when a leader's term ends."""
    outcome: list[T] = []
    failure: list[BaseException] = []
    has_returned = is_cancelled = False

    def guarded() -> None:
        nonlocal has_returned
        try:
            outcome.append(job())
        except Exception as error:  # noqa: BLE001 (the caller gets it)
            failure.append(error)
        has_returned = True  # first, and only then the other: one of the two threads sees what the other has set
        if is_cancelled:
            loop.call_soon_threadsafe(_set, over)

    def done() -> None:
        if ended.done():
            return
        if outcome:
            ended.set_result(outcome[0])
        else:
            ended.set_exception(failure[0] if failure else RuntimeError("the job ended without an outcome"))

    if stop is not None:
        stop.jobs += 1
        stop.steps += 1
    offload.offload(guarded, done)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        if stop is not None:
            stop.is_set = True
        is_cancelled = True
        ended.add_done_callback(_retrieve)
        if not has_returned:
            await _wait_for(ended, over)
        raise
    finally:
        if stop is not None:
            stop.jobs -= 1


def _retrieve(ended: "asyncio.Future[Any]") -> None:
    """Retrieve the outcome of a job that nothing else retrieves, so that asyncio does not log it."""
    if not ended.cancelled():
        ended.exception()


def _set(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


async def _wait_for(*awaited: "asyncio.Future[Any]") -> None:
    """Wait for a job to its end, even when cancelled again."""
    while not any(each.done() for each in awaited):
        with suppress(asyncio.CancelledError):
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
