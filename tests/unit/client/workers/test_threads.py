"""Threads for an event loop: which calls run there, what they return, and in how few wake-ups of the loop."""

import asyncio
import threading
from contextvars import ContextVar, copy_context

import pytest

from toymq.workers.threads import Threads

NAME: ContextVar[str] = ContextVar("NAME", default="none")


async def test_results_and_exceptions_come_back() -> None:
    threads = Threads(2, "t", asyncio.get_running_loop())
    assert await threads.submit(copy_context(), divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.submit(copy_context(), divmod, 7, 0)
    with pytest.raises(SystemExit):
        await threads.submit(copy_context(), exit_now)
    threads.stop()


def exit_now() -> None:
    raise SystemExit(3)


async def test_a_thread_has_the_context_of_its_task() -> None:
    threads = Threads(1, "t", asyncio.get_running_loop())
    NAME.set("mine")
    assert await threads.submit(copy_context(), NAME.get) == "mine"
    threads.stop()


async def test_as_many_threads_as_there_is_work_and_no_more_than_allowed() -> None:
    threads = Threads(3, "t", asyncio.get_running_loop())
    for _ in range(3):
        await threads.submit(copy_context(), int)
    assert len(threads._threads) == 1, "one after the other needs one"
    together = threading.Barrier(3, timeout=20)
    waiting = [threads.submit(copy_context(), together.wait) for _ in range(6)]
    assert len(set(await asyncio.gather(*waiting))) == 3
    assert len(threads._threads) == 3
    threads.stop()
    for thread in threads._threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads._threads)


async def test_many_ends_are_told_in_one_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    threads = Threads(1, "t", loop)
    ended = threading.Event()
    told: list[object] = []
    monkeypatch.setattr(loop, "call_soon_threadsafe", told.append)
    futures = [threads.submit(copy_context(), int) for _ in range(5)]
    last = threads.submit(copy_context(), ended.set)
    assert ended.wait(20)
    while len(threads._ended) < 6:
        pass
    assert told == [threads._collect]
    threads._collect()
    assert await asyncio.gather(*futures, last) == [0] * 5 + [None]
    threads.stop()


async def test_what_was_cancelled_meanwhile_is_left_alone() -> None:
    threads = Threads(1, "t", asyncio.get_running_loop())
    go_on = threading.Event()
    cancelled = threads.submit(copy_context(), go_on.wait)
    cancelled.cancel()
    go_on.set()
    assert await threads.submit(copy_context(), int) == 0
    threads.stop()
