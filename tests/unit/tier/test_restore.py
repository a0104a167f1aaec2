"""A directory is restored from a bucket alone: records, consumers and settings; ids that never reached the bucket are named."""

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.buckets import MemoryBucket
from tests.support.tiers import AGAIN, PAYLOAD, TierRig, filled
from toymq_py.errors import DataDirectoryError
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.deletions import encode
from toymq_py.tier.keys import Place, deleted_key, segment_key
from toymq_py.tier.states import IDS_LEFT_OUT


def test_records_consumers_settings_and_the_incarnation_come_back() -> None:
    rig, _ = filled()
    again, done = rig.restored()
    topic = again.broker.topic("t")
    assert again.records("t") == rig.records("t")[:10]
    assert topic.settings.visibility == 7000
    assert topic.settings_queue.incarnation == rig.place().incarnation
    assert topic.channel("c").consumer.last_acked == 6
    assert (done["t"].segments, done["t"].unsealed, done["t"].problems) == (2, [(10, 11)], [])


def test_no_id_is_used_twice_and_no_sealed_segment_is_appended_to() -> None:
    rig, bucket = filled()
    before = {key: data for key, data in bucket.objects.items() if key.endswith(".log")}
    again, _ = rig.restored()
    again.publish("t", b"later")
    assert again.records("t")[-1][0] == 12 + IDS_LEFT_OUT, "10 and 11 were given out, and are lost"
    assert again.broker.topic("t").log.lost == [(10, 11)]
    again.broker.close()
    tiered = TierRig(bucket, disk=rig.disk, data_dir=AGAIN)
    tiered.publish("t", *[PAYLOAD] * 12)
    tiered.round()
    assert before.items() <= bucket.objects.items(), "it goes on with the same bucket"


def test_ids_that_were_handed_out_after_the_newest_state_are_used_by_no_other_message() -> None:
    """When the disk is lost the newest state in the bucket is up to ten seconds old: a reader may have seen later ids."""
    rig, _ = filled()
    rig.publish("t", *[PAYLOAD] * 2)
    handed_out = rig.broker.topic("t").next_id
    again, done = rig.restored()
    topic = again.broker.topic("t")
    again.publish("t", b"later")
    assert again.records("t")[-1][0] >= handed_out
    assert (topic.settings_queue.incarnation, done["t"].next_id) == (rig.place().incarnation, again.records("t")[-1][0])
    assert topic.log.lost_count() == 2, "an id that may never have been there is not called lost"
    assert topic.messages() == 11
    _, count, next_id = topic.fetch(12, 10, 1000)
    assert (count, next_id) == (1, topic.next_id), "a reader that stands there goes on at what is new"


def test_the_longer_the_bucket_was_away_the_more_ids_are_left_out() -> None:
    """Found: a fixed gap of ten million ids was used up in minutes, and ids were given twice under one incarnation."""
    rig, _ = filled()
    known_ns = rig.clock.wall_ns()
    rig.advance(3600)
    again, done = rig.restored()
    again.publish("t", b"later")
    handed_out = 3600 * 2_000_000
    assert again.records("t")[-1][0] == 12 + IDS_LEFT_OUT + handed_out
    assert (done["t"].state_ns, done["t"].unknown_since_ns) == (known_ns, known_ns)
    topic = again.broker.topic("t")
    assert (topic.log.lost_count(), topic.messages()) == (2, 11), "what is left out is no loss, however much it is"
    _, count, next_id = topic.fetch(12 + handed_out, 10, 1000)
    assert (count, next_id) == (1, topic.next_id)
    rig.disk.rename(AGAIN, "/data/first")
    assert rig.restored()[1]["t"].next_id > handed_out + 2 * IDS_LEFT_OUT


