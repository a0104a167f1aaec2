"""`toymq verify`: which findings are damage and which are notes. Contract: storage.md, end of "Recovery"."""

import random
from pathlib import Path

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.logs import PATH, disk_with, recover, report_of, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.partitions import Partitioned
from toymq_py.storage import offsets, partitions_file
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline import verify
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.partitions_file import StoredPartitions
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import MORE_MAY_BE_GONE


def two_segments() -> SimDisk:
    frames = some_frames(20)
    return disk_with({0: b"".join(frames[:10]), 10: b"".join(frames[10:])})


def put(disk: SimDisk, name: str, data: bytes) -> None:
    file = disk.open(f"{PATH}/{name}", create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()


def texts(disk: SimDisk) -> list[tuple[bool, str]]:
    return [(finding.damage, finding.text) for finding in report_of(disk).findings]


def consumer(last_acked: int, *above: list[int]) -> dict[str, object]:
    return {"since_ns": 1, "start": 0, "has_acked": True, "last_acked": last_acked, "acked_above": above, "attempts": []}


def test_a_whole_topic_has_numbers_and_no_findings() -> None:
    report = report_of(two_segments())
    assert not report.findings
    assert not report.damaged
    assert (report.segments, report.records, report.first_id, report.next_id, report.lost) == (2, 20, 0, 20, 0)
    assert report.bytes == sum(map(len, some_frames(20)))


def test_nothing_is_changed() -> None:
    disk = two_segments()
    put(disk, "offsets.json.tmp", b"x")
    before = disk.snapshot()
    report_of(disk)
    list(dump_topic(disk, PATH))
    assert disk.snapshot() == before


def test_a_torn_tail_is_a_note_and_so_is_junk_behind_the_last_record_of_a_sealed_segment() -> None:
    frames = some_frames(20)
    torn = b"\x21" * 9
    assert texts(disk_with({0: b"".join(frames[:19]) + torn})) == [
        (False, f"torn tail: 9 bytes behind record 18 (byte {sum(map(len, frames[:19]))}) hold no valid record; "
                "never acknowledged, or damaged"),
    ]  # fmt: skip
    sealed = disk_with({0: b"".join(frames[:9]) + torn, 9: b"".join(frames[9:])})
    assert [damage for damage, _ in texts(sealed)] == [False], "DESCRIBE says that nothing is lost, too"


def test_a_hole_is_damage_with_its_place() -> None:
    frames = some_frames(20)
    at = sum(map(len, frames[:4]))
    frames[4] = frames[4][:-1] + bytes([frames[4][-1] ^ 1])
    report = report_of(disk_with({0: b"".join(frames)}))
    assert report.damaged
    assert (report.lost, report.records) == (1, 19)
    assert f"damage from byte {at} to " in report.findings[0].text
    assert "record 4 is lost" in report.findings[0].text


def test_a_missing_segment_is_damage_unless_retention_took_it() -> None:
    frames = some_frames(30)
    disk = disk_with({0: b"".join(frames[:10]), 20: b"".join(frames[20:])})
    assert texts(disk) == [(True, "records 10 to 19 before it are missing")]
    for removed, said in [
        (((10, 19),), []),
        (((10, 12), (13, 25)), []),
        (((10, 18),), ["record 19 before it is missing"]),
        (((12, 13),), ["records 10 to 11 before it are missing", "records 14 to 19 before it are missing"]),
    ]:
        put(disk, "offsets.json", offsets.encode(OffsetsState(0, 30, {"c": consumer(19)}, removed)))
        assert [text for _, text in texts(disk)] == said


def test_segments_below_the_first_id_are_a_note() -> None:
    disk = two_segments()
    put(disk, "offsets.json", offsets.encode(OffsetsState(10, 20)))
    assert texts(disk) == [(False, "is below the first retained id: retention had decided to remove it")]


def test_offsets_that_know_more_than_the_log_are_damage() -> None:
    disk = two_segments()
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 25)))
    assert report_of(disk).lost == 5
    assert texts(disk) == [(True, "the offsets know of ids up to 24, the log ends at 19; " + MORE_MAY_BE_GONE)]


@pytest.mark.parametrize(("first_id", "next_id"), [(0, 20), (5, 20), (0, 0)])
def test_a_topic_without_its_segments_begins_where_its_offsets_say(first_id: int, next_id: int) -> None:
    """Found: ``first_id`` was null."""
    disk = two_segments()
    put(disk, "offsets.json", offsets.encode(OffsetsState(first_id, next_id)))
    for name in [name for name in disk.listdir(PATH) if name.endswith(".log")]:
        disk.unlink(f"{PATH}/{name}")
    report = report_of(disk)
    assert (report.first_id, report.next_id) == ((first_id, next_id) if next_id else (None, None))
    assert (report.lost, report.damaged) == (next_id - first_id, next_id > 0)


def test_damaged_offsets_are_named_with_what_is_used_instead() -> None:
    disk = two_segments()
    put(disk, "offsets.json", b"x")
    (found,) = texts(disk)
    assert found[0]
    assert "offsets.json: not a checked state file; used is nothing" in found[1]
    put(disk, "offsets.json.prev", offsets.encode(OffsetsState(0, 20)))
    assert "used is its previous generation" in texts(disk)[0][1]


