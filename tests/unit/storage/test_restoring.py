"""``topics.restoring``. ADR 0026."""

import random

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError
from toymq_py.storage.offline.verify import check_data_directory
from toymq_py.storage.restoring import DIRECTORY_NAME, check_restored


def test_a_directory_whose_restore_was_interrupted_is_used_by_nobody() -> None:
    """Found: such a directory looked as if it never had a topic: the broker started empty, and verify found no damage."""
    disk = SimDisk(random.Random(1))
    disk.mkdir(DIR)
    check_restored(disk, DIR)
    disk.mkdir(f"{DIR}/{DIRECTORY_NAME}")
    for use in (
        lambda: BrokerRig(disk=disk),
        lambda: check_data_directory(disk, DIR),
        lambda: BrokerRig(disk=disk),  # the lock was given back
    ):
        with pytest.raises(DataDirectoryError, match="was interrupted: run `toymq restore` again"):
            use()
    assert disk.listdir(DIR) == ["LOCK", DIRECTORY_NAME]
    disk.rename(f"{DIR}/{DIRECTORY_NAME}", f"{DIR}/topics")
    assert BrokerRig(disk=disk).broker.topics == {}
