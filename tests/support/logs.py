"""Small logs on the simulated disk, written and read without a broker."""

import random

from tests.support.frames import encode_attributes, encode_frame
from tests.support.sim_disk import SimDisk
from toymq_py.storage.fs import write_all
from toymq_py.storage.offline.verify import TopicReport, verify_topic
from toymq_py.storage.recovery import RecoveredLog, recover_log
from toymq_py.storage.segment import segment_name

PATH = "/data/topics/t"
TS_NS = 1_781_767_800_000_000_000


def some_frames(count: int, seed: int = 1, *, first_id: int = 0, size_max: int = 60) -> list[bytes]:
    """Encode records with consecutive ids: a mixture with and without payloads, keys and attributes."""
    rng = random.Random(seed)
    frames = []
    for msg_id in range(first_id, first_id + count):
        key = b"key-%d" % msg_id if rng.random() < 0.5 else b""
        payload = rng.randbytes(rng.choice([0, 1, 7, size_max]))
        block = encode_attributes(headers=b"A: b\n") if rng.random() < 0.3 else b""
        frames.append(encode_frame(msg_id, TS_NS + msg_id, key, payload, block))
    return frames


def disk_with(segments: dict[int, bytes]) -> SimDisk:
    """Return a disk with a synced topic directory that has these segments, by first id."""
    disk = SimDisk(random.Random(1))
    for path in ("/data/topics", PATH):
        disk.mkdir(path)
    for first_id, data in segments.items():
        file = disk.open(f"{PATH}/{segment_name(first_id)}", create=True)
        write_all(file, data, 0)
        file.sync()
        file.close()
    for path in ("/data", "/data/topics", PATH):
        disk.sync_dir(path)
    return disk


def recover(disk: SimDisk) -> RecoveredLog:
    return recover_log(disk, PATH, dedupe_keys=100)


def ids_of(log: RecoveredLog) -> list[int]:
    """Return the ids for which the log has a record."""
    lost = {msg_id for first, last in log.lost for msg_id in range(first, last + 1)}
    return [msg_id for msg_id in range(log.first_id, log.next_id) if msg_id not in lost]


def report_of(disk: SimDisk) -> TopicReport:
    return verify_topic(disk, PATH, "t")
