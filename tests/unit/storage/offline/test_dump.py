"""Printing records on a terminal. Contract: storage.md, end of "Recovery"."""

from tests.support.logs import PATH, disk_with, some_frames
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.record import Frame


def test_a_dump_says_what_is_not_there() -> None:
    frames = some_frames(30)
    frames[4] = frames[4][:-1] + bytes([frames[4][-1] ^ 1])
    disk = disk_with({0: b"".join(frames[:10]), 20: b"".join(frames[20:]) + b"\x01torn"})
    found = list(dump_topic(disk, PATH))
    ids = [item.msg_id for item in found if isinstance(item, Frame)]
    assert ids == [0, 1, 2, 3, *range(5, 10), *range(20, 30)]
    said = [item for item in found if isinstance(item, str)]
    assert "record 4 is lost" in said[0]
    assert said[1] == "records 10 to 19 are lost"
    assert said[2].endswith("5 bytes hold no valid record")
