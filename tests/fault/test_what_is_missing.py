"""Whatever is missing from a used data directory, or is replaced by something else, is reported, and the broker does not begin
anew there. Contract: reliability.md, promise 4; ADR 0221."""

import errno
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.backups import DIR, Crashing, broker, contents, do_backup, restored
from tests.support.broker_rig import BrokerRig
from tests.support.mounts import mounted
from tests.support.sim_disk import SimDisk
from toymq_py import partition_operations
from toymq_py.broker import Broker
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import DataDirectoryError, StorageFailed
from toymq_py.placement import Placement
from toymq_py.storage import topic_settings
from toymq_py.storage.fs import remove_tree
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.redistribute import redistribute
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import check_data_directory, verify
from toymq_py.storage.topic_directories import check_topics, note_mounted
from toymq_py.storage.unclean_ends import end_cleanly
from toymq_py.storage.workers_file import check_worker, divide, worker_path

SETTINGS = f"{DIR}/topics/a/{topic_settings.FILE_NAME}"
HOUR_S = 3600


def told(disk: SimDisk) -> dict[str, str]:
    """Return the findings of ``verify`` by topic."""
    return {each.topic: "; ".join(f.text for f in each.findings if f.damage) for each in verify(disk, DIR) if each.damaged}


# -- topic.json


def without_settings() -> BrokerRig:
    """Return a broker whose topic, which kept acked messages for long, has lost its settings and is opened again."""
    rig = broker(retain_acked_for_ms=1000)
    assert rig.change("configure", "a", retain_acked_for=str(1000 * HOUR_S), visibility="7000") == "OK"
    rig.flush("a")
    rig.disk = rig.disk.crash()
    rig.disk.unlink(SETTINGS)
    rig.restart()
    return rig


def test_settings_that_are_missing_are_told_and_remove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Found: the defaults applied without a warning, and messages that should be kept for long were removed."""
    rig = without_settings()
    assert "topic a is degraded: its settings cannot be trusted: topic.json: the file is missing" in caplog.text
    described = rig.numbers("a")
    assert (described["state"], described["settings_problem"]) == ("degraded", "topic.json: the file is missing")
    before = contents(rig, "a")
    rig.take(rig.subscribe("a", window=1000))
    rig.ack("a", 0, rig.broker.topic("a").next_id - 1)
    rig.advance(HOUR_S)
    assert contents(rig, "a") == before, "nothing is removed that the right settings might keep"
    assert told(rig.disk) == {"a": "the file is missing"}
    assert rig.change("configure", "a", visibility="8000") == "OK"
    rig.reopen()
    assert (rig.numbers("a")["state"], told(rig.disk)) == ("ok", {})
    assert rig.broker.topic("a").settings == TopicSettings(visibility=8000)


def test_repair_accepts_that_settings_are_lost() -> None:
    rig = without_settings()
    rig.disk = rig.disk.kill()
    (done,) = repair(rig.disk, DIR, pid=1)
    assert (done.topic, done.quarantined, done.unreadable) == ("a", [], [])
    assert "topic.json: the file is missing: it has the broker's defaults" in done.notes
    assert told(rig.disk) == {}
    rig.restart()
    assert rig.numbers("a")["state"] == "ok"


def test_a_backup_keeps_the_settings_that_the_source_has_lost() -> None:
    rig = broker()
    assert rig.change("configure", "a", visibility="7000") == "OK"
    do_backup(rig)
    rig.disk.unlink(SETTINGS)
    report = do_backup(rig)
    assert [problem for problem in report.problems if "topic.json: the file is missing" in problem], report.problems
    copy = restored(rig)
    assert copy.broker.topic("a").settings == TopicSettings(visibility=7000)


def test_a_directory_of_an_older_toymq_knows_from_its_next_start() -> None:
    rig = broker()
    assert rig.change("configure", "a", visibility="7000") == "OK"
    rig.broker.close()
    rig.disk.unlink(f"{DIR}/topics/a/{topic_settings.MARK_NAME}")
    rig.restart()
    assert rig.numbers("a")["state"] == "ok"
    rig.disk = rig.disk.kill()
    rig.disk.unlink(SETTINGS)
    rig.restart()
    assert rig.numbers("a")["state"] == "degraded"


def test_no_power_cut_makes_a_topic_whose_settings_were_never_stored_a_damaged_one() -> None:
    """Each disk operation of a first CONFIG fails in turn, or is the last one before a power cut."""
    for nth in range(1, 40):
        rig = BrokerRig(disk=SimDisk(random.Random(nth)))
        rig.publish("a", b"x")
        rig.disk.fail(("pwrite", "sync", "rename", "sync_dir", "open")[nth % 5], 1 + nth // 5, errno.EIO, path="topics/a")
        rig.change("configure", "a", visibility="7000")
        rig.disk.heal()
        rig.reopen(power_cut=True)
        assert "settings_problem" not in rig.numbers("a"), nth


def test_strict_recovery_does_not_start_without_settings_that_were_there() -> None:
    rig = without_settings()
    rig.broker.close()
    rig.options = replace(rig.options, strict_recovery=True)
    with pytest.raises(DataDirectoryError, match=r"topic\.json: the file is missing, and --strict-recovery is on"):
        rig.restart()

# -- something else in the place of a topic's directory


def with_a_file_for_a_topic(name: str = "a", **options: Any) -> BrokerRig:
    """Return a broker with a file in the place of a topic's directory, which is gone."""
    rig = broker(**options)
    rig.broker.close()
    if rig.disk.is_dir(f"{DIR}/topics/{name}"):
        remove_tree(rig.disk, f"{DIR}/topics/{name}")
    rig.put(f"topics/{name}", b"not a directory")
    return rig


