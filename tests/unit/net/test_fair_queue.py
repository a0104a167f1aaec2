"""Which is next: those that take little come first, those that take much share what is left of a pass."""

import random

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.net.fair_queue import LIGHT_S, PASS_S, SLICE_S, FairQueue, Runnable


class Worker:
    """Takes ``cost_s`` in each turn, and has ``left`` turns' worth of work."""

    def __init__(self, hall: "Hall", name: str, cost_s: float, left: int) -> None:
        self.hall = hall
        self.name = name
        self.cost_s = cost_s
        self.left = left
        self.place = Runnable(hall.queue, self.work)

    def work(self, slice_end: float) -> bool:
        assert slice_end - self.hall.clock.monotonic() == pytest.approx(SLICE_S)
        self.hall.clock.advance(self.cost_s)
        self.hall.done.append(self.name)
        self.left -= 1
        return self.left > 0


class Hall:
    """Workers, and a loop whose passes are counted."""

    def __init__(self) -> None:
        self.clock = FakeClock(monotonic_s=0.0)
        self.loop = SimEventLoop(random.Random(1))
        self.queue = FairQueue(self.clock, self.loop)
        self.done: list[str] = []

    def one_pass(self) -> list[str]:
        """Which had a turn."""
        self.done.clear()
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        return list(self.done)


@pytest.fixture
def hall():  # type: ignore[no-untyped-def]
    hall = Hall()
    yield hall
    hall.loop.close()


def test_first_come_first_served_and_once_a_pass(hall: Hall) -> None:
    workers = [Worker(hall, name, 0.0001, 2) for name in "abc"]
    for worker in reversed(workers):
        worker.place.wake()
        worker.place.wake()
    assert hall.one_pass() == ["c", "b", "a"]
    assert hall.one_pass() == ["c", "b", "a"]
    assert hall.one_pass() == []


def test_who_takes_little_waits_for_a_pass_at_most_whoever_else_there_is(hall: Hall) -> None:
    heavy = [Worker(hall, f"heavy{n}", cost, 1000) for n, cost in enumerate([2 * SLICE_S] * 20 + [0.75 * SLICE_S] * 30)]
    for worker in heavy:
        worker.place.wake()
    hall.one_pass()  # they are not known yet
    counts = dict.fromkeys((worker.name for worker in heavy), 0)
    for n in range(150):
        light = Worker(hall, "light", 0.0001, 1)
        light.place.wake()
        began = hall.clock.monotonic()
        had = hall.one_pass()
        assert had[0] == "light", n
        assert hall.clock.monotonic() - began < PASS_S + 3 * SLICE_S
        for name in had[1:]:
            counts[name] += 1
    assert max(counts.values()) - min(counts.values()) <= 1, "and these among each other"
    assert min(counts.values()) > 5


def test_one_who_takes_much_goes_on_however_long_the_others_take(hall: Hall) -> None:
    heavy = Worker(hall, "heavy", 2 * SLICE_S, 1000)
    heavy.place.wake()
    hall.one_pass()
    others = [Worker(hall, "light", 0.9 * LIGHT_S, 1000) for _ in range(40)]
    for worker in others:
        worker.place.wake()
    for _ in range(5):
        assert hall.one_pass().count("heavy") == 1


def test_who_mends_his_ways_is_light_again(hall: Hall) -> None:
    worker = Worker(hall, "mended", 2 * SLICE_S, 3)
    worker.place.wake()
    hall.one_pass()
    worker.cost_s = 0.0
    hall.one_pass()
    other = Worker(hall, "other", 0.0, 1)
    other.place.wake()
    assert hall.one_pass() == ["mended", "other"], "in the order of coming"


def test_an_end_waits_until_others_had_their_turn(hall: Hall) -> None:
    leaving = [Worker(hall, "leaving", 0.0002, 1) for _ in range(1000)]
    for worker in leaving:
        worker.place.wake_last()
    passes = 0
    while True:
        newcomer = Worker(hall, "newcomer", 0.0001, 1)
        newcomer.place.wake()
        had = hall.one_pass()
        assert had[0] == "newcomer"
        if had == ["newcomer"]:
            break
        passes += 1
    assert passes >= 1000 * 0.0002 / PASS_S - 1


def test_a_closed_place_has_no_turn_and_holds_nothing(hall: Hall) -> None:
    worker, other = Worker(hall, "gone", 0.0, 1), Worker(hall, "other", 0.0, 1)
    worker.place.wake()
    other.place.wake()
    worker.place.close()
    assert hall.one_pass() == ["other"]
    worker.place.wake()
    assert hall.one_pass() == []
    assert worker.place.work is None
