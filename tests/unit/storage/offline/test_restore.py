"""A data directory made from a backup. Contract: clients.md, "Command lines"; ADR 0026."""

import errno

import pytest

from tests.support.backups import BACK, TO, TOPICS, broker, do_backup, restored
from tests.support.broker_rig import DIR
from toymq_py.errors import DataDirectoryError
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
    with pytest.raises(DataDirectoryError, match="is unfinished"):
        restore(rig.disk, TO, BACK, pid=3)
    assert not rig.disk.exists(BACK)
