"""The list of evicted segments: by it every tool that reads a directory tells them from lost ones."""

from collections.abc import Iterator

import pytest

from tests.support.broker_rig import DIR
from tests.support.buckets import MemoryBucket
from tests.support.call_counts import counted_calls
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import evicted
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.reader import DirectoryReader, walk_columns
from toymq_py.storage.segment import Segment

TOPIC = f"{DIR}/topics/t"


@pytest.fixture
def rig() -> TierRig:
    """Return a broker whose ids 0 to 34 are in the bucket only, and 35 to 39 not sealed yet."""
    rig = TierRig(MemoryBucket())
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    rig.publish("t", *[b"%d " % n + PAYLOAD for n in range(40)])
    rig.rounds(3)
    assert len(rig.away()) == 7
    return rig


def test_verify_finds_nothing_and_counts_all(rig: TierRig) -> None:
    report = verify_topic(rig.disk, TOPIC, "t")
    assert (report.findings, report.records, report.lost, report.segments) == ([], 40, 0, 8)


def test_what_is_neither_here_nor_evicted_is_lost(rig: TierRig) -> None:
    assert rig.change("configure", "t", tier_local_bytes="1000000") == "OK"
    rig.publish("t", *[PAYLOAD] * 10)
    rig.rounds(1)
    rig.broker.close()
    rig.disk.unlink(f"{TOPIC}/{35:020d}.log")
    report = verify_topic(rig.disk, TOPIC, "t")
    assert (report.lost, len(report.findings)) == (5, 1)
    rig.restart()
    assert (rig.numbers("t")["state"], rig.broker.topic("t").log.lost) == ("degraded", [(35, 39)])
    (finding,) = rig.findings()
    assert finding.endswith(".log is in the bucket alone: the disk lost it, and it is kept")


def test_repair_leaves_what_was_evicted(rig: TierRig) -> None:
    before = rig.records("t")
    rig.broker.close()
    file = rig.disk.open(f"{TOPIC}/{35:020d}.log")
    file.pwrite(b"\xff" * 50, 900)  # in record 36
    file.close()
    (done,) = [each for each in repair(rig.disk, DIR, pid=1) if each.topic == "t"]
    assert (done.lost, done.unreadable) == ([(36, 36)], [])
    rig.restart()
    assert rig.records("t") == [record for record in before if record[0] != 36]
    assert len(rig.away()) == 7


def test_a_list_that_is_damaged_is_a_finding_and_repair_gives_up_what_it_held(rig: TierRig) -> None:
    for name in (evicted.FILE_NAME, evicted.OTHER_NAME):
        rig.put(f"topics/t/{name}", b"{}")
    assert "what is in the bucket is not known" in verify_topic(rig.disk, TOPIC, "t").findings[0].text
    rig.broker.close()
    (done,) = [each for each in repair(rig.disk, DIR, pid=1) if each.topic == "t"]
    assert "`toymq restore` has it" in done.notes[0]
    assert {*done.quarantined} >= {evicted.FILE_NAME, evicted.OTHER_NAME}
    rig.restart()
    assert rig.numbers("t")["next_id"] == 40


def test_a_backup_has_the_list_and_needs_its_bucket(rig: TierRig) -> None:
    before = rig.records("t")
    rig.flush("t")
    for _ in range(2):
        assert back_up(rig.disk, DIR, "/data/backup", pid=1, wall_ns=1).problems == []
    restore(rig.disk, "/data/backup", "/data/again", pid=1)
    again = TierRig(rig.bucket, disk=rig.disk, data_dir="/data/again")
    assert (again.records("t"), again.numbers("t")["lost"]) == (before, 0)


