"""Which directories are topics, and which files show that there were some."""

import random

from tests.support.sim_disk import SimDisk
from toymq_py.storage.offline.beside import BESIDE
from toymq_py.storage.topic_directories import OF_A_USED_DIRECTORY, begin, no_directories, topic_names


def test_directories_with_legal_names_are_topics_and_other_things_with_such_names_are_told() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    assert (topic_names(disk, "/data"), [*no_directories(disk, "/data")]) == ([], [])
    disk.mkdir("/data/topics")
    for name in ("t", "t.dlq", "t#3", "t#3.dlq", ".deleted-0", "t#x", "lost+found"):
        disk.mkdir(f"/data/topics/{name}")
    for name in ("file", ".hidden"):
        disk.open(f"/data/topics/{name}", create=True)
    assert sorted(topic_names(disk, "/data")) == ["t", "t#3", "t#3.dlq", "t.dlq"]
    assert [name for name, _ in no_directories(disk, "/data")] == ["file"]


def test_topics_are_made_in_a_new_directory_alone() -> None:
    assert {"LOCK", "quarantine", "topics-mounted", *(file.name for file in BESIDE)} == OF_A_USED_DIRECTORY
    for name in (*OF_A_USED_DIRECTORY, "workers", "topics.restoring", "lost+found"):
        disk = SimDisk(random.Random(1))
        disk.mkdir("/data")
        disk.mkdir(f"/data/{name}")
        begin(disk, "/data")
        assert disk.is_dir("/data/topics") is (name == "lost+found"), name
