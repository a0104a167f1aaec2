"""A sync thread's work for one batch. Contract: storage.md, "Append and group commit"; ADR 0002."""

import errno
from itertools import pairwise

import pytest

from tests.support.log_rig import LogRig
from tests.support.logs import PATH
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.commit.commit_job import PREALLOCATE_BYTES
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


def test_a_file_of_small_batches_is_doubled_ahead_of_its_writer_and_cut_at_the_end() -> None:
    rig = LogRig(segment_bytes=64 << 20)
    name = f"{PATH}/{ACTIVE}"
    rig.publish(b"x" * 1000)
    assert rig.disk.file_size(name) == 1030, "most topics stay small"
    sizes = []
    for _ in range(1200):
        rig.publish(b"y" * 4000)
        sizes.append(rig.disk.file_size(name))
        assert sizes[-1] <= rig.log.segments[-1].end + min(PREALLOCATE_BYTES, rig.log.segments[-1].end)
    steps = [b - a for a, b in pairwise(sizes) if b > a]
    assert max(steps) > PREALLOCATE_BYTES * 0.99
    assert 6 < sum(op == "allocate" for op, *_ in rig.disk.trace) < 12, "it is seldom extended"
    rig.committer.finish()
    assert rig.disk.file_size(name) == rig.log.segments[-1].end
    rig.reopen(power_cut=True)
    assert len(rig.payloads()) == 1201


def test_a_batch_that_begins_a_block_reserves_nothing() -> None:
    rig = LogRig(segment_bytes=64 << 20, commit="inline")
    for _ in range(30):
        rig.publish(*[b"y" * 100_000] * 5)
    assert not [op for op, *_ in rig.disk.trace if op == "allocate"]
    assert len(rig.held) >= 28, "it only appends"
    rig.publish(b"small")
    assert rig.disk.file_size(f"{PATH}/{ACTIVE}") > rig.log.segments[-1].end


def test_a_batch_that_fits_into_reserved_space_only_appends() -> None:
    rig = LogRig(commit="inline", segment_bytes=4 << 20)
    for _ in range(1000):
        rig.publish(b"x" * 300)
    assert len(rig.held) > 990


@pytest.mark.parametrize(("code", "asked"), [(errno.EOPNOTSUPP, 2), (errno.ENOSPC, 11)])
def test_where_nothing_can_be_reserved_writing_goes_on(code: int, asked: int) -> None:
    rig = LogRig(segment_bytes=4 << 20)
    rig.disk.fail("allocate", 1, code, sticky=True)
    for n in range(24):
        assert rig.publish(*[b"y" * 100_000] * 5 if n % 2 else [b"y"])[0].commit.state is CommitState.DONE
    allocated = [path for op, path, _ in rig.disk.trace if op == "allocate" and path.endswith(".log")]
    assert len(allocated) == asked, "a file system that cannot is asked once a segment, a full one each time"
    assert len(rig.log.segments) == 2
    assert len(rig.payloads()) == 72


def test_reserved_space_is_clean_to_the_next_start() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    for _ in range(100):
        rig.publish(b"y" * 1000)
    assert rig.disk.file_size(f"{PATH}/{ACTIVE}") > rig.log.segments[-1].end
    rig.reopen()
    assert rig.recovered.torn_bytes == 0
    assert not rig.recovered.lost
    assert rig.publish(b"on")[0].first_id == 100
