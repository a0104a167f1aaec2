"""From bytes to an open log: the steps that test_damage and test_histories do not cover. Contract: storage.md, "Recovery"."""

import errno
import logging
import random

import pytest

from tests.support.frames import encode_frame
from tests.support.log_rig import LogRig
from tests.support.logs import PATH, disk_with, ids_of, recover, report_of, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.errors import StorageFailed
from toymq_py.storage import offsets
from toymq_py.storage.fs import replace_file
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.recovery import recover_log
from toymq_py.storage.segment import UNLESS_UNACKNOWLEDGED, segment_name


def three_segments() -> dict[int, bytes]:
    frames = some_frames(30)
    return {0: b"".join(frames[:10]), 10: b"".join(frames[10:20]), 20: b"".join(frames[20:])}


def scanned(disk: SimDisk) -> set[str]:
    """Return the files of which more was read than the first record."""
    return {path for op, path, args in disk.trace if op == "pread" and int(str(args[1])) >= 150}


def test_nothing_there_is_an_empty_log() -> None:
    disk = disk_with({})
    assert (recover(disk).next_id, recover(disk).segments) == (0, [])
    found = recover_log(disk, "/data/topics/never")
    assert (found.first_id, found.next_id) == (0, 0)


def test_leftovers_are_removed_and_strangers_left_alone() -> None:
    disk = disk_with(three_segments())
    for name in ("next-1.tmp", "offsets.json.tmp", "notes.txt", "0.log"):
        disk.open(f"{PATH}/{name}", create=True).close()
    assert ids_of(recover(disk)) == list(range(30))
    left = [path.rpartition("/")[2] for path in disk.snapshot()]
    assert "notes.txt" in left
    assert "0.log" in left
    assert not [name for name in left if name.endswith(".tmp")]


def test_a_sealed_segment_without_sidecar_gets_one_and_the_next_start_believes_it() -> None:
    disk = disk_with(three_segments())
    recover(disk)
    assert sum(path.endswith(".idx") for path in disk.snapshot()) == 2
    disk.trace.clear()
    assert ids_of(recover_log(disk, PATH, dedupe_keys=0)) == list(range(30))
    read = scanned(disk)
    assert f"{PATH}/{segment_name(20)}" in read
    assert f"{PATH}/{segment_name(0)}" not in read, "a sealed segment is read only for its keys"


def test_damage_that_a_sidecar_tells_is_looked_for_in_the_segment() -> None:
    """The sidecar's damage may be another copy's: a leader judged its own disk, and its sidecar was replicated to an intact
    segment."""
    rotten, disk = disk_with(three_segments()), disk_with(three_segments())
    recover(disk)
    file = rotten.open(f"{PATH}/{segment_name(0)}")
    (byte,) = file.pread(1, 150)
    file.pwrite(bytes([byte ^ 1]), 150)
    assert len(ids_of(recover(rotten))) < 30
    sidecar = f"{PATH}/{segment_name(0)[:-4]}.idx"
    replace_file(disk, sidecar, rotten.read_file(sidecar))
    assert ids_of(recover(disk)) == list(range(30))
    assert disk.read_file(sidecar) != rotten.read_file(sidecar), "the next start believes it again"


def test_a_sidecar_that_cannot_be_written_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = disk_with(three_segments())
    disk.fail("open", 1, errno.ENOSPC, sticky=True, path=".idx")
    assert ids_of(recover(disk)) == list(range(30))
    assert "sidecar" in caplog.text


def test_a_missing_segment_is_told() -> None:
    segments = three_segments()
    del segments[10]
    found = recover(disk_with(segments))
    assert found.lost == [(10, 19)]
    assert (found.first_id, found.next_id) == (0, 30)


def test_a_log_that_begins_later_begins_later() -> None:
    segments = three_segments()
    del segments[0]
    found = recover(disk_with(segments))
    assert (found.first_id, found.next_id, found.lost) == (10, 30, [])


def test_what_lies_below_the_first_id_is_removed() -> None:
    disk = disk_with(three_segments())
    recover(disk)
    found = recover_log(disk, PATH, first_id=25)
    assert (found.first_id, found.next_id) == (25, 30)
    assert [path for path in disk.snapshot() if path.endswith((".log", ".idx"))] == [f"{PATH}/{segment_name(20)}"]


