"""Both directions are compared; what can be decided is mended, and what only the bucket has is kept."""

from tests.support.buckets import MemoryBucket
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.tier.check import check
from toymq_py.tier.keys import Place, deleted_key, seal_key, segment_key


def filled() -> tuple[TierRig, MemoryBucket]:
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    assert rig.findings() == []
    return rig, bucket


def test_what_is_missing_in_the_bucket_is_uploaded() -> None:
    rig, bucket = filled()
    whole = dict(bucket.objects)
    del bucket.objects[segment_key(rig.place(), 0)]
    del bucket.objects[seal_key(rig.place(), 5)]
    assert len(rig.findings()) == 2
    assert all(text.endswith("is on the disk alone") for text in rig.findings(repair=True))
    assert (rig.findings(), bucket.objects) == ([], whole)


def test_what_the_disk_lost_is_kept_and_named() -> None:
    rig, bucket = filled()
    rig.disk.unlink(f"{rig.broker.topic('t').path}/{0:020}.log")
    before = dict(bucket.objects)
    assert ["the disk lost it, and it is kept" in text for text in rig.findings(repair=True)] == [True]
    assert bucket.objects == before


def test_a_segment_that_changed_is_named() -> None:
    rig, bucket = filled()
    seal = seal_key(rig.place(), 0)
    bucket.objects[seal] = bucket.objects[seal_key(rig.place(), 5)]
    assert [text.endswith("and the segment of the disk differ") for text in rig.findings(repair=True)] == [True]
    bucket.objects[seal] = b"{"
    assert [text.startswith(f"{seal}: ") for text in rig.findings()] == [True]
    del bucket.objects[seal]
    bucket.objects[segment_key(rig.place(), 0)] = b"other"
    assert [text.endswith("is not the segment of the disk") for text in rig.findings(repair=True)] == [True]


def test_a_topic_of_the_bucket_alone_is_kept_unless_it_is_marked_or_named() -> None:
    rig, bucket = filled()
    other = Place("gone", "0123456789abcdef")
    bucket.objects[segment_key(other, 0)] = b"x"
    assert ["it is kept, since the disk may have lost it" in text for text in rig.findings(repair=True)] == [True]
    assert [found.mended for found in check(rig.disk, bucket, rig.options.data_dir, delete=["gone"])] == ["deleted"]
    assert rig.findings() == []
    bucket.objects |= {segment_key(other, 0): b"x", deleted_key(other): b""}
    assert ["was deleted, and 1 segments are still" in text for text in rig.findings(repair=True)] == [True]
    assert rig.findings() == []


def test_sealed_segments_without_an_incarnation_are_named() -> None:
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    assert rig.findings() == ["topic t has no incarnation yet: 2 sealed segments are on the disk alone"]
