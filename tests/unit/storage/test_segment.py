"""Segment files, their sparse index and their sidecars. Contract: storage.md, "Segments"."""

import pytest

from tests.support.frames import encode_attributes, encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.storage import checked_json
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Damage, Segment, load_sidecar, parse_segment_name, segment_name

NAME = f"{PATH}/{segment_name(0)}"
SIDECAR = NAME[:-4] + ".idx"


@pytest.mark.parametrize("base_id", [0, 1, 523_114, 2**63 - 1])
def test_a_segments_name_is_its_first_id(base_id: int) -> None:
    name = segment_name(base_id)
    assert len(name) == 24
    assert parse_segment_name(name) == base_id


@pytest.mark.parametrize(
    "name", ["0.log", "00000000000000000000.idx", "0000000000000000000x.log", "\u0966" * 20 + ".log", "offsets.json", "",
             f"{2**63}.log".rjust(24, "0"), "9" * 20 + ".log"]
)
def test_other_files_are_none_of_ours(name: str) -> None:
    assert parse_segment_name(name) is None


def sealed(frames: list[bytes], base_id: int = 0) -> tuple[SimDisk, Segment]:
    disk = disk_with({base_id: b"".join(frames)})
    segment = scan_segment(disk, f"{PATH}/{segment_name(base_id)}", base_id).segment
    segment.sealed = True
    segment.write_sidecar(disk)
    return disk, segment


def test_a_sidecar_holds_what_a_scan_would_find() -> None:
    frames = some_frames(300, size_max=2000)
    frames.append(encode_frame(300, TS_NS + 300, b"p", b"x", encode_attributes(deliver_at_ns=77, sequence=5)))
    disk, scanned = sealed(frames)
    assert len(scanned.index_ids) > 2
    assert scanned.newest_deliver_at_ns == 77
    assert scanned.producers == {b"p": (5, 300)}
    loaded = load_sidecar(disk, NAME, 0, 301)
    assert loaded == scanned


@pytest.mark.parametrize(("ttls", "known"), [([5, 9, 7], 9), ([5, None, 7], None), ([None], None)])
def test_when_all_has_expired_is_in_the_sidecar(ttls: list[int | None], known: int | None) -> None:
    disk, scanned = sealed([
        encode_frame(n, TS_NS, b"", b"x", b"" if at_ns is None else encode_attributes(expires_at_ns=at_ns))
        for n, at_ns in enumerate(ttls)
    ])  # fmt: skip
    assert scanned.expires_at_ns == known
    loaded = load_sidecar(disk, NAME, 0, len(ttls))
    assert loaded is not None
    assert loaded.expires_at_ns == known


def test_gaps_are_in_the_sidecar() -> None:
    frames = some_frames(9)
    frames[4] = frames[4][:-1] + bytes([frames[4][-1] ^ 1])
    disk, scanned = sealed(frames)
    assert [(d.first_id, d.last_id) for d in scanned.damages] == [(4, 4)]
    loaded = load_sidecar(disk, NAME, 0, 9)
    assert loaded is not None
    assert loaded.damages == scanned.damages
    assert loaded.lost == 1


def rewrite(disk: SimDisk, **changes: object) -> None:
    """Change some fields of the sidecar, and its checksum accordingly."""
    found = checked_json.decode("segment", disk.read_file(SIDECAR)) | changes
    found = {name: value for name, value in found.items() if value != "gone"}
    file = disk.open(SIDECAR)
    data = checked_json.encode("segment", found)
    file.truncate(len(data))
    file.pwrite(data, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 1},
        {"first_id": 1},
        {"next_id": 999},
        {"next_id": -1},
        {"index": "nothing"},
        {"index": [[0], [0]]},
        {"index": [["x"], [0], [0], [0]]},
        {"gaps": [[1]]},
        {"producers": [1]},
        {"keyed": None},
        {"newest_ts_ns": "gone"},
    ],
    ids=str,
)
def test_a_sidecar_that_does_not_fit_is_not_believed(changes: dict[str, object]) -> None:
    disk, _ = sealed(some_frames(9))
    assert load_sidecar(disk, NAME, 0, 9) is not None
    rewrite(disk, **changes)
    assert load_sidecar(disk, NAME, 0, 9) is None


def test_one_flipped_bit_in_a_sidecar_is_seen() -> None:
    disk, _ = sealed(some_frames(9))
    data = disk.read_file(SIDECAR)
    file = disk.open(SIDECAR)
    for at in range(len(data) - 1):  # but for the newline at the end
        file.pwrite(bytes([data[at] ^ 4]), at)
        loaded = load_sidecar(disk, NAME, 0, 9)
        assert loaded is None, f"byte {at}"
        file.pwrite(data[at : at + 1], at)


def test_no_sidecar_is_no_segment() -> None:
    disk = disk_with({0: b"".join(some_frames(3))})
    assert load_sidecar(disk, NAME, 0, 3) is None


def test_seeking_starts_at_or_before() -> None:
    frames = some_frames(2000, size_max=1000)
    disk = disk_with({0: b"".join(frames)})
    segment = scan_segment(disk, NAME, 0).segment
    positions = [sum(map(len, frames[:n])) for n in (0, 1)]
    assert segment.seek_id(0) == (0, positions[0])
    for msg_id in (1, 500, 1999):
        at_id, position = segment.seek_id(msg_id)
        assert at_id <= msg_id
        assert position == sum(map(len, frames[:at_id]))
        assert position > segment.end * msg_id // 2000 - 200_000
    assert segment.seek_time(TS_NS + 1500)[0] <= 1500
    assert segment.seek_time(0) == (0, 0)
    assert Segment(NAME, 5).seek_time(9) == (5, 0)
    assert Segment(NAME, 5).seek_id(9) == (5, 0)


def test_seeking_passes_a_gap() -> None:
    segment = Segment(NAME, 0, next_id=10, end=1000, damages=[Damage(200, 300, 2, 4)])
    assert segment.seek_id(7) == (5, 300)
    assert segment.seek_id(1) == (0, 0)
