"""A set of ids as bits, compared with a Python set."""

import random

import pytest

from toymq_py.consumer.id_set import CHUNK_IDS, IdSet


@pytest.mark.parametrize("span", [60, CHUNK_IDS + 7, 5 * CHUNK_IDS])
@pytest.mark.parametrize("seed", range(4))
def test_it_holds_what_a_set_would(seed: int, span: int) -> None:
    rng = random.Random(f"{seed} {span}")
    ids, model = IdSet(), set[int]()
    for step in range(150):
        first = rng.randrange(span)
        last = min(first + rng.choice([0, 1, 30, span // 3]), span - 1)
        inside = set(range(first, last + 1))
        match rng.randrange(6):
            case 0:
                ids.add(first)
                model.add(first)
            case 1:
                assert ids.discard(first) == (first in model)
                model.discard(first)
            case 2:
                ids.add_range(first, last)
                model |= inside
            case 3:
                ids.discard_range(first, last)
                model -= inside
            case 4:
                other = IdSet()
                other.copy_range(ids, first, last)
                assert set(other) == model & inside
                assert ids.count(0, span, other) == len(model - inside)
            case _:
                other = IdSet()
                other.add_range(first, last)
                ids.discard_all(other, 0, last - 1)
                model -= inside - {last}
        assert len(ids) == len(model)
        if span < CHUNK_IDS or step % 10 == 9:  # to sort 20,000 ids takes longer than all else
            assert list(ids) == sorted(model)
        assert ids.next_in(first, last) == min({last} | {i for i in model if first <= i < last})
        assert ids.next_out(first) == next(i for i in range(first, span + 1) if i not in model)
        assert ids.count(first, last) == len(model & inside)
        assert (first in ids) == (first in model)
        assert [i for span in ids.spans(first, last) for i in range(span[0], span[1] + 1)] == sorted(model & inside)
        assert ids.lowest(9, last) == sorted(i for i in model if i < last)[:9]


def test_ids_at_the_end_of_the_range() -> None:
    ids = IdSet()
    ids.add_range(2**64 - 3, 2**64 - 1)
    ids.add_range(5, 4)
    assert list(ids) == [2**64 - 3, 2**64 - 2, 2**64 - 1]
    assert ids.next_in(0, 2**64) == 2**64 - 3
    assert ids.count(0, 2**64 - 1) == 3
    ids.clear()
    assert (len(ids), ids.next_in(0, 9), ids.next_out(7)) == (0, 9, 7)


def test_a_count_of_a_range_with_all_chunks_leaves_out_what_is_beside_it() -> None:
    ids = IdSet()
    ids.add_range(100, 5 * CHUNK_IDS)
    assert ids.count(0, 6 * CHUNK_IDS) == 5 * CHUNK_IDS - 99
    assert ids.count(200, 5 * CHUNK_IDS - 1) == 5 * CHUNK_IDS - 200
    other = IdSet()
    other.add(300)
    assert ids.count(200, 5 * CHUNK_IDS - 1, other) == 5 * CHUNK_IDS - 201
