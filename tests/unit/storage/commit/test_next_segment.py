"""The file of the next segment, created ahead. Contract: storage.md, "Segments"."""

import errno

from tests.support.log_rig import LogRig
from toymq_py.storage.commit.batch import CommitState


def test_the_next_segment_is_made_ahead_and_used() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    for _ in range(7):
        rig.publish(*[b"y" * 100_000] * 5)
    assert any(path.endswith(".tmp") for path in rig.disk.snapshot())
    for _ in range(2):
        rig.publish(*[b"y" * 100_000] * 5)
    assert len(rig.log.segments) == 2
    assert not any(path.endswith(".tmp") for path in rig.disk.snapshot()), "it has its name now"
    for _ in range(6):
        rig.publish(*[b"y" * 100_000] * 5)
    assert any(path.endswith(".tmp") for path in rig.disk.snapshot())
    rig.committer.finish()
    assert not any(path.endswith(".tmp") for path in rig.disk.snapshot())
    rig.reopen(power_cut=True)
    assert len(rig.payloads()) == 75


def test_a_failed_preparation_is_no_error() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    rig.disk.fail("open", 1, errno.EMFILE, sticky=True, path="next-")
    for _ in range(10):
        assert rig.publish(*[b"y" * 100_000] * 5)[0].commit.state is CommitState.DONE
    assert len(rig.log.segments) == 2
