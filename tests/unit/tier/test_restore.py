"""A directory is made from a bucket alone: records, consumers and settings; what the bucket never had is named by its ids."""

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.buckets import MemoryBucket
from tests.support.tiers import AGAIN, PAYLOAD, TierRig
from toymq_py.errors import DataDirectoryError
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import seal_key, segment_key, state_key
from toymq_py.tier.restore import IDS_LEFT_OUT


def filled() -> tuple[TierRig, MemoryBucket]:
    """Two sealed segments, ids 0 to 9, and two records that are not sealed; a consumer that has acked 0 to 6; settings."""
    rig = TierRig(bucket := MemoryBucket())
    assert rig.change("create", "t", visibility="7000") == "OK"
    rig.publish("t", *[b"%d" % n + PAYLOAD for n in range(12)])
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 6)
    rig.round()
    return rig, bucket


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
    """The state is up to ten seconds old when the disk is lost: a reader may have seen more."""
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


def test_a_second_restore_goes_on_behind_the_first_whatever_became_of_it() -> None:
    """The restored broker was killed, with its disk, before its first state was in the bucket: its ids were given again."""
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


def test_an_empty_bucket_is_no_reason_for_an_empty_broker() -> None:
    with pytest.raises(DataDirectoryError, match="there is no topic in the bucket"):
        TierRig(MemoryBucket()).restored()


def test_a_damaged_segment_is_named_and_left_out() -> None:
    rig, bucket = filled()
    key = segment_key(rig.place(), 0)
    bucket.objects[key] = bucket.objects[key][:-1] + b"\xff"
    again, done = rig.restored()
    (problem,) = done["t"].problems
    assert problem.startswith(f"{key} is damaged: its SHA-256 is ")
    assert problem.endswith(": records 0 to 4 are left out")
    assert again.records("t") == rig.records("t")[5:10]
    assert (0, 4) in again.broker.topic("t").log.lost


@pytest.mark.parametrize("data", [b"", b"x" * 100], ids=["empty", "garbage"])
@pytest.mark.parametrize("first_id", [0, 5, 12, 999_999])
def test_a_segment_without_seal_and_record_is_a_problem_of_its_topic(first_id: int, data: bytes) -> None:
    """It took the name of the segment of its own, and the whole restore ended with "File exists"."""
    rig, bucket = filled()
    rig.publish("u", *[PAYLOAD] * 6)
    rig.round()
    key = segment_key(rig.place(), first_id)
    bucket.objects[key] = data
    bucket.delete(seal_key(rig.place(), first_id))
    again, done = rig.restored()
    assert done["t"].problems == [f"{key} has no seal and no record: it is left out"]
    assert again.records("t") == [record for record in rig.records("t")[:10] if record[0] // 5 != first_id / 5]
    assert again.records("u") == rig.records("u")[:5]
    assert again.broker.topic("t").next_id == 12 + IDS_LEFT_OUT


@pytest.mark.parametrize("first_id", [0, 5])
def test_a_segment_that_is_gone_behind_its_seal_was_in_the_bucket(first_id: int) -> None:
    rig, bucket = filled()
    key = segment_key(rig.place(), first_id)
    bucket.delete(key)
    again, done = rig.restored()
    assert done["t"].problems == [f"{key} is gone from the bucket: records {first_id} to {first_id + 4} were in it"]
    assert done["t"].unsealed == [(10, 11)], "and these never were"
    assert again.records("t") == [record for record in rig.records("t")[:10] if record[0] // 5 != first_id // 5]


def test_a_damaged_last_segment_was_in_the_bucket() -> None:
    rig, bucket = filled()
    key = segment_key(rig.place(), 5)
    bucket.objects[key] = bucket.objects[key][:-40]
    _, done = rig.restored()
    assert (len(done["t"].problems), done["t"].unsealed) == (1, [(10, 11)])


def test_a_segment_whose_upload_was_cut_off_before_its_seal_is_used() -> None:
    rig, bucket = filled()
    del bucket.objects[seal_key(rig.place(), 5)]
    again, done = rig.restored()
    assert (again.records("t"), done["t"].problems) == (rig.records("t")[:10], [])


def test_damaged_states_go_back_to_an_older_one_or_to_none() -> None:
    rig, bucket = filled()
    (at,) = (key for key in bucket.objects if "/state-" in key)
    newer = state_key(rig.place(), 2**62)
    bucket.objects[newer] = b"{}"
    again, done = rig.restored()
    assert again.broker.topic("t").channel("c").consumer.last_acked == 6
    assert [problem.startswith(f"{newer}: ") for problem in done["t"].problems] == [True]
    del bucket.objects[at], bucket.objects[state_key(rig.place(), 2**62 + 1)]
    rig.disk.rename(AGAIN, "/data/first")
    bare, done = rig.restored()
    assert bare.records("t") == rig.records("t")[:10]
    assert "it has no state" in done["t"].problems[-1]
    assert bare.broker.topic("t").settings_queue.incarnation == rig.place().incarnation


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
