"""The cache of frame positions, through the reads of single records that fill it."""

import pytest

from tests.support.log_rig import LogRig
from toymq_py.storage.frame_positions import FramePositions


def filled(count: int = 30) -> LogRig:
    """Return a log of several segments, written one small record at a time."""
    rig = LogRig(segment_bytes=900)
    for number in range(count):
        rig.publish(b"%090d" % number)
    return rig


def test_positions_are_bounded_and_every_record_is_found_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FramePositions, "FRAMES_MAX", 12)
    rig = filled()
    for msg_id in [*range(30), *range(29, -1, -3)]:
        run = rig.log.read_each([msg_id], 99)
        assert run is not None
        assert list(run.ids) == [msg_id]
        positions = rig.log._positions
        assert positions._frames == sum(map(len, positions._parts.values())) <= 12


def test_a_part_of_a_sealed_segment_is_scanned_once_and_again_when_it_was_forgotten() -> None:
    rig = filled()
    positions, segment = FramePositions(), rig.log.segments[0]
    rig.log.open(segment)
    assert segment.sealed
    for _ in range(2):
        for msg_id in range(segment.next_id):
            row = positions.read(segment, msg_id)
            assert row is not None
            assert int(row[2]) == msg_id
    assert positions.scans == len(segment.index_ids) == 1
    positions.forget(segment)
    assert positions._frames == 0
    assert positions.read(segment, 0) is not None
    assert positions.scans == 2


def test_the_part_that_still_grows_is_not_kept() -> None:
    rig = filled()
    positions, active = FramePositions(), rig.log.segments[-1]
    rig.log.open(active)
    assert not active.sealed
    rig.publish(b"%090d" % 30)
    for scans in (1, 2):
        assert positions.read(active, 30) is not None
        assert positions.scans == scans