def test_a_file_in_the_place_of_a_topic_is_told_and_begins_no_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Found: the file was skipped without a warning; a publish was refused with an error of the disk."""
    rig = with_a_file_for_a_topic()
    rig.restart()
    text = f"{DIR}/topics/a is no directory, and takes the place of topic a"
    assert text in caplog.text
    assert text in str(rig.broker.unopened["a"])
    with pytest.raises(StorageFailed, match=r"move it away, .* and restart the broker"):
        rig.broker.topic_or_new("a")
    assert {row["topic"]: row["state"] for row in rig.broker.describe(None)} == {"a": "failed", "b": "ok", "c": "ok"}
    assert told(rig.disk).keys() == {"a"}
    assert "is no directory" in told(rig.disk)["a"]


def test_repair_moves_it_away() -> None:
    rig = with_a_file_for_a_topic()
    (done,) = repair(rig.disk, DIR, pid=1)
    assert (done.topic, done.quarantined) == ("a", ["a"])
    assert rig.disk.read_file(f"{DIR}/quarantine/1/a") == b"not a directory"
    assert told(rig.disk) == {}
    rig.restart()
    rig.publish("a", b"anew")
    assert contents(rig, "a") == {0: b"anew"}


def test_a_backup_says_so_and_keeps_what_it_has() -> None:
    rig = broker()
    do_backup(rig)
    before = contents(rig, "a")
    rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics/a")
    rig.put("topics/a", b"not a directory")
    report = do_backup(rig, prune=True)
    assert [problem for problem in report.problems if f"{DIR}/topics/a is no directory" in problem], report.problems
    assert contents(restored(rig), "a") == before


def test_one_in_the_place_of_a_partition_harms_itself() -> None:
    """Found: with a file in the place of a partition's directory the broker did not start, since it tried to create the
    partition."""
    rig = BrokerRig()
    partition_operations.create(rig.broker, "orders", {"partitions": "2"}, lambda error: None)
    rig.loop.advance(0)
    rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics/orders#1")
    rig.put("topics/orders#1", b"not a directory")
    rig.restart()
    assert set(rig.broker.unopened) == {"orders#1"}
    rig.publish("orders#0", b"served")


def test_strict_recovery_does_not_start_beside_one() -> None:
    with pytest.raises(DataDirectoryError, match=r"topics/a is no directory.*--strict-recovery is on"):
        with_a_file_for_a_topic(strict_recovery=True).restart()


def test_workers_are_not_set_beside_one() -> None:
    rig = with_a_file_for_a_topic()
    with pytest.raises(DataDirectoryError, match="topics/a is no directory"):
        redistribute(rig.disk, DIR, 2)
    assert not rig.disk.exists(f"{DIR}/workers")


# -- topics


def without_topics() -> BrokerRig:
    rig = broker()
    rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics")
    return rig


@pytest.mark.parametrize("left", [("LOCK",), ("webhooks.json",), ("LOCK", "webhooks.json", "quarantine")])
def test_a_used_directory_without_topics_does_not_begin_empty(left: tuple[str, ...]) -> None:
    """Found: the broker began with no topics, and said nothing."""
    rig = without_topics()
    remove_tree(rig.disk, DIR)
    rig.disk.mkdir(DIR)
    for name in left:
        rig.put(name, b"")
    before = rig.disk.snapshot().keys()
    with pytest.raises(DataDirectoryError, match=rf"^{DIR} has no directory topics, .*`mkdir {DIR}/topics` goes on"):
        rig.restart()
    for use in (check_data_directory, lambda fs, root: back_up(fs, root, "/data/b", pid=2, wall_ns=1)):
        with pytest.raises(DataDirectoryError, match="has no directory topics"):
            use(rig.disk, DIR)
    assert rig.disk.snapshot().keys() - before <= {f"{DIR}/LOCK"}
    rig.disk.mkdir(f"{DIR}/topics")
    rig.restart()


def test_an_empty_mount_point_in_the_place_of_topics_does_not_begin_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the broker began with no topics, and its new messages were hidden once the file system was mounted."""
    with monkeypatch.context() as patch:
        mounted(patch, DIR)
        rig = broker()
        rig.reopen(power_cut=True)
        rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics")
    rig.disk.mkdir(f"{DIR}/topics")
    before = rig.disk.snapshot().keys()
    text = EMPTY
    with pytest.raises(DataDirectoryError, match=text):
        rig.restart()
    for use in (
        check_data_directory, lambda fs, root: back_up(fs, root, "/data/b", pid=2, wall_ns=1),
        lambda fs, root: divide(fs, root, 2), lambda fs, root: redistribute(fs, root, 2),
    ):  # fmt: skip
        with pytest.raises(DataDirectoryError, match=text):
            use(rig.disk, DIR)
    assert rig.disk.snapshot().keys() <= before
    rig.disk.unlink(f"{DIR}/topics-mounted")
    rig.restart()


