"""`toymq repair`: after every damage of the corpus verify is clean, and no record that could be read is given up.

Contract: storage.md, end of "Recovery"; ADR 0027.
"""

import contextlib
import errno
import random
from collections.abc import Callable

import pytest

from tests.support.logs import PATH, disk_with, report_of, some_frames
from tests.support.repairs import CONSUMER, LOG, SECOND, STARTS, check, mend, put, records
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.storage import offsets
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.segment import segment_name


@one_in(65)
def test_one_flipped_bit(share: int) -> None:
    for bit in range(0, 8 * STARTS[-2], share):
        position = bit // 8
        data = bytearray(LOG)
        data[position] ^= 1 << bit % 8
        hit = next(n for n in range(12) if STARTS[n] <= position < STARTS[n + 1])
        done = check(disk_with({0: bytes(data)}), f"byte {position}")
        assert done.lost == [(hit, hit)]
        assert done.quarantined == [segment_name(0)]


def test_damage_in_a_sealed_segment() -> None:
    for position in range(0, len(LOG), 5):
        data = bytearray(LOG)
        data[position] ^= 0x55
        hit = next(n for n in range(12) if STARTS[n] <= position < STARTS[n + 1])
        assert check(disk_with({0: bytes(data), 12: SECOND}), f"byte {position}").lost == [(hit, hit)]


def test_a_sealed_segment_that_was_cut() -> None:
    for cut in range(0, len(LOG), 3):
        whole = sum(start <= cut for start in STARTS[1:])
        assert check(disk_with({0: LOG[:cut], 12: SECOND}), f"cut at {cut}").lost == [(whole, 11)]


def test_each_page_of_a_larger_log_zeroed() -> None:
    frames = some_frames(400, size_max=300)
    data = b"".join(frames)
    for page in range(len(data) // 4096):
        first = page * 4096
        check(disk_with({0: data[:first] + bytes(4096) + data[first + 4096 :]}), f"page {page}")


def damaged_disk() -> SimDisk:
    data = bytearray(LOG)
    for hit in (0, 3, 8):
        data[STARTS[hit] + 9] ^= 1
    tail = bytearray(SECOND)
    tail[9] ^= 1
    disk = disk_with({0: bytes(data), 12: bytes(tail)})
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 17, {"c": CONSUMER})))
    put(disk, "topic.json", b"{")
    disk.sync_dir(PATH)
    return disk


def crash(disk: SimDisk) -> SimDisk:
    return disk.crash(random.Random(7))


@pytest.mark.parametrize("op", ["pwrite", "sync", "rename", "unlink", "sync_dir", "mkdir", "truncate"])
@pytest.mark.parametrize("end", [SimDisk.kill, crash])
def test_a_repair_that_is_cut_short_anywhere_can_be_run_again(op: str, end: Callable[[SimDisk], SimDisk]) -> None:
    whole = damaged_disk()
    before = records(whole)
    mend(whole)
    for nth in range(1, 100):
        disk = damaged_disk()
        fault = disk.fail(op, nth, errno.EIO, sticky=True)
        with contextlib.suppress(OSError):
            mend(disk)
        if not fault.fired:
            assert nth > 1, f"no {op} at all?"
            return
        disk.heal()
        disk = end(disk)
        mend(disk)
        assert not report_of(disk).damaged, f"{op} {nth}"
        assert records(disk) == before, f"{op} {nth}: nothing that could be read is given up"
        assert offsets.load(disk, PATH).state == offsets.load(whole, PATH).state, f"{op} {nth}"
    raise AssertionError("it never ended")


def test_zeros_behind_a_segment_whose_follower_is_empty() -> None:
    """Found: repair removed the empty next segment; from then on the zeros before the one after it counted as damage."""
    third = b"".join(some_frames(5, first_id=17))
    done = check(disk_with({0: LOG + bytes(9000), 12: b"", 17: third}), "an empty segment")
    assert done.lost == [(12, 16)]


def test_zeros_behind_a_last_segment_that_ends_before_the_log_does() -> None:
    disk = disk_with({0: LOG + bytes(9000)})
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 17, {"c": CONSUMER})))
    assert check(disk, "the offsets know more").lost == [(12, 16)]


@pytest.mark.parametrize("lost", [(12, 16), (17, 17)])
def test_a_first_segment_that_is_gone_without_offsets(lost: tuple[int, int]) -> None:
    """Found: the log began at its first file, but the offsets that repair wrote said that it begins at 0, so its first ids
    counted as missing."""
    second, third = (b"".join(some_frames(5, first_id=n)) for n in (12, 17))
    if lost == (12, 16):
        disk = disk_with({7: b"".join(some_frames(5, first_id=7)), 17: third})
    else:
        disk = disk_with({12: second, 17: b"\xff" * 26 + third[26:]})
    assert check(disk, "the first segment is gone").lost == [lost]
    assert offsets.load(disk, PATH).state.first_id == (7 if lost == (12, 16) else 12)
