"""The data directory, or a topic's, is removed or replaced below the running broker: nothing more is answered OK. ADR 0049."""

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py import directory_check
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


def look(rig: BrokerRig) -> list[str]:
    told: list[str] = []
    rig.broker.on_lost = lambda: told.append(str(rig.broker.lost))
    rig.broker.check_directory()
    rig.loop.drain()
    return told


@pytest.mark.parametrize("path", [DIR, f"{DIR}/LOCK", f"{DIR}/topics"])
@pytest.mark.parametrize("anew", [False, True])
def test_a_directory_that_is_gone_ends_the_broker(path: str, anew: bool) -> None:
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
    assert isinstance(rig.publish("a", b"y")[0].error, StorageFailed), "no OK for what would not be kept"
    with pytest.raises(StorageFailed):
        rig.publish("new", b"y")
    trace = len(rig.disk.trace)
    rig.broker.topics["a"].flush_offsets(lambda error: None)
    rig.advance(10)
    assert not [op for op, _, _ in rig.disk.trace[trace:] if op in ("open", "pwrite", "rename", "mkdir")], "nothing is written"
    assert look(rig) == [], "it is said once"


def test_a_new_segment_is_not_begun_in_a_directory_that_is_gone() -> None:
    rig = BrokerRig()
    rig.publish("a", b"x" * 3000)
    rig.disk.unlink(f"{DIR}/LOCK")
    outcome = rig.publish("a", b"x" * 3000)[0]
    assert outcome.commit.error is not None
    assert "LOCK was removed below the running broker" in str(outcome.commit.error)
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
    """Topics with the segments 0, 1 and 2; the last one is active."""
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
    """The oldest one was noticed by nothing, and others only when they were read after their file had been closed."""
    rig = rig_with_sealed("a", "b")
    path = f"{DIR}/topics/a/{segment_name(msg_id)}"
    there = rig.disk.read_file(path)
    rig.disk.unlink(path)
    for _ in range(2):
        assert look(rig) == []
    assert {name: topic.state for name, topic in rig.broker.topics.items()} == {"a": "degraded", "b": "ok"}
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line == f"topic a: {path} was removed below the running broker: records {msg_id} to {msg_id}"
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
