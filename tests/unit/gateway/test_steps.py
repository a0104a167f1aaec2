"""Coroutines that run without a task."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from toymq_py.clock import SystemClock
from toymq_py.gateway.steps import Steps
from toymq_py.gateway.turns import Turns
from toymq_py.net.fair_queue import FairQueue

Started = Callable[[Coroutine[Any, Any, object]], "tuple[Steps[object], list[object]]"]
told: ContextVar[str] = ContextVar("told", default="nothing")


@pytest.fixture
async def start() -> Started:
    def begin(coroutine: Coroutine[Any, Any, object]) -> tuple[Steps[object], list[object]]:
        results: list[object] = []
        loop = asyncio.get_running_loop()
        steps = Steps(Turns(FairQueue(SystemClock(), loop), loop), coroutine, results.append)
        steps.start()
        return steps, results

    return begin


async def test_what_waits_for_nothing_is_done_at_once(start: Started) -> None:
    async def answer() -> str:
        return "here"

    async def fail() -> None:
        raise OSError("the disk")

    assert start(answer())[1] == ["here"]
    ((error,),) = (start(fail())[1],)
    assert isinstance(error, OSError)


async def test_it_goes_on_with_the_future_in_its_own_context_and_without_a_task(start: Started) -> None:
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[object] = []

    async def wait() -> int:
        token = told.set("mine")
        value = await stored
        seen.extend([told.get(), asyncio.current_task()])
        told.reset(token)  # fails in another context
        return value

    tasks = asyncio.all_tasks()
    _, results = start(wait())
    assert (results, told.get(), asyncio.all_tasks()) == ([], "nothing", tasks)
    stored.set_result(7)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (results, seen) == ([7], ["mine", None])


async def test_a_future_that_fails_fails_where_it_is_awaited(start: Started) -> None:
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        try:
            await stored
        except OSError:
            return "caught"
        return "missed"

    _, results = start(wait())
    stored.set_exception(OSError("full"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert results == ["caught"]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_needs_a_task_gets_one(start: Started, *, fails: bool) -> None:
    async def wait() -> str:
        await asyncio.sleep(0)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            await tasks.create_task(asyncio.sleep(0))
        if fails:
            raise ValueError("a bug")
        return "done"

    _, results = start(wait())
    async with asyncio.timeout(10):
        while not results:  # noqa: ASYNC110 (a few passes)
            await asyncio.sleep(0)
    assert [type(result) for result in results] == [ValueError if fails else str]


@pytest.mark.parametrize("in_task", [False, True])
async def test_who_is_cancelled_cleans_up_and_tells_nothing(start: Started, *, in_task: bool) -> None:
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ended: list[str] = []

    async def wait() -> None:
        try:
            if in_task:
                await asyncio.sleep(0)
            await stored
        finally:
            ended.append("ended")

    steps, results = start(wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    steps.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (ended, results) == (["ended"], [])
    if not stored.done():
        stored.set_result(1)
    await asyncio.sleep(0)
    assert results == [], "and nothing goes on"
    steps.cancel()  # idempotent
