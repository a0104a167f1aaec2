"""Parts of a segment: they cover it, begin and end at records, and are refused when they are not what the index says."""

import random
from array import array
from itertools import pairwise

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.logs import some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Segment
from toymq_py.tier.keys import Place, index_key, segment_key
from toymq_py.tier.parts import PART_BYTES, Part, PartIndex, fetch_part, load_index, write_cached

PLACE = Place("t", "0123456789abcdef")


@pytest.mark.parametrize("seed", range(20))
def test_parts_cover_a_segment_without_overlap(seed: int) -> None:
    chance = random.Random(seed)
    ids, positions, at, msg_id = array("Q"), array("Q"), 0, 100
    for _ in range(400):
        ids.append(msg_id)
        positions.append(at)
        msg_id += chance.randrange(1, 50)
        at += chance.choice([65536, 70_000, 9 << 20])
    index = PartIndex(ids, positions, msg_id, at)
    begin, parts = 100, []
    while begin < msg_id:
        part = index.part_of(begin)
        assert part == index.part_of(part.next_id - 1) == index.part_of(chance.randrange(part.first_id, part.next_id))
        parts.append(part)
        begin = part.next_id
    assert parts[0][::2] == (100, 0)
    assert parts[-1][1::2] == (msg_id, at)
    assert all((a.next_id, a.end) == (b.first_id, b.start) for a, b in pairwise(parts))
    assert all(part.end - part.start < PART_BYTES + (9 << 20) + 70_000 for part in parts)


def filled() -> tuple[SimDisk, MemoryBucket, Segment]:
    disk, bucket = SimDisk(random.Random(1)), MemoryBucket()
    data = b"".join(some_frames(50, first_id=7))
    bucket.put(segment_key(PLACE, 7), data)
    disk.mkdir("/c")
    write_cached(disk, f"/c/{7:020}.log", data)
    segment = scan_segment(disk, f"/c/{7:020}.log", 7, next_id=57).segment
    bucket.put(index_key(PLACE, 7), segment.sidecar())
    segment.sha256 = "x"
    return disk, bucket, segment


def test_a_part_is_a_segment_of_its_own() -> None:
    disk, bucket, segment = filled()
    index = load_index(bucket, PLACE, segment)
    assert index is not None
    found = fetch_part(disk, bucket, PLACE, segment, index.part_of(9), "/c/part")
    assert found is not None
    assert (found.base_id, found.next_id, found.end, found.sealed, found.cached_path) == (7, 57, segment.end, True, "/c/part")


@pytest.mark.parametrize("change", ["next_id", "end", "gone", "damages"])
def test_an_index_that_does_not_fit_is_none(change: str) -> None:
    _, bucket, segment = filled()
    if change == "gone":
        bucket.objects.clear()
    elif change == "damages":
        bucket.put(index_key(PLACE, 7), segment.sidecar().replace(b'"gaps": []', b'"gaps": [[0, 1, 7, 7]]'))
    else:
        setattr(segment, change, getattr(segment, change) + 1)
    assert load_index(bucket, PLACE, segment) is None


def test_a_part_that_is_not_what_the_index_says_is_none() -> None:
    disk, bucket, segment = filled()
    good = Part(7, 57, 0, segment.end)
    end = segment.end
    for part in (Part(7, 58, 0, end), Part(8, 57, 0, end), Part(7, 57, 1, end), Part(7, 57, 0, end + 1), Part(7, 56, 0, end)):
        assert fetch_part(disk, bucket, PLACE, segment, part, "/c/part") is None
        assert not disk.exists("/c/part")
    bucket.objects[segment_key(PLACE, 7)] = bucket.objects[segment_key(PLACE, 7)][:-1] + b"\xff"
    assert fetch_part(disk, bucket, PLACE, segment, good, "/c/part") is None
    bucket.objects.clear()
    assert fetch_part(disk, bucket, PLACE, segment, good, "/c/part") is None
