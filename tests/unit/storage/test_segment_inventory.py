"""Which ids each segment file covers. Contract: storage.md, "Recovery", steps 2 to 6; ADR 0046, 0047."""

import errno

import pytest

from tests.support.logs import PATH, disk_with, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.storage.scanner import ScanResult
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import list_segment_files
from toymq_py.storage.segment_inventory import InventoryEntry, SegmentStatus, judge_anew, segment_inventory

FRAMES = some_frames(30)


def stretch(first: int, limit: int) -> bytes:
    return b"".join(FRAMES[first:limit])


def parts(disk: SimDisk, first_id: int = 0, next_id: int = 0) -> list[InventoryEntry]:
    return list(segment_inventory(disk, PATH, list_segment_files(disk, PATH), first_id, next_id, sidecars=True))


def test_each_file_in_its_order_with_the_next_ones_first_id() -> None:
    found = parts(disk_with({0: stretch(0, 10), 10: stretch(10, 20), 20: stretch(20, 30)}))
    assert [(part.status, part.following, part.missing) for part in found] == [
        (SegmentStatus.PART, 10, None), (SegmentStatus.PART, 20, None), (SegmentStatus.PART, None, None)
    ]  # fmt: skip
    assert [part.segment.sealed for part in found] == [True, True, False]


def test_a_missing_file_is_told_with_the_one_behind_it() -> None:
    found = parts(disk_with({0: stretch(0, 10), 20: stretch(20, 30)}))
    assert [part.missing for part in found] == [None, (10, 19)]


def test_a_file_below_the_first_retained_id_is_over() -> None:
    found = parts(disk_with({0: stretch(0, 10), 10: stretch(10, 20)}), first_id=10)
    assert [part.status for part in found] == [SegmentStatus.BELOW, SegmentStatus.PART]


def test_a_copy_counts_for_what_it_has_beyond_the_others() -> None:
    found = parts(disk_with({0: stretch(0, 12), 4: stretch(4, 9), 10: stretch(10, 30)}))
    assert [part.status for part in found] == [SegmentStatus.PART, SegmentStatus.COPY, SegmentStatus.PART]
    assert (found[2].segment.base_id, found[2].segment.start) == (12, len(stretch(10, 12)))


@pytest.mark.parametrize(("code", "passes"), [(errno.EACCES, False), (errno.EMFILE, True)])
def test_a_file_that_cannot_be_opened_harms_itself_alone(code: int, passes: bool) -> None:
    """A temporary failure does not even do that: a lack of descriptors says nothing about the file."""
    disk = disk_with({0: stretch(0, 10), 10: stretch(10, 20)})
    files = list_segment_files(disk, PATH)
    disk.fail("open", 1, code, sticky=True, path=segment_name(0))
    if passes:
        with pytest.raises(OSError, match="Too many open files"):
            list(segment_inventory(disk, PATH, files, 0, 0, sidecars=True))
        return
    unreadable, whole = segment_inventory(disk, PATH, files, 0, 0, sidecars=True)
    assert (unreadable.status, unreadable.segment.next_id) == (SegmentStatus.UNREADABLE, 10)
    assert unreadable.segment.ids_of_damage(unreadable=True) == [(0, 9)]
    assert (whole.status, whole.missing) == (SegmentStatus.PART, None)


def test_a_segment_in_use_is_judged_as_the_next_start_will() -> None:
    disk = disk_with({0: stretch(0, 10), 10: stretch(10, 20)})
    first, _ = (part.segment for part in parts(disk))
    whole = judge_anew(disk, PATH, first, list_segment_files(disk, PATH).known, 10)
    assert isinstance(whole, ScanResult)
    assert (whole.segment.damages, whole.segment.stamp) == ([], disk.stamp(first.path))
    disk.open(first.path).pwrite(b"\xff" * 8, len(FRAMES[0]) + 20)
    hit = judge_anew(disk, PATH, first, list_segment_files(disk, PATH).known, 10)
    assert isinstance(hit, ScanResult)
    assert [damage.ids for damage in hit.segment.damages] == [(1, 1)]
    file = disk.open(first.path)
    file.truncate(0)
    file.pwrite(stretch(10, 20), 0)
    known = list_segment_files(disk, PATH).known
    assert judge_anew(disk, PATH, first, known, 10) == "is not what its name says: it begins with record 10"
