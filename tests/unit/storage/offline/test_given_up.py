"""The ids that a repair has given up."""

import random

from tests.support.sim_disk import SimDisk
from toymq_py.records import MSG_ID_MAX
from toymq_py.storage.offline import given_up
from toymq_py.storage.offline.given_up import GivenUp

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
