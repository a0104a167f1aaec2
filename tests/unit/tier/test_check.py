"""Log and bucket are compared both ways; what can be decided is repaired, and what only the bucket has is kept."""

from collections.abc import Callable

import pytest

from tests.support.broker_rig import DIR
from tests.support.buckets import MemoryBucket
from tests.support.tiers import PAYLOAD, TierRig, exchange, unnamed
from toymq_py.storage.fs import write_synced
from toymq_py.storage.offline.repair import repair
from toymq_py.tier.check import check
from toymq_py.tier.deletions import encode
from toymq_py.tier.keys import Place, deleted_key, seal_key, segment_key
from toymq_py.tier.objects import Seal


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


@pytest.mark.parametrize("first_ids", [[0, 5], [5], [5, 10]], ids=str)
def test_what_a_repair_gave_up_stays_in_the_bucket(first_ids: list[int]) -> None:
    """By the offsets these records count as removed. Found: the next start deleted the only copies from the bucket, and a
    restore did not name them."""
    rig, bucket = filled()
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    before = {key for key in bucket.objects if key.endswith(".log")}
    place, published = rig.place(), rig.records("t")
    rig.disk = rig.disk.kill()
    for first_id in first_ids:
        rig.disk.unlink(f"{DIR}/topics/t/{first_id:020}.log")
    (repaired,) = repair(rig.disk, DIR, pid=1)
    assert sum(last - first + 1 for first, last in repaired.lost) == 5 * len(first_ids)
    rig.restart()
    rig.uploads = rig.another_process()
    for _ in range(3):
        rig.round()
    keys = [segment_key(place, first_id) for first_id in first_ids]
    assert rig.findings(repair=True) == [f"{key} is in the bucket alone: the disk lost it, and it is kept" for key in keys]
    assert {key for key in bucket.objects if key.endswith(".log")} >= before
    again, _ = rig.restored()
    assert again.records("t") == published[: rig.sealed_below()]


@pytest.mark.parametrize("msg_id", [5, 7, 9])
def test_a_record_that_a_repair_gave_up_comes_back_with_a_restore(msg_id: int) -> None:
    """A repair divided the segment at the record, but the bucket has the intact segment."""
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[b"%02d" % n + PAYLOAD for n in range(24)])
    rig.round()
    before, published = dict(bucket.objects), rig.records("t")
    rig.disk = rig.disk.kill()
    path = f"{DIR}/topics/t/{5:020}.log"
    data = rig.disk.read_file(path)
    at = data.index(b"%02d" % msg_id + PAYLOAD) + 20
    write_synced(rig.disk, path, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    assert [found.lost for found in repair(rig.disk, DIR, pid=1)] == [[(msg_id, msg_id)]]
    rig.restart()
    rig.uploads = rig.another_process()
    rig.rounds(3)
    rig.findings(repair=True)
    assert all(bucket.objects[key] == data for key, data in before.items() if key.endswith(".log"))
    again, _ = rig.restored()
    assert again.records("t") == published[:20]


def test_a_segment_that_changed_is_named() -> None:
    rig, bucket = filled()
    path, before = f"{rig.broker.topic('t').path}/{0:020}.log", dict(bucket.objects)
    write_synced(rig.disk, path, flipped(rig.disk.read_file(path)))
    assert [text.endswith("and the segment of the disk differ") for text in rig.findings(repair=True)] == [True]
    assert bucket.objects == before
    del bucket.objects[seal_key(rig.place(), 0)]
    bucket.objects[segment_key(rig.place(), 0)] = b"other"
    assert [text.endswith("is not the segment of the disk") for text in rig.findings(repair=True)] == [True]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 4])


@pytest.mark.parametrize("damage", [flipped, lambda data: data[:-40], lambda data: b""], ids=["flipped", "cut", "empty"])
@pytest.mark.parametrize("key_of", [segment_key, seal_key])
def test_a_damaged_object_is_named_and_replaced_from_the_disk(
    key_of: Callable[[Place, int], str], damage: Callable[[bytes], bytes]
) -> None:
    rig, bucket = filled()
    key, whole = key_of(rig.place(), 5), dict(bucket.objects)
    bucket.objects[key] = damage(bucket.objects[key])
    for _ in range(2):
        assert [text.startswith(f"{key} in the bucket is damaged: ") for text in rig.findings()] == [True]
    (mended,) = check(rig.disk, bucket, rig.options.data_dir, repair=True)
    assert mended.mended is not None
    assert (rig.findings(), bucket.objects) == ([], whole)


@pytest.mark.parametrize("key_of", [segment_key, seal_key])
def test_a_damaged_object_is_not_replaced_by_a_segment_that_was_not_sealed(key_of: Callable[[Place, int], str]) -> None:
    rig, bucket = filled()
    key, path = key_of(rig.place(), 5), f"{rig.broker.topic('t').path}/{5:020}.log"
    write_synced(rig.disk, path, flipped(rig.disk.read_file(path)))
    bucket.objects[key] = bucket.objects[key][:-40]
    before = dict(bucket.objects)
    assert f"{key} in the bucket is damaged" in rig.findings(repair=True)[0]
    rig.disk.unlink(path)
    assert [f"{key} in the bucket is damaged" in text for text in rig.findings(repair=True)] == [False, True]
    assert bucket.objects == before