def test_a_second_restore_goes_on_behind_the_first_whatever_became_of_it() -> None:
    """Found: a restored broker lost its disk before its first state was in the bucket, and its ids were given again."""
    rig, _ = filled()
    first, one = rig.restored()
    first.publish("t", b"acknowledged")
    acknowledged = first.records("t")[-1][0]
    rig.disk.rename(AGAIN, "/data/first")
    second, two = rig.restored()
    second.publish("t", b"later")
    assert second.records("t")[-1][0] > acknowledged
    assert two["t"].unsealed == one["t"].unsealed == [(10, 11)], "the ids between were no message's"


def test_a_bucket_that_is_not_told_of_its_restore_is_a_problem() -> None:
    rig, bucket = filled()

    def full(key: str, data: bytes) -> None:
        raise BucketError("it is full")

    bucket.put = full  # type: ignore[method-assign]
    again, done = rig.restored()
    assert len(again.records("t")) == 10
    assert ["it is full" in problem for problem in done["t"].problems] == [True]


def test_a_restore_that_was_interrupted_begins_anew_and_nothing_is_overwritten() -> None:
    rig, bucket = filled()
    get, left = bucket.get, [2]

    def dying(key: str) -> bytes | None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return get(key)

    bucket.get = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rig.restored()
    bucket.get = get  # type: ignore[method-assign]
    again, _ = rig.restored()
    assert again.records("t") == rig.records("t")[:10]
    with pytest.raises(DataDirectoryError, match="is not empty"):
        rig.restored()


@pytest.mark.parametrize("is_back", [False, True])
def test_a_deleted_object_that_is_damaged_leaves_nothing_out(is_back: bool) -> None:
    """Found: an empty file of that name made a restore silently skip a whole topic."""
    rig, bucket = filled()
    key = deleted_key(rig.place())
    bucket.objects[key] = b""
    again, done = rig.restored(rig.clock.wall_ns() if is_back else None)
    assert again.records("t")[:10] == rig.records("t")[:10]
    assert done["t"].problems == [f"{key} cannot be read: it has 0 bytes: this incarnation counts as not deleted"]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_topic_that_is_left_out_because_it_was_deleted_is_named(is_back: bool) -> None:
    rig, bucket = filled()
    gone = Place("gone", "0123456789abcdef")
    bucket.objects |= {segment_key(gone, 0): b"x", deleted_key(gone): encode(gone, 1_700_000_000_000_000_000)}
    again, done = rig.restored(rig.clock.wall_ns() if is_back else None)
    assert again.records("t")[:10] == rig.records("t")[:10]
    assert (done["gone"].place, done["gone"].why_absent) == (gone, "it was deleted at 2023-11-14 22:13:20 UTC")
    assert done["t"].why_absent is None


def test_a_bucket_of_nothing_but_deleted_topics_says_so() -> None:
    rig = TierRig(bucket := MemoryBucket())
    gone = Place("gone", "0123456789abcdef")
    bucket.objects = {segment_key(gone, 0): b"x", deleted_key(gone): encode(gone, 1_700_000_000_000_000_000)}
    why = "every topic in the bucket was deleted: topic gone, incarnation 0123456789abcdef: it was deleted at 2023-11-14 "
    with pytest.raises(DataDirectoryError, match=why):
        rig.restored()


def test_an_empty_bucket_is_no_reason_for_an_empty_broker() -> None:
    with pytest.raises(DataDirectoryError, match="there is no topic in the bucket"):
        TierRig(MemoryBucket()).restored()


def test_of_two_incarnations_the_newer_one_counts_and_the_other_is_named() -> None:
    rig, bucket = filled()
    old = dict(bucket.objects)
    rig.delete("t")
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    rig.round()
    bucket.objects = old | bucket.objects  # as if the mark had never been set
    again, done = rig.restored()
    assert again.broker.topic("t").settings_queue.incarnation == rig.place().incarnation
    assert ["an older incarnation" in problem for problem in done["t"].problems] == [True]


def test_a_restore_that_loses_nothing_says_so() -> None:
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 10)
    rig.broker.topic("t").committer.begin_segment()
    rig.loop.drain()
    rig.round()
    again, done = rig.restored()
    assert (done["t"].unsealed, again.broker.topic("t").state) == ([], "ok")
    assert isinstance(again, BrokerRig)
