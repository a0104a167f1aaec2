"""Scanning a segment. Contract: storage.md, "One judge of damage"; ADR 0046."""

from tests.support.logs import PATH, disk_with, some_frames
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import segment_name


def test_a_scan_tells_what_it_saw_and_how_far_it_is() -> None:
    frames = some_frames(2000, size_max=3000)
    disk = disk_with({7: b""})
    frames = some_frames(2000, first_id=7, size_max=3000)
    data = b"".join(frames) + bytes(5000)
    disk = disk_with({7: data})
    seen: list[int] = []
    progress: list[int] = []
    result = scan_segment(
        disk, f"{PATH}/{segment_name(7)}", 7,
        visit=lambda _pos, first_id, columns: seen.extend(range(first_id, first_id + len(columns.positions))),
        progress=progress.append,
    )  # fmt: skip
    assert seen == list(range(7, 2007))
    assert sum(progress) == len(data) == result.size
    assert result.torn_bytes == 0
    assert (result.segment.end, result.segment.next_id) == (len(data) - 5000, 2007)
