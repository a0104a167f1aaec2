"""Records of an earlier backup that its source has lost. The backup as a whole: test_backup.py."""

from tests.support.frames import encode_frame
from tests.support.logs import PATH, disk_with, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.storage import segment_heads
from toymq_py.storage.offline import given_up
from toymq_py.storage.offline.earlier_copy import join, lost_segments, records_more, same_log
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import SegmentFiles

COPY = "/data/copy"
FRAMES = some_frames(8)


def disk_of(source: dict[int, bytes], copy: dict[int, bytes]) -> SimDisk:
    disk = disk_with(source)
    disk.mkdir(COPY)
    for base_id, data in copy.items():
        file = disk.open(f"{COPY}/{segment_name(base_id)}", create=True)
        file.pwrite(data, 0)
        file.close()
    return disk


def more(source: bytes, copy: bytes) -> int:
    disk = disk_of({0: source}, {0: copy})
    file = f"{PATH}/{segment_name(0)}"
    return records_more(disk, file, f"{COPY}/{segment_name(0)}", scan_segment(disk, file, 0).segment)


def test_a_copy_has_more_only_if_it_has_all_that_the_source_has() -> None:
    whole, cut = b"".join(FRAMES), b"".join(FRAMES[:5])
    other = b"".join(some_frames(6)[:5]) + b"".join(FRAMES[5:])
    hit = whole[: len(cut) + 6] + b"\xff" + whole[len(cut) + 7 :]
    assert more(cut, whole) == 3
    assert more(hit, whole) == 1
    assert more(bytes(len(whole)), whole) == 8
    assert more(whole, whole) == more(whole, cut) == 0
    assert more(hit, cut) == 0, "the source has records behind its damage"
    assert more(cut[:-1] + bytes([cut[-1] ^ 1]) + other[len(cut) :], whole[: len(cut)]) == 0


def test_what_retention_removed_is_not_lost() -> None:
    copies = {base_id: b"".join(FRAMES[base_id : base_id + 2]) for base_id in (0, 2, 4, 6)}
    disk = disk_of({6: copies[6]}, copies)
    files = SegmentFiles([6])

    def lost(structure: OffsetsState, *, same: bool = True, files: SegmentFiles = files) -> list[int]:
        return [segment.base_id for segment in lost_segments(disk, PATH, COPY, copies, files, structure, same=same)[0]]

    assert lost(OffsetsState()) == [0, 2, 4]
    assert lost(OffsetsState(first_id=2)) == [2, 4]
    assert lost(OffsetsState(first_id=6)) == []
    assert lost(OffsetsState(first_id=2, removed=((4, 5),))) == [2]
    found = lost_segments(disk, PATH, COPY, copies, files, OffsetsState(), same=False)
    assert found == ([], True), "of a log that nothing shows to be the same one"
    heads = segment_heads.read_heads(disk, COPY, [2], {})
    assert lost(OffsetsState(), same=False, files=SegmentFiles([6], heads=heads)) == [2], "but the source knows its head"
    assert lost(OffsetsState(first_id=8), files=SegmentFiles([])) == [], "a purge leaves no segment behind it"
    given_up.add(disk, PATH, [(4, 5)], heads)
    assert lost(OffsetsState(first_id=2, removed=((2, 5),))) == [4], "a repair is no removal"
    assert lost(OffsetsState(), same=False) == [2], "the repair knew its head"


def joined(source: bytes, copy: bytes) -> tuple[int, bytes]:
    disk = disk_of({0: source}, {0: copy})
    file, temporary = f"{PATH}/{segment_name(0)}", f"{COPY}/joined"
    found = scan_segment(disk, file, 0)
    count = join(disk, file, f"{COPY}/{segment_name(0)}", found.segment, len(source), temporary)
    return count, disk.snapshot()[temporary] if count else b""


def test_a_copy_fills_the_damage_of_a_source_that_has_grown() -> None:
    whole, copy = b"".join(FRAMES), b"".join(FRAMES[:5])
    early, late = len(FRAMES[0]) + 6, len(copy) + 6

    def hit(*at: int) -> bytes:
        spoilt = bytearray(whole)
        for position in at:
            spoilt[position] ^= 0xFF
        return bytes(spoilt)

    assert joined(hit(early), copy) == (1, whole)
    assert joined(hit(early, late), copy) == (1, hit(late)), "the copy never had that one"
    assert joined(hit(late), copy) == joined(whole, copy) == (0, b"")
    assert joined(hit(early), copy[:early]) == (0, b""), "a copy that ends in the damage"
    other = b"".join([FRAMES[0], *some_frames(5, seed=2)[1:]])
    assert joined(hit(early), other) == (0, b""), "records of another life of the log"
    damaged = bytearray(copy)
    damaged[early] ^= 0xFF
    assert joined(hit(early), bytes(damaged)) == (0, b""), "both are damaged at the same place"


def test_two_logs_are_the_same_when_a_first_record_is() -> None:
    one, files = {0: FRAMES[0], 1: FRAMES[1]}, SegmentFiles([0, 1])
    disk = disk_of(one, {0: b"", 1: FRAMES[1]})
    assert same_log(disk, PATH, COPY, [0, 1], files) is True
    assert same_log(disk, PATH, COPY, [0], files) is None, "one that is not whole says nothing"
    disk = disk_of(one, {1: encode_frame(1, 99, b"", b"made anew")})
    assert same_log(disk, PATH, COPY, [1], files) is False
    heads = segment_heads.read_heads(disk, PATH, [1], {})
    disk = disk_of({1: b""}, {1: encode_frame(1, 99, b"", b"made anew")})
    assert same_log(disk, PATH, COPY, [1], SegmentFiles([1])) is None
    assert same_log(disk, PATH, COPY, [1], SegmentFiles([1], heads=heads)) is False, "what was there is known"
    assert same_log(disk, PATH, COPY, [1], SegmentFiles([], heads=heads)) is False


def test_what_ends_before_the_log_and_is_younger_is_of_another_log() -> None:
    """The directory is an older state of itself, whose retention had removed all ids that the backup has."""
    young = encode_frame(0, 1 << 62, b"", b"x")
    for copy, files, others in (
        (young, SegmentFiles([5]), True),
        (FRAMES[0], SegmentFiles([5]), False),
        (young, SegmentFiles([]), False),
    ):
        disk = disk_of({5: FRAMES[5]}, {0: copy})
        assert lost_segments(disk, PATH, COPY, [0], files, OffsetsState(first_id=5), same=False) == ([], others)
