"""Group commit on the simulated disk. Contract: storage.md, "Append and group commit"; ADR 0002."""

import errno
import logging

import pytest

from tests.support.log_rig import LogRig
from tests.support.logs import PATH
from toymq_py.errors import DiskFull, DiskLow, ShuttingDown, StorageFailed
from toymq_py.storage.commit.batch import COMMITTED, Batch, Commit, CommitState
from toymq_py.storage.segment import segment_name

ACTIVE = segment_name(0)


def test_one_pass_of_the_loop_is_one_write_and_one_sync() -> None:
    rig = LogRig()
    first = rig.append(b"a", b"b")
    second = rig.append(b"c")
    rig.loop.drain()
    assert [(part.first_id, part.count) for part in (*first, *second)] == [(0, 2), (2, 1)]
    assert first[0].commit is second[0].commit
    assert first[0].commit.state is CommitState.DONE
    assert rig.syncs() == 1
    assert sum(op == "pwrite" and path.endswith(".log") for op, path, _ in rig.disk.trace) == 1
    assert rig.payloads() == [b"a", b"b", b"c"]


def test_what_arrives_while_a_sync_runs_is_the_next_batch() -> None:
    rig = LogRig()
    first = rig.append(b"a")[0].commit
    rig.loop.step()  # the batch is with the sync thread now
    second = rig.append(b"b")[0].commit
    third = rig.append(b"c")[0].commit
    assert first is not second
    assert second is third
    assert rig.log.committed_id == 0, "readers see nothing of it yet"
    order: list[int] = []
    third.add_waiter(lambda: order.append(2))
    first.add_waiter(lambda: order.append(1))
    rig.loop.drain()
    assert order == [1, 2]
    assert rig.syncs() == 2


def test_a_loop_pass_has_one_time_and_the_next_one_its_own() -> None:
    rig = LogRig()
    first_ns = rig.clock.wall_ns()
    rig.append(b"a")
    rig.clock.advance(1)
    rig.append(b"b")
    rig.loop.drain()
    rig.publish(b"c")
    run, start, _ = rig.log.read(0, 3, 1000)
    assert run is not None
    assert list(run.ts_ns)[start : start + 3] == [first_ns, first_ns, rig.clock.wall_ns()]


def test_rolling_splits_a_run_and_seals_what_is_full() -> None:
    rig = LogRig(segment_bytes=300)
    parts = rig.publish(*[bytes([n]) * 70 for n in range(10)])
    assert [(part.first_id, part.count) for part in parts] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert len({id(part.commit) for part in parts}) == 4, "a commit writes one segment"
    assert [segment.base_id for segment in rig.log.segments] == [0, 3, 6, 9]
    assert [segment.sealed for segment in rig.log.segments] == [True, True, True, False]
    assert rig.sealed == 3
    names = [path for path in rig.disk.snapshot() if path.endswith(".idx")]
    assert len(names) == 3
    assert rig.payloads() == [bytes([n]) * 70 for n in range(10)]
    rig.reopen(power_cut=True)
    assert rig.payloads() == [bytes([n]) * 70 for n in range(10)]


def test_a_record_larger_than_a_segment_has_one_of_its_own() -> None:
    rig = LogRig(segment_bytes=100)
    rig.publish(b"a", b"x" * 1000, b"b")
    assert [segment.base_id for segment in rig.log.segments] == [0, 1, 2]


