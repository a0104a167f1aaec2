"""``amqp.json``: what AMQP clients declared, behind a checksum."""

import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.storage import amqp_file


def test_what_was_written_is_read() -> None:
    disk = SimDisk(random.Random(1))
    assert amqp_file.read(disk, "/data") is None
    amqp_file.write(disk, "/data", amqp_file.encode({"queues": [{"name": "a"}]}))
    data = amqp_file.read(disk, "/data")
    assert data is not None
    assert amqp_file.decode(data) == {"queues": [{"name": "a"}]}


def test_a_byte_that_changed_is_damage() -> None:
    data = amqp_file.encode({"queues": [{"name": "first"}]})
    with pytest.raises(DamagedData):
        amqp_file.decode(data.replace(b"first", b"farst"))
