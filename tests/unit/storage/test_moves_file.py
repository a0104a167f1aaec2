"""``moves.json``. ADR 0194."""

import random
from typing import Any

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json, moves_file
from toymq_py.storage.moves_file import Mark

FOUND = {"orders": Mark("from", "a", "u-1"), "jobs": Mark("to", "b-2", "u-1")}


def test_what_is_stored_is_found_again() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/d")
    disk.sync_dir("/")
    assert moves_file.load(disk, "/d") == {}
    moves_file.FILE.write(disk, "/d", moves_file.encode(FOUND))
    assert moves_file.load(disk.crash(), "/d") == FOUND, "it is synced"


def test_a_flipped_bit_is_seen() -> None:
    data = moves_file.encode(FOUND)
    for at in range(len(data)):
        with pytest.raises(DamagedData):
            moves_file.decode(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])


@pytest.mark.parametrize(
    "mark",
    [[], {"way": "from"}, {"way": "up", "group": "a", "cluster": "u"}, {"way": "to", "group": 1, "cluster": ""}],
)
def test_what_no_broker_wrote_is_damage(mark: Any) -> None:
    with pytest.raises(DamagedData, match=r"topic 'orders' in moves.json has an invalid mark"):
        moves_file.decode(checked_json.encode("moves", {"orders": mark}))


def test_a_name_that_leads_out_of_the_directory_is_damage() -> None:
    mark = {"way": "to", "group": "a", "cluster": "u"}
    with pytest.raises(DamagedData, match=r"topic '../x' in moves.json"):
        moves_file.decode(checked_json.encode("moves", {"../x": mark}))
