"""Reads: across segments, at random, past damage, past a disk that refuses. Contract: storage.md, "Recovery", end."""

import errno
import logging
from random import Random

import pytest

from tests.support.log_rig import LogRig
from tests.support.logs import PATH
from tests.support.sim_disk import SimFile
from toymq_py.errors import OutOfRange
from toymq_py.storage.fs import Stamp
from toymq_py.storage.log import SCANS_MAX
from toymq_py.storage.record import Extras, iter_frames
from toymq_py.storage.segment import segment_name
from toymq_py.storage.tail_cache import AHEAD_ROWS


def filled(count: int = 30, size: int = 90, **options: object) -> LogRig:
    rig = LogRig(segment_bytes=1000, **options)
    for n in range(count):
        rig.publish(b"%03d" % n + b"." * (size - 3))
    return rig


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload[:3]) for payload in payloads]


def flip(rig: LogRig, base_id: int, position: int) -> None:
    """Damage a byte of a segment behind the broker's back."""
    file = rig.disk.open(f"{PATH}/{segment_name(base_id)}")
    byte = file.pread(1, position)
    file.pwrite(bytes([byte[0] ^ 0x55]), position)
    file.close()


def test_a_read_from_every_id() -> None:
    rig = filled()
    assert len(rig.log.segments) > 3
    for msg_id in range(30):
        run, row, after = rig.log.read(msg_id, 5)
        assert run is not None
        assert row == 0
        assert numbers(run.payloads) == list(range(msg_id, after))
        assert msg_id < after <= msg_id + 5
        assert after <= rig.log.segment_of(msg_id).next_id


def test_the_tail_serves_what_is_newest() -> None:
    rig = LogRig()
    rig.log.tail.enable(enabled=True)
    rig.publish(b"a", b"b")
    rig.publish(b"c")
    rig.disk.fail("pread", 1, errno.EIO, sticky=True)
    run, row, after = rig.log.read(1, 10)
    assert run is not None
    assert (run.payloads[row : row + after - 1], after) == ([b"b"], 2)
    run, row, after = rig.log.read(0, 1)
    assert (row, after) == (0, 1)


def test_fetch_gives_whole_frames_within_its_limits() -> None:
    rig = filled()
    body, count, after = rig.log.read_frames(0, 1000, 1 << 20)
    assert (count, after) == (30, 30)
    assert [frame.msg_id for frame in iter_frames(body)] == list(range(30))
    body, count, after = rig.log.read_frames(5, 4, 1 << 20)
    assert ([frame.msg_id for frame in iter_frames(body)], count, after) == ([5, 6, 7, 8], 4, 9)
    body, count, after = rig.log.read_frames(7, 1000, 1)
    assert (count, after, len(body)) == (1, 8, 120), "one record comes whatever max_bytes"
    body, count, after = rig.log.read_frames(7, 1000, 400)
    assert (count, after, len(body)) == (3, 10, 360), "across a segment's end too"
    assert rig.log.read_frames(30, 10, 100) == (b"", 0, 30)


@pytest.mark.parametrize("from_id", [31, 10**18])
def test_fetch_above_the_next_id_is_out_of_range(from_id: int) -> None:
    with pytest.raises(OutOfRange) as caught:
        filled().log.read_frames(from_id, 1, 100)
    assert str(caught.value).startswith("0 ")


def test_fetch_below_the_first_id_is_out_of_range() -> None:
    rig = filled()
    rig.log.forget_below(8)
    with pytest.raises(OutOfRange) as caught:
        rig.log.read_frames(7, 1, 100)
    assert caught.value.first_id == 8
    assert rig.log.messages() == 22


def test_the_first_record_at_or_after_a_time() -> None:
    rig = LogRig(segment_bytes=500)
    times = []
    for n in range(12):
        rig.clock.advance(1)
        times.append(rig.clock.wall_ns())
        rig.publish(b"%03d" % n + b"." * 90)
    assert rig.log.id_at_time(0, times[-1]) == 0
    for n, ts_ns in enumerate(times):
        assert rig.log.id_at_time(ts_ns, times[-1]) == n
        assert rig.log.id_at_time(ts_ns + 1, times[-1]) == n + 1
    assert rig.log.id_at_time(times[-1] + 10, times[-1]) == 12
    rig.log.forget_below(5)
    assert rig.log.id_at_time(0, times[-1]) == 5


