"""Parts of a segment: they cover it, begin and end at records, and are refused if they do not match the seal."""

import hashlib
import random
from array import array
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.logs import some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Damage, Segment
from toymq_py.tier.keys import Place, seal_key, segment_key
from toymq_py.tier.objects import Seal
from toymq_py.tier.parts import cut, fetch_part, load_parts, part_of, write_cached

PLACE = Place("t", "0123456789abcdef")
PART_BYTES = 4096


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.tier.parts.PART_BYTES", PART_BYTES)
    monkeypatch.setattr("toymq_py.tier.parts.PARTED_MIN_BYTES", 2 * PART_BYTES)


@pytest.mark.parametrize("seed", range(20))
def test_parts_cover_a_segment_without_overlap(seed: int) -> None:
    chance = random.Random(seed)
    ids, positions, at, msg_id = array("Q"), array("Q"), 0, 100
    for _ in range(400):
        ids.append(msg_id)
        positions.append(at)
        msg_id += chance.randrange(1, 50)
        at += chance.choice([64, 70, 3 * PART_BYTES])
    data = chance.randbytes(at)
    segment = Segment("x", 100, msg_id, end=at, index_ids=ids, index_positions=positions)
    parts = [*Seal.of(data, PLACE, 100, msg_id, cut(segment, data)).spans()]
    assert parts[0][::2] == (100, 0, parts[0].sha256)
    assert (parts[-1].next_id, parts[-1].end) == (msg_id, at)
    assert all((a.next_id, a.end) == (b.first_id, b.start) for a, b in pairwise(parts))
    assert all(part.end - part.start < 4 * PART_BYTES + 70 for part in parts)
    assert all(hashlib.sha256(data[part.start : part.end]).hexdigest() == part.sha256 for part in parts)
    for part in parts:
        for each in (part.first_id, part.next_id - 1, chance.randrange(part.first_id, part.next_id)):
            assert part_of(parts, each) == part


def filled() -> tuple[SimDisk, MemoryBucket, Segment]:
    disk, bucket = SimDisk(random.Random(1)), MemoryBucket()
    data = b"".join(some_frames(2000, first_id=7))
    disk.mkdir("/c")
    write_cached(disk, f"/c/{7:020}.log", data)
    segment = scan_segment(disk, f"/c/{7:020}.log", 7, next_id=2007).segment
    segment.sha256 = hashlib.sha256(data).hexdigest()
    bucket.put(segment_key(PLACE, 7), data)
    bucket.put(seal_key(PLACE, 7), Seal.of(data, PLACE, 7, 2007, cut(segment, data)).encode())
    return disk, bucket, segment


def test_a_part_is_a_segment_of_its_own() -> None:
    disk, bucket, segment = filled()
    parts = load_parts(bucket, PLACE, segment)
    assert len(parts) > 1
    for row, part in enumerate(parts):
        found = fetch_part(disk, bucket, PLACE, segment, part, f"/c/part{row}")
        assert found is not None
        assert (found.base_id, found.next_id, found.end, found.sealed) == (*part[:2], part.end - part.start, True)


@pytest.mark.parametrize("change", ["next_id", "end", "sha256", "base_id"])
def test_a_seal_that_is_not_that_of_the_evicted_segment_gives_no_parts(change: str) -> None:
    _, bucket, segment = filled()
    setattr(segment, change, "x" if change == "sha256" else getattr(segment, change) + 1)
    assert load_parts(bucket, PLACE, segment) == []


@pytest.mark.parametrize("place", [Place("u", PLACE.incarnation), Place("t", "f" * 16)])
def test_a_seal_of_another_topic_or_incarnation_gives_no_parts(place: Place) -> None:
    _, bucket, segment = filled()
    data = bucket.objects[segment_key(PLACE, 7)]
    bucket.put(seal_key(PLACE, 7), Seal.of(data, place, 7, 2007, cut(segment, data)).encode())
    assert load_parts(bucket, PLACE, segment) == []


def test_a_segment_that_is_small_or_damaged_or_without_a_seal_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, bucket, segment = filled()
    data = bucket.objects[segment_key(PLACE, 7)]
    bucket.delete(seal_key(PLACE, 7))
    assert load_parts(bucket, PLACE, segment) == []
    assert cut(replace(segment, damages=[Damage(0, 1, 7, 7)]), data) == []
    assert cut(replace(segment, index_ids=array("Q", (8, *segment.index_ids[1:]))), data) == []
    monkeypatch.setattr("toymq_py.tier.parts.PARTED_MIN_BYTES", len(data) + 1)
    assert cut(segment, data) == []


def test_a_part_that_is_not_what_the_seal_says_is_none() -> None:
    disk, bucket, segment = filled()
    good = load_parts(bucket, PLACE, segment)[0]
    for change in ({"next_id": good.next_id + 1}, {"first_id": 8}, {"start": 1}, {"end": good.end + 1}, {"end": good.end - 1}):
        assert fetch_part(disk, bucket, PLACE, segment, good._replace(**change), "/c/part") is None
        assert not disk.exists("/c/part")
    bucket.objects[segment_key(PLACE, 7)] = b"".join(some_frames(2000, first_id=7))[::-1]
    assert fetch_part(disk, bucket, PLACE, segment, good, "/c/part") is None
    bucket.objects.clear()
    assert fetch_part(disk, bucket, PLACE, segment, good, "/c/part") is None
