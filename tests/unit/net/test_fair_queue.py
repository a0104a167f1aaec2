"""Which connection has the next turn: cheap ones come first, expensive ones share the rest of a pass, and owners share both."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, pairwise

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.net.fair_queue import LIGHT_S, OWNERS_KEPT, PASS_S, SHARE_S, SLICE_S, FairQueue, Runnable

STEP_S = 0.004
"""What cannot be cut, of a session whose last turn was short."""


class Seat:
    def __init__(self, holder: str) -> None:
        self.holder = holder


class Worker:
    """A connection that takes ``cost_s`` in each turn, and has work for ``left`` turns."""

    def __init__(self, hall: "Hall", name: str, cost_s: float, left: int, owner: str = "one") -> None:
        self.hall = hall
        self.name = name
        self.cost_s = cost_s
        self.left = left
        self.place = Runnable(hall.queue, self.work, Seat(owner))

    def work(self, slice_end: float) -> bool:
        assert slice_end - self.hall.clock.monotonic() == pytest.approx(SLICE_S)
        self.hall.clock.advance(self.cost_s)
        self.hall.done.append(self.name)
        self.left -= 1
        return self.left > 0


class Hall:
    """Connections, and a loop whose passes are counted."""

    def __init__(self) -> None:
        self.clock = FakeClock(monotonic_s=0.0)
        self.loop = SimEventLoop(random.Random(1))
        self.queue = FairQueue(self.clock, self.loop)
        self.done: list[str] = []

    def one_pass(self) -> list[str]:
        """Run one pass. Returns: which connections had a turn."""
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


class Alternating(Worker):
    """A connection whose turns are cheap and expensive by turns, so it always looks cheap before an expensive one."""

    costs: Iterator[float]

    def work(self, slice_end: float) -> bool:
        self.cost_s = next(self.costs)
        return super().work(slice_end)


def crowd(hall: Hall, count: int, owner: str) -> list[Alternating]:
    workers = [Alternating(hall, f"{owner}{n}", 0.0, 1_000_000, owner) for n in range(count)]
    for worker in workers:
        worker.costs = cycle((0.0001, STEP_S))
        worker.place.wake()
    return workers


def test_two_hundred_sessions_of_one_owner_hold_up_another_owner_for_a_pass(hall: Hall) -> None:
    """Found: when connections of one token came, took one expensive turn each and reconnected, all their turns were in one
    pass, which took a second."""
    crowd(hall, 200, "alice")
    counts: Counter[str] = Counter()
    for n in range(300):
        began = hall.clock.monotonic()
        bob = Worker(hall, "bob", 0.0001, 1, "bob")
        bob.place.wake()
        had = hall.one_pass()
        if n:
            assert had[0] == "bob", f"before an owner that needed more than its share: {n}"
        assert hall.clock.monotonic() - began < PASS_S + SHARE_S + 2 * STEP_S, n
        counts.update(had)
    assert counts.pop("bob") == 300
    assert len(counts) == 200
    assert max(counts.values()) - min(counts.values()) <= 2, "and these among each other, in their order"


def test_two_hundred_sessions_have_as_much_as_fifty_of_another_owner(hall: Hall) -> None:
    crowd(hall, 200, "alice")
    crowd(hall, 50, "dave")
    turns = Counter(name.rstrip("0123456789") for _ in range(200) for name in hall.one_pass())
    assert turns["dave"] > 0.8 * turns["alice"]


def test_one_who_takes_much_of_another_owner_is_not_behind_two_hundred(hall: Hall) -> None:
    """Found: bob's only connection had one of 201 turns, and none while cheap ones took the pass."""
    for n in range(200):
        Worker(hall, f"alice{n}", 2 * SLICE_S, 1000, "alice").place.wake()
    Worker(hall, "bob", 2 * SLICE_S, 1000, "bob").place.wake()
    hall.one_pass()  # they are not known yet
    had = [hall.one_pass() for _ in range(100)]
    assert all("bob" in one + other for one, other in pairwise(had))
    assert len({name for names in had for name in names}) == 201, "and those of alice follow each other"


def test_nobody_starves_while_light_ones_of_many_owners_take_the_pass(hall: Hall) -> None:
    """Every pass has one expensive turn, of each owner in turn."""
    for owner in "xyz":
        Worker(hall, f"heavy {owner}", 2 * SLICE_S, 1000, owner).place.wake()
    hall.one_pass()
    for n in range(20):
        Worker(hall, f"light{n}", 0.9 * LIGHT_S, 10_000, f"owner {n}").place.wake()
        for _ in range(5):
            Worker(hall, f"more{n}", 0.9 * LIGHT_S, 10_000, f"owner {n}").place.wake()
    had = [hall.one_pass() for _ in range(12)]
    for owner in "xyz":
        assert sum(f"heavy {owner}" in names for names in had) >= 4
    assert all(f"light{n}" in names for n in range(20) for names in had[::6]), "and every owner has its share of each pass"


def test_an_owner_that_is_alone_has_all_its_light_ones_in_one_pass(hall: Hall) -> None:
    """Their publishes then form one batch, as they did before turns were shared by owners."""
    crowd(hall, 200, "alice")
    assert [len(hall.one_pass()) for _ in range(2)] == [200, 200]
    assert hall.clock.monotonic() > 200 * STEP_S
    assert len(hall.one_pass()) == PASS_S / 0.0001 + 1, "heavy since the second turn: they share a pass"


class Limits:
    guarded = True


def test_where_tokens_are_needed_an_owner_that_is_alone_has_no_more_than_a_pass(hall: Hall) -> None:
    """A hundred anonymous connections of one listener had their turn in one pass, while those of other listeners waited."""
    hall.queue = FairQueue(hall.clock, hall.loop, Limits())
    crowd(hall, 200, "an address")
    had: Counter[str] = Counter()
    for _ in range(200):
        began = hall.clock.monotonic()
        had.update(hall.one_pass())
        assert hall.clock.monotonic() - began < PASS_S + 2 * STEP_S
    assert len(had) == 200
    assert max(had.values()) - min(had.values()) <= 2, "and none starves"


def test_a_session_whose_owner_becomes_known_has_its_next_turn_as_that_owners(hall: Hall) -> None:
    """A session sends its token in a turn of its address, which it shares with others."""
    crowd(hall, 200, "an address")
    newcomer = Worker(hall, "newcomer", 0.0001, 3, "bob")
    newcomer.place.seat = seat = Seat("an address")

    def accepted(slice_end: float) -> bool:
        seat.holder = "bob"
        return newcomer.work(slice_end)

    newcomer.place.work = accepted
    newcomer.place.wake()
    while "newcomer" not in hall.one_pass():
        pass
    assert hall.one_pass()[0] == "newcomer"


def test_owners_that_have_nothing_to_do_are_forgotten(hall: Hall) -> None:
    for n in range(10 * OWNERS_KEPT):
        Worker(hall, "brief", 0.0, 1, f"owner {n}").place.wake()
        assert hall.one_pass() == ["brief"]
    assert len(hall.queue._owners) <= OWNERS_KEPT
    for n in range(10 * OWNERS_KEPT):
        Worker(hall, "long", 0.0, 2, f"owner {n}").place.wake()
    assert [len(hall.one_pass()) for _ in range(3)] == [10 * OWNERS_KEPT, 10 * OWNERS_KEPT, 0]
    assert not hall.queue.waits
