"""A mark object ``deleted`` makes a restore skip the topic that it names; a damaged or stray one has no effect."""

import pytest

from tests.support.buckets import MemoryBucket
from toymq_py.errors import DamagedData
from toymq_py.tier.deletions import decode, encode, list_holdings
from toymq_py.tier.keys import Place, deleted_key, segment_key

PLACE, OTHER = Place("t", "0123456789abcdef"), Place("t", "fedcba9876543210")


def test_it_says_which_topic_was_deleted_and_when() -> None:
    assert decode(encode(PLACE, 7), PLACE) == 7
    with pytest.raises(DamagedData, match="it names topic t, incarnation 0123456789abcdef"):
        decode(encode(PLACE, 7), OTHER)


@pytest.mark.parametrize("data", [b"", b"garbage", encode(OTHER, 7), encode(PLACE, 7).replace(b"7}", b"8}"), encode(PLACE, -1)])
def test_one_that_is_damaged_or_of_another_topic_deletes_nothing(data: bytes) -> None:
    bucket = MemoryBucket()
    bucket.objects = {segment_key(PLACE, 0): b"x", deleted_key(PLACE): data, deleted_key(OTHER): encode(OTHER, 9)}
    found = list_holdings(bucket)
    assert (found[PLACE].deleted, found[PLACE].deleted_ns, found[PLACE].bad_deletion is None) == (False, None, False)
    assert (found[OTHER].deleted, found[OTHER].deleted_ns, found[OTHER].bad_deletion) == (True, 9, None)
    assert list_holdings(bucket, f"t/{PLACE.incarnation}") == {PLACE: found[PLACE]}


def test_one_that_goes_while_it_is_read_has_deleted_its_topic() -> None:
    bucket = MemoryBucket()
    bucket.objects = {segment_key(PLACE, 0): b"x", deleted_key(PLACE): encode(PLACE, 9)}
    bucket.get = lambda _key: None  # type: ignore[method-assign]
    found = list_holdings(bucket)[PLACE]
    assert (found.deleted, found.deleted_ns, found.bad_deletion) == (True, None, None)