def test_damage_in_a_topic_of_the_bucket_alone_is_named() -> None:
    rig, bucket = filled()
    other = Place("gone", "0123456789abcdef")
    bucket.objects |= {segment_key(other, 0): b"y", seal_key(other, 0): Seal.of(b"x", other, 0, 1).encode()}
    assert ["in the bucket is damaged: its SHA-256 is " in text for text in rig.findings(repair=True)] == [True, False]


@pytest.mark.parametrize("damage", [flipped, None], ids=["damaged", "gone"])
def test_a_topic_without_a_state_is_named(damage: Callable[[bytes], bytes] | None) -> None:
    rig, bucket = filled()
    (key,) = (key for key in bucket.objects if "/state-" in key)
    data = bucket.objects.pop(key)
    if damage is not None:
        bucket.objects[key] = damage(data)[:-9]
    found = rig.findings(repair=True)
    assert [text.startswith(f"{key} is damaged: ") for text in found[:-1]] == [True] * (damage is not None)
    assert "has no state in the bucket: a restore would have neither consumers nor settings" in found[-1]
    rig.uploads = rig.another_process()
    rig.round()
    assert len(rig.findings()) == (damage is not None), "the damaged one, until four newer ones are there"


def test_a_topic_of_the_bucket_alone_is_kept_unless_it_is_marked_or_named() -> None:
    rig, bucket = filled()
    other = Place("gone", "0123456789abcdef")
    bucket.objects[segment_key(other, 0)] = b"x"
    assert ["it is kept, since the disk may have lost it" in text for text in rig.findings(repair=True)] == [True]
    assert [found.mended for found in check(rig.disk, bucket, rig.options.data_dir, delete=["gone"])] == ["deleted"]
    assert rig.findings() == []
    bucket.objects |= {segment_key(other, 0): b"x", deleted_key(other): encode(other, 7)}
    assert ["was deleted, and 1 segment is still" in text for text in rig.findings(repair=True)] == [True]
    assert rig.findings() == []


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_deleted_object_of_a_topic_that_lives_is_found(is_whole: bool) -> None:
    """Found: no check reported it, and a restore left the topic out."""
    rig, bucket = filled()
    key = deleted_key(rig.place())
    bucket.objects[key] = encode(rig.place(), 0) if is_whole else b""
    why = "is of 1970-01-01 00:00:00 UTC" if is_whole else "cannot be read: it has 0 bytes"
    assert rig.findings(repair=True) == [f"{key} {why}, and the topic lives"]
    assert rig.findings() == []


def test_a_deleted_object_that_cannot_be_read_deletes_nothing() -> None:
    rig, bucket = filled()
    other = Place("gone", "0123456789abcdef")
    bucket.objects |= {segment_key(other, 0): b"x", deleted_key(other): b"garbage"}
    told, kept = rig.findings(repair=True)
    assert told == f"{deleted_key(other)} cannot be read: not a checked deleted file: the topic counts as one that lives"
    assert "it is kept, since the disk may have lost it" in kept
    assert segment_key(other, 0) in bucket.objects


def test_sealed_segments_without_an_incarnation_are_named() -> None:
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    assert rig.findings() == ["topic t has no incarnation yet: 2 sealed segments are on the disk alone"]


def two() -> tuple[TierRig, MemoryBucket]:
    """Return a broker with two topics whose sealed segments were all evicted, and its bucket."""
    rig = TierRig(bucket := MemoryBucket())
    for name in ("t", "u"):
        assert rig.change("create", name, tier_local_bytes="0") == "OK"
        rig.publish(name, *[name.encode() + PAYLOAD] * 12)
    rig.rounds(3)
    assert rig.away("t") == rig.away("u") == [0, 5]
    assert rig.findings() == []
    return rig, bucket


def test_objects_of_two_topics_that_were_exchanged_are_named() -> None:
    rig, bucket = two()
    whole = dict(bucket.objects)
    exchange(bucket, rig.place("t"), rig.place("u"), "log", "seal")
    found = rig.findings(repair=True)
    assert sum("it is the seal of another topic or incarnation" in text for text in found) == 4
    assert sum("is not the segment that left the disk" in text for text in found) == 4
    assert len(found) == 8
    bucket.objects = whole
    exchange(bucket, rig.place("t"), rig.place("u"), "state")
    assert sum("it is the state of another topic or incarnation" in text for text in rig.findings()) >= 2


def test_a_seal_of_another_topic_is_written_anew_for_the_segment_that_the_disk_knows() -> None:
    rig, bucket = two()
    whole = dict(bucket.objects)
    exchange(bucket, rig.place("t"), rig.place("u"), "seal")
    assert len(rig.findings(repair=True)) == 4
    assert (rig.findings(), bucket.objects) == ([], whole)


def test_exchanged_objects_of_a_segment_that_the_disk_has_are_named() -> None:
    rig, bucket = filled()
    rig.publish("u", *[b"u" + PAYLOAD[1:]] * 12)
    rig.round()
    exchange(bucket, rig.place("t"), rig.place("u"), "log", "seal")
    assert sum("and the segment of the disk differ" in text for text in rig.findings(repair=True)) == 4


def test_a_seal_that_names_no_topic_is_said_and_written_anew() -> None:
    rig, bucket = filled()
    key, whole = seal_key(rig.place(), 0), dict(bucket.objects)
    bucket.objects[key] = unnamed(bucket.objects[key])
    assert [text.startswith(f"{key} names no topic") for text in rig.findings()] == [True]
    rig.findings(repair=True)
    assert (rig.findings(), bucket.objects) == ([], whole)