def test_a_damaged_record_is_skipped_counted_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled()
    lost: list[tuple[int, int]] = []
    rig.log.on_lost = lambda first, last: lost.append((first, last))
    flip(rig, 0, 120 * 3 + 60)  # inside the payload of record 3
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert numbers(rig.payloads()) == [n for n in range(30) if n != 3]
    assert lost == [(3, 3)]
    assert rig.log.lost == [(3, 3)]
    assert caplog.text.count("damaged") == 1
    assert rig.log.degraded
    assert rig.log.messages() == 29
    body, count, after = rig.log.read_frames(0, 100, 1 << 20)
    assert (count, after) == (29, 30), "FETCH passes it too"
    assert 3 not in [frame.msg_id for frame in iter_frames(body)]
    body, count, after = rig.log.read_frames(3, 1, 1 << 20)
    assert [frame.msg_id for frame in iter_frames(body)] == [4]


@pytest.mark.parametrize("msg_id", [0, 4, 7])
@pytest.mark.parametrize("byte", [0, 3, 4, 12, 20, 22, 26, 80, 119])
def test_wherever_a_record_is_hit_no_other_is_lost(msg_id: int, byte: int) -> None:
    rig = filled(8)
    flip(rig, 0, 120 * msg_id + byte)
    assert numbers(rig.payloads()) == [n for n in range(8) if n != msg_id]
    assert rig.log.lost == [(msg_id, msg_id)]
    rig.reopen()
    if msg_id < 7:  # of the last record recovery cannot know whether it was acknowledged
        assert numbers(rig.payloads()) == [n for n in range(8) if n != msg_id]


def test_neighbours_that_are_damaged_are_one_range() -> None:
    rig = filled(8)
    flip(rig, 0, 120 * 3 + 60)
    flip(rig, 0, 120 * 4 + 2)
    flip(rig, 0, 120 * 6 + 60)
    assert numbers(rig.payloads()) == [0, 1, 2, 5, 7]
    assert rig.log.lost == [(3, 4), (6, 6)]
    run, _, after = rig.log.read(3, 100)
    assert (run, after) == (None, 5)