def test_ids_that_only_the_offsets_know_are_a_hole_and_never_used_again() -> None:
    disk = disk_with(three_segments())
    found = recover_log(disk, PATH, next_id=40)
    assert (found.next_id, found.lost, found.roll_first) == (40, [(30, 39)], True)
    nothing = recover_log(disk_with({}), PATH, next_id=40)
    assert (nothing.first_id, nothing.next_id, nothing.lost) == (0, 40, [(0, 39)]), "an active segment never goes by itself"


def test_a_segment_that_is_there_twice_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Found: it closed the whole topic, reads included."""
    segments = three_segments()
    segments[3] = segments[0]
    segments[15] = b"".join(some_frames(30)[15:20])
    with caplog.at_level(logging.ERROR):
        found = recover(disk_with(segments))
    assert (ids_of(found), found.lost) == (list(range(30)), [])
    assert [segment.base_id for segment in found.segments] == [0, 10, 20]
    assert f"{3:020d}.log is not what its name says: it begins with record 0" in caplog.text
    assert f"{15:020d}.log is a copy" in caplog.text


def test_what_a_copy_has_beyond_the_segments_before_it_counts() -> None:
    frames = some_frames(30)
    found = recover(disk_with({0: b"".join(frames[:12]), 10: b"".join(frames[10:20]), 20: b"".join(frames[20:])}))
    assert (ids_of(found), found.lost) == (list(range(30)), [])
    assert [(segment.base_id, segment.start) for segment in found.segments] == [
        (0, 0), (12, len(frames[10] + frames[11])), (20, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("with_sidecars", [False, True])
@pytest.mark.parametrize("base_id", [0, 10, 20])
def test_a_segment_that_cannot_be_opened_harms_itself_alone(base_id: int, with_sidecars: bool) -> None:
    """Found: it closed the whole topic, reads included."""
    disk = disk_with(three_segments())
    if with_sidecars:
        recover(disk)
    disk.fail("open", 1, errno.EACCES, sticky=True, path=segment_name(base_id))
    offsets.write(disk, PATH, offsets.encode(OffsetsState(next_id=25)))
    found = recover_log(disk, PATH, next_id=25)
    assert found.lost == []
    assert found.unreadable == [(base_id, min(base_id + 9, 24))]
    assert (found.closed is not None) == (base_id == 20), "where the log ends is not known: nothing may be appended"
    report = report_of(disk)
    assert (report.lost, report.unreadable) == (0, 10 if base_id != 20 else 5)
    assert any("cannot be opened" in finding.text for finding in report.findings)


def test_a_torn_tail_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    frames = some_frames(5)
    disk = disk_with({0: b"".join(frames) + b"\x21" * 11})
    with caplog.at_level(logging.WARNING):
        found = recover(disk)
    assert (found.torn_bytes, found.next_id) == (11, 5)
    assert "cut a torn tail of 11 bytes" in caplog.text
    assert disk.file_size(f"{PATH}/{segment_name(0)}") == sum(map(len, frames))
    assert recover(disk).torn_bytes == 0


def test_what_a_killed_process_had_not_synced_is_synced_before_it_counts() -> None:
    frames = some_frames(3)
    disk = disk_with({0: b"".join(frames[:2])})
    file = disk.open(f"{PATH}/{segment_name(0)}")
    file.pwrite(frames[2], len(frames[0]) + len(frames[1]))
    disk = disk.kill()
    assert recover(disk).next_id == 3, "the page cache lives on"
    for seed in range(20):
        assert recover(disk.peek_crash(random.Random(seed))).next_id == 3


def test_what_a_failed_sync_left_in_the_cache_alone_is_not_read_back() -> None:
    """After a failed sync Linux marks the pages clean: the next process would read them, answer DUP, and lose them in a power
    cut."""
    rig = LogRig()
    rig.publish(b"a")
    rig.disk.fail("sync", 1, errno.EIO, path=".log")
    rig.publish(b"b", key=b"k")
    rig.reopen()
    assert rig.payloads() == [b"a"]
    assert not rig.recovered.keys
    rig.publish(b"c")
    rig.reopen(power_cut=True)
    assert rig.payloads() == [b"a", b"c"]


def test_the_newest_keys_are_read_and_no_more() -> None:
    segments = {}
    for base_id in range(0, 50, 10):
        segments[base_id] = b"".join(
            encode_frame(n, n, b"k%d" % n if n % 2 else b"", b"") for n in range(base_id, base_id + 10)
        )
    disk = disk_with(segments)
    recover(disk)

    def keys(wanted: int) -> list[int]:
        found = recover_log(disk, PATH, dedupe_keys=wanted).keys
        return [first_id + row for first_id, run in found for row, key in enumerate(run) if key]

    everything = list(range(1, 50, 2))
    assert keys(1000) == everything
    for wanted in range(30):
        found = keys(wanted)
        assert found == everything[-len(found) :]
        assert len(found) >= min(wanted, 25)
    disk.trace.clear()
    keys(5)
    assert scanned(disk) == {f"{PATH}/{segment_name(40)}"}


def test_keys_behind_a_gap_are_found() -> None:
    frames = [encode_frame(n, n, b"k%d" % n, b"x" * 50) for n in range(20)]
    frames[3] = frames[3][:-1] + bytes([frames[3][-1] ^ 1])
    disk = disk_with({0: b"".join(frames[:10]), 10: b"".join(frames[10:])})
    found = recover_log(disk, PATH, dedupe_keys=100)
    assert found.lost == [(3, 3)]
    ids = [first_id + row for first_id, run in found.keys for row in range(len(run))]
    assert ids == [n for n in range(20) if n != 3]


def test_what_a_failed_sync_left_in_the_cache_reaches_the_disk_when_it_could_not_be_cut_off() -> None:
    """Found by seed 49184 of tests/fault/test_histories.py: the pages are clean in the cache, so another sync alone does not
    write them."""
    rig = LogRig()
    rig.publish(b"synced")
    rig.disk.fail("sync", 1, errno.EIO, path=".log")
    rig.disk.fail("truncate", 1, errno.EIO, path=".log")
    unknown = rig.append(b"unknown")[0].commit
    rig.loop.drain()
    assert isinstance(unknown.error, StorageFailed)
    disk = rig.disk.kill()
    assert recover(disk).next_id == 2, "the page cache shows it"
    for seed in range(20):
        assert recover(disk.peek_crash(random.Random(seed))).next_id == 2, "what was read back stays"


def test_what_the_offsets_know_to_be_synced_is_not_written_again() -> None:
    disk = disk_with({0: b"".join(some_frames(3))})
    disk.trace.clear()
    recover_log(disk, PATH, next_id=3)
    assert not [op for op, *_ in disk.trace if op == "pwrite"]


def test_a_disk_that_cannot_be_mended_stops_the_start() -> None:
    disk = disk_with({0: some_frames(1)[0] + b"torn"})
    disk.fail("truncate", 1, errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        recover(disk)


def test_a_hole_behind_what_was_surely_stored_may_be_of_a_torn_batch(caplog: pytest.LogCaptureFixture) -> None:
    """Found: in a pair that lost its power, records that were never acknowledged were reported as lost."""
    frames = some_frames(9)
    torn = b"".join(frames[:5]) + bytes(len(frames[5])) + b"".join(frames[6:])
    assert recover_log(disk_with({0: torn}), PATH, next_id=5).lost == [(5, 5)], "what is whole behind it is kept"
    assert "record 5 is damaged and lost" in caplog.text
    assert UNLESS_UNACKNOWLEDGED in caplog.text
    (finding,) = report_of(disk_with({0: torn})).findings
    assert finding.text.endswith(f"record 5 is lost{UNLESS_UNACKNOWLEDGED}")
    caplog.clear()
    recover_log(disk_with({0: torn}), PATH, next_id=6)
    recover_log(disk_with({0: torn, 9: some_frames(1, first_id=9)[0]}), PATH)
    assert "record 5 is damaged and lost" in caplog.text
    assert UNLESS_UNACKNOWLEDGED not in caplog.text, "the offsets, or the next segment, say that it was stored"
