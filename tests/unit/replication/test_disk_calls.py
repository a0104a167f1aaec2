"""A job on a thread and its caller, which may be cancelled."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from toymq_py.replication.disk_calls import StopFlag, Stopped, run_on_thread


class Threads:
    """A thread for each job."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: list[threading.Thread] = []

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        def run() -> None:
            job()
            with suppress(RuntimeError):  # the caller did not wait for this, and the test is over
                self._loop.call_soon_threadsafe(done)

        self._started.append(threading.Thread(target=run))
        self._started[-1].start()

    async def have_ended(self) -> None:
        """Wait for all threads; otherwise one may call the loop of a test that is over."""
        for thread in self._started:
            await asyncio.to_thread(thread.join)


async def test_the_outcome_is_that_of_the_job() -> None:
    assert await run_on_thread(Threads(), lambda: 5) == 5
    with pytest.raises(KeyError):
        await run_on_thread(Threads(), lambda: {}["x"])


async def test_a_cancelled_caller_stops_its_job_and_waits_for_its_end() -> None:
    stop, began, ended = StopFlag(), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        try:
            while True:
                stop.check()
        except Stopped:
            ended.set()
            raise

    task = asyncio.ensure_future(run_on_thread(Threads(), job, stop))
    await asyncio.to_thread(began.wait)
    assert stop.jobs == 1
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert stop.jobs == 0
    assert stop.steps > 0


class Unsettled(Threads):
    """A ticket whose synced data are never acknowledged, as when a leader's term has ended."""

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        super().offload(job, lambda: None)


@pytest.mark.parametrize("early", [True, False])
async def test_a_cancelled_caller_does_not_wait_for_what_comes_behind_its_job(early: bool) -> None:
    """Found: a leader whose term ended while a topic was moved to it, before or after its last write, never ended its
    process."""
    began, go_on, ended = (threading.Event() for _ in range(3))

    def job() -> None:
        began.set()
        go_on.wait()
        ended.set()

    threads = Unsettled()
    task = asyncio.ensure_future(run_on_thread(threads, job))
    await asyncio.to_thread(began.wait)
    if early:
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "it waits for its job"
        go_on.set()
    else:
        go_on.set()
        await asyncio.to_thread(ended.wait)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await task
    assert ended.is_set()
    await threads.have_ended()
