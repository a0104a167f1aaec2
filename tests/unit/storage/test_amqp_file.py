"""``amqp.json``. ADR 0123."""

import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.storage import amqp_file

FOUND = {"exchanges": [], "queues": [{"name": "q"}], "bindings": []}


def test_what_is_written_is_read_and_one_flipped_bit_is_seen() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/d")
    disk.sync_dir("/")
    assert amqp_file.FILE.read(disk, "/d") is None
    data = amqp_file.encode(FOUND)
    amqp_file.FILE.write(disk, "/d", data)
    assert amqp_file.FILE.read(disk.crash(), "/d") == data, "it is synced"
    assert amqp_file.decode(data) == FOUND
    for at in range(len(data) - 1):
        with pytest.raises(DamagedData):
            amqp_file.decode(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])