@pytest.mark.parametrize("fetched", [False, True])
def test_a_read_that_was_wrong_once_loses_nothing(fetched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(8)
    rig.log.read(0, 1)
    file = rig.log.segments[0].file
    assert file is not None
    true_pread = type(file).pread
    reads = 0

    def pread(self: object, length: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        data = true_pread(self, length, offset)  # type: ignore[arg-type]
        return data if reads > 1 else bytes([data[0] ^ 1]) + data[1:]

    monkeypatch.setattr(type(file), "pread", pread)
    if fetched:
        assert rig.log.read_frames(0, 100, 1 << 20)[1:] == (8, 8)
    else:
        assert numbers(rig.payloads()) == list(range(8))
    assert not rig.log.lost


@pytest.mark.parametrize("fetched", [False, True])
def test_a_read_that_is_always_wrong_where_a_second_look_is_right_ends(
    fetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = filled(8)
    monkeypatch.setattr("toymq_py.storage.frame_positions.decode_row", lambda data, msg_id: None)
    rig.log.read(0, 1)
    file = rig.log.segments[0].file
    assert isinstance(file, SimFile)
    rig.log.segments[0].file = LyingFile(file, 40)
    assert (fetch_all(rig, 1 << 20) if fetched else numbers(rig.payloads())) == []
    assert (rig.log.lost, rig.log.unreadable) == ([], [(0, 7)])


class LyingFile:
    """A file that returns a wrong byte at one place to readers that hold it open, and the right one to all others."""

    def __init__(self, file: SimFile, position: int) -> None:
        self.path = file.path
        self._file = file
        self._position = position

    def pread(self, length: int, offset: int) -> bytes:
        data = bytearray(self._file.pread(length, offset))
        if offset <= self._position < offset + len(data):
            data[self._position - offset] ^= 0x55
        return bytes(data)

    def stamp(self) -> Stamp:
        return self._file.stamp()

    def close(self) -> None:
        pass


def test_eio_is_passed_over_until_restart_and_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled()
    rig.log.read(0, 1)
    base_id = rig.log.segments[1].base_id
    rig.disk.fail("pread", 1, errno.EIO, sticky=True, path=segment_name(base_id))
    with caplog.at_level(logging.ERROR):
        found = numbers(rig.payloads())
    assert found == [n for n in range(30) if rig.log.segment_of(n).base_id != base_id]
    assert not rig.log.lost
    assert rig.log.unreadable == [(base_id, rig.log.segments[1].next_id - 1)]
    assert rig.log.degraded
    assert "EIO" in caplog.text
    rig.reopen()
    assert numbers(rig.payloads()) == list(range(30)), "a restart tries again"


def test_a_bad_sector_passes_over_as_little_as_can_be_told() -> None:
    """Reads of one page fail: only the records on that page are skipped."""
    rig = LogRig(segment_bytes=1 << 20)
    rig.publish(*[b"%03d" % n + b"." * 997 for n in range(100)])
    spoil(rig, (50_000, 50_512))
    found = numbers(rig.payloads())
    missing = sorted(set(range(100)) - set(found))
    assert missing
    assert len(missing) <= 66, "up to the next entry of the sparse index at most"
    assert {50_000 // 1030} <= set(missing)
    assert found[0] == 0
    assert found[-1] == 99


class BadSectors:
    """A file in which a read that touches any of these ranges of bytes fails."""

    def __init__(self, file: SimFile, *ranges: tuple[int, int]) -> None:
        self.path = file.path
        self.ranges = list(ranges)
        self.reads = 0
        self._file = file

    def pread(self, length: int, offset: int) -> bytes:
        self.reads += 1
        assert self.reads < 1000, f"for ever: {length} bytes at {offset}"
        if any(offset < end and offset + length > start for start, end in self.ranges):
            raise OSError(errno.EIO, "bad sector", self.path)
        return self._file.pread(length, offset)

    def size(self) -> int:
        return self._file.size()

    def stamp(self) -> Stamp:
        return self._file.stamp()

    def close(self) -> None:
        pass


def spoil(rig: LogRig, *ranges: tuple[int, int]) -> BadSectors:
    """Make reads of these ranges of the first segment fail, from now on."""
    rig.log.read(0, 1)
    rig.log._hints.clear()
    file = rig.log.segments[0].file
    assert isinstance(file, SimFile)
    bad = BadSectors(file, *ranges)
    rig.log.segments[0].file = bad
    opens = rig.disk.open

    def open_bad(path: str, **how: bool) -> object:
        return bad if path == file.path else opens(path, **how)

    rig.disk.open = open_bad  # type: ignore[assignment, method-assign]
    return bad


def fetch_all(rig: LogRig, max_bytes: int) -> list[int]:
    """Return all ids that can be read, batch by batch."""
    found: list[int] = []
    at = 0
    while at < rig.log.committed_id:
        frames, count, next_id = rig.log.read_frames(at, 1000, max_bytes)
        ids = [frame.msg_id for frame in iter_frames(frames)]
        assert len(ids) == count
        assert count <= 1 or len(frames) <= max_bytes
        assert next_id > at, "an empty batch would be the end"
        found += ids
        at = next_id
    return found


@pytest.mark.parametrize("fetched", [False, True])
def test_a_bad_sector_in_a_record_of_many_pages_blocks_no_reader(fetched: bool) -> None:
    """Found: the loop blocked: the records behind that record are searched from an index entry before it, through the bad
    sector."""
    rig = LogRig(segment_bytes=1 << 20)
    for n in range(30):
        rig.publish(b"%03d" % n + b"." * 10_000)
    spoil(rig, (10_033 * 3 + 9_000, 10_033 * 3 + 9_512))
    found = fetch_all(rig, 1 << 20) if fetched else numbers(rig.payloads())
    assert sorted(set(range(30)) - set(found)) in ([3], [3, 4]), "the records on its page"


def test_a_length_that_is_too_small_near_a_bad_sector_blocks_no_reader() -> None:
    """A damaged length makes the next header begin at the end of what was read, so the rest is read with that header's
    length."""
    rig = LogRig(segment_bytes=1 << 20)
    rig.publish(b"x" * (4096 - 10 - 30), *[b""] * 300)
    flip(rig, 0, 4086)
    spoil(rig, (8192, 8704))
    assert fetch_all(rig, 1 << 20)[0] == 0


def test_a_batch_behind_what_could_not_be_read_keeps_its_limit() -> None:
    """Without a position to continue from, more is read than asked for, and must be cut to the limit."""
    rig = LogRig(segment_bytes=1 << 20)
    rig.publish(b"a" * 100, b"b" * 10_000, *[b"%d" % n * 3000 for n in range(6)])
    rig.log.unreadable = [(1, 1)]
    for max_bytes in (200, 2000, 3100, 4000, 7000):
        rig.log._hints.clear()
        assert fetch_all(rig, max_bytes) == [0, *range(2, 8)]


@pytest.mark.parametrize(("size", "count", "batch"), [(60_000, 16, 16), (270_000, 1000, 7), (600_000, 1000, 3)])
def test_a_batch_takes_what_fits_however_long_the_records_are(size: int, count: int, batch: int) -> None:
    rig = LogRig(segment_bytes=1 << 24)
    for _ in range(20):
        rig.publish(b"x" * size)
    assert rig.log.read_frames(0, count, 2 << 20)[1] == batch


def test_the_index_goes_before_where_a_reader_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LogRig(segment_bytes=1 << 24)
    for _ in range(20):
        rig.publish(b"x" * 500_000)
    rig.log.read_frames(0, 1, 1)
    reads = counted_reads(monkeypatch)
    assert rig.log.read_frames(15, 1, 1)[1] == 1
    assert sum(reads) < 1_500_000


def test_another_error_of_the_disk_is_the_callers() -> None:
    rig = filled()
    rig.log.read(0, 1)
    rig.disk.fail("pread", 1, errno.EBADF)
    with pytest.raises(OSError, match="Bad file"):
        rig.log.read(0, 1)


def test_few_sealed_segments_are_open_at_a_time() -> None:
    rig = filled(200)
    assert len(rig.log.segments) > 20
    rig.log.files.limit = 8
    rig.payloads()
    assert sum(segment.file is not None for segment in rig.log.segments) <= 9
    rig.log.close()
    assert all(segment.file is None for segment in rig.log.segments)


def test_readers_in_turn_each_go_on_where_they_were() -> None:
    rig = filled(200)
    at = [0] * 5
    while min(at) < 200:
        for n, from_id in enumerate(at):
            if from_id < 200:
                run, row, at[n] = rig.log.read(from_id, n + 1)
                assert run is not None
                assert numbers(run.payloads)[row : row + at[n] - from_id] == list(range(from_id, at[n]))


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of bytes of each file read, from now on."""
    reads: list[int] = []
    pread = SimFile.pread

    def counted(self: SimFile, length: int, offset: int) -> bytes:
        reads.append(length)
        return pread(self, length, offset)

    monkeypatch.setattr(SimFile, "pread", counted)
    return reads


def test_a_fetch_of_one_batch_after_the_other_reads_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record ends exactly at the end of a batch; the next batch begins with the one that did not fit, for each of two
    readers."""
    rig = LogRig(segment_bytes=1 << 20)
    random = Random(7)
    for n in range(3000):
        rig.publish(b"%04d" % n + b"." * random.randrange(400))
    size = rig.log.size_bytes
    reads = counted_reads(monkeypatch)
    found: list[list[int]] = [[], []]
    at = [0, 1500]
    while min(at) < 3000:
        for reader in (0, 1):
            frames, count, next_id = rig.log.read_frames(at[reader], 10_000, 20_000)
            ids = [frame.msg_id for frame in iter_frames(frames)]
            assert (len(ids), len(frames) <= 20_000) == (count, True)
            found[reader] += ids
            at[reader] = next_id
    assert found == [list(range(3000)), list(range(1500, 3000))]
    assert size * 1.5 < sum(reads) < size * 1.5 * 1.05


def test_a_fetch_of_less_than_a_record_gets_it_alone() -> None:
    rig = filled()
    for max_bytes in (1, 29, 30, 119, 120, 121, 200):
        frames, count, next_id = rig.log.read_frames(7, 10, max_bytes)
        assert (count, next_id, len(list(iter_frames(frames)))) == (1, 8, 1)
    assert rig.log.read_frames(7, 10, 240)[1:] == (2, 9)


def test_segments_that_are_read_in_turn_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay open however many others were read before them."""
    rig = filled(200)
    rig.log.files.limit = 8
    rig.payloads()
    opened: list[str] = []
    monkeypatch.setattr(rig.disk, "open", lambda path, open=rig.disk.open, **how: opened.append(path) or open(path, **how))
    for _ in range(20):
        for msg_id in (3, 100):
            assert rig.log.read_frames(msg_id, 1, 1000)[1] == 1
    assert len(opened) == 2


def test_a_reader_of_one_record_after_the_other_is_read_ahead_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each record is a read of its own, and a deep backlog costs more per message than records in memory."""
    rig = LogRig(segment_bytes=1 << 20)
    for n in range(300):
        rig.publish(b"%d" % n)
    rig.log.tail.enable(True)  # there is a subscription
    reads = counted_reads(monkeypatch)
    for msg_id in range(300):
        run, row, next_id = rig.log.read(msg_id, 1)
        assert run is not None
        assert (run.ids[row], run.payloads[row], next_id) == (msg_id, b"%d" % msg_id, msg_id + 1)
    assert len(reads) <= 300 // AHEAD_ROWS + 3
    for first in (250, 3, 120, 7):  # and other readers get what they asked for
        run, row, next_id = rig.log.read(first, 5)
        assert run is not None
        assert (run.ids[row], run.payloads[row + 4], next_id) == (first, b"%d" % (first + 4), first + 5)
    rig.log.tail.enable(False)
    assert rig.log.tail.find(299) is None, "nothing is kept without a subscription"


# -- single records, as they fall due


def test_single_records_from_anywhere_in_one_read() -> None:
    rig = filled()
    for ids in ([0], [3, 4, 29], list(range(30)), list(range(1, 30, 7))):
        run = rig.log.read_each(ids, 1 << 20)
        assert run is not None
        assert numbers(list(run.payloads)) == list(run.ids) == ids[: len(run)]
        assert len(run) >= min(len(ids), SCANS_MAX)
    run = rig.log.read_each(list(range(30)), 200)
    assert run is not None
    assert len(run) == 2, "as many as fit"
    run = rig.log.read_each([5], 1)
    assert run is not None
    assert len(run) == 1, "one at least"


def test_single_records_with_all_that_they_carry_from_disk_and_from_memory() -> None:
    rig = LogRig()
    extras = Extras([b"A: b\n", b""], [7, 8], [0, 9])
    for tail in (False, True):
        rig.log.tail.enable(enabled=tail)
        rig.committer.append([b"k", b""], [b"p", b""], extras.encode(), extras)
        rig.loop.drain()
        run = rig.log.read_each([rig.log.committed_id - 2, rig.log.committed_id - 1], 99)
        assert run is not None
        assert (list(run.keys), list(run.payloads)) == ([b"k", b""], [b"p", b""])
        assert (run.headers, run.expires_at_ns) == ((b"A: b\n", b""), (0, 9))
        assert list(run.ts_ns) == [rig.clock.wall_ns()] * 2


def test_a_single_record_that_is_damaged_or_refused_is_left_to_a_closer_look(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled()
    base_id = rig.log.segments[0].base_id
    flip(rig, base_id, 130)  # of record 1
    run = rig.log.read_each([0, 1, 2], 1 << 20)
    assert run is not None
    assert list(run.ids) == [0]
    assert rig.log.read_each([1], 1 << 20) is None
    with caplog.at_level(logging.CRITICAL):
        assert rig.log.read(1, 1)[0] is None
    assert rig.log.lost == [(1, 1)]
    assert rig.log.read_each([30], 99) is None, "beyond what is committed"
    rig.disk.fail("pread", 1, errno.EIO, sticky=True)
    assert rig.log.read_each([12], 99) is None
