"""A data directory made from a backup. Contract: clients.md, "Command lines"; ADR 0026."""

import errno
import random
from contextlib import suppress

import pytest

from tests.support.backups import BACK, TO, TOPICS, broker, contents, do_backup, restored, webhooks
from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.errors import DataDirectoryError
from toymq_py.storage import webhooks_file
from toymq_py.storage.offline.restore import restore


def test_a_consumer_goes_on_where_it_was() -> None:
    rig = broker()
    rig.take(rig.subscribe("a", "first"))
    rig.ack("a", 0, 4, "first")
    do_backup(rig)
    copy = restored(rig)
    assert [msg_id for msg_id, _ in copy.take(copy.subscribe("a", "first"))] == list(range(5, 14))


def test_restoring_overwrites_nothing() -> None:
    rig = broker()
    do_backup(rig)
    before = rig.disk.snapshot()
    with pytest.raises(DataDirectoryError, match="is not empty"):
        restore(rig.disk, TO, DIR, pid=3)
    with pytest.raises(DataDirectoryError, match=r"is not a backup: it has no backup\.json"):
        restore(rig.disk, DIR, BACK, pid=3)
    assert rig.disk.snapshot() == before
    rig.disk.mkdir(BACK)
    assert [report.topic for report in restore(rig.disk, TO, BACK, pid=3)] == list(TOPICS)


def test_an_unfinished_backup_is_restored_only_when_that_is_said() -> None:
    rig = broker()
    rig.disk.fail("pwrite", 9, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        do_backup(rig)
    with pytest.raises(DataDirectoryError, match=r"is unfinished: a backup that began at [-\d]+ [:\d]+ UTC was interrupted;"):
        restore(rig.disk, TO, BACK, pid=3)
    assert not rig.disk.exists(BACK)


@pytest.mark.parametrize("op", ["pwrite", "sync", "rename", "sync_dir", "mkdir"])
def test_a_restore_that_was_interrupted_begins_anew(op: str) -> None:
    """Found: a second restore refused the files of the first one: the directory was not empty."""
    rig = broker()
    rig.put(webhooks_file.FILE_NAME, webhooks("one"))
    do_backup(rig)
    for nth in range(1, 100):
        disk = rig.disk.peek_crash(random.Random(nth))
        fault = disk.fail(op, nth, errno.ENOSPC, sticky=True)
        with suppress(OSError):
            restore(disk, TO, BACK, pid=3)
        if not fault.fired:
            assert nth > 1
            return
        disk.heal()
        if disk.exists(f"{BACK}/topics"):  # only the last sync of a directory was missing
            continue
        assert [report.findings for report in restore(disk, TO, BACK, pid=3)] == [[], [], []]
        copy = BrokerRig(disk=disk, data_dir=BACK)
        assert {topic: contents(copy, topic) for topic in TOPICS} == {topic: contents(rig, topic) for topic in TOPICS}
        assert disk.read_file(f"{BACK}/{webhooks_file.FILE_NAME}") == webhooks("one")
    raise AssertionError("it never ended")


def test_what_is_not_of_an_interrupted_restore_is_not_overwritten() -> None:
    rig = broker()
    do_backup(rig)
    rig.disk.mkdir(BACK)
    rig.disk.mkdir(f"{BACK}/topics.restoring")
    rig.disk.open(f"{BACK}/thesis.txt", create=True).close()
    with pytest.raises(DataDirectoryError, match="is not empty"):
        restore(rig.disk, TO, BACK, pid=3)
    rig.disk.unlink(f"{BACK}/thesis.txt")
    rig.disk.mkdir(f"{BACK}/topics")
    with pytest.raises(DataDirectoryError, match="is not empty"):
        restore(rig.disk, TO, BACK, pid=3)
