"""``--fsync interval`` on the simulated disk. Contract: storage.md, "Append and group commit"."""

import errno
from typing import Any

import pytest

from tests.support.log_rig import LogRig
from toymq_py.errors import StorageFailed
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.commit.sync_threads import run_guarded


def interval_rig(**options: Any) -> LogRig:
    return LogRig(fsync="interval", fsync_interval_s=0.005, **options)


def test_answers_after_the_write_and_syncs_later() -> None:
    rig = interval_rig()
    assert rig.publish(b"a")[0].commit.state is CommitState.DONE
    assert rig.syncs() == 0
    rig.loop.advance(0.005)
    assert rig.syncs() == 1
    rig.loop.advance(1)
    assert rig.syncs() == 1, "nothing new, nothing to sync"
    rig.publish(b"b")
    rig.publish(b"c")
    rig.loop.advance(0.005)
    assert rig.syncs() == 2
    rig.reopen(power_cut=True)
    assert rig.payloads() == [b"a", b"b", b"c"]


def test_notices_a_failed_sync() -> None:
    rig = interval_rig()
    rig.publish(b"a")
    rig.disk.fail("sync", 1, errno.EIO, path=".log")
    rig.loop.advance(0.005)
    with pytest.raises(StorageFailed):
        rig.append(b"b")


def test_has_nothing_to_sync_behind_a_roll() -> None:
    rig = interval_rig(segment_bytes=100)
    rig.publish(b"x" * 50)
    rig.committer.begin_segment()
    rig.loop.drain()
    sealed = rig.syncs()
    assert sealed == 1, "sealing synced it"
    rig.loop.advance(0.005)
    rig.reopen(power_cut=True)
    assert rig.payloads() == [b"x" * 50]


def test_a_poisoned_log_is_not_synced_again() -> None:
    """After a failed sync Linux may have dropped the pages: a second sync would report that they are safe."""
    rig = interval_rig()
    rig.publish(b"a")
    rig.committer.poison("the disk is gone")
    rig.loop.advance(1)
    assert rig.syncs() == 0


def test_a_bug_in_a_sync_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the records of such a sync counted as synced, in ``segments.json``, too."""
    rig = interval_rig()
    rig.publish(b"a")

    def sync(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(rig.log.segments[-1].file), "sync", sync)
    monkeypatch.setattr(rig.loop, "_run_job", run_guarded)
    rig.loop.advance(0.005)
    with pytest.raises(StorageFailed, match="syncing its log failed"):
        rig.append(b"b")
