"""A copy of a data directory whose broker may be running. Contract: clients.md, "Command lines"; ADR 0026."""

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.backups import (
    BACK,
    TO,
    TOPICS,
    Interrupted,
    broker,
    contents,
    do_backup,
    makes_anew,
    removes_from_behind,
    removes_segments,
    restored,
    rolls,
    spoil,
    webhooks,
)
from tests.support.broker_rig import DIR, BrokerRig
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError, DirectoryLocked
from toymq_py.storage import amqp_file, offsets, topic_settings, webhooks_file
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.segment import segment_name


def test_segments_that_go_while_they_are_listed_are_known_to_be_gone() -> None:
    """Retention removes segments after the offsets were read: the listing lacks segments that the offsets still have, so both
    are read again."""
    rig = broker()
    listed = rig.disk.listdir
    calls = 0

    class Listing(Interrupted):
        def listdir(self, path: str) -> list[str]:
            nonlocal calls
            if path == f"{DIR}/topics/a":
                calls += 1
                if calls == 2:  # the first one looks for the mark
                    removes_from_behind(rig, ("a",))
            return listed(path)

    report = do_backup(rig, Listing(rig.disk, 0, lambda: None))
    assert calls > 2
    assert not report.damaged
    copy = restored(rig)
    assert copy.broker.topic("a").log.removed == rig.broker.topic("a").log.removed
    assert copy.broker.topic("a").state == "ok"


def test_the_second_backup_copies_only_what_is_new() -> None:
    rig = broker()
    first = do_backup(rig)
    assert (len(first.copied), len(first.kept)) == (12, 0)
    again = do_backup(rig)
    newest = {f"{TO}/topics/{topic}/{rig.broker.topic(topic).log.segments[-1].path[-24:]}" for topic in TOPICS}
    assert (again.copied, len(again.kept)) == (newest, 9)
    rolls(rig)
    third = do_backup(rig)
    assert third.kept == first.copied, "also what was the newest then and was sealed as it was"
    assert len(third.copied) == 9
    assert contents(restored(rig), "a") == contents(rig, "a")


def test_what_the_broker_has_removed_goes_from_the_backup_too() -> None:
    rig = broker()
    do_backup(rig)
    removes_segments(rig)
    rig.delete("c")
    assert rig.change("configure", "a", visibility="7") == "OK"
    assert do_backup(rig, prune=True).gone == []
    names = rig.disk.listdir(f"{TO}/topics/a")
    assert [name for name in names if name.endswith(".log")] == [name for name in rig.files("a") if name.endswith(".log")]
    assert "topic.json" in names
    assert rig.disk.listdir(f"{TO}/topics") == ["a", "b"]
    rig.broker.close()
    rig.disk.unlink(f"{DIR}/topics/a/topic.json")
    rig.disk.unlink(f"{DIR}/topics/a/has-settings")  # else the settings would be missing
    do_backup(rig)
    assert "topic.json" not in rig.disk.listdir(f"{TO}/topics/a")


def test_a_topic_that_is_gone_stays_in_the_backup() -> None:
    """Found: a lost directory looked like a deleted topic, and the next backup removed its copy with exit code 0."""
    rig = broker()
    do_backup(rig)
    rig.delete("c")
    report = do_backup(rig)
    assert (report.gone, report.damaged) == (["c"], False)
    assert len(contents(restored(rig), "c")) == 14
    assert do_backup(rig, prune=True).gone == []
    assert rig.disk.listdir(f"{TO}/topics") == ["a", "b"]


def first(rig: BrokerRig) -> str:
    return rig.broker.topic("a").log.segments[0].path


def sealed(rig: BrokerRig) -> str:
    return rig.broker.topic("a").log.segments[1].path


def newest(rig: BrokerRig) -> str:
    return rig.broker.topic("a").log.segments[-1].path


def unlink(disk: SimDisk, path: str) -> None:
    disk.unlink(path)


def zero(disk: SimDisk, path: str) -> None:
    file = disk.open(path)
    file.pwrite(bytes(file.size()), 0)
    file.close()


