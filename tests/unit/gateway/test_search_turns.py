"""Searches take turns: bounded for a token and for the broker, the others wait in line or are refused by name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.errors import ShuttingDown
from toymq_py.gateway.problems import TooManySearches
from toymq_py.gateway.search_turns import RUNNING_MAX, WAIT_S, WAITING_MAX, WAITING_OF_ONE, SearchTurns
from toymq_py.gateway.waiters import Waiting


class Rig:
    """Searches that run until they are told to end."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waiting = Waiting(asyncio.get_running_loop())
        self.turns = SearchTurns(self.clock, self.waiting)
        self.running: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str) -> asyncio.Task[None]:
        """Begin a search for the token whose name is before the dash."""
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._search(name))
        await turns_of_the_loop()
        return self.tasks[name]

    async def _search(self, name: str) -> None:
        async with self.turns.turn(name.partition("-")[0]):
            self.running.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]
        await turns_of_the_loop()


async def turns_of_the_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def searches() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    for task in rig.tasks.values():
        task.cancel()
    await asyncio.gather(*rig.tasks.values(), return_exceptions=True)
    assert rig.turns._running == []
    assert rig.turns._line == [], "every place goes back"


async def test_one_of_a_token_runs_and_no_other_token_waits_for_it() -> None:
    async with searches() as rig:
        for name in ("a-1", "a-2", "a-3", "b-1"):
            await rig.begin(name)
        assert rig.running == ["a-1", "b-1"]
        await rig.end("a-1")
        assert rig.running == ["b-1", "a-2"], "in the order of their coming"


async def test_the_broker_runs_so_many() -> None:
    async with searches() as rig:
        for number in range(RUNNING_MAX + 2):
            await rig.begin(f"t{number}-1")
        assert len(rig.running) == RUNNING_MAX
        await rig.end("t1-1")
        assert rig.running[-1] == f"t{RUNNING_MAX}-1"
        assert len(rig.running) == RUNNING_MAX


async def test_more_than_may_wait_are_refused() -> None:
    async with searches() as rig:
        for number in range(1 + WAITING_OF_ONE):
            await rig.begin(f"a-{number}")
        with pytest.raises(TooManySearches, match=f"^{WAITING_OF_ONE} searches of this token or address wait"):
            await (await rig.begin("a-more"))
        for number in range(WAITING_MAX):
            await rig.begin(f"b{number}-1")
        with pytest.raises(TooManySearches, match=f"^{WAITING_MAX} searches wait"):
            await (await rig.begin("c-1"))


async def test_a_wait_has_an_end_and_a_change_of_rights_is_none() -> None:
    async with searches() as rig:
        await rig.begin("a-1")
        waits = await rig.begin("a-2")
        rig.waiting.wake()
        await turns_of_the_loop()
        assert not waits.done()
        rig.clock.advance(WAIT_S)
        rig.waiting.wake()
        with pytest.raises(TooManySearches, match="no turn within 10 s"):
            await waits
        waits = await rig.begin("a-3")
        rig.waiting.stop()
        with pytest.raises(ShuttingDown):
            await waits


async def test_a_search_that_is_cancelled_gives_its_turn_back() -> None:
    async with searches() as rig:
        first, second = await rig.begin("a-1"), await rig.begin("a-2")
        await rig.begin("a-3")
        first.cancel()
        await asyncio.sleep(0)  # the second has its turn, and has not begun
        second.cancel()
        await turns_of_the_loop()
        assert rig.running == ["a-3"]
