"""One file that the disk refuses harms itself: `toymq backup`, `verify` and `repair` name it, and go on with all other topics.
Contract: reliability.md, promise 4; ADR 0217."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.backups import DIR, TO, TOPICS, broker, contents, do_backup, restored, spoil
from tests.support.broker_rig import BrokerRig
from tests.support.sim_disk import SimDisk
from toymq_py.storage import checked_json, topic_settings
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import log_bytes, verify, verify_topic
from toymq_py.storage.segment import segment_name

SEALED, NEWEST = segment_name(0), "newest"
STATE = ("topic.json", "offsets.json", "segments.json")


def rig_with_settings() -> BrokerRig:
    """Return a broker whose topic a has every kind of file that a topic can have."""
    rig = broker()
    assert rig.change("configure", "a", visibility="1000") == "OK"
    rig.ack("a", 0, 0, "first")
    rig.flush("a")
    return rig


def refuse(rig: BrokerRig, name: str) -> str:
    """Make the disk refuse to read a file of topic a. Returns: the file's path."""
    if name == NEWEST:
        name = rig.broker.topic("a").log.segments[-1].path.rpartition("/")[2]
    path = f"{DIR}/topics/a/{name}"
    for op in ("pread", "read_file"):
        rig.disk.fail(op, 1, errno.EIO, sticky=True, path=path)
    return path


@pytest.mark.parametrize("name", [SEALED, NEWEST, *STATE])
def test_a_backup_goes_past_it_and_the_next_one_has_it(name: str) -> None:
    """Found: when the newest segment or ``topic.json`` of one topic could not be read, the backup had no other topic, and an
    earlier backup was left unfinished."""
    rig = rig_with_settings()
    path = refuse(rig, name)
    report = do_backup(rig)
    assert [problem for problem in report.problems if path.rpartition("/")[2].partition(".")[0] in problem], report.problems
    assert {each.topic for each in report.reports if not each.damaged} >= {"b", "c"}
    rig.disk.heal()
    assert not do_backup(rig).damaged, "the next one brings it up to date"
    assert contents(restored(rig), "a") == contents(rig, "a")


@pytest.mark.parametrize("name", [SEALED, NEWEST, *STATE])
def test_a_backup_over_an_earlier_one_keeps_what_that_has_and_says_what_it_lacks(name: str) -> None:
    rig = rig_with_settings()
    do_backup(rig)
    before = {topic: contents(rig, topic) for topic in TOPICS}
    for topic in TOPICS:
        rig.publish(topic, b"later")
    refuse(rig, name)
    report = do_backup(rig)
    assert report.damaged or name == SEALED, "what was copied before may stand for a sealed one"
    rig.disk.heal()
    copy = restored(rig)
    assert all(before[topic].items() <= contents(copy, topic).items() for topic in TOPICS)
    assert [contents(copy, topic) for topic in ("b", "c")] == [contents(rig, topic) for topic in ("b", "c")]
    settings = f"topics/a/{topic_settings.FILE_NAME}"
    assert rig.disk.read_file(f"{TO}/{settings}") == rig.disk.read_file(f"{DIR}/{settings}")


def test_a_topic_whose_directory_cannot_be_listed_is_passed_over() -> None:
    rig = rig_with_settings()
    do_backup(rig)
    before = contents(rig, "a")
    rig.publish("b", b"later")
    rig.disk.fail("listdir", 1, errno.EIO, sticky=True, path=f"{DIR}/topics/a")
    assert log_bytes(rig.disk, DIR) > 0
    report = do_backup(rig, prune=True)
    assert report.problems == [f"{DIR}/topics/a: it cannot be read: Input/output error, and was not copied"]
    (found, *others) = verify(rig.disk, DIR)
    assert [(finding.path, finding.text) for finding in found.findings] == [
        (f"{DIR}/topics/a", "it cannot be read: Input/output error")
    ]
    assert [(each.topic, each.damaged) for each in others] == [("b", False), ("c", False)]
    rig.disk.heal()
    copy = restored(rig)
    assert (contents(copy, "a"), contents(copy, "b")) == (before, contents(rig, "b"))


