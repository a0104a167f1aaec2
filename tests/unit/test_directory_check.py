"""The data directory, or a topic's, is removed or replaced while the broker runs: no further command gets OK. ADR 0049."""

from collections.abc import Callable

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.changed_segments import look, lost_by_all, overwrite, rename_over, topics_of_one_shape
from toymq_py import directory_check
from toymq_py.disk_errors import BeingExamined
from toymq_py.errors import StorageFailed
from toymq_py.storage.segment import segment_name


def remove_tree(rig: BrokerRig, path: str) -> None:
    disk = rig.disk
    for name in disk.listdir(path):
        below = f"{path}/{name}"
        if disk.is_dir(below):
            remove_tree(rig, below)
        else:
            disk.unlink(below)
    disk.rmdir(path)


@pytest.mark.parametrize("path", [DIR, f"{DIR}/LOCK", f"{DIR}/topics"])
@pytest.mark.parametrize("anew", [False, True])
def test_a_directory_that_is_gone_ends_the_broker(path: str, anew: bool, caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("a", b"x")
    assert look(rig) == []
    if path.endswith("LOCK"):
        rig.disk.unlink(path)
        if anew:
            rig.disk.open(path, create=True).close()
    else:
        remove_tree(rig, path)
        if anew:
            rig.disk.mkdir(path)
    (told,) = look(rig)
    first = f"{DIR}/LOCK" if path == DIR and anew else path
    assert told.startswith((path, first))
    assert "below the running broker" in told
    error = rig.publish("a", b"y")[0].error
    assert isinstance(error, StorageFailed), "no OK for what would not be kept"
    assert str(error).endswith(": publishing to a is refused, and the broker ends")
    assert caplog.messages == [], "each topic said that it goes on until a restart"
    with pytest.raises(StorageFailed):
        rig.publish("new", b"y")
    trace = len(rig.disk.trace)
    rig.broker.topics["a"].flush_offsets(lambda error: None)
    rig.advance(10)
    assert not [op for op, _, _ in rig.disk.trace[trace:] if op in ("open", "pwrite", "rename", "mkdir")], "nothing is written"
    assert look(rig) == [], "it is said once"


def test_a_new_segment_is_not_begun_in_a_directory_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig()
    rig.publish("a", b"x" * 3000)
    rig.disk.unlink(f"{DIR}/LOCK")
    outcome = rig.publish("a", b"x" * 3000)[0]
    assert outcome.commit.error is not None
    assert "LOCK was removed below the running broker" in str(outcome.commit.error)
    assert str(outcome.commit.error).endswith("is refused, and the broker ends")
    assert caplog.messages == []
    assert not rig.disk.exists(f"{DIR}/topics/a/{segment_name(1)}")


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("path", [f"{DIR}/topics/a", f"{DIR}/topics/a/{segment_name(0)}"])
def test_a_topic_whose_file_is_gone_is_closed_and_the_others_go_on(path: str, anew: bool) -> None:
    rig = BrokerRig()
    rig.publish("a", b"x")
    rig.publish("b", b"x")
    if rig.disk.is_dir(path):
        remove_tree(rig, path)
        if anew:
            rig.disk.mkdir(path)
    else:
        rig.disk.unlink(path)
        if anew:
            rig.disk.open(path, create=True).close()
    assert look(rig) == []
    assert rig.broker.topics["a"].state == "failed"
    error = rig.publish("a", b"y")[0].error
    assert "below the running broker" in str(error)
    assert rig.publish("b", b"y")[0].error is None


@pytest.mark.parametrize("anew", [False, True], ids=["moved", "another"])
@pytest.mark.parametrize("path", [f"{DIR}/topics/a", f"{DIR}/topics"])
def test_neither_an_ack_nor_a_setting_makes_a_directory_that_was_moved_away(path: str, anew: bool) -> None:
    """An ack made the topic's directory with offsets alone: the next start began an empty topic in it."""
    rig = BrokerRig()
    rig.publish("a", b"x", b"y")
    subscription = rig.subscribe("a")
    assert len(rig.take(subscription)) == 2
    rig.disk.rename(path, f"{DIR}/away")
    if anew and path.endswith("topics"):
        rig.disk.mkdir(path)
    rig.ack("a", 0, 1, flush=False)
    errors: list[object] = []
    rig.broker.topic("a").flush_offsets(errors.append)
    rig.loop.advance(0)
    assert isinstance(errors[0], OSError)
    assert rig.change("configure", "a", max_attempts="5") == "STORAGE"
    assert not rig.disk.exists(f"{DIR}/topics/a")
    told = look(rig)
    assert bool(told) == path.endswith("topics")
    assert told or rig.broker.topics["a"].state == "failed"


def test_what_goes_on_purpose_is_no_alarm() -> None:
    rig = BrokerRig()
    for topic in ("deleted", "purged", "rolled"):
        rig.publish(topic, b"x")
    rig.broker.check_directory()  # the files are known; the look itself is on its way
    rig.broker.delete("deleted", lambda count, error: None)
    rig.broker.topics["purged"].purge(lambda count, error: None)
    rig.broker.topics["rolled"].committer.begin_segment()
    rig.loop.drain()
    assert look(rig) == []
    assert {name: topic.state for name, topic in rig.broker.topics.items()} == {"purged": "ok", "rolled": "ok"}
    rig.broker.check_directory()
    rig.loop.drain()
    assert all(rig.publish(topic, b"y")[0].error is None for topic in rig.broker.topics)


def rig_with_sealed(*topics: str) -> BrokerRig:
    """Return a broker whose topics have the segments 0, 1 and 2; the last one is active."""
    rig = BrokerRig()
    for topic in topics:
        for n in range(3):
            if n:
                rig.broker.topics[topic].committer.begin_segment()
                rig.loop.drain()
            rig.publish(topic, b"%d" % n)
    return rig


@pytest.mark.parametrize("msg_id", [0, 1])
def test_a_sealed_segment_that_is_gone_degrades_its_topic(msg_id: int, caplog: pytest.LogCaptureFixture) -> None:
    """Found: the loss of the oldest segment was never noticed, and that of others only when they were read after their file had
    been closed."""
    rig = rig_with_sealed("a", "b")
    path = f"{DIR}/topics/a/{segment_name(msg_id)}"
    there = rig.disk.read_file(path)
    rig.disk.unlink(path)
    for _ in range(2):
        assert look(rig) == []
    assert {name: topic.state for name, topic in rig.broker.topics.items()} == {"a": "degraded", "b": "ok"}
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line == f"topic a: {path} was removed below the running broker: record {msg_id}"
    assert rig.publish("a", b"y")[0].error is None, "what is published is kept"
    file = rig.disk.open(path, create=True)
    file.pwrite(there, 0)
    file.close()
    look(rig)
    assert rig.broker.topics["a"].state == "ok", "it was brought back"


def test_sealed_segments_that_go_on_purpose_are_no_alarm() -> None:
    rig = rig_with_sealed("purged", "retained", "deleted")
    rig.broker.check_directory()  # the files are known; the look itself is on its way
    rig.broker.topics["purged"].purge(lambda count, error: None)
    rig.broker.delete("deleted", lambda count, error: None)
    rig.loop.drain()
    assert look(rig) == []
    assert {name: topic.state for name, topic in rig.broker.topics.items()} == {"purged": "ok", "retained": "ok"}


def test_of_many_topics_some_are_listed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_check, "LISTED_MAX", 2)
    rig = rig_with_sealed(*"abcde")
    for topic in "abcde":
        rig.disk.unlink(f"{DIR}/topics/{topic}/{segment_name(0)}")
    seen = []
    for _ in range(3):
        look(rig)
        seen.append("".join(name for name, topic in rig.broker.topics.items() if topic.state == "degraded"))
    assert seen == ["ab", "abcd", "abcde"]


