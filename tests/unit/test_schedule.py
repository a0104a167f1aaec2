"""What is due when."""

import random

from toymq_py.topic.delays import BLOCK_ROWS_MAX, Schedule


def of(times: dict[int, int], now_ns: int = 0) -> Schedule:
    schedule = Schedule()
    schedule.add(list(times), list(times.values()), now_ns)
    return schedule


def test_what_is_due_already_does_not_wait() -> None:
    schedule = of({3: 10, 4: 11, 9: 12}, now_ns=10)
    assert list(schedule.ids) == [4, 9]
    assert schedule.next_at_ns() == 11
    assert schedule.take_due(10, 99) == []
    assert schedule.take_due(11, 99) == [4]
    assert schedule.take_due(99, 99) == [9]
    assert (schedule.next_at_ns(), len(schedule.ids)) == (None, 0)


def test_the_earliest_comes_first_and_no_more_than_asked_for() -> None:
    schedule = of({1: 30, 2: 10, 3: 20, 4: 10})
    assert schedule.take_due(40, 2) == [2, 4]
    assert schedule.next_at_ns() == 20
    assert schedule.take_due(40, 2) == [3, 1]


def test_it_gives_back_in_order_whatever_the_times() -> None:
    """Short and long delays come in while others fall due; blocks split on the way."""
    rng = random.Random(7)
    schedule = Schedule()
    waiting: dict[int, int] = {}
    now = next_id = 0
    for _ in range(300):
        count = rng.choice([1, 1, 40, BLOCK_ROWS_MAX + 5 if rng.random() < 0.05 else 3])
        spread = rng.choice([1, 50, 10**17])
        added = {next_id + row: now + rng.randrange(spread) for row in range(count)}
        next_id += count
        schedule.add(list(added), list(added.values()), now)
        waiting |= {msg_id: at for msg_id, at in added.items() if at > now}
        now += rng.choice([0, 1, 20])
        due = schedule.take_due(now, limit := rng.choice([1, 7, 2000]))
        at_ns = [waiting.pop(msg_id) for msg_id in due]
        assert at_ns == sorted(at_ns)
        assert not due or at_ns[-1] <= now
        late = sum(at <= now for at in waiting.values())
        assert len(due) == limit or not late
        assert len(schedule.ids) == len(waiting)
        assert schedule.next_at_ns() == min(waiting.values(), default=None)


def test_the_order_is_that_of_the_times() -> None:
    rng = random.Random(8)
    times = {msg_id: rng.randrange(1, 10**9) for msg_id in range(3 * BLOCK_ROWS_MAX)}
    schedule = of(times)
    taken: list[int] = []
    while (at := schedule.next_at_ns()) is not None:
        due = schedule.take_due(at + 10**6, 100)
        assert due, "what is said to be due is there"
        taken += due
    assert [times[msg_id] for msg_id in taken] == sorted(times.values())


def test_what_left_it_is_passed_over() -> None:
    schedule = of({1: 10, 2: 10, 3: 10})
    schedule.drop(1, 2)
    assert list(schedule.ids) == [3]
    assert schedule.take_due(10, 99) == [3]
    schedule = of({1: 10, 2: 10})
    schedule.drop(0, 9)
    assert schedule.next_at_ns() is None, "with nothing left it holds nothing"
