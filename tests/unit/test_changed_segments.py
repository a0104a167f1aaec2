"""A segment that another program changed is not read before it is examined, and examined later if that fails now. ADR 0140."""

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.changed_segments import look, lost_by_all, overwrite, rename_over, topics_of_one_shape
from toymq_py import directory_check
from toymq_py.disk_errors import BeingExamined
from toymq_py.storage import log as log_module
from toymq_py.storage.segment import segment_name


@pytest.mark.parametrize("change", [overwrite, rename_over])
@pytest.mark.parametrize("went_on", [True, False], ids=["reader-goes-on", "reader-begins"])
def test_nothing_is_read_of_a_changed_segment_until_it_is_judged(
    change: Callable[[BrokerRig, str, bytes], None], went_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the periodic check had noted the file's new timestamp already, but the examination of a gigabyte takes seconds."""
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    log.tail.clear()
    if went_on:
        log.read_frames(3, 1, 1 << 20)
    change(rig, f"{DIR}/topics/public/{segment_name(3)}", rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(3)}"))
    held: list[tuple[Callable[[], None], Callable[[], None]]] = []
    monkeypatch.setattr(log, "run_behind", lambda job, done: held.append((job, done)))
    look(rig)
    for read in (lambda: log.read(4, 2), lambda: log.read_frames(4, 2, 1 << 20), lambda: log.read(3, 1)):
        with pytest.raises(BeingExamined):
            read()
    ((job, done),) = held
    job()
    done()
    assert log.read(4, 2) == (None, 0, 6)


def test_a_segment_whose_time_is_set_again_and_again_is_served() -> None:
    """``touch`` does this. Found: the fourth time the records counted as unreadable until the restart."""
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    path = f"{DIR}/topics/public/{segment_name(3)}"
    for _ in range(6):
        overwrite(rig, path, rig.disk.read_file(path))
        log.tail.clear()
        with pytest.raises(BeingExamined):
            log.read(3, 3)
        rig.loop.drain()
        run, row, next_id = log.read(3, 3)
        assert (run is not None, row, next_id) == (True, 0, 6)
    assert (log.unreadable, log.lost, rig.broker.topics["public"].state) == ([], [], "ok")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_a_changed_segment_that_cannot_be_judged_now_is_not_read_and_judged_later(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the segment was taken for this log's, and read, until the restart."""
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    path = f"{DIR}/topics/public/{segment_name(3)}"
    log.tail.clear()
    log.read_frames(3, 1, 1 << 20)
    rename_over(rig, path, rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(3)}"))
    judged = log_module.judge_anew

    def fails(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(log_module, "judge_anew", fails)
    look(rig)
    with pytest.raises(OSError, match=os.strerror(code)):
        log.read_frames(4, 1, 1 << 20)
    assert log.read_each([4], 1 << 20) is None
    look(rig)
    monkeypatch.setattr(log_module, "judge_anew", judged)
    look(rig)
    assert lost_by_all(rig, "public") == (3, 3)
    assert log.read_frames(4, 1, 1 << 20)[1:] == (1, 7)


def test_a_segment_that_was_away_is_served_when_it_is_back() -> None:
    """Found: records that a reader had asked for meanwhile stayed unreadable until the restart."""
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    path = f"{DIR}/topics/public/{segment_name(3)}"
    rig.disk.rename(path, f"{DIR}/away")
    log.close()
    log.tail.clear()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", "early", start="earliest"))] == [0, 1, 2, 6, 7, 8, 9]
    look(rig)
    assert log.unreadable == [(3, 5)]
    rig.disk.rename(f"{DIR}/away", path)
    look(rig)
    assert (log.unreadable, rig.broker.topics["public"].state) == ([], "ok")
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", "late", start="earliest"))] == list(range(10))


def test_few_of_many_changed_segments_are_scanned_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: all were scanned by the threads that commit: after a ``touch`` of ten gigabytes nothing was published for
    minutes."""
    rig = topics_of_one_shape()
    for n in range(10):
        rig.broker.topics["public"].committer.begin_segment()
        rig.loop.drain()
        rig.publish("public", b"%d" % n)
    look(rig)
    log = rig.broker.topics["public"].log
    changed = [segment.path for segment in log.segments[:-1]]
    for path in changed:
        overwrite(rig, path, rig.disk.read_file(path))
    held: list[tuple[Callable[[], None], Callable[[], None]]] = []
    monkeypatch.setattr(log, "run_behind", lambda job, done: held.append((job, done)))
    look(rig)
    judged = most = 0
    while held:
        most = max(most, len(held))
        job, done = held.pop(0)
        job()
        done()
        judged += 1
    assert (judged, most) == (len(changed), directory_check.JUDGED_AT_ONCE)
    log.tail.clear()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", start="earliest"))] == list(range(20))


def test_a_reader_does_not_wait_for_its_segments_turn() -> None:
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    for base_id in (0, 3):
        path = f"{DIR}/topics/public/{segment_name(base_id)}"
        overwrite(rig, path, rig.disk.read_file(path))
        log.examinations.note_change(base_id)
    log.tail.clear()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", start="earliest"))] == list(range(10))


def fails_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the next call of that function of ``directory_check`` fail for lack of a descriptor."""
    real = getattr(directory_check, name)

    def call(*arguments: Any) -> Any:
        monkeypatch.setattr(directory_check, name, real)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(directory_check, name, call)


def test_a_segment_just_sealed_is_compared_again_when_there_was_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the segment was taken for this log's."""
    rig = topics_of_one_shape()
    rig.broker.topics["public"].committer.begin_segment()
    rig.loop.drain()
    overwrite(rig, f"{DIR}/topics/public/{segment_name(6)}", rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(6)}"))
    path = f"{DIR}/topics/public/{segment_name(6)}"
    opened = rig.disk.open

    def fails(at: str, **how: Any) -> Any:
        if at == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), at)
        return opened(at, **how)

    monkeypatch.setattr(rig.disk, "open", fails)
    look(rig)
    monkeypatch.setattr(rig.disk, "open", opened)
    look(rig)
    assert lost_by_all(rig, "public") == (4, 4)


def test_an_active_segment_is_compared_again_when_there_was_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the file's new timestamp was noted as if it had been compared."""
    rig = topics_of_one_shape()
    overwrite(rig, f"{DIR}/topics/public/{segment_name(6)}", rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(6)}"))
    fails_once(monkeypatch, "head_of")
    look(rig)
    look(rig)
    assert rig.broker.topics["public"].state == "failed"
    assert lost_by_all(rig, "public") == (4, 4)


def test_a_segment_that_cannot_be_looked_at_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = topics_of_one_shape()
    first, second = (f"{DIR}/topics/public/{segment_name(base_id)}" for base_id in (0, 3))
    rename_over(rig, second, rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(3)}"))
    stamp = rig.disk.stamp

    def fails(path: str) -> Any:
        if path == first:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return stamp(path)

    monkeypatch.setattr(rig.disk, "stamp", fails)
    look(rig)
    assert lost_by_all(rig, "public") == (3, 3)