@pytest.mark.parametrize("change", [overwrite, rename_over])
@pytest.mark.parametrize("base_id", [0, 3])
@pytest.mark.parametrize("opened", [True, False], ids=["open", "closed"])
def test_another_topics_segment_over_a_sealed_one_is_not_served(
    change: Callable[[BrokerRig, str, bytes], None], base_id: int, opened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: it was served until the restart, and DESCRIBE reported no loss where ``verify`` did."""
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    log.tail.clear()
    if opened:
        log.read(base_id, 1)
        log.tail.clear()
    path = f"{DIR}/topics/public/{segment_name(base_id)}"
    theirs = rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(base_id)}")
    assert len(theirs) == len(rig.disk.read_file(path)), "not even its size tells"
    change(rig, path, theirs)
    assert look(rig) == []
    assert lost_by_all(rig, "public") == (3, 3)
    assert rig.broker.topics["public"].state == "degraded"
    assert "is a segment of another log" in caplog.text
    kept = [n for n in range(10) if n not in range(base_id, base_id + 3)]
    assert [(msg_id, payload[:1]) for msg_id, _, payload, _ in rig.records("public")] == [(n, b"o") for n in kept]
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", start="earliest"))] == kept
    assert rig.publish("public", b"on")[0].error is None
    rig.purge("public")
    assert rig.disk.read_file(path) == theirs, "it is not ours to remove"
    assert lost_by_all(rig, "public") == (0, 0), "what is missing is not retained any more"


@pytest.mark.parametrize("change", [overwrite, rename_over])
def test_a_reader_comes_before_the_look_and_gets_nothing_of_another_topic(
    change: Callable[[BrokerRig, str, bytes], None],
) -> None:
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    log.read(3, 1)
    log.close()  # as when others take its descriptor
    change(rig, f"{DIR}/topics/public/{segment_name(3)}", rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(3)}"))
    log.tail.clear()
    taken = rig.take(rig.subscribe("public", start="earliest"))
    assert [msg_id for msg_id, _ in taken] == [0, 1, 2, 6, 7, 8, 9]
    assert lost_by_all(rig, "public") == (3, 3)


@pytest.mark.parametrize("change", [overwrite, rename_over])
def test_a_copy_of_ours_over_a_sealed_segment_is_served(change: Callable[[BrokerRig, str, bytes], None]) -> None:
    """A restore of one file, or rsync, makes such a copy."""
    rig = topics_of_one_shape()
    path = f"{DIR}/topics/public/{segment_name(3)}"
    change(rig, path, rig.disk.read_file(path))
    rig.broker.topics["public"].log.tail.clear()
    look(rig)
    assert lost_by_all(rig, "public") == (0, 0)
    assert rig.broker.topics["public"].state == "ok"
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", start="earliest"))] == list(range(10))


@pytest.mark.parametrize("change", [overwrite, rename_over])
def test_damage_that_another_program_does_to_a_sealed_segment_is_counted_at_once(
    change: Callable[[BrokerRig, str, bytes], None],
) -> None:
    rig = topics_of_one_shape()
    path = f"{DIR}/topics/public/{segment_name(3)}"
    change(rig, path, rig.disk.read_file(path)[:200])
    look(rig)
    assert lost_by_all(rig, "public") == (2, 2)
    rig.reopen()
    assert lost_by_all(rig, "public") == (2, 2)


def test_a_sealed_segment_that_is_gone_counts_as_lost_as_verify_says() -> None:
    """A removed segment can be read as long as it is open, and no longer counts as lost when its file is back."""
    rig = topics_of_one_shape()
    path = f"{DIR}/topics/public/{segment_name(3)}"
    there = rig.disk.read_file(path)
    rig.disk.unlink(path)
    look(rig)
    assert lost_by_all(rig, "public") == (3, 3)
    rig.put(f"topics/public/{segment_name(3)}", there)
    look(rig)
    assert lost_by_all(rig, "public") == (0, 0)


@pytest.mark.parametrize("change", [overwrite, rename_over])
def test_another_topics_segment_over_the_active_one_closes_the_topic(
    change: Callable[[BrokerRig, str, bytes], None],
) -> None:
    rig = topics_of_one_shape()
    path = f"{DIR}/topics/public/{segment_name(6)}"
    change(rig, path, rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(6)}"))
    look(rig)
    assert rig.broker.topics["public"].state == "failed"
    error = rig.publish("public", b"y")[0].error
    assert "below the running broker" in str(error)
    assert lost_by_all(rig, "public") == (4, 4)
    rig.broker.topics["public"].log.tail.clear()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("public", start="earliest"))] == list(range(6))
    assert rig.publish("payroll", b"y")[0].error is None
    rig.reopen()
    assert lost_by_all(rig, "public") == (4, 4)


def test_an_active_segment_that_is_cut_closes_the_topic() -> None:
    rig = topics_of_one_shape()
    rig.disk.open(f"{DIR}/topics/public/{segment_name(6)}").truncate(200)
    look(rig)
    assert "was cut below the running broker" in str(rig.publish("public", b"y")[0].error)
    assert lost_by_all(rig, "public") == (3, 3)


def test_a_segment_just_sealed_is_compared_with_its_head() -> None:
    """The periodic check has not noted its timestamp yet."""
    rig = topics_of_one_shape()
    rig.broker.topics["public"].committer.begin_segment()
    rig.loop.drain()
    overwrite(rig, f"{DIR}/topics/public/{segment_name(6)}", rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(6)}"))
    look(rig)
    assert lost_by_all(rig, "public") == (4, 4)


def test_what_the_broker_writes_itself_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig(fsync="interval")
    for n in range(40):
        rig.publish("t", b"%d" % n * 400)
        rig.advance(1)
        look(rig)
    rig.reopen()
    rig.publish("t", b"x" * 4000)
    look(rig)
    assert rig.broker.topics["t"].state == "ok"
    assert "below the running broker" not in caplog.text


def test_what_was_judged_is_not_judged_again_while_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    rig = topics_of_one_shape()
    for base_id, change in ((0, overwrite), (3, rename_over), (6, rename_over)):
        ours, theirs = (f"{DIR}/topics/{topic}/{segment_name(base_id)}" for topic in ("public", "payroll"))
        change(rig, ours, rig.disk.read_file(theirs))
    for _ in range(4):
        look(rig)
    assert caplog.text.count("the segment is scanned") == 3
    assert lost_by_all(rig, "public") == (10, 10)


def test_single_records_wait_for_the_judgement_too() -> None:
    """Redeliveries and keyed consumers read record by record."""
    rig = topics_of_one_shape()
    log = rig.broker.topics["public"].log
    log.close()
    rename_over(rig, f"{DIR}/topics/public/{segment_name(3)}", rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(3)}"))
    log.tail.clear()
    assert log.read_each([3, 4], 1 << 20) is None, "it is for read to tell why"
    with pytest.raises(BeingExamined):
        log.read(3, 1)
    assert log.read_each([3, 4], 1 << 20) is None, "not while it is judged either"
    rig.loop.drain()
    assert log.read(3, 1) == (None, 0, 6)
    assert [payload[:1] for payload in log.read_each([2, 7], 1 << 20).payloads] == [b"o", b"o"]
