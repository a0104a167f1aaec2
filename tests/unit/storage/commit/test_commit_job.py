"""What a sync thread does with one batch. Contract: storage.md, "Append and group commit"; ADR 0002."""

import errno

from tests.support.log_rig import LogRig
from tests.support.logs import PATH
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.segment import segment_name

ACTIVE = segment_name(0)


def test_the_name_is_on_stable_storage_before_the_first_byte() -> None:
    rig = LogRig()
    rig.disk.trace.clear()
    rig.publish(b"a")
    ops = [op for op, path, _ in rig.disk.trace if op in ("mkdir", "sync_dir", "open", "pwrite", "sync")]
    assert ops[:6] == ["mkdir", "sync_dir", "open", "sync_dir", "pwrite", "sync"]


def test_a_short_write_is_continued() -> None:
    rig = LogRig()
    rig.disk.short_write(1, 10)
    rig.disk.short_write(2, 0)
    assert rig.publish(b"a" * 100)[0].commit.state is CommitState.FAILED, "a file that takes nothing at all is failing"
    rig = LogRig()
    rig.disk.short_write(1, 10)
    assert rig.publish(b"a" * 100)[0].commit.state is CommitState.DONE
    assert rig.payloads() == [b"a" * 100]


def test_space_is_reserved_ahead_after_the_first_mebibyte_and_cut_at_the_end() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    rig.publish(b"x" * 1000)
    assert rig.disk.file_size(f"{PATH}/{ACTIVE}") == 1030, "most topics stay small"
    for _ in range(3):
        rig.publish(*[b"y" * 100_000] * 5)
    assert rig.disk.file_size(f"{PATH}/{ACTIVE}") > rig.log.segments[-1].end
    rig.committer.finish()
    assert rig.disk.file_size(f"{PATH}/{ACTIVE}") == rig.log.segments[-1].end
    rig.reopen(power_cut=True)
    assert len(rig.payloads()) == 16


def test_where_nothing_can_be_reserved_writing_goes_on() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    rig.disk.fail("allocate", 1, errno.EOPNOTSUPP, sticky=True)
    for _ in range(12):
        assert rig.publish(*[b"y" * 100_000] * 5)[0].commit.state is CommitState.DONE
    assert rig.disk.file_size(f"{PATH}/{segment_name(41)}") > 0
    assert len(rig.payloads()) == 60


def test_reserved_space_is_clean_to_the_next_start() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    for _ in range(3):
        rig.publish(*[b"y" * 100_000] * 5)
    rig.reopen()
    assert rig.recovered.torn_bytes == 0
    assert not rig.recovered.lost
    assert rig.publish(b"on")[0].first_id == 15
