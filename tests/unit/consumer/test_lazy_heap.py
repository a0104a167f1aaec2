"""A heap of runs by rank, whose entries may be out of date."""

from itertools import count
from operator import attrgetter

from toymq_py.consumer.lazy_heap import LazyHeap
from toymq_py.consumer.lease_run import INFLIGHT, LeaseRun, Lessee

OWNER = Lessee(1)


def run(deadline: float) -> LeaseRun:
    return LeaseRun(0, 0, INFLIGHT, OWNER, deadline, 1)


def heap() -> LazyHeap:
    return LazyHeap(attrgetter("deadline"), count())


def test_the_lowest_comes_first() -> None:
    runs, it = [run(3), run(1), run(2)], heap()
    for each in runs:
        it.push(each)
    taken = []
    while (top := it.top()) is not None:
        it.pop()
        taken.append(top.deadline)
    assert taken == [1, 2, 3]


def test_a_rank_that_rose_needs_no_new_entry() -> None:
    early, late, it = run(1), run(2), heap()
    it.push(early)
    it.push(late)
    early.deadline = 5
    assert it.top() is late
    it.pop()
    assert it.top() is early
    assert len(it) == 1


def test_a_run_that_stands_elsewhere_now_is_passed_over() -> None:
    moved, it, other = run(1), heap(), LazyHeap(attrgetter("deadline"), count(100))
    it.push(moved)
    other.push(moved)
    assert it.top() is None
    assert other.top() is moved


def test_stale_entries_are_dropped_when_they_are_most() -> None:
    it, stays = heap(), run(9)
    it.push(stays)
    for _ in range(100):
        gone = run(1)
        it.push(gone)
        gone.retire()
    it.trim(1)
    assert len(it) == 1
    assert it.top() is stays
