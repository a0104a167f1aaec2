"""Waits end by their callback, their time, ``wake``, or the shutdown."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.in_process import TIMEOUT_S
from toymq_py.gateway.waiters import Waiting


class Source:
    """An object to wait for."""

    def __init__(self) -> None:
        self.call: Callable[[], None] | None = None

    def begin(self, call: Callable[[], None]) -> Callable[[], None]:
        self.call = call
        return self.withdraw

    def withdraw(self) -> None:
        self.call = None


async def begun(waiting: Waiting, source: Source, seconds: float = TIMEOUT_S) -> asyncio.Task[bool]:
    task = asyncio.ensure_future(waiting.wait_for(source.begin, seconds))
    await asyncio.sleep(0)
    assert (len(waiting), source.call is not None) == (1, True)
    return task


async def test_the_callback_ends_the_wait_and_is_withdrawn() -> None:
    waiting, source = Waiting(asyncio.get_running_loop()), Source()
    task = await begun(waiting, source)
    assert source.call is not None
    source.call()
    assert await task is True
    assert (len(waiting), source.call) == (0, None)


@pytest.mark.parametrize("end", [Waiting.wake, Waiting.stop])
async def test_wake_and_stop_end_every_wait(end: Callable[[Waiting], None]) -> None:
    waiting, source = Waiting(asyncio.get_running_loop()), Source()
    task = await begun(waiting, source)
    end(waiting)
    assert await task is False
    assert (len(waiting), source.call, waiting.stopped) == (0, None, end is Waiting.stop)


async def test_a_rest_goes_on_when_rights_change() -> None:
    waiting = Waiting(asyncio.get_running_loop())
    task = asyncio.ensure_future(waiting.rest(TIMEOUT_S))
    await asyncio.sleep(0)
    for _ in range(3):
        waiting.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (task.done(), len(waiting)) == (False, 1)
    waiting.stop()
    await task
    await waiting.rest(0)
    assert len(waiting) == 0


async def test_nothing_waits_after_the_stop() -> None:
    waiting, source = Waiting(asyncio.get_running_loop()), Source()
    waiting.stop()
    assert await waiting.wait_for(source.begin, TIMEOUT_S) is False
    assert source.call is None, "it was not even registered"


async def test_a_cancelled_wait_is_withdrawn() -> None:
    waiting, source = Waiting(asyncio.get_running_loop()), Source()
    task = await begun(waiting, source)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(waiting), source.call) == (0, None)


async def test_one_pause_ends_in_a_pass() -> None:
    """One paused request goes on in each pass of the loop, so a hundred large answers block it no longer than one."""
    waiting, passes = Waiting(asyncio.get_running_loop()), 0
    ended: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        for _ in range(2):
            await waiting.pause()
            ended.append((passes, number))

    tasks = [asyncio.ensure_future(work(n)) for n in range(3)]
    tasks.append(asyncio.ensure_future(waiting.pause()))
    while not tasks[2].done():
        await asyncio.sleep(0)
        passes += 1
        tasks[3].cancel()
    assert [number for _, number in ended] == [0, 1, 2, 0, 1, 2], "first come, first served"
    assert len({at for at, _ in ended}) == len(ended)