@pytest.mark.parametrize("name", [SEALED, NEWEST, *STATE])
def test_verify_and_repair_name_it_and_go_on(name: str) -> None:
    rig = rig_with_settings()
    rig.disk = rig.disk.kill()
    spoil(rig.disk, f"{DIR}/topics/c/{SEALED}", 40)
    path = refuse(rig, name)
    assert [(each.topic, each.damaged) for each in verify(rig.disk, DIR)] == [("a", True), ("b", False), ("c", True)]
    before = {file: data for file, data in rig.disk.snapshot().items() if file.startswith(f"{DIR}/topics/a/")}
    done = list(repair(rig.disk, DIR, pid=1))
    assert [(each.topic, each.unreadable[:1]) for each in done] == [("a", [path]), ("c", [])]
    assert {file: data for file, data in rig.disk.snapshot().items() if file.startswith(f"{DIR}/topics/a/")} == before
    rig.disk.heal()
    assert not any(each.damaged for each in verify(rig.disk, DIR)), "nothing of it was given up"


def test_a_file_beside_the_topics_that_cannot_be_read_stays() -> None:
    rig = broker()
    rig.put("webhooks.json", b"{")
    rig.disk.fail("read_file", 1, errno.EIO, sticky=True, path="webhooks.json")
    rig.broker.close()
    (done,) = repair(rig.disk, DIR, pid=1)
    assert (done.topic, done.unreadable, done.quarantined) == ("webhooks.json", [f"{DIR}/webhooks.json"], [])


def test_a_topic_with_settings_that_cannot_be_read_is_degraded_and_serves() -> None:
    """Found: the topic was ``failed``, and served nothing."""
    rig = rig_with_settings()
    rig.disk = rig.disk.kill()
    refuse_settings(rig.disk)
    rig.restart()
    described = rig.numbers("a")
    assert (described["state"], described["settings_problem"]) == (
        "degraded", "topic.json: it cannot be read: Input/output error"
    )  # fmt: skip
    assert len(contents(rig, "a")) == 14


def refuse_settings(disk: SimDisk) -> None:
    disk.fail("read_file", 1, errno.EIO, sticky=True, path="topics/a/topic.json")


@pytest.mark.parametrize("what", ["directory", "fifo", "loop", "large"])
@pytest.mark.parametrize("name", STATE)
def test_what_stands_in_the_place_of_a_state_file_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """Found: a directory, a FIFO or another object in the place of a state file ended backup and repair. A FIFO is now opened
    without blocking, and a file of 20 GB is not read."""
    fs, root = RealFileSystem(), tmp_path / "d"
    copy_out(rig_with_settings().disk.kill(), root)
    place = root / "topics" / "a" / name
    if what == "large":
        monkeypatch.setattr(checked_json, "FILE_BYTES_MAX", 1 << 16)
        os.truncate(place, 1 << 40)
    else:
        place.unlink()
        {"directory": place.mkdir, "fifo": lambda: os.mkfifo(place), "loop": lambda: place.symlink_to(place)}[what]()
    assert [each.damaged for each in verify(fs, str(root))] == [True, False, False]
    (done,) = repair(fs, str(root), pid=1)
    assert (done.topic, done.unreadable, name in done.quarantined) == ("a", [], True)
    assert os.path.lexists(root / "quarantine" / "1" / "a" / name)
    assert verify_topic(fs, str(root / "topics" / "a"), "a").findings == []


def copy_out(disk: SimDisk, root: Path) -> None:
    """Copy the data directory of a simulated disk to the real disk."""
    for path, data in disk.snapshot().items():
        if path.startswith(f"{DIR}/") and not path.endswith("/"):
            to = root / path.removeprefix(f"{DIR}/")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
