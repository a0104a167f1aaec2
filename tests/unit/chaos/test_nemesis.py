"""The kinds and times of faults come from the seed."""

from itertools import islice

from toymq_chaos.fault_injection import PLACES, SERVING
from toymq_chaos.nemesis import Life, lives, of_workers


def plan(seed: int, count: int = 60, *, small_disk: bool = True) -> list[Life]:
    return list(islice(lives(seed, small_disk=small_disk), count))


def test_one_seed_is_one_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_every_place_fault_and_end_comes() -> None:
    found = plan(1, 300)
    assert {life.point.place for life in found if life.point is not None} == set(SERVING)
    assert {fault.kind for life in found for fault in life.faults} == {"pause", "cut", "clock", "full"}
    assert {life.how for life in found} == {"kill", "stop"}
    assert all(1 <= life.point.nth <= PLACES[life.point.place].within for life in found if life.point is not None)


def test_faults_of_a_life_are_in_order_and_within_it() -> None:
    for life in plan(3):
        times = [fault.at_s for fault in life.faults]
        assert times == sorted(times)
        assert all(0 <= at_s <= life.lasts_s for at_s in times)


def test_without_a_small_disk_it_is_never_full_and_the_rest_of_the_plan_stays() -> None:
    with_disk, without = plan(5), plan(5, small_disk=False)
    assert not any(fault.kind == "full" for life in without for fault in life.faults)
    assert [(life.lasts_s, life.point) for life in without] == [(life.lasts_s, life.point) for life in with_disk]


def test_every_worker_is_killed_in_lives_of_two_numbers() -> None:
    found = list(islice(of_workers(lives(1, small_disk=True), 1, 2), 60))
    assert found == list(islice(of_workers(lives(1, small_disk=True), 1, 2), 60))
    assert {life.workers for life in found} == {2, 3}
    for life in found:
        assert life.point is None
        assert all(fault.worker in range(life.workers) for fault in life.faults)
        assert [fault.at_s for fault in life.faults] == sorted(fault.at_s for fault in life.faults)
    killed = {(life.workers, fault.worker) for life in found for fault in life.faults if fault.kind == "worker"}
    assert killed == {(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)}