def test_nor_does_one_in_the_place_of_a_workers_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir(DIR)
    divide(disk, DIR, 2)
    home = worker_path(DIR, 1)
    with monkeypatch.context() as patch:
        mounted(patch, home)
        rig = BrokerRig(disk=disk, data_dir=home, placement=Placement(1, ["a:1", "b:2"]))
        rig.broker.close()
    for use in (lambda: divide(disk, DIR, 2), lambda: redistribute(disk, DIR, 1), lambda: check_worker(disk, DIR, 1)):
        with pytest.raises(DataDirectoryError, match=f"^{home}/topics is empty, and was a file system of its own"):
            use()


def test_a_mounted_topics_without_topics_is_served_and_so_are_topics_that_are_mounted_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        mounted(patch, DIR)
        rig = BrokerRig()
        rig.reopen()
        rig.publish("a", b"x")
    rig.reopen()
    assert not rig.disk.exists(f"{DIR}/topics-mounted")
    assert not rig.disk.exists(f"{DIR}/topics/+mounted")
    assert rig.delete("a") == 1
    rig.reopen()


WORD = "0123456789abcdef" * 2
OTHER = rf"^{DIR}/topics has other topics than those of the last start.*: mount that one; `rm {DIR}/topics-mounted` goes on"
EMPTY = rf"^{DIR}/topics is empty, and was a file system of its own before: mount it; `rm {DIR}/topics-mounted` goes on"


@pytest.mark.parametrize(("word", "topics", "is_mounted", "refusal"), [
    (None, True, True, OTHER), (None, True, False, OTHER), (None, False, True, EMPTY), (None, False, False, EMPTY),
    (WORD, True, True, OTHER), (WORD, True, False, OTHER), (WORD, False, True, EMPTY), (WORD, False, False, EMPTY),
    ("", True, True, None), ("", True, False, None), ("its", True, True, None), ("its", True, False, None),
    ("its", False, True, None), ("its", False, False, EMPTY),
])  # fmt: skip
def test_another_file_system_or_a_stray_directory_is_not_taken_for_topics(
    monkeypatch: pytest.MonkeyPatch, word: str | None, topics: bool, is_mounted: bool, refusal: str | None,
) -> None:  # fmt: skip
    """Found: the broker served whatever was mounted there, a blank disk or another broker's, and also what an earlier life had
    left below the mount point."""
    with monkeypatch.context() as patch:
        mounted(patch, DIR)
        rig = broker()
        rig.broker.close()
    its = rig.disk.read_file(f"{DIR}/topics/+mounted").decode()
    remove_tree(rig.disk, f"{DIR}/topics")
    rig.disk.mkdir(f"{DIR}/topics")
    if topics:
        rig.disk.mkdir(f"{DIR}/topics/a")
    if word is not None:
        rig.put("topics/+mounted", (its if word == "its" else word).encode())
    with monkeypatch.context() as patch:
        if is_mounted:
            mounted(patch, DIR)
        if refusal is None:
            check_data_directory(rig.disk, DIR)
            return
        end_cleanly(rig.disk, DIR)
        before = rig.disk.snapshot()
        with pytest.raises(DataDirectoryError, match=refusal):
            rig.restart()
        assert rig.disk.snapshot() == before, "nothing is written there"
        rig.disk.unlink(f"{DIR}/topics-mounted")
        rig.restart()


