"""Which directories are topics."""

import random

from tests.support.sim_disk import SimDisk
from toymq_py.storage.topic_directories import topic_names


def test_directories_with_legal_names_are_topics() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    assert topic_names(disk, "/data") == []
    disk.mkdir("/data/topics")
    for name in ("t", "t.dlq", "t#3", "t#3.dlq", ".deleted-0", "t#x", "lost+found"):
        disk.mkdir(f"/data/topics/{name}")
    disk.open("/data/topics/file", create=True)
    assert sorted(topic_names(disk, "/data")) == ["t", "t#3", "t#3.dlq", "t.dlq"]
