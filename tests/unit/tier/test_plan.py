"""Which segments are uploaded and which are evicted, for any disk and any bucket."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.tier.keys import Holding
from toymq_py.tier.plan import plan

ids = st.sets(st.integers(0, 40), max_size=12)


@given(ids, st.integers(0, 60), ids, ids, ids)
def test_nothing_is_lost_and_nothing_is_done_twice(
    bases: set[int], committed_id: int, segments: set[int], seals: set[int], removed: set[int]
) -> None:
    on_disk, holding = sorted(bases), Holding(set(segments), set(seals))
    todo = plan(on_disk, committed_id, holding, removed.__contains__)
    sealed = {base for base, following in pairwise(on_disk) if following <= committed_id}
    assert {*todo.upload} == sealed - (segments & seals), "each sealed segment that is not there whole, and no other"
    assert {*todo.delete} == ((segments | seals) - bases) & removed, "only what the offsets say was removed"
    assert todo.upload == sorted(todo.upload)
    whole = Holding(segments | sealed, seals | sealed)
    after = plan(on_disk, committed_id, whole, removed.__contains__)
    assert after.upload == [], "what was uploaded is not uploaded again"


def test_a_segment_that_reaches_beyond_what_is_committed_waits() -> None:
    """A deposed leader may have sealed records that no other copy has."""
    assert plan([0, 10, 20], 19, Holding(), lambda _: False).upload == [0]
    assert plan([0, 10, 20], 20, Holding(), lambda _: False).upload == [0, 10]


def test_what_the_disk_lost_stays_in_the_bucket() -> None:
    assert plan([20], 30, Holding({0, 10}, {0, 10}), lambda _: False).delete == []
