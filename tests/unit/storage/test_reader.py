"""Segments read without a broker: every range, every damage, and retention meanwhile."""

from dataclasses import dataclass

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.frames import encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, ids_of, recover, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.errors import BadName, DataDirectoryError, NoSuchTopic, OutOfRange
from toymq_py.storage import offsets
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.reader import DirectoryReader, TopicReader, walk_columns
from toymq_py.storage.record import decode_frame
from toymq_py.storage.scanner import WINDOW_BYTES, scan_segment
from toymq_py.storage.segment import segment_name


@dataclass(frozen=True)
class Row:
    """A record as a reader returns it."""

    msg_id: int
    ts_ns: int
    key: bytes
    payload: bytes


def topic(disk: SimDisk) -> TopicReader:
    return DirectoryReader("/data/", disk, FakeClock()).topic("t")


def rows(reader: TopicReader, from_id: int, to_id: int) -> list[Row]:
    return [
        Row(run.first_id + row, run.seen.ts_ns[row], run.seen.keys[row], run.seen.payloads[row])
        for run in reader.read(from_id, to_id, walk_columns)
        for row in range(run.next_id - run.first_id)
    ]


def expected(frames: list[bytes]) -> list[Row]:
    return [Row(f.msg_id, f.ts_ns, f.key, f.payload) for f in map(decode_frame, frames)]


def seal(disk: SimDisk, base_id: int) -> None:
    scan_segment(disk, f"{PATH}/{segment_name(base_id)}", base_id).segment.write_sidecar(disk)


def test_every_range_of_two_segments() -> None:
    frames = some_frames(20)
    disk = disk_with({0: b"".join(frames[:9]), 9: b"".join(frames[9:])})
    for sealed in (False, True):
        if sealed:
            seal(disk, 0)
        reader = topic(disk)
        assert (reader.first_id, reader.next_id) == (0, 20)
        for start in range(21):
            for end in range(start, 23):
                assert rows(reader, start, end) == expected(frames[start:end]), f"{start} to {end}, sealed: {sealed}"


def test_records_larger_than_a_window_and_a_sparse_index() -> None:
    frames = [encode_frame(n, TS_NS + n, b"", b"x" * (3 * WINDOW_BYTES if n == 50 else 2000)) for n in range(200)]
    disk = disk_with({0: b"".join(frames[:150]), 150: b"".join(frames[150:])})
    seal(disk, 0)
    for start in (0, 49, 50, 51, 149, 150):
        assert rows(topic(disk), start, 200) == expected(frames[start:])


@pytest.mark.parametrize("sealed", [False, True])
def test_a_flipped_byte_costs_what_recovery_says_it_costs(sealed: bool) -> None:
    frames = some_frames(8)
    whole = b"".join(frames)
    behind = some_frames(2, first_id=8)
    for at in range(len(whole)):
        disk = disk_with({0: whole, 8: b"".join(behind)})
        if sealed:
            seal(disk, 0)  # so that the sidecar knows nothing of it
        file = disk.open(f"{PATH}/{segment_name(0)}")
        file.pwrite(bytes([whole[at] ^ 1]), at)
        file.close()
        found = [row.msg_id for row in rows(topic(disk), 0, 10)]
        for name in (segment_name(0)[:-4] + ".idx",):
            if disk.exists(f"{PATH}/{name}"):
                disk.unlink(f"{PATH}/{name}")
        assert found == ids_of(recover(disk)), f"byte {at}"


def test_a_torn_tail_and_preallocated_space_are_the_end() -> None:
    frames = some_frames(5)
    disk = disk_with({0: b"".join(frames) + frames[0][:7]})
    assert rows(topic(disk), 0, 9) == expected(frames)
    disk = disk_with({0: b"".join(frames) + bytes(4096)})
    assert (topic(disk).next_id, rows(topic(disk), 0, 9)) == (5, expected(frames))


def test_what_retention_removed() -> None:
    frames = some_frames(20)
    disk = disk_with({0: b"".join(frames[:9]), 9: b"".join(frames[9:])})
    offsets.write(disk, PATH, offsets.encode(OffsetsState(first_id=9, next_id=20)))
    reader = topic(disk)
    assert reader.first_id == 9, "segments wholly below the first id of the offsets are gone, whether their files are or not"
    with pytest.raises(OutOfRange) as error:
        list(reader.read(3, 20, walk_columns))
    assert error.value.first_id == 9


def test_retention_that_goes_on_while_it_reads() -> None:
    frames = some_frames(20)
    disk = disk_with({0: b"".join(frames[:9]), 9: b"".join(frames[9:])})
    reader = topic(disk)
    disk.unlink(f"{PATH}/{segment_name(0)}")
    with pytest.raises(OutOfRange) as error:
        list(reader.read(0, 20, walk_columns))
    assert error.value.first_id == 9


def test_ids_that_only_the_offsets_know_of() -> None:
    disk = disk_with({0: b"".join(some_frames(5))})
    offsets.write(disk, PATH, offsets.encode(OffsetsState(first_id=0, next_id=8)))
    assert topic(disk).next_id == 8
    assert [row.msg_id for row in rows(topic(disk), 0, 8)] == [0, 1, 2, 3, 4]


def test_the_first_record_at_a_time() -> None:
    frames = [encode_frame(n, TS_NS + 10 * n, b"", b"x" * 5000) for n in range(100)]
    disk = disk_with({0: b"".join(frames[:60]), 60: b"".join(frames[60:])})
    seal(disk, 0)
    reader = topic(disk)
    for at, msg_id in ((-1, 0), (0, 0), (1, 1), (10, 1), (589, 59), (590, 59), (591, 60), (990, 99), (991, 100)):
        assert reader.id_at_time(TS_NS + at) == msg_id


def test_names_and_places() -> None:
    disk = disk_with({0: b""})
    assert DirectoryReader("/data", disk).topics() == ["t"]
    assert topic(disk).next_id == 0
    with pytest.raises(NoSuchTopic):
        DirectoryReader("/data", disk).topic("u")
    with pytest.raises(BadName):
        DirectoryReader("/data", disk).topic("../t")
    with pytest.raises(DataDirectoryError, match="no topics directory"):
        DirectoryReader("/data/topics", disk)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_is_found_behind_a_clock_that_jumped_ahead_and_back(sealed: bool) -> None:
    """Three segments: the clock was ten years ahead at the end of the first and again in the second (ADR 0050)."""
    ahead = 10 * 365 * 86400
    at_s = {0: [0, 10, ahead], 3: [20, ahead + 5, ahead + 6], 6: [30, 40]}
    disk = disk_with({
        base_id: b"".join(encode_frame(base_id + n, TS_NS + s * 10**9, b"", b"x") for n, s in enumerate(times))
        for base_id, times in at_s.items()
    })  # fmt: skip
    if sealed:
        seal(disk, 0)
        seal(disk, 3)
    reader = topic(disk)
    asked = (-1, 0, 5, 10, 11, 20, 21, 30, 31, 40, 41, ahead, ahead + 5, 2 * ahead)
    found = [reader.id_at_time(TS_NS + s * 10**9) for s in asked]
    assert found == [0, 0, 1, 1, 2, 2, 4, 4, 7, 7, 8, 8, 8, 8], "one that is ahead may come early, none is left out"