def truncate(disk: SimDisk, path: str) -> None:
    file = disk.open(path)
    file.truncate(file.size() // 2)
    file.close()


def forget_offsets(rig: BrokerRig) -> None:
    """Remove the offsets, as of a topic that never had consumers."""
    for name in (offsets.FILE_NAME, offsets.PREVIOUS_NAME, offsets.MARK_NAME):
        with suppress(FileNotFoundError):
            rig.disk.unlink(f"{DIR}/topics/a/{name}")


def cut_record(disk: SimDisk, path: str) -> None:
    spoil(disk, path, 30)


@pytest.mark.parametrize("spoils", [unlink, zero, truncate, cut_record])
@pytest.mark.parametrize("which", [first, sealed, newest])
@pytest.mark.parametrize("known", [True, False], ids=["offsets", "none"])
def test_damage_of_the_source_does_not_replace_what_an_earlier_backup_has(
    which: Callable[[BrokerRig], str], spoils: Callable[[SimDisk, str], None], known: bool
) -> None:
    """Found: the next backup deleted the good copy of a segment that was missing in the source, and replaced that of one that
    was zeroed."""
    rig = broker()
    if not known:
        forget_offsets(rig)
    before = contents(rig, "a")
    path = which(rig)
    do_backup(rig)
    spoils(rig.disk, path)
    for _ in range(2):
        report = do_backup(rig)
        problems = [problem for problem in report.problems if path in problem]
        if known or which is not newest:  # else they may never have been acknowledged
            assert len(problems) == 1
        assert all("the backup keeps its copy" in problem for problem in problems)
        assert not any(each.damaged for each in report.reports)
    assert contents(restored(rig), "a") == before


@pytest.mark.parametrize("seals", [True, False], ids=["sealed since", "newest still"])
@pytest.mark.parametrize("at", [-1, 30, 100])
def test_records_of_a_copy_stay_although_its_source_has_grown_since_and_is_damaged(at: int, seals: bool) -> None:
    """Found: when the source had more records than an older copy, a damaged source replaced the good records of that copy."""
    rig = broker()
    path, copied_end = newest(rig), rig.broker.topic("a").log.segments[-1].end
    do_backup(rig)
    rig.publish("a", b"later")
    while seals and newest(rig) == path:
        rig.publish("a", b"x" * 30)
    rig.publish("a", b"last")
    before = contents(rig, "a")
    rig.broker.close()
    spoil(rig.disk, path, at if at >= 0 else copied_end - 10)
    for _ in range(2):
        report = do_backup(rig)
        (problem,) = [problem for problem in report.problems if path in problem]
        assert "the backup keeps" in problem
        assert not any(each.damaged for each in report.reports)
    assert contents(restored(rig), "a") == before


def test_what_a_copy_never_had_is_lost_and_what_it_had_is_not() -> None:
    rig = broker()
    path, copied_end = newest(rig), rig.broker.topic("a").log.segments[-1].end
    do_backup(rig)
    lost = rig.broker.topic("a").next_id
    rig.publish("a", b"later")
    rig.publish("a", b"last")
    before = contents(rig, "a")
    rig.broker.close()
    spoil(rig.disk, path, 30)
    spoil(rig.disk, path, copied_end + 10)
    report = do_backup(rig)
    assert [each.lost for each in report.reports] == [1, 0, 0]
    restore(rig.disk, TO, BACK, pid=3)
    del before[lost]
    assert contents(BrokerRig(disk=rig.disk, data_dir=BACK), "a") == before


@pytest.mark.parametrize("spoils", [unlink, zero, truncate])
@pytest.mark.parametrize("which", [first, sealed, newest])
def test_what_a_repair_gave_up_stays_in_the_backup(
    which: Callable[[BrokerRig], str], spoils: Callable[[SimDisk, str], None]
) -> None:
    """A repair records the lost ids as removed, as if the broker had removed them. Found: the next backup then dropped its copy
    of them, with exit code 0."""
    rig = broker()
    before, path = contents(rig, "a"), which(rig)
    do_backup(rig)
    rig.broker.close()
    spoils(rig.disk, path)
    (repaired,) = repair(rig.disk, DIR, pid=9)
    assert repaired.lost
    for _ in range(2):
        assert do_backup(rig).problems
    restore(rig.disk, TO, BACK, pid=3)
    assert contents(BrokerRig(disk=rig.disk, data_dir=BACK), "a") == before


@pytest.mark.parametrize("at", [10, 30, 100])
@pytest.mark.parametrize("which", [first, sealed, newest])
def test_what_is_published_after_a_repair_is_there_beside_what_it_gave_up(which: Callable[[BrokerRig], str], at: int) -> None:
    """The backup's copy of the damaged segment is one file, but the repaired source has two, and the second of them grows."""
    rig = broker()
    path = which(rig)
    do_backup(rig)
    before = contents(rig, "a")
    rig.broker.close()
    spoil(rig.disk, path, at)
    list(repair(rig.disk, DIR, pid=9))
    after = BrokerRig(disk=rig.disk, data_dir=DIR)
    for n in range(6):
        (stored,) = after.publish("a", b"later %d" % n)
        before[stored.first_id] = b"later %d" % n
        do_backup(after)
    after.broker.close()
    restore(rig.disk, TO, BACK, pid=3)
    assert contents(BrokerRig(disk=rig.disk, data_dir=BACK), "a") == before


def test_what_a_repair_gave_up_stays_although_no_segment_is_left_that_both_have() -> None:
    rig = broker()
    before, paths = contents(rig, "a"), [segment.path for segment in rig.broker.topic("a").log.segments]
    do_backup(rig)
    rig.broker.close()
    for path in paths[1:]:
        spoil(rig.disk, path, 10)  # each begins with damage
    rig.disk.unlink(paths[0])
    list(repair(rig.disk, DIR, pid=9))
    assert do_backup(rig).problems
    restore(rig.disk, TO, BACK, pid=3)
    copy = BrokerRig(disk=rig.disk, data_dir=BACK)
    assert contents(copy, "a") == before


@pytest.mark.parametrize("op", ["pwrite", "sync", "rename"])
def test_a_full_disk_leaves_the_copy_as_it_is(op: str) -> None:
    rig = broker()
    path = newest(rig)
    copy = f"{TO}{path.removeprefix(DIR)}"
    do_backup(rig)
    before = rig.disk.snapshot()[copy]
    rig.publish("a", b"later")
    rig.broker.close()
    spoil(rig.disk, path, 30)
    rig.disk.fail(op, 1, errno.ENOSPC, sticky=True, path=f"{copy}.tmp")
    with pytest.raises(OSError, match="No space"):
        do_backup(rig)
    assert rig.disk.snapshot()[copy] == before
    assert f"{copy}.tmp" not in rig.disk.snapshot()
    rig.disk.heal()
    do_backup(rig)
    assert len(contents(restored(rig), "a")) == 15


def test_a_broker_that_goes_on_behind_damage_is_backed_up_beside_the_copy() -> None:
    rig = broker()
    do_backup(rig)
    rig.disk.unlink(sealed(rig))
    rig.reopen()
    rig.publish("a", b"later")
    before = contents(rig, "a")
    assert do_backup(rig).damaged
    after = contents(restored(rig), "a")
    assert len(before) == 15 - 4
    assert len(after) == 15
    assert before.items() <= after.items()


def test_what_a_power_cut_took_back_is_no_damage_and_what_came_after_it_is_copied() -> None:
    """A backup may have copied records that were not synced yet, and never acknowledged."""
    rig = broker()
    path, end, last = newest(rig), rig.broker.topic("a").log.segments[-1].end, rig.broker.topic("a").next_id
    rig.publish("a", b"not answered")
    do_backup(rig)
    file = rig.disk.open(path)
    file.truncate(end)
    file.close()
    forget_offsets(rig)
    rig.reopen()
    rig.publish("a", b"another one of its id")
    assert not do_backup(rig).damaged
    assert contents(restored(rig), "a")[last] == b"another one of its id"


def test_a_topic_that_was_made_anew_is_not_mixed_with_the_one_before() -> None:
    rig = broker()
    do_backup(rig)
    makes_anew(rig)
    do_backup(rig)
    copy = restored(rig)
    assert contents(copy, "a") == contents(rig, "a")
    assert copy.broker.topic("a").consumers["first"].floor == 1


def test_damage_in_an_earlier_backup_is_mended_from_the_source() -> None:
    rig = broker()
    do_backup(rig)
    path = f"{TO}/topics/a/{segment_name(0)}"
    data = bytearray(rig.disk.snapshot()[path])
    assert len(data) < 5000
    rig.disk.mkdir("/data/spoilt")
    spoil(rig.disk, path, 2000)
    spoil(rig.disk, f"{TO}/topics/b/{segment_name(0)}", 10)
    report = do_backup(rig)
    assert not report.damaged
    assert rig.disk.snapshot()[path] == bytes(data)
    assert contents(restored(rig), "b") == contents(rig, "b")


def test_damage_of_the_source_is_said_and_the_rest_is_copied() -> None:
    rig = broker()
    rig.publish("a", b"more" * 200)
    rig.publish("a", b"last")
    active = rig.broker.topic("a").log.segments[-1]
    spoil(rig.disk, active.path, 40)
    spoil(rig.disk, f"{DIR}/topics/b/{segment_name(0)}", 40)
    report = do_backup(rig)
    assert report.damaged
    assert {each.topic for each in report.reports if each.damaged} == {"a", "b"}
    copy_of_b = next(each for each in report.reports if each.topic == "b")
    assert (copy_of_b.records, copy_of_b.lost) == (13, 1)


@pytest.mark.parametrize(("op", "code"), [("pread", errno.EIO), ("open", errno.EACCES)])
def test_a_segment_that_cannot_be_read_is_named_and_the_rest_is_copied(op: str, code: int) -> None:
    rig = broker()
    source = f"{DIR}/topics/a/{segment_name(0)}"
    rig.disk.fail(op, 1, code, sticky=True, path=source)
    report = do_backup(rig)
    assert report.damaged
    assert [problem for problem in report.problems if source in problem]
    copies = {each.topic: each for each in report.reports}
    assert (copies["a"].lost > 0, copies["a"].records > 0) == (True, True)
    assert not copies["b"].damaged
    rig.disk.heal()
    assert not do_backup(rig).damaged, "the next one brings it up to date"
    assert contents(restored(rig), "a") == contents(rig, "a")


def test_damaged_offsets_are_said_and_those_of_an_earlier_backup_stay() -> None:
    rig = broker()
    rig.ack("a", 0, 0, "first")
    do_backup(rig)
    state = offsets.load(rig.disk, f"{TO}/topics/a").state
    rig.broker.close()
    for name in ("offsets.json", "offsets.json.prev"):
        rig.put(f"topics/a/{name}", b"{")
    report = do_backup(rig)
    assert report.problems == ["topic a: both generations of its offsets are damaged: the backup has none that are newer"]
    assert report.damaged
    assert offsets.load(rig.disk, f"{TO}/topics/a").state == state


@pytest.mark.parametrize("damage", ["junk", "another topic's"])
def test_settings_that_cannot_be_trusted_are_said_and_those_of_an_earlier_backup_stay(damage: str) -> None:
    rig = broker()
    assert rig.change("configure", "a", visibility="1000") == "OK"
    assert rig.change("configure", "b", visibility="2000") == "OK"
    do_backup(rig)
    path = f"topics/a/{topic_settings.FILE_NAME}"
    good = rig.disk.read_file(f"{DIR}/{path}")
    rig.put(path, b"{" if damage == "junk" else rig.disk.read_file(f"{DIR}/topics/b/{topic_settings.FILE_NAME}"))
    (problem,) = do_backup(rig).problems
    assert problem.startswith("topic a: topic.json: ")
    assert problem.endswith(": the backup has none that are newer")
    assert rig.disk.read_file(f"{TO}/{path}") == good


def test_the_webhooks_go_along() -> None:
    """The backup has the webhooks as they were when it began; a later backup updates them."""
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    disk = Interrupted(rig.disk, 200, lambda: rig.put(webhooks_file.FILE_NAME, webhooks("one", "two")))
    do_backup(rig, disk)
    assert disk.happened
    assert rig.disk.read_file(f"{TO}/{webhooks_file.FILE_NAME}") == webhooks("one")
    assert not do_backup(rig).damaged
    restored(rig)
    assert rig.disk.read_file(f"{BACK}/{webhooks_file.FILE_NAME}") == webhooks("one", "two")
    rig.disk.unlink(f"{DIR}/{webhooks_file.FILE_NAME}")
    (problem,) = do_backup(rig).problems
    assert problem == f"{DIR}/{webhooks_file.FILE_NAME} is gone: the backup keeps its copy (--prune)"
    assert rig.disk.exists(f"{TO}/{webhooks_file.FILE_NAME}")
    assert not do_backup(rig, prune=True).problems
    assert not rig.disk.exists(f"{TO}/{webhooks_file.FILE_NAME}")


def test_exchanges_and_bindings_go_along() -> None:
    rig = broker()
    data = amqp_file.encode({"exchanges": [], "queues": [], "bindings": []})
    rig.put(amqp_file.FILE_NAME, data)
    do_backup(rig)
    restored(rig)
    assert rig.disk.read_file(f"{BACK}/{amqp_file.FILE_NAME}") == data
    rig.put(amqp_file.FILE_NAME, b"{")
    assert do_backup(rig).problems == ["amqp.json: not a checked amqp file: the backup has none that is newer"]
    assert rig.disk.read_file(f"{TO}/{amqp_file.FILE_NAME}") == data


def test_damaged_webhooks_are_said_and_those_of_an_earlier_backup_stay() -> None:
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    do_backup(rig)
    rig.put(webhooks_file.FILE_NAME, webhooks("two").replace(b"two", b"twi"))
    report = do_backup(rig)
    assert report.damaged
    assert [problem.split(":")[0] for problem in report.problems] == [webhooks_file.FILE_NAME]
    assert rig.disk.read_file(f"{TO}/{webhooks_file.FILE_NAME}") == webhooks("one")


def test_other_files_beside_the_topics_are_neither_read_nor_touched() -> None:
    """The data directory may contain the tokens, and the backup's directory notes."""
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    rig.put("tokens.json", b'{"tokens": ["s3cret"]}')
    unreadable = rig.disk.fail("read_file", 1, errno.EACCES, sticky=True, path="tokens.json")
    assert not do_backup(rig).damaged
    notes = rig.disk.open(f"{TO}/notes.json", create=True)
    notes.pwrite(b"every monday", 0)
    notes.close()
    assert not do_backup(rig).damaged
    present = [name for name in rig.disk.listdir(TO) if name.endswith(".json")]
    assert present == ["backup.json", "notes.json", webhooks_file.FILE_NAME]
    assert rig.disk.read_file(f"{TO}/notes.json") == b"every monday"
    restored(rig)
    assert [name for name in rig.disk.listdir(BACK) if name.endswith(".json")] == [webhooks_file.FILE_NAME]
    assert not unreadable.fired


def test_a_directory_that_holds_something_else_is_refused() -> None:
    rig = broker()
    rig.disk.mkdir(TO)
    rig.disk.open(f"{TO}/thesis.txt", create=True).close()
    with pytest.raises(DataDirectoryError, match="neither empty nor an earlier backup"):
        do_backup(rig)
    assert rig.disk.listdir(TO) == ["thesis.txt"]
    with pytest.raises(DataDirectoryError, match="there is no directory /data/none"):
        back_up(rig.disk, "/data/none", "/data/other", pid=1, wall_ns=1)
    assert not rig.disk.exists("/data/other")


def test_a_backup_in_use_is_refused() -> None:
    rig = broker()
    do_backup(rig)
    lock = DirectoryLock.take(rig.disk, TO, 9)
    with pytest.raises(DirectoryLocked):
        do_backup(rig)
    with pytest.raises(DirectoryLocked):
        restore(rig.disk, TO, BACK, pid=1)
    lock.release()


def test_it_says_in_the_lock_what_it_is() -> None:
    rig = broker()
    said: set[bytes] = set()
    back_up(rig.disk, DIR, TO, pid=2, wall_ns=1, progress=lambda _bytes: said.add(rig.disk.read_file(f"{TO}/LOCK")))
    assert said == {b"2\ntoymq backup\n"}
    said.clear()
    restore(rig.disk, TO, BACK, pid=3, progress=lambda _bytes: said.add(rig.disk.read_file(f"{BACK}/LOCK")))
    assert said == {b"3\ntoymq restore\n"}
