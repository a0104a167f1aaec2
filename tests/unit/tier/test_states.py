"""The states of a topic in a bucket: only a few are kept, and a restore to a time finds one that is not much older."""

import random

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.frames import encode_frame
from toymq_py.tier.keys import Holding, Place, seal_key, segment_key, state_key
from toymq_py.tier.objects import Seal, State
from toymq_py.tier.states import IDS_A_SECOND, IDS_LEFT_OUT, choose, ids_left_out, kept, known_until, newest_state, unused_from

PLACE, OTHER = Place("t", "0123456789abcdef"), Place("t", "fedcba9876543210")
SECOND, DAY = 1_000_000_000, 86_400_000_000_000


def test_few_states_of_a_year_stay_and_none_that_is_kept_was_left_out_before() -> None:
    chance = random.Random(7)
    holding: set[int] = set()
    seen: list[int] = []
    now = 1_700_000_000 * SECOND
    for _ in range(6_000):
        now += chance.randrange(10 * SECOND, 3 * 3600 * SECOND)
        seen.append(now)
        holding = kept({*holding, now})
    assert len(holding) < 200
    for back, width in ((3600 * SECOND, 600 * SECOND), (DAY, 3600 * SECOND), (60 * DAY, DAY), (300 * DAY, 30 * DAY)):
        then = now - back
        known = max(at for at in holding if at <= then)
        exact = max(at for at in seen if at <= then)
        assert exact - known <= width, f"{back} ago: the state of then, or one of its slot"
    assert seen[0] in holding, "where it began"


def test_states_every_ten_seconds_are_bounded() -> None:
    holding: set[int] = set()
    for at in range(0, 8 * DAY, 10 * SECOND):
        if at % (600 * SECOND) < 50 * SECOND:  # the others go at once
            holding = kept({*holding, at})
    assert len(holding) <= 4 + 37 + 49 + 8


@pytest.mark.parametrize(
    ("at", "expected"), [(None, OTHER), (5, PLACE), (25, PLACE), (30, OTHER), (1, PLACE)],
)  # fmt: skip
def test_the_incarnation_of_a_time(at: int | None, expected: Place) -> None:
    found = {PLACE: Holding(states={4, 20}), OTHER: Holding(states={30})}
    found[Place("t", "1" * 16)] = Holding(states={9}, deleted=True)
    chosen, left = choose(found, at)
    assert ([*chosen], left) == ([expected], [({PLACE, OTHER} - {expected}).pop()])


def test_damaged_states_are_named_and_passed_over() -> None:
    bucket, told = MemoryBucket(), list[str]()
    bucket.put(state_key(PLACE, 1), State(7, None, None).encode(PLACE))
    bucket.put(state_key(PLACE, 2), b"{}")
    found = newest_state(bucket, PLACE, [1, 2, 3], told.append)
    assert found is not None
    assert (found[0], found[1].next_id) == (1, 7)
    assert [line.partition(":")[0] for line in told] == [state_key(PLACE, 3), state_key(PLACE, 2)]
    assert newest_state(bucket, PLACE, [2], told.append) is None


def test_ids_are_unused_behind_states_and_seals_and_garbage_says_nothing() -> None:
    bucket = MemoryBucket()
    gap = ids_left_out(1, 1)
    bucket.put(state_key(PLACE, 1), State(7, None, None).encode(PLACE))
    bucket.put(seal_key(PLACE, 5), Seal(12, 1, "").encode())
    bucket.put(seal_key(PLACE, 20), b"garbage")
    bucket.put(seal_key(PLACE, 30), Seal(1 << 64, 1, "").encode())
    assert unused_from(bucket, PLACE, Holding(seals={5, 20, 30}, states={1}), 1) == 12 + gap
    assert unused_from(bucket, PLACE, Holding(seals={20}, states={1}), 1) == 7 + gap


def test_the_older_what_is_known_the_more_ids_are_left_out() -> None:
    assert ids_left_out(5 * DAY, 4 * DAY) == ids_left_out(0, 0) == IDS_LEFT_OUT, "a clock that was set back takes none away"
    assert ids_left_out(DAY, DAY + 3600 * SECOND) == IDS_LEFT_OUT + 3600 * IDS_A_SECOND
    bucket = MemoryBucket()
    bucket.put(state_key(PLACE, DAY), State(7, None, None).encode(PLACE))
    holding = Holding(states={DAY})
    assert unused_from(bucket, PLACE, holding, 3 * DAY) == 7 + ids_left_out(DAY, 3 * DAY)


def test_without_a_state_it_is_known_since_the_last_segment_that_tells_when_it_began() -> None:
    bucket, now = MemoryBucket(), 3 * DAY
    for first_id, ts_ns in ((0, DAY), (1, 2 * DAY), (2, now + 1)):
        bucket.put(segment_key(PLACE, first_id), encode_frame(first_id, ts_ns, b"", b"x"))
    bucket.put(segment_key(PLACE, 9), b"garbage")
    assert known_until(bucket, PLACE, Holding(segments={0, 1, 2, 9}), now) == 2 * DAY, "a time of the future is damage"
    assert known_until(bucket, PLACE, Holding(segments={9}), now) == 0
    assert unused_from(bucket, PLACE, Holding(segments={9}), now) == ids_left_out(0, now)
