"""Id ranges against sets of ids."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.records import IdRange
from toymq_py.storage.id_ranges import above, last_of_range, record_range, subtract, union

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=6)


def ids(found: list[IdRange]) -> set[int]:
    return {msg_id for first, last in found for msg_id in range(first, last + 1)}


@given(ranges)
def test_a_union_holds_the_same_ids_in_ranges_that_do_not_touch(some: list[IdRange]) -> None:
    joined = union(some)
    assert ids(joined) == ids(some)
    assert all(one[1] + 1 < other[0] for one, other in pairwise(joined))


@given(ranges, ranges)
def test_a_difference_holds_the_ids_of_the_first_alone(some: list[IdRange], others: list[IdRange]) -> None:
    assert ids(subtract(union(some), others)) == ids(some) - ids(others)


@given(ranges, st.integers(0, 50))
def test_above_keeps_the_ids_from_one_on(some: list[IdRange], first_id: int) -> None:
    assert ids(above(some, first_id)) == {msg_id for msg_id in ids(some) if msg_id >= first_id}


@given(ranges, st.integers(0, 60))
def test_the_range_of_an_id_is_told_by_its_last(some: list[IdRange], msg_id: int) -> None:
    joined = union(some)
    assert last_of_range(joined, msg_id) == next((last for first, last in joined if first <= msg_id <= last), None)


def test_a_range_in_words() -> None:
    """Found: the text was `records 4 to 4 are lost`."""
    assert record_range(4, 6) == "records 4 to 6"
    assert record_range(4, 4) == "record 4"
    assert record_range(4, 6, "were there, and are lost") == "records 4 to 6 were there, and are lost"
    assert record_range(4, 4, "were there, and are lost") == "record 4 was there, and is lost"
    assert record_range(4, 4, "cannot be read, as the weather") == "record 4 cannot be read, as the weather"
