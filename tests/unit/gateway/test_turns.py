"""Requests take turns on the loop: whose step is next, and that the requests' tasks do not notice."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.gateway.turns import Prompt, Turns, in_turns
from toymq_py.net.fair_queue import PASS_S, FairQueue

STEP_S = 0.004


class Seat:
    def __init__(self, holder: str) -> None:
        self.holder = holder


class Hall:
    """Connections with a clock that only work moves."""

    def __init__(self) -> None:
        self.clock = FakeClock(monotonic_s=0.0)
        self.loop = asyncio.get_running_loop()
        self.queue = FairQueue(self.clock, self.loop)
        self.steps = 0

    def turns_of(self, owner: str) -> Turns:
        turns = Turns(self.queue, self.loop)
        turns.sit(Seat(owner))
        return turns

    def begin(self, owner: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        return self.loop.create_task(in_turns(work, self.turns_of(owner)))

    def step(self) -> None:
        self.steps += 1
        self.clock.advance(STEP_S)


@pytest.fixture
async def hall() -> Hall:
    return Hall()


@pytest.mark.parametrize("waits", ["pass", "future"])
async def test_a_request_waits_for_a_few_turns_of_others_however_many_they_have(hall: Hall, waits: str) -> None:
    """Found: all steps of a hundred other requests ran before it."""

    async def much() -> None:
        for _ in range(5):
            hall.step()
            if waits == "pass":
                await asyncio.sleep(0)
            else:
                future = hall.loop.create_future()
                hall.loop.call_soon(future.set_result, None)
                await future

    async def little() -> None:
        await asyncio.sleep(0)

    tasks = [hall.begin("greedy", much) for _ in range(100)]
    for _ in range(5):
        await asyncio.sleep(0)
    began = hall.clock.monotonic()
    await hall.begin("other", little)
    assert hall.clock.monotonic() - began <= 4 * (PASS_S + STEP_S), "its two turns, and the passes that it came in"
    await asyncio.gather(*tasks)
    assert hall.steps == 500


async def test_results_and_errors_come_as_from_a_task(hall: Hall) -> None:
    async def seven() -> int:
        await asyncio.sleep(0)
        return 7

    async def fails(future: "asyncio.Future[None]") -> None:
        with pytest.raises(OSError, match="full"):
            await future
        raise ValueError("a bug")

    assert await hall.loop.create_task(in_turns(seven, hall.turns_of("one"))) == 7
    future: asyncio.Future[None] = hall.loop.create_future()
    task = hall.begin("one", lambda: fails(future))
    await asyncio.sleep(0)
    future.set_exception(OSError("full"))
    with pytest.raises(ValueError, match="a bug"):
        await task


@pytest.mark.parametrize("passes", range(4))
async def test_a_cancellation_says_why_wherever_it_comes(hall: Hall, passes: int) -> None:
    """Libraries recognize their own cancellation by its message: without it, a cancelled scope ended the task around it."""
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            ended.append(str(cancelled))
            raise

    task = hall.begin("one", wait)
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel("the reason")
    with pytest.raises(asyncio.CancelledError, match="the reason"):
        await task
    assert ended == (["the reason"] if passes > 1 else []), "or it had not begun"


async def test_timeouts_and_task_groups_work_in_turns(hall: Hall) -> None:
    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(0))

    await hall.begin("one", work)


async def test_who_is_woken_to_take_messages_takes_no_turn(hall: Hall) -> None:
    """Found: a poll was woken a pass later than a WebSocket of the same consumer, and got nothing as long as that took all
    messages."""
    woken, order = Prompt(loop=hall.loop), list[str]()

    async def poll() -> None:
        await woken
        order.append("poll")

    async def other() -> None:
        order.append("other")

    task = hall.begin("one", poll)
    for _ in range(3):
        await asyncio.sleep(0)
    woken.set_result(None)
    await asyncio.gather(task, asyncio.ensure_future(other()))
    assert order == ["poll", "other"]


async def test_a_bug_in_a_step_ends_no_turns(hall: Hall) -> None:
    told: list[dict[str, Any]] = []
    hall.loop.set_exception_handler(lambda _loop, context: told.append(context))
    turns, done = hall.turns_of("one"), list[str]()

    def bug() -> None:
        raise ValueError("a bug")

    turns.take(bug)
    turns.take(lambda: done.append("same"))
    hall.turns_of("other").take(lambda: done.append("other"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sorted(done) == ["other", "same"]
    assert [type(context["exception"]) for context in told] == [ValueError]


@pytest.mark.parametrize("left", [0, 2])
async def test_of_a_lost_connection_nothing_stays_and_what_began_ends(hall: Hall, left: int) -> None:
    """The garbage collector runs rarely: what ten thousand closed connections held would stay for minutes."""
    turns, done = hall.turns_of("one"), list[int]()
    for number in range(left):
        turns.take(partial(done.append, number))
    turns.close()
    for _ in range(3):
        await asyncio.sleep(0)
    turns.take(partial(done.append, left))
    await asyncio.sleep(0)
    assert done == list(range(left + 1))
    alive = weakref.ref(turns)
    del turns
    assert alive() is None