def test_a_copy_that_stays_below_the_mount_point_does_not_pass_for_what_is_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are moved to a disk of their own, from one disk to the next, and back; their old copies stay below the mount
    point."""
    rig = broker()
    rig.broker.close()
    below = rig.disk.snapshot()
    for _ in range(2):
        with monkeypatch.context() as patch:
            mounted(patch, DIR)
            rig.restart()
            rig.broker.close()
        rig.disk.unlink(f"{DIR}/topics/+mounted")  # what is below, with topics as they were
        with pytest.raises(DataDirectoryError, match=OTHER):
            check_data_directory(rig.disk, DIR)
        rig.disk.unlink(f"{DIR}/topics-mounted")
        rig.restart()
        rig.broker.close()
        assert rig.disk.snapshot().keys() == below.keys()


def test_no_power_cut_of_a_start_makes_mounted_topics_look_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in ((True,), (True, True), (True, False), (True, False, True)):
        rig = BrokerRig()
        rig.publish("a", b"x")
        rig.broker.close()
        disk = rig.disk
        for is_mounted in steps:
            with monkeypatch.context() as patch:
                if is_mounted:
                    mounted(patch, DIR)
                crashing = Crashing(disk)
                note_mounted(crashing, DIR)
                crashing.look()
                for left in (*crashing.crashed, disk):
                    check_topics(left, DIR)
                    note_mounted(left, DIR)
                    check_topics(left, DIR)
                    names = {name for name in left.snapshot() if name.endswith("mounted")}
                    assert len(names) == 2 * is_mounted, names


def test_a_word_that_cannot_be_read_or_written_keeps_no_broker_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, DIR)
    rig = BrokerRig()
    for op in ("open", "pwrite"):
        rig.broker.close()
        remove_tree(rig.disk, f"{DIR}/topics")
        rig.disk.mkdir(f"{DIR}/topics")
        rig.put("topics-mounted", b"")
        rig.disk.fail(op, 1, errno.ENOSPC, path="+mounted")
        rig.restart()
        assert rig.disk.read_file(f"{DIR}/topics-mounted") == b"", "and the mount point is told from it, still"
    rig.reopen()
    assert rig.disk.read_file(f"{DIR}/topics-mounted") == rig.disk.read_file(f"{DIR}/topics/+mounted") != b""


def test_a_disk_that_refuses_the_mark_of_a_mount_point_does_not_keep_a_broker_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounted(monkeypatch, DIR)
    rig = BrokerRig()
    rig.broker.close()
    rig.disk.unlink(f"{DIR}/topics-mounted")
    rig.disk.fail("open", 1, errno.ENOSPC, path="topics-mounted")
    rig.restart()
    assert not rig.disk.exists(f"{DIR}/topics-mounted")
    rig.reopen()
    assert rig.disk.exists(f"{DIR}/topics-mounted")


@pytest.mark.parametrize("name", ["offsets.json", "segments.json", "topic.json"])
def test_damaged_files_of_mounted_topics_are_put_aside(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Found: repair of topics on a mounted disk ended with "Invalid cross-device link"."""
    mounted(monkeypatch, DIR)
    rig = broker()
    rig.broker.close()
    rig.put(f"topics/a/{name}", b"{damaged")
    (done,) = (each for each in repair(rig.disk, DIR, pid=1) if each.topic == "a")
    assert done.quarantined == [name]
    assert [data for path, data in rig.disk.snapshot().items() if path.endswith(name) and "quarantine" in path] == [b"{damaged"]
    rig.restart()
    assert rig.numbers("a")["state"] == "ok"


def test_a_file_in_the_place_of_topics_is_told() -> None:
    rig = without_topics()
    rig.put("topics", b"")
    with pytest.raises(DataDirectoryError, match="has no directory topics"):
        rig.restart()


@pytest.mark.parametrize("number", [2, 1])
def test_a_used_directory_without_topics_is_not_divided(number: int) -> None:
    rig = without_topics()
    for use in (divide, redistribute):
        with pytest.raises(DataDirectoryError, match="has no directory topics"):
            use(rig.disk, DIR, number)


def test_no_kill_and_no_power_cut_of_a_first_start_looks_like_a_used_directory() -> None:
    for seed in range(60):
        rig = BrokerRig(disk=SimDisk(random.Random(seed)))
        rig.broker.close()
        disk = SimDisk(random.Random(seed))
        crashing = Crashing(disk)
        Broker(rig.options, fs=crashing, scheduler=rig.loop, clock=rig.clock).open(1)
        for left in crashing.crashed:
            BrokerRig(disk=left)
