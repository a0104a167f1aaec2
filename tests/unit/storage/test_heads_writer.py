"""What is owed to ``segments.json`` is written: behind an earlier write, at a look, at a clean stop, at a start. ADR 0048."""

import errno
import random

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.changed_segments import look, lost_by_all, overwrite, topics_of_one_shape
from tests.support.log_rig import LogRig
from tests.support.logs import PATH
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import FILE_NAME, list_segment_files, store


class FirstComeFirstServed(random.Random):
    """One sync thread, which takes the jobs in their order: the next commit before the heads of the one before."""

    def randrange(self, *_: object) -> int:  # type: ignore[override]
        return 0


def known(rig: BrokerRig | LogRig, path: str = f"{DIR}/topics/a") -> list[int]:
    """The segments whose heads ``segments.json`` has."""
    return sorted(list_segment_files(rig.disk, path).heads)


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_a_segment_that_begins_while_the_heads_are_written_is_entered_behind_it(
    fsync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came with the next commit. Without one, another topic's file was served in its place after a clean stop."""
    rig = LogRig(fsync=fsync)
    monkeypatch.setattr(rig.loop, "_rng", FirstComeFirstServed())
    renamed: list[str] = []
    rig.append(*[b"x" * 3000] * 2)  # each of them begins a segment
    while rig.loop.step():
        renamed = [name for op, name, _ in rig.disk.trace if op == "rename" and name.endswith(f"{FILE_NAME}.tmp")]
        written = [name for op, name, _ in rig.disk.trace if op == "open" and name.endswith(f"{FILE_NAME}.tmp")]
        assert len(written) - len(renamed) <= 1, "two writers of one temp file"
    assert renamed
    assert known(rig, PATH) == [0, 1]
    assert rig.committer.idle, "a stop waits for it"


def rig_that_owes(fsync: str = "always") -> BrokerRig:
    """A broker whose disk refused the heads of topic a, of which the client knows nothing."""
    rig = BrokerRig(fsync=fsync)
    fault = rig.disk.fail("open", 1, errno.EIO, sticky=True, path=f"{FILE_NAME}.tmp")
    assert rig.publish("a", b"x")[0].error is None
    rig.advance(1)
    assert fault.fired
    assert known(rig) == []
    return rig


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_write_that_failed_is_made_up_for_at_a_look(fsync: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_that_owes(fsync)
    for _ in range(3):
        look(rig)
    assert caplog.text.count(f"{FILE_NAME} not written") == 1, "not a line every two seconds"
    rig.disk.heal()
    look(rig)
    assert known(rig) == [0]
    rig.disk.trace.clear()
    look(rig)
    assert not [name for op, name, _ in rig.disk.trace if op == "rename" and FILE_NAME in name], "once"


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_clean_stop_writes_what_is_owed(fsync: str) -> None:
    rig = rig_that_owes(fsync)
    rig.disk.heal()
    rig.broker.close()
    assert known(rig) == [0]


def test_a_clean_stop_before_the_first_timed_sync_writes_it_too() -> None:
    rig = BrokerRig(fsync="interval")
    rig.publish("a", b"x")
    assert known(rig) == [], "not yet synced"
    rig.broker.close()
    assert known(rig) == [0]


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_start_enters_what_a_kill_left_unknown(fsync: str) -> None:
    """It waited for the next publish, over any number of starts and stops."""
    rig = rig_that_owes(fsync)
    rig.reopen()
    assert known(rig) == [], "what blocks stays out of the start"
    rig.loop.drain()
    assert known(rig) == [0]
    rig.disk.trace.clear()
    rig.reopen()
    rig.loop.drain()
    assert not [name for op, name, _ in rig.disk.trace if op == "rename" and FILE_NAME in name], "nothing is owed"


def test_a_file_that_cannot_be_trusted_is_left_to_its_owner_until_a_publish() -> None:
    """It may be another topic's, which tells whose segments those are."""
    rig = topics_of_one_shape()
    theirs = rig.disk.read_file(f"{DIR}/topics/payroll/{FILE_NAME}")
    overwrite(rig, path := f"{DIR}/topics/public/{FILE_NAME}", theirs)
    rig.reopen()
    look(rig)
    rig.broker.close()
    assert rig.disk.read_file(path) == theirs
    rig.restart()
    rig.publish("public", b"x")
    assert known(rig, f"{DIR}/topics/public") == [0, 3, 6]


def test_a_segment_whose_first_record_is_damaged_has_no_head_and_is_not_tried_again() -> None:
    rig = rig_that_owes()
    file = rig.disk.open(f"{DIR}/topics/a/{segment_name(0)}")
    file.pwrite(b"?", 30)
    rig.disk.heal()
    for _ in range(2):
        look(rig)
    rig.disk.trace.clear()
    look(rig)
    assert not [name for op, name, _ in rig.disk.trace if op == "rename" and FILE_NAME in name]


def test_after_a_start_another_topics_file_is_found_without_a_publish() -> None:
    """As the heads of the newest segments were never entered, 77 foreign records were served with state ``ok``."""
    rig = topics_of_one_shape()
    for topic in ("public", "payroll"):
        rig.disk.unlink(f"{DIR}/topics/{topic}/{FILE_NAME}")
    rig.reopen()
    rig.loop.drain()
    rig.broker.close()
    overwrite(rig, f"{DIR}/topics/public/{segment_name(6)}",
              rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(6)}"))  # fmt: skip
    rig.restart()
    assert rig.broker.topics["public"].state == "degraded"
    assert lost_by_all(rig, "public")[0] >= 1


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "look"])
@pytest.mark.parametrize("change", ["another", "removed"])
@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_file_that_another_program_changed_is_written_anew(
    change: str, fsync: str, stops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At the next look, or else at the stop. The next start believed it, and refused segments that publishes had OK for."""
    rig = BrokerRig(fsync=fsync)
    rig.publish("a", b"x")
    rig.advance(1)
    look(rig)
    path = f"{DIR}/topics/a/{FILE_NAME}"
    own = rig.disk.read_file(path)
    rig.clock.advance(1)
    overwrite(rig, path, own)
    look(rig)
    assert caplog.text == "", "the same content with another time is no change"
    if change == "another":
        store(rig.disk, f"{DIR}/topics/a", {0: (1, 2)}, "0" * 16)
    else:
        rig.disk.unlink(path)
    if stops:
        rig.broker.close()
    else:
        look(rig)
        look(rig)
    assert rig.disk.read_file(path) == own
    assert caplog.text.count(f"{FILE_NAME} was changed or removed below the running broker") == 1


def test_a_changed_file_is_said_once_and_stays_where_publishing_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("a", b"x")
    rig.broker.topics["a"].committer.poison("a test")
    store(rig.disk, f"{DIR}/topics/a", {0: (1, 2)}, "0" * 16)
    theirs = rig.disk.read_file(f"{DIR}/topics/a/{FILE_NAME}")
    for _ in range(3):
        look(rig)
    assert caplog.text.count(f"{FILE_NAME} was changed or removed") == 1
    rig.broker.close()
    assert rig.disk.read_file(f"{DIR}/topics/a/{FILE_NAME}") == theirs
