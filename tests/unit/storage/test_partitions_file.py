"""``partitions.json``. ADR 0184."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.partitions import Partitioned
from toymq_py.storage import checked_json, partitions_file
from toymq_py.storage.partitions_file import StoredPartitions

FOUND = {
    "orders": StoredPartitions(Partitioned("orders", 8, {"visibility": "60000"})),
    "old": StoredPartitions(Partitioned("old", 2), deleting=True),
}


def test_what_is_stored_is_found_again() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/d")
    disk.sync_dir("/")
    assert partitions_file.load(disk, "/d") == {}
    partitions_file.FILE.write(disk, "/d", partitions_file.encode(FOUND))
    assert partitions_file.load(disk.crash(), "/d") == FOUND, "it is synced"


def test_a_flipped_bit_is_seen() -> None:
    data = partitions_file.encode(FOUND)
    for at in range(len(data)):
        with pytest.raises(DamagedData):
            partitions_file.decode(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: one | {"partitions": 0}, "invalid partitions '0'"),
        (lambda one: one | {"settings": {"colour": "1"}}, "colour is not a topic setting"),
        (lambda one: {"settings": {}}, "'partitions'"),
        (lambda one: [], "indices"),
    ],
)
def test_what_no_broker_wrote_is_damage(change: Callable[[Any], Any], why: str) -> None:
    data = checked_json.encode("partitions", {"orders": change({"partitions": 8, "settings": {}})})
    with pytest.raises(DamagedData, match=f"topic 'orders' in partitions.json: .*{why}"):
        partitions_file.decode(data)


def test_a_partition_is_no_topic_of_its_own() -> None:
    with pytest.raises(DamagedData, match="is the name of a partition"):
        partitions_file.decode(checked_json.encode("partitions", {"orders#1": {"partitions": 8, "settings": {}}}))
