"""Restoring a topic from a bucket: what is damaged or gone is named and left out, and nothing else is."""

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.tiers import AGAIN, PAYLOAD, TierRig, exchange, filled, unnamed
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.tier.keys import seal_key, segment_key, state_key
from toymq_py.tier.states import ids_left_out


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
    """Found: such a segment was written under the name of the topic's new one, and the whole restore ended with "File
    exists"."""
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
    assert again.broker.topic("t").next_id == 12 + ids_left_out(done["t"].state_ns or 0, rig.clock.wall_ns())


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


def two() -> tuple[TierRig, MemoryBucket]:
    """Return a broker and a bucket with two topics whose segments have the same ids and sizes, but other records."""
    rig, bucket = filled()
    assert rig.change("create", "u", visibility="9000") == "OK"
    rig.publish("u", *[b"%x" % n + PAYLOAD[2:] + b"u" for n in range(12)])
    rig.take(rig.subscribe("u"))
    rig.round()
    return rig, bucket


@pytest.mark.parametrize("kinds", [("log", "seal"), ("seal",)], ids="+".join)
def test_segments_of_two_topics_that_were_exchanged_are_named_and_left_out(kinds: tuple[str, ...]) -> None:
    """Found: the records of one topic were silently restored to the other one."""
    rig, bucket = two()
    exchange(bucket, rig.place("t"), rig.place("u"), *kinds)
    again, done = rig.restored()
    for name, other in (("t", "u"), ("u", "t")):
        place = rig.place(other)
        for problem, first_id in zip(done[name].problems, (0, 5), strict=True):
            assert problem.startswith(f"{seal_key(rig.place(name), first_id)}: it is the seal of another topic or incarnation")
            assert f"'{place.topic}/{place.incarnation}'" in problem
            assert problem.endswith(f"{segment_key(rig.place(name), first_id)} is left out, from record {first_id} on")
        assert again.records(name) == []
        assert again.broker.topic(name).log.lost_count() == 12


def test_segments_of_one_topic_that_were_exchanged_are_named_and_left_out() -> None:
    rig, bucket = filled()
    for key_of in (segment_key, seal_key):
        bucket.objects[key_of(rig.place(), 5)] = bucket.objects[key_of(rig.place(), 0)]
    again, done = rig.restored()
    assert ["it is the seal of the segment that begins at 0" in problem for problem in done["t"].problems] == [True]
    assert again.records("t") == rig.records("t")[:5]


def test_states_of_two_topics_that_were_exchanged_are_named_and_not_used() -> None:
    rig, bucket = two()
    exchange(bucket, rig.place("t"), rig.place("u"), "state")
    again, done = rig.restored()
    for name in ("t", "u"):
        assert "it is the state of another topic or incarnation" in done[name].problems[0]
        assert again.records(name) == rig.records(name)[:10]
        assert again.broker.topic(name).settings.visibility == TopicSettings().visibility


def test_what_has_no_seal_that_names_its_topic_is_restored_and_counted() -> None:
    rig, bucket = filled()
    bucket.objects[seal_key(rig.place(), 0)] = unnamed(bucket.objects[seal_key(rig.place(), 0)])
    again, done = rig.restored()
    assert (again.records("t"), done["t"].problems, done["t"].unnamed) == (rig.records("t")[:10], [], 1)