def test_an_earlier_backup_keeps_its_copies_of_what_was_evicted_since() -> None:
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[b"%d " % n + PAYLOAD for n in range(40)])
    rig.rounds(2)
    back_up(rig.disk, DIR, "/data/backup", pid=1, wall_ns=1)
    before = rig.records("t")
    assert rig.change("configure", "t", tier_local_bytes="0") == "OK"
    rig.rounds(2)
    assert len(rig.away()) == 7
    assert back_up(rig.disk, DIR, "/data/backup", pid=1, wall_ns=2).problems == []
    assert len([name for name in rig.disk.listdir("/data/backup/topics/t") if name.endswith(".log")]) == 8
    restore(rig.disk, "/data/backup", "/data/again", pid=1)
    again = TierRig(MemoryBucket(), disk=rig.disk, data_dir="/data/again")
    assert again.records("t") == before, "and no bucket is needed"


def test_dump_and_the_reader_of_directories_say_where_the_records_are(rig: TierRig) -> None:
    lines = [each for each in dump_topic(rig.disk, TOPIC) if isinstance(each, str)]
    assert lines[0] == "records 0 to 4 are in the bucket of --tier alone"
    assert len(lines) == 7
    reader = DirectoryReader(DIR, rig.disk).topic("t")
    assert (reader.first_id, reader.next_id) == (0, 40)
    assert [run.first_id for run in reader.read(35, 40, walk_columns)] == [35]
    with pytest.raises(OSError, match="are in the bucket of --tier alone"):
        list(reader.read(0, 40, walk_columns))


@pytest.mark.parametrize("value", [b"{}", b"", evicted.encode("other", [], {}), evicted.encode("t", [], {})[:-9]])
def test_a_generation_that_is_not_this_topics_does_not_count(rig: TierRig, value: bytes) -> None:
    rig.put(f"topics/t/{evicted.FILE_NAME}", value)
    found = evicted.load(rig.disk, TOPIC, rig.disk.listdir(TOPIC))
    assert (len(found.segments), found.problem) == (7, None)
    with pytest.raises(DamagedData):
        evicted._decode(TOPIC, value)


def far(count: int) -> Iterator[tuple[Segment, str]]:
    for row in range(count):
        base_id = row * 60_000
        segment = Segment(f"{TOPIC}/{base_id:020d}.log", base_id, next_id=base_id + 60_000, end=64 << 20, sealed=True)
        segment.newest_ts_ns = (row + 1) * 1_000_000_000
        segment.add_index_entry(base_id, 0, 0, row * 1_000_000_000)
        yield segment, "0" * 64


def started(count: int) -> tuple[TierRig, int]:
    """Return a broker with so many segments of 64 MiB in the bucket, and the function calls that its start took."""
    rig = TierRig(MemoryBucket())
    rig.publish("t", b"x")
    rig.broker.close()
    last = count * 60_000
    rig.disk.rename(f"{TOPIC}/{0:020d}.log", f"{TOPIC}/{last:020d}.log")
    file = rig.disk.open(f"{TOPIC}/{last:020d}.log")
    file.truncate(0)
    file.close()
    for name in rig.disk.listdir(TOPIC):
        if name.endswith(".json"):
            rig.disk.unlink(f"{TOPIC}/{name}")
    evicted.store(rig.disk, TOPIC, evicted.encode("t", far(count), {}))
    rig.disk.trace.clear()
    with counted_calls() as counted:
        rig.restart()
    return rig, counted.calls


def test_a_start_with_a_terabyte_in_the_bucket_is_quick() -> None:
    """No segment of the 16,000 of 64 MiB is read, and eight times as many segments as 2,000 cost at most eight times the
    work."""
    _, of_few = started(2_000)
    rig, of_many = started(16_000)
    last = 16_000 * 60_000
    assert of_many < 8 * of_few
    assert not [path for _, path, _ in rig.disk.trace if ".log" in path and str(last) not in path], "nothing of them is read"
    assert len(rig.disk.trace) < 1000
    described = rig.numbers("t")
    assert (described["segments"], described["messages"], described["bytes"]) == (16_001, last, 16_000 * (64 << 20))
    assert described["evicted"]["segments"] == 16_000
    ids: IdRange = (0, last)
    assert rig.broker.topic("t").id_range() == ids