def test_consumers_that_make_no_sense_are_named() -> None:
    disk = two_segments()
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 20, {"c": {"has_acked": True}})))
    found = texts(disk)
    assert found
    assert found[0][0]
    assert "consumer c" in found[0][1]


@pytest.mark.parametrize(
    "change",
    [
        {"has_acked": 1},
        {"since_ns": -1},
        {"last_acked": 25, "acked_above": [[22, 24]]},
        {"attempts": [[10, 10**20, 5]]},
        {"attempts": [[3, 3, 1]]},
        {"acked_above": [[12, 14], [13, 16]]},
        {"start": 12},
        {"name": "c"},
        {},
    ],
)
def test_a_consumer_is_judged_as_the_broker_judges_it(change: dict[str, object]) -> None:
    """Found: verify reported ok for a consumer that the broker forgot, which made the topic degraded, and repair changed
    nothing."""
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 20)
    rig.disk = rig.disk.kill()
    state = OffsetsState(0, 20, {"c": consumer(9) | change, "d": consumer(3)})
    rig.put("topics/t/offsets.json", offsets.encode(state, "t"))
    found = verify.verify_topic(rig.disk, f"{DIR}/topics/t", "t").findings
    assert [finding.text.partition(":")[0] for finding in found] == ["consumer c of the offsets"] * bool(change)
    brokers = BrokerRig(disk=rig.disk.beside())
    assert brokers.numbers("t")["state"] == ("degraded" if change else "ok")
    brokers.disk.end()
    forgotten = [done.forgotten for done in repair(rig.disk, DIR, pid=1)]
    assert forgotten == [["c"]] * bool(change)
    assert not verify.verify_topic(rig.disk, f"{DIR}/topics/t", "t").damaged


def test_a_stale_sidecar_is_a_note() -> None:
    disk = two_segments()
    recover(disk)
    assert not report_of(disk).findings
    put(disk, f"{segment_name(0)[:-4]}.idx", b"stale")
    assert texts(disk) == [(False, "does not fit its segment; it is a cache and will be made anew")]


def test_a_copy_is_damage() -> None:
    frames = some_frames(12)
    disk = disk_with({0: b"".join(frames), 10: b"".join(frames[10:])})
    assert (True, "is a copy of what segments before it hold") in texts(disk)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{", "is not JSON"),
        (b"[]", "the settings file is not a JSON object"),
        (b'{"colour": 1}', "colour is not a topic setting"),
        (b'{"\\ud800x": 1}', "'\\ud800x' is not a topic setting"),
        (b'{"a\\n\\u001b[31m": 1}', "'a\\n\\x1b[31m' is not a topic setting"),
        (b'{"%b": 1}' % (b"a" * 1000), "'%s' is not a topic setting" % ("a" * 64)),
        (b'{"visibility": -1}', "visibility"),
        (b'{"visibility": 5}', None),
        (b"{}", None),
    ],
)
def test_settings_are_looked_at(data: bytes, text: str | None) -> None:
    disk = two_segments()
    put(disk, "topic.json", data)
    found = texts(disk)
    assert len(found) == (text is not None)
    if text is not None:
        assert text in found[0][1]


def test_settings_that_are_a_directory_hide_no_other_finding(tmp_path: Path) -> None:
    (tmp_path / "topics/t/topic.json").mkdir(parents=True)
    reports = list(verify.verify(RealFileSystem(), str(tmp_path), lambda size: None))
    assert [[finding.text for finding in report.findings] for report in reports] == [["it is a directory, and no file"]]


def test_all_topics_and_a_progress_that_adds_up() -> None:
    disk = two_segments()
    disk.mkdir("/data/topics/.deleted-1")
    disk.mkdir("/data/topics/empty")
    seen: list[int] = []
    assert [report.topic for report in verify.verify(disk, "/data", seen.append)] == ["empty", "t"]
    assert sum(seen) == verify.log_bytes(disk, "/data")
    assert verify.topic_names(disk, "/nowhere") == []


def test_a_topic_that_only_its_partitions_tell_of_is_damage_of_the_table() -> None:
    disk = SimDisk(random.Random(1))
    for path in ("/data", "/data/topics", *(f"/data/topics/{name}" for name in ("a#0", "a#7", "b#3.dlq", "c#0", "plain"))):
        disk.mkdir(path)
    for known in ({}, {"c": StoredPartitions(Partitioned("c", 1))}):
        if known:
            partitions_file.FILE.write(disk, "/data", partitions_file.encode(known))
        *_, found = verify.verify(disk, "/data")
        assert (found.topic, found.damaged) == ("partitions.json", True)
        assert [finding.text.split(", and")[0] for finding in found.findings] == [
            "partitions of a are here, up to a#7", "partitions of b are here, up to b#3",
            *([] if known else ["partitions of c are here, up to c#0"]),
        ]  # fmt: skip
        assert found.findings[1].text.endswith("CREATE b partitions=N brings it back with what is in them; N is the number "
                                               "that it had, at least 4")  # fmt: skip
    put_table(disk, b"{")
    *_, found = verify.verify(disk, "/data")
    assert len(found.findings) == 1, "the damage is said, and not more than is known"


def put_table(disk: SimDisk, data: bytes) -> None:
    file = disk.open("/data/partitions.json", create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()
