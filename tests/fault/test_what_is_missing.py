"""A file or directory of a used data directory that is missing, or something else in its place, is told and begins nothing anew.
Contract: reliability.md, promise 4; ADR 0221."""

import errno
import random
from dataclasses import replace

import pytest

from tests.support.backups import DIR, broker, contents, do_backup, restored
from tests.support.broker_rig import BrokerRig
from tests.support.sim_disk import SimDisk
from toymq_py.config.options import TopicSettings
from toymq_py.errors import DataDirectoryError
from toymq_py.storage import topic_settings
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import verify

SETTINGS = f"{DIR}/topics/a/{topic_settings.FILE_NAME}"
HOUR_S = 3600


def told(disk: SimDisk) -> dict[str, str]:
    """What ``verify`` says, by topic."""
    return {each.topic: "; ".join(f.text for f in each.findings if f.damage) for each in verify(disk, DIR) if each.damaged}


# -- topic.json


def without_settings() -> BrokerRig:
    """A topic that keeps for long what is acked has lost its settings, and is opened again."""
    rig = broker(retain_acked_for_ms=1000)
    assert rig.change("configure", "a", retain_acked_for=str(1000 * HOUR_S), visibility="7000") == "OK"
    rig.flush("a")
    rig.disk = rig.disk.crash()
    rig.disk.unlink(SETTINGS)
    rig.restart()
    return rig


def test_settings_that_are_missing_are_told_and_remove_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The defaults held in silence: what was to be kept for long was removed."""
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
    """Each operation of a first CONFIG fails in turn, or is the last one before a power cut."""
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
