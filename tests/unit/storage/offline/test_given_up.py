"""The ids that a repair has given up."""

import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.records import MSG_ID_MAX, IdRange
from toymq_py.storage.offline import given_up
from toymq_py.storage.offline.given_up import GivenUp
from toymq_py.storage.offsets import OffsetsState

PATH = "/data/topics/t"


def disk() -> SimDisk:
    made = SimDisk(random.Random(1))
    for path in ("/data", "/data/topics", PATH):
        made.mkdir(path)
    return made


def test_each_repair_adds_its_ids() -> None:
    fs = disk()
    assert given_up.load(fs, PATH) == GivenUp()
    given_up.add(fs, PATH, [(7, 9), (20, 20)], {7: (99, 1)})
    given_up.add(fs, PATH, [(3, 3), (10, 12)], {3: (98, 2), 7: (99, 1)})
    assert given_up.load(fs, PATH) == GivenUp([(3, 3), (7, 12), (20, 20)], {3: (98, 2), 7: (99, 1)})


def test_of_a_damaged_file_every_id_may_have_been_given_up() -> None:
    for data in (b"", b"{", b'{"crc32": "00000000", "lost": {"ids": [], "heads": []}}', b"\xff" * 10):
        fs = disk()
        file = fs.open(f"{PATH}/{given_up.FILE_NAME}", create=True)
        file.pwrite(data, 0)
        file.close()
        assert given_up.load(fs, PATH).ids == [(0, MSG_ID_MAX)]
        given_up.add(fs, PATH, [(5, 6)], {})
        assert given_up.load(fs, PATH).ids == [(0, MSG_ID_MAX)]


@pytest.mark.parametrize(("first_id", "removed", "ids", "left"), [
    (10, [], [(0, 9)], (0, ())),
    (10, [], [(5, 9)], (5, ())),
    (10, [(20, 29)], [(20, 24)], (10, ((25, 29),))),
    (10, [(20, 29)], [(0, 4)], (0, ((5, 9), (20, 29)))),
    (0, [(3, 4)], [], (0, ((3, 4),))),
], ids=str)  # fmt: skip
def test_what_is_given_up_is_not_removed_for_those_that_have_copies(
    first_id: int, removed: list[IdRange], ids: list[IdRange], left: tuple[int, tuple[IdRange, ...]]
) -> None:
    state = given_up.without(OffsetsState(first_id, 40, removed=tuple(removed)), ids)
    assert (state.first_id, state.removed) == left
    assert state.next_id == 40