@pytest.mark.parametrize("op", ["pwrite", "sync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_cuts_and_goes_on(op: str, code: int) -> None:
    rig = LogRig()
    rig.publish(b"before", key=b"k0")
    rig.disk.fail(op, 1, code, path=".log")
    refused = rig.append(b"refused", key=b"k1")[0].commit
    rig.loop.step()
    behind = rig.append(b"behind", key=b"k2")[0].commit
    rig.loop.drain()
    for commit in (refused, behind):
        assert isinstance(commit.error, DiskFull)
    assert rig.failed_keys == [b"k1", b"k2"], "they leave the dedupe table"
    assert rig.committer.failed is None
    parts = rig.publish(b"after")
    assert (parts[0].first_id, parts[0].commit.state) == (1, CommitState.DONE), "no id is skipped"
    rig.reopen()
    assert rig.payloads() == [b"before", b"after"], "a refused publish never appears later"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_torn_write_takes_nothing_with_it(code: int) -> None:
    """Later records are written where the torn write began, and recovery finds them."""
    rig = LogRig()
    rig.publish(b"before")
    end = rig.log.segments[-1].end
    rig.disk.short_write(1, 10, path=".log")
    rig.disk.fail("pwrite", 2, code, path=".log")
    assert rig.publish(b"torn" * 10)[0].commit.state is CommitState.FAILED
    assert rig.disk.file_size(f"{PATH}/{ACTIVE}") == end, "its bytes are cut off"
    if code == errno.EIO:
        rig.reopen()  # closed for publishing until then
    for payload in (b"after", b"and after"):
        assert rig.publish(payload)[0].commit.state is CommitState.DONE
    rig.reopen(power_cut=True)
    assert (rig.recovered.torn_bytes, rig.recovered.lost) == (0, [])
    assert rig.payloads() == [b"before", b"after", b"and after"]


def test_a_full_disk_is_told_once_and_once_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Found: a log line per refused batch filled the pipe of a reader that did not read, and the broker blocked."""
    rig = LogRig()
    rig.publish(b"before")
    with caplog.at_level(logging.WARNING):
        rig.disk.fail("pwrite", 1, errno.ENOSPC, sticky=True, path=".log")
        for _ in range(3):
            rig.publish(b"refused")
        rig.disk.heal()
        rig.publish(b"after")
        rig.publish(b"and on")
    assert caplog.text.count("no space left on the disk") == 1
    assert caplog.text.count("publishing resumes") == 1


@pytest.mark.parametrize("op", ["open", "sync_dir"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_no_descriptor_for_a_segment_passes(op: str, code: int) -> None:
    """Found: when many connections had taken all descriptors, topics were closed for publishing until a restart, though nothing
    had been written to them."""
    rig = LogRig(segment_bytes=100)
    rig.publish(b"x" * 50)
    fault = rig.disk.fail(op, 1, code)
    error = rig.publish(b"y" * 50)[0].commit.error
    assert fault.fired
    assert isinstance(error, DiskFull)
    assert "descriptor" in str(error)
    assert rig.publish(b"z" * 50)[0].commit.state is CommitState.DONE
    rig.reopen(power_cut=True)
    assert rig.payloads() == [b"x" * 50, b"z" * 50]


def test_a_full_disk_at_a_roll_leaves_an_empty_segment_that_serves() -> None:
    rig = LogRig(segment_bytes=100)
    rig.publish(b"x" * 50)
    rig.disk.fail("pwrite", 1, errno.ENOSPC, path=segment_name(1))
    assert isinstance(rig.publish(b"y" * 50)[0].commit.error, DiskFull)
    assert [segment.base_id for segment in rig.log.segments] == [0, 1]
    assert rig.publish(b"z" * 50)[0].first_id == 1
    rig.reopen(power_cut=True)
    assert rig.payloads() == [b"x" * 50, b"z" * 50]


@pytest.mark.parametrize(
    ("op", "code"), [("pwrite", errno.EIO), ("sync", errno.EIO), ("pwrite", errno.EROFS), ("sync", errno.EBADF)]
)
def test_any_other_failure_closes_the_log_for_publishing(op: str, code: int, caplog: pytest.LogCaptureFixture) -> None:
    rig = LogRig()
    rig.publish(b"before")
    rig.disk.fail(op, 1, code, path=".log")
    with caplog.at_level(logging.CRITICAL):
        lost = rig.append(b"lost")[0].commit
        rig.loop.step()
        behind = rig.append(b"behind")[0].commit
        rig.loop.drain()
    assert isinstance(lost.error, StorageFailed)
    assert isinstance(behind.error, StorageFailed)
    assert "publishing stays refused until a restart" in caplog.text
    count = rig.syncs()
    with pytest.raises(StorageFailed):
        rig.append(b"more")
    rig.loop.advance(10)
    assert rig.syncs() == count, "a failed fsync is never tried again"
    assert rig.payloads() == [b"before"], "reading goes on"
    rig.reopen(power_cut=True)
    assert rig.payloads()[0] == b"before"
    assert rig.publish(b"again")[0].commit.state is CommitState.DONE, "a restart opens it again"


@pytest.mark.parametrize("op", ["truncate", "sync"])
def test_a_cut_that_fails_closes_the_log(op: str) -> None:
    rig = LogRig()
    rig.publish(b"before")
    rig.disk.fail("pwrite", 1, errno.ENOSPC, path=".log")
    rig.disk.fail(op, 1, errno.EIO, path=".log")
    assert isinstance(rig.publish(b"x")[0].commit.error, StorageFailed)
    assert rig.committer.failed is not None


def test_a_failed_seal_closes_the_log() -> None:
    rig = LogRig(segment_bytes=100)
    rig.publish(b"x" * 50)
    rig.disk.fail("truncate", 1, errno.EIO, path=ACTIVE)
    assert isinstance(rig.publish(b"y" * 50)[0].commit.error, StorageFailed)
    assert rig.payloads() == [b"x" * 50]


def test_a_bug_on_the_sync_thread_closes_the_log_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LogRig()
    rig.publish(b"x")
    commit = rig.append(b"y")[0].commit
    rig.loop.step()
    rig.loop._jobs[:] = [(lambda: None, done) for _, done in rig.loop._jobs]  # it did not get done
    rig.loop.drain()
    assert isinstance(commit.error, StorageFailed)


@pytest.mark.parametrize("where", ["close", "append_to", "add"])
def test_a_bug_or_no_memory_on_the_loop_closes_the_log_and_answers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: after an exception at the start of a commit its batch seemed to be under way for ever, and no publish was answered
    any more."""
    rig = LogRig()
    rig.publish(b"a")
    commits = [rig.append(b"b")[0].commit]

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Batch, where, fail)
        if where == "add":
            with pytest.raises(MemoryError):
                rig.append(b"c")
        rig.loop.drain()
    with pytest.raises(StorageFailed):
        rig.append(b"d")
    assert [commit.state for commit in commits] == [CommitState.FAILED]
    assert isinstance(commits[0].error, StorageFailed)
    assert rig.committer.idle
    rig.loop.drain()
    assert rig.payloads() == [b"a"]


def test_what_is_at_the_disk_when_the_log_is_closed_is_committed() -> None:
    rig = LogRig()
    first = rig.append(b"a")[0].commit
    rig.loop.step()  # the batch is with the sync thread now
    second = rig.append(b"b")[0].commit
    rig.committer.poison("appending to it failed")
    rig.loop.drain()
    assert first.state is CommitState.DONE
    assert isinstance(second.error, StorageFailed)
    assert rig.payloads() == [b"a"]


def test_free_space_below_the_mark_refuses_and_twice_the_mark_resumes() -> None:
    rig = LogRig(min_free_bytes=100_000)
    rig.disk.capacity_bytes = 150_000
    rig.publish(b"x")
    rig.disk.capacity_bytes = 90_000
    assert isinstance(rig.publish(b"y")[0].commit.error, DiskLow)
    rig.disk.capacity_bytes = 190_000
    rig.clock.advance(0.2)
    with pytest.raises(DiskLow):
        rig.append(b"not yet twice the mark")
    rig.disk.capacity_bytes = 1_000_000
    with pytest.raises(DiskLow):
        rig.append(b"looked at every 100 ms")
    rig.clock.advance(0.11)
    assert rig.publish(b"z")[0].commit.state is CommitState.DONE
    assert rig.payloads() == [b"x", b"z"]


def test_the_commit_of_an_id_that_is_on_its_way() -> None:
    rig = LogRig()
    rig.publish(b"a")
    running = rig.append(b"b")[0].commit
    rig.loop.step()
    waiting = rig.append(b"c")[0].commit
    assert rig.committer.commit_of(0) is COMMITTED
    assert rig.committer.commit_of(1) is running
    assert rig.committer.commit_of(2) is waiting


TEN_YEARS_S = 3650 * 86400


def times(rig: LogRig) -> list[int]:
    """Return the times in seconds, from now on."""
    found, at = [], 0
    while at < rig.log.committed_id:
        run, row, after = rig.log.read(at, 100)
        assert run is not None
        found += [round((ts_ns - rig.clock.wall_ns()) / 1e9) for ts_ns in run.ts_ns[row : row + after - at]]
        at = after
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_was_ten_years_ahead_does_not_pin_the_times(restart: bool, caplog: pytest.LogCaptureFixture) -> None:
    rig = LogRig()
    rig.publish(b"before")
    rig.clock.jump_wall(TEN_YEARS_S)
    rig.publish(b"ahead")
    rig.clock.jump_wall(-TEN_YEARS_S)
    if restart:
        rig.reopen()
        assert "its newest record is 3650.0 days ahead of the clock: one of the two is wrong" in caplog.text
    rig.publish(b"after")
    rig.publish(b"later")
    assert times(rig) == [0, TEN_YEARS_S, 0, 0]
    assert [segment.base_id for segment in rig.log.segments] == [0, 2], "inside a segment times never fall"
    assert caplog.text.count("times go back, in a new segment") == 1
    present = rig.clock.wall_ns()
    assert [rig.log.id_at_time(present + s * 10**9, present) for s in (-1, 0, 1, TEN_YEARS_S)] == [0, 0, 4, 4]
    rig.reopen()
    rig.publish(b"last")
    assert times(rig)[-1] == 0
    assert len(rig.log.segments) == 2


def test_a_clock_that_is_set_forth_is_followed_and_back_by_a_day_is_not() -> None:
    rig = LogRig()
    rig.publish(b"a")
    rig.clock.jump_wall(86400)
    rig.publish(b"b")
    rig.clock.jump_wall(-86400)
    rig.publish(b"c")
    assert times(rig) == [0, 86400, 86400]
    assert len(rig.log.segments) == 1


def test_times_go_back_in_a_new_segment_also_when_the_disk_refused_that_one() -> None:
    rig = LogRig()
    rig.clock.jump_wall(TEN_YEARS_S)
    rig.publish(b"ahead")
    rig.clock.jump_wall(-TEN_YEARS_S)
    for nth in (1, 2, 3):
        rig.disk.fail("open", nth, errno.ENOSPC, path=segment_name(1))
        running = rig.append(b"refused")
        rig.append(b"refused, too")
        rig.loop.drain()
        rig.disk.heal()
        if running[0].commit.error is None:
            break
    rig.publish(b"after")
    assert [segment.base_id for segment in rig.log.segments] == [0, 1]
    assert times(rig)[:2] == [TEN_YEARS_S, 0]


def test_times_do_not_run_backwards_in_a_log() -> None:
    rig = LogRig()
    rig.publish(b"a")
    rig.clock.jump_wall(-3600)
    rig.publish(b"b")
    rig.reopen()
    rig.publish(b"c")
    run, _, _ = rig.log.read(0, 10)
    assert run is not None
    assert list(run.ts_ns) == sorted(run.ts_ns)


def test_fsync_never_syncs_nothing_but_names_and_the_beginning_of_a_segment() -> None:
    rig = LogRig(fsync="never")
    for _ in range(5):
        rig.publish(b"x" * 50)
    assert rig.syncs() == 1
    rig.reopen()
    assert len(rig.payloads()) == 5, "a kill leaves the page cache"


def test_closing_refuses_and_lets_the_rest_commit() -> None:
    rig = LogRig()
    commit = rig.append(b"a")[0].commit
    rig.committer.refuse(ShuttingDown("going"))
    with pytest.raises(ShuttingDown):
        rig.append(b"b")
    with pytest.raises(ShuttingDown):
        rig.committer.begin_segment()
    told: list[bool] = []
    rig.committer.when_idle(lambda: told.append(True))
    assert not told
    rig.loop.drain()
    assert commit.state is CommitState.DONE
    assert told == [True]
    rig.committer.when_idle(lambda: told.append(True))
    assert told == [True, True], "at once when idle"


def test_a_waiter_of_what_is_resolved_is_told_at_once() -> None:
    commit = Commit()
    told: list[int] = []
    commit.add_waiter(lambda: told.append(1))
    assert not told
    commit.resolve(None)
    commit.add_waiter(lambda: told.append(2))
    assert told == [1, 2]


def test_an_end_that_cannot_be_cut_leaves_zeros_that_recovery_knows(caplog: pytest.LogCaptureFixture) -> None:
    rig = LogRig(segment_bytes=4 << 20)
    for _ in range(100):
        rig.publish(b"y" * 1000)
    rig.disk.fail("truncate", 1, errno.EIO)
    rig.committer.finish()
    assert "not closed neatly" in caplog.text
    rig.reopen()
    assert len(rig.payloads()) == 100


def test_a_sidecar_that_cannot_be_written_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    rig = LogRig(segment_bytes=100)
    rig.disk.fail("open", 1, errno.ENOSPC, path=".idx")
    rig.publish(b"x" * 50, b"y" * 50)
    assert "sidecar" in caplog.text
    rig.reopen()
    assert rig.payloads() == [b"x" * 50, b"y" * 50]
