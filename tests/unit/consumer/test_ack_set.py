"""The ack set: a floor and ranges above it."""

import random
from itertools import pairwise

import pytest

from toymq_py.consumer.ack_set import AckSet


def test_floor_rises_over_the_contiguous_prefix() -> None:
    acks = AckSet(0)
    assert acks.add(3, 5) == 3
    assert (acks.floor, acks.ranges()) == (0, ((3, 5),))
    assert acks.add(0, 2) == 3
    assert (acks.floor, acks.ranges()) == (6, ())


def test_id_zero_alone_raises_the_floor() -> None:
    acks = AckSet(0)
    assert acks.add(0, 0) == 1
    assert acks.floor == 1


def test_ranges_that_touch_or_overlap_become_one_and_count_only_what_is_new() -> None:
    acks = AckSet(0)
    assert acks.add(10, 12) == 3
    assert acks.add(14, 16) == 3
    assert acks.add(20, 22) == 3
    assert acks.add(13, 13) == 1, "the gap between two ranges"
    assert acks.ranges() == ((10, 16), (20, 22))
    assert acks.add(11, 21) == 3, "17 to 19"
    assert acks.ranges() == ((10, 22),)
    assert acks.add(9, 9) == 1
    assert acks.add(23, 23) == 1
    assert acks.ranges() == ((9, 23),)
    assert acks.add(9, 23) == 0


def test_below_the_floor_and_empty_ranges_add_nothing() -> None:
    acks = AckSet(5)
    assert acks.add(0, 4) == 0
    assert acks.add(9, 8) == 0
    assert acks.add(3, 6) == 2
    assert (acks.floor, acks.ranges()) == (7, ())


def test_gaps() -> None:
    acks = AckSet(2)
    acks.add(5, 6)
    acks.add(9, 9)
    assert [acks.next_open(i) for i in (0, 2, 5, 6, 7, 9, 30)] == [2, 2, 7, 7, 7, 10, 30]
    assert [acks.open_until(i, 8) for i in (2, 7)] == [5, 8]
    assert acks.open_until(10, 12) == 12
    assert [acks.open_below(i) for i in (0, 2, 5, 6, 7, 8, 9, 10, 12)] == [
        0, 0, 3, 3, 3, 4, 5, 5, 7
    ]  # fmt: skip
    assert [acks.overlaps(*r) for r in ((1, 1), (2, 4), (2, 5), (6, 8), (7, 8), (8, 30))] == [
        True, False, True, True, False, True
    ]  # fmt: skip


@pytest.mark.parametrize("block", [1, 2, 5])
def test_ranges_in_small_blocks_are_those_of_a_set(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("toymq_py.consumer.ack_set._BLOCK_RANGES_MAX", block)
    rng = random.Random(block)
    for span in (12, 40, 40, 120, 120):
        floor = rng.randrange(4)
        acks, model = AckSet(floor), set(range(floor))
        for _ in range(60):
            first = rng.randrange(span)
            last = min(first + rng.choice([0, 0, 0, 1, 7, 30]), span - 1)
            new = set(range(first, last + 1)) - model
            assert acks.add(first, last) == len(new)
            model |= new
            open_ids = [i for i in range(span + 1) if i not in model]
            assert acks.floor == open_ids[0]
            ranges = acks.ranges()
            assert sum(b - a + 1 for a, b in ranges) == len(model) - acks.floor
            assert all(i in model for a, b in ranges for i in range(a, b + 1))
            assert all(b + 1 < c for (_, b), (c, _) in pairwise([(0, acks.floor - 1), *ranges]))
            assert all(0 < len(columns[0]) <= block for columns in ranges.blocks)
            assert acks.next_open(first) == next(i for i in open_ids if i >= first)
            gap = open_ids[0]
            assert acks.open_until(gap, span) == min({i for i in model if i > gap} | {span})
            assert acks.open_below(last) == sum(i < last for i in open_ids)
            probe = rng.randrange(span)
            assert acks.overlaps(probe, probe + 2) == (probe < acks.floor or not model.isdisjoint(range(probe, probe + 3)))
        again = AckSet.restore(acks.floor, acks.ranges(), span)
        assert (again.floor, again.ranges()) == (acks.floor, acks.ranges())


def test_ranges_that_come_in_any_order() -> None:
    """Each insert moves one block of ranges, not all ranges behind it."""
    ids = list(range(1, 200_000, 2))
    random.Random(1).shuffle(ids)
    acks = AckSet(0)
    assert sum(acks.add(i, i) for i in ids) == 100_000
    assert len(acks.ranges()) == 100_000
    assert acks.add(0, 199_999) == 100_000
    assert (acks.floor, acks.ranges()) == (200_000, ())
