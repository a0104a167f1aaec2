"""Every cut and every flipped bit of a small log: exactly the damaged records are lost (storage.md, "Recovery", step 6)."""

import pytest

from tests.support.logs import PATH, disk_with, ids_of, recover, report_of, some_frames
from tests.support.shares import one_in
from toymq_py.storage.record import HEADER
from toymq_py.storage.segment import segment_name

FRAMES = some_frames(12)
LOG = b"".join(FRAMES)
STARTS = [sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]


def owner(position: int) -> int:
    """Return the id of the record that has a byte of the log."""
    return next(n for n in range(len(FRAMES)) if STARTS[n] <= position < STARTS[n + 1])


@pytest.mark.parametrize("cut", range(STARTS[-4], len(LOG) + 1))
def test_cut_at_every_byte_of_the_last_three_records(cut: int) -> None:
    whole = sum(start <= cut for start in STARTS[1:])
    disk = disk_with({0: LOG[:cut]})
    torn = len(LOG[STARTS[whole] : cut].rstrip(b"\0"))  # trailing zeros look like space that was never written
    notes = [finding.text for finding in report_of(disk).findings]
    assert (f"torn tail: {torn} bytes" in "".join(notes)) == bool(torn), "verify names a torn tail, and only that"

    log = recover(disk)

    assert ids_of(log) == list(range(whole)), "whole records stay, the torn one was never acknowledged"
    assert (log.torn_bytes, log.lost) == (torn, [])
    assert disk.file_size(f"{PATH}/{segment_name(0)}") == STARTS[whole], "the tail is cut"
    assert report_of(disk).findings == []


@one_in(3)
@pytest.mark.parametrize("bit", range(8))
def test_one_flipped_bit_at_every_byte_loses_that_record_and_no_other(bit: int, share: int) -> None:
    for position in range(bit % share, len(LOG), share):
        data = bytearray(LOG)
        data[position] ^= 1 << bit
        hit = owner(position)
        disk = disk_with({0: bytes(data)})
        report = report_of(disk)

        log = recover(disk)

        where = f"byte {position}, in record {hit}"
        if hit == len(FRAMES) - 1:
            assert ids_of(log) == list(range(hit)), f"{where}: behind it nothing is valid, so it counts as torn"
            assert log.torn_bytes > 0
        else:
            assert ids_of(log) == [n for n in range(len(FRAMES)) if n != hit], f"{where}: exactly this record is lost"
            assert log.lost == [(hit, hit)]
            assert log.roll_first, "what comes next goes into a new segment"
            assert report.damaged, f"{where}: verify sees it"
            texts = " ".join(finding.text for finding in report.findings)
            assert f"byte {STARTS[hit]} " in texts, f"{where}: verify says where"
            assert f"record {hit} is lost" in texts, f"{where}: and which"


@pytest.mark.parametrize("hit", range(1, len(FRAMES) - 1))
def test_a_record_whose_header_is_zeroed(hit: int) -> None:
    data = bytearray(LOG)
    data[STARTS[hit] : STARTS[hit] + 26] = bytes(26)

    log = recover(disk_with({0: bytes(data)}))

    assert ids_of(log) == [n for n in range(len(FRAMES)) if n != hit]


def test_damage_in_a_sealed_segment_leaves_the_segments_behind_it_alone() -> None:
    second = b"".join(some_frames(5, first_id=12))
    for position in range(0, len(LOG), 3):
        data = bytearray(LOG)
        data[position] ^= 0x55
        log = recover(disk_with({0: bytes(data), 12: second}))
        assert ids_of(log) == [n for n in range(17) if n != owner(position)], f"byte {position}"
        assert log.next_id == 17


def test_a_sealed_segment_that_was_cut_loses_what_was_cut() -> None:
    second = b"".join(some_frames(5, first_id=12))
    for cut in range(len(LOG)):
        whole = sum(start <= cut for start in STARTS[1:])
        log = recover(disk_with({0: LOG[:cut], 12: second}))
        assert ids_of(log) == [*range(whole), *range(12, 17)], f"cut at {cut}"


@pytest.mark.parametrize("junk", [b"\x01", b"junk" * 10, bytes(100), b"\xff" * 5000])
def test_junk_behind_the_log(junk: bytes) -> None:
    log = recover(disk_with({0: LOG + junk}))
    assert ids_of(log) == list(range(len(FRAMES)))
    assert bool(log.torn_bytes) == bool(junk.strip(b"\0")), "zeros are unwritten space, anything else a torn tail"


def test_each_page_of_a_larger_log_zeroed() -> None:
    frames = some_frames(400, size_max=300)
    data = b"".join(frames)
    starts = [0]
    for frame in frames:
        starts.append(starts[-1] + len(frame))
    last_page = len(data) // 4096
    for page in range(last_page):
        first, end = page * 4096, (page + 1) * 4096
        hit = [n for n in range(400) if starts[n] < end and starts[n + 1] > first]
        disk = disk_with({0: data[:first] + bytes(4096) + data[end:]})

        log = recover(disk)

        if data[first:end].strip(b"\0"):
            assert ids_of(log) == [n for n in range(400) if n not in hit], f"page {page}: only its records are lost"
            damages = log.segments[0].damages
            assert (damages[0].position, damages[-1].resume) == (starts[hit[0]], starts[hit[-1] + 1])


@pytest.mark.parametrize("key_len", range(0, 240, 3))
def test_what_one_start_kept_behind_damage_the_next_one_keeps(key_len: int) -> None:
    """Found by fuzzing, in a log with a damaged header, a record behind it and a torn tail. The first start noticed that the
    header's lengths do not add up, kept the record, and cut the tail. Without the tail the next start could not notice this,
    believed the header, and cut the record, which had been delivered by then."""
    disk = disk_with({0: HEADER.pack(1283, 7, 7, key_len) + LOG[HEADER.size : STARTS[5] - 3]})
    first = recover(disk)
    second = recover(disk)
    assert (ids_of(second), second.next_id, second.lost) == (ids_of(first), first.next_id, first.lost)
