"""The broker's files beside the topics: a damaged one is reported, with the remedy."""

import errno
import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.storage.beside_file import BesideFile
from toymq_py.storage.offline.beside import BESIDE


@pytest.mark.parametrize("file", BESIDE, ids=[file.name for file in BESIDE])
def test_a_file_is_right_damaged_unreadable_or_not_there(file: BesideFile) -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/d")
    disk.sync_dir("/")
    assert (file.read(disk, "/d"), file.problem(disk, "/d")) == (None, None)
    file.write(disk, "/d", b"{")
    disk = disk.crash()
    assert file.read(disk, "/d") == b"{"
    assert str(file.problem(disk, "/d")).startswith("not a checked ")
    disk.fail("read_file", 1, errno.EIO, path=file.name)
    assert str(file.problem(disk, "/d")) == "it cannot be read: Input/output error"
