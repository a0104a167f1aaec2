"""Periodic jobs: which tick is next, and that each is published once, whatever the clocks do."""

import asyncio
from typing import Any, cast

import pytest

from toymq.workers.job import Job
from toymq.workers.schedule import LOOK_S, Schedule
from toymq_py.errors import QueueFull


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def wall_ns(self) -> int:
        return round(self.now * 1e9)

    def monotonic(self) -> float:
        raise AssertionError("ticks are times of the day")


class FakeJob:
    topic, name = "every.tick", "shop.tick"


JOB = cast("Job[..., Any]", FakeJob())


class Client:
    """A client that keeps what is published, and ends the schedule after some publishes."""

    def __init__(self, count: int, *, refuses: bool = False) -> None:
        self.published: list[tuple[str, str, float]] = []
        self._count, self._refuses = count, refuses

    async def pub(self, topic: str, payload: bytes, *, key: str, ttl: float) -> None:
        self.published.append((topic, key, ttl))
        if len(self.published) == self._count:
            raise asyncio.CancelledError
        if self._refuses:
            raise QueueFull("full")


def test_ticks_are_whole_multiples_of_the_period() -> None:
    clock = Clock(7200.0)
    schedule = Schedule(JOB, 3_600_000, clock)
    assert (schedule.next_tick(), schedule.key(3)) == (3, "3600000-3")
    clock.now = 7199.999
    assert (schedule.next_tick(), round(schedule.wait_s(2), 6)) == (2, 0.001)
    assert schedule.wait_s(1) == 0.0
    assert schedule.wait_s(9) == LOOK_S


@pytest.mark.parametrize("refuses", [False, True])
async def test_each_tick_is_published_at_its_time_under_its_own_key(monkeypatch: pytest.MonkeyPatch, refuses: bool) -> None:
    clock = Clock(100.0)

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("toymq.workers.schedule.asyncio.sleep", sleep)
    client = Client(4, refuses=refuses)
    with pytest.raises(asyncio.CancelledError):
        await Schedule(JOB, 60_000, clock).run(cast("Any", client))
    assert client.published == [("every.tick", f"60000-{tick}", 60.0) for tick in (2, 3, 4, 5)]
    assert clock.now == 300.0


async def test_a_clock_that_is_set_back_repeats_no_tick_and_stops_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100.0)
    steps = iter([20.0, -15.0, 0.0])

    async def sleep(seconds: float) -> None:
        clock.now += seconds + next(steps, 0.0)

    monkeypatch.setattr("toymq.workers.schedule.asyncio.sleep", sleep)
    client = Client(5)
    with pytest.raises(asyncio.CancelledError):
        await Schedule(JOB, 60_000, clock).run(cast("Any", client))
    ticks = [int(key.split("-")[1]) for _, key, _ in client.published]
    assert ticks == sorted(set(ticks))
    assert ticks[-1] - ticks[0] == 4
