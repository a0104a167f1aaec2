"""The order of ready messages by priority. Any schedule: tests/property/test_priority_consumers.py."""

import pytest

from toymq_py.consumer import priority_lanes
from toymq_py.consumer.priority_lanes import PRIORITY_MAX, PriorityLanes


def lanes_with(*priorities: int) -> PriorityLanes:
    """Return lanes with a message for each priority, with ids from 100 on."""
    lanes = PriorityLanes(100)
    for msg_id, priority in enumerate(priorities, 100):
        lanes.enter(msg_id, priority)
    return lanes


def drained(lanes: PriorityLanes) -> list[int]:
    """Take all messages, one after the other. Returns: their ids."""
    order = []
    while (level := lanes.highest()) is not None:
        if (again := lanes.next_again(level, 1)) is not None:
            lanes.take_again(*again)
            order.append(again[0])
            continue
        ids = lanes.next_fresh(level, 1)
        lanes.taken(ids)
        order += ids
    return order


def test_the_highest_first_and_in_order_among_those_that_are_alike() -> None:
    assert drained(lanes_with(1, 5, 0, 5, 1, 9)) == [105, 101, 103, 100, 104, 102]


def test_redeliveries_have_their_place_among_the_new() -> None:
    lanes = lanes_with(1, 5, 0)
    lanes.enter_again(90, 5)
    lanes.enter_again(95, 0)
    lanes.enter_again(200, 1)
    assert lanes.first() == 90
    assert drained(lanes) == [90, 101, 100, 200, 95, 102]


def test_redeliveries_that_follow_each_other_are_taken_together() -> None:
    lanes = PriorityLanes(0)
    for msg_id, priority in ((7, 1), (8, 1), (9, 2), (10, 1)):
        lanes.enter_again(msg_id, priority)
    assert lanes.next_again(2, 9) == (9, 9)
    assert [lanes.next_again(1, most) for most in (1, 9)] == [(7, 7), (7, 8)]


def test_what_is_acked_is_forgotten() -> None:
    lanes = lanes_with(1, 5, 0, 5)
    lanes.enter_again(50, 7)
    lanes.enter_again(51, 7)
    lanes.late.add(60)
    lanes.acked(101, 102)
    lanes.acked(50, 50)
    lanes.acked(60, 60)
    assert (len(lanes.late), lanes.again) == (0, 1)
    assert drained(lanes) == [51, 103, 100]
    lanes.enter_again(5, 1)
    lanes.acked(0, 1 << 40)
    assert lanes.first() is None


def test_an_id_that_falls_due_late_comes_in_its_order() -> None:
    lanes = lanes_with(1, 1)
    lanes.enter(97, 1)
    lanes.enter(97, 1)
    assert drained(lanes) == [97, 100, 101]


def test_a_new_beginning_is_anywhere() -> None:
    lanes = lanes_with(1)
    drained(lanes)
    lanes.enter(1 << 50, 3)
    assert drained(lanes) == [1 << 50]
    lanes.clear(7)
    assert (lanes.scanned, lanes.highest(), lanes.lowest()) == (7, None, None)


def test_the_lowest_id_first_when_that_is_asked_for() -> None:
    lanes = lanes_with(1, 5)
    assert lanes.lowest() == 1
    lanes.enter_again(50, 3)
    assert lanes.lowest() == 3


@pytest.mark.parametrize("priority", [PRIORITY_MAX, 255, 1 << 70])
def test_priorities_beyond_the_last_are_alike(priority: int) -> None:
    lanes = lanes_with(priority, PRIORITY_MAX)
    assert lanes.next_fresh(PRIORITY_MAX, 9) == [100, 101]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_lanes, "AHEAD_MAX", 100)
    monkeypatch.setattr(priority_lanes, "_TRIMMED", 10)
    monkeypatch.setattr(priority_lanes, "AGAIN_MAX", 2)
    lanes = lanes_with(*[1] * 50)
    assert [lanes.is_beyond(msg_id) for msg_id in (199, 200, 50, 49)] == [False, True, False, True]
    lanes.taken(lanes.next_fresh(1, 20))
    assert [lanes.is_beyond(msg_id) for msg_id in (219, 220)] == [False, True]
    assert not lanes.again_full
    lanes.enter_again(1, 1)
    lanes.enter_again(2, 1)
    assert lanes.again_full
