"""`toymq repair`. Contract: storage.md, end of "Recovery"; ADR 0027. See also tests/fault/test_repair.py."""

import errno
from pathlib import Path

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.frames import encode_attributes, encode_frame
from tests.support.logs import PATH, disk_with, ids_of, recover, report_of, some_frames
from tests.support.repairs import CONSUMER, LOG, SECOND, STARTS, check, mend, put
from toymq_py.config.webhooks import Webhook
from toymq_py.errors import DirectoryLocked
from toymq_py.storage import offsets, segment_heads, webhooks_file
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import verify, verify_topic
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.recovery import recover_log
from toymq_py.storage.segment import segment_name


def test_a_torn_tail_is_left_to_the_broker() -> None:
    disk = disk_with({0: LOG + b"\x21" * 9})
    before = disk.snapshot()
    assert mend(disk) is None
    assert disk.snapshot().items() - before.items() <= {("/data/LOCK", b"1\ntoymq repair\n")}


def test_many_holes_and_a_torn_tail_become_one_segment_a_stretch() -> None:
    data = bytearray(LOG)
    for hit in (0, 3, 4, 8):
        data[STARTS[hit] + 9] ^= 1
    disk = disk_with({0: bytes(data) + b"\x21" * 9})
    done = check(disk, "four holes")
    assert done.lost == [(0, 0), (3, 4), (8, 8)]
    names = [name for name in disk.listdir(PATH) if name.endswith(".log")]
    assert names == [segment_name(n) for n in (1, 5, 9, 12)], "and an empty one, for what comes"


def test_a_segment_that_is_gone() -> None:
    third = b"".join(some_frames(3, first_id=17))
    disk = disk_with({0: LOG, 17: third})
    assert check(disk, "a segment in the middle").lost == [(12, 16)]
    disk = disk_with({0: LOG})
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 17, {"c": CONSUMER})))
    assert check(disk, "the last one").lost == [(12, 16)]
    assert offsets.load(disk, PATH).state.consumers == {"c": CONSUMER}
    disk = disk_with({})
    put(disk, "offsets.json", offsets.encode(OffsetsState(3, 17, {})))
    assert check(disk, "all of them").lost == [(3, 16)]
    assert recover_log(disk, PATH, first_id=3, next_id=17).next_id == 17, "no id is used twice"


def test_what_retention_removed_is_no_loss() -> None:
    data = bytearray(LOG)
    data[5] ^= 1
    disk = disk_with({0: bytes(data), 17: b"".join(some_frames(3, first_id=17))})
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 20, {}, ((12, 16),))))
    assert check(disk, "").lost == [(0, 0)]
    assert offsets.load(disk, PATH).state.removed == ((0, 0), (12, 16))


def test_records_that_two_segments_hold_stay_in_the_first() -> None:
    both = b"".join(some_frames(14))
    disk = disk_with({0: both, 12: SECOND})
    done = mend(disk)
    assert done is not None
    assert (done.lost, done.quarantined) == ([], [segment_name(12)])
    assert {path for path in disk.snapshot() if path.startswith(PATH) and path.endswith(".log")} == {
        f"{PATH}/{segment_name(0)}", f"{PATH}/{segment_name(14)}", f"{PATH}/{segment_name(17)}"
    }  # fmt: skip
    assert not report_of(disk).damaged
    assert ids_of(recover(disk)) == list(range(17))


def test_a_copy_goes_to_the_quarantine() -> None:
    disk = disk_with({0: LOG, 4: LOG, 12: SECOND})
    assert check(disk, "copy").lost == []
    assert not disk.exists(f"{PATH}/{segment_name(4)}")


def test_junk_behind_a_sealed_segment() -> None:
    disk = disk_with({0: LOG + b"junk" * 9, 12: SECOND})
    assert (report_of(disk).damaged, report_of(disk).lost, recover(disk).lost) == (False, 0, []), "one verdict"
    assert mend(disk) is None, "no record is missing: there is nothing to do"


@pytest.mark.parametrize("current", [b"", b"{}", b"\xff" * 40])
def test_damaged_offsets_give_way_to_their_previous_generation(current: bytes) -> None:
    disk = disk_with({0: LOG})
    put(disk, "offsets.json", current)
    put(disk, "offsets.json.prev", offsets.encode(OffsetsState(0, 12, {"c": CONSUMER})))
    done = check(disk, "current")
    assert done.quarantined == ["offsets.json"]
    assert offsets.load(disk, PATH).state.consumers == {"c": CONSUMER}


def test_a_stale_file_gives_way_to_the_newer_previous_generation() -> None:
    disk = disk_with({0: LOG})
    for name, generation in (("offsets.json", 3), ("offsets.json.prev", 4)):
        consumers = {"c": CONSUMER} if generation == 4 else {}
        put(disk, name, offsets.encode(OffsetsState(0, 12, consumers, generation=generation)))
    done = check(disk, "stale")
    assert done.notes == [
        "offsets.json: it is older than offsets.json.prev: generation 3, and 4; taken is its previous generation"
    ]
    loaded = offsets.load(disk, PATH)
    assert (loaded.state.consumers, loaded.state.generation, loaded.problem) == ({"c": CONSUMER}, 5, None)


def test_offsets_of_which_nothing_is_left_are_said_to_be_lost() -> None:
    disk = disk_with({0: LOG})
    for name in ("offsets.json", "offsets.json.prev"):
        put(disk, name, b"{")
    done = check(disk, "both")
    assert done.quarantined == ["offsets.json", "offsets.json.prev"]
    assert done.notes == ["both generations of the offsets are damaged: its consumers are forgotten"]


def test_one_consumer_that_makes_no_sense_is_forgotten_alone() -> None:
    disk = disk_with({0: LOG})
    put(disk, "offsets.json", offsets.encode(OffsetsState(0, 12, {"good": CONSUMER, "bad": {"start": "x"}})))
    done = check(disk, "one consumer")
    assert (done.forgotten, done.quarantined) == (["bad"], ["offsets.json"])
    assert offsets.load(disk, PATH).state.consumers == {"good": CONSUMER}


@pytest.mark.parametrize("data", [b"{", b'{"colour": 1}'], ids=["no JSON", "no setting"])
def test_damaged_settings_become_the_defaults(data: bytes) -> None:
    """Any content for which the broker would close the topic."""
    disk = disk_with({0: LOG})
    put(disk, "topic.json", data)
    done = check(disk, "settings")
    assert done.quarantined == ["topic.json"]
    assert not disk.exists(f"{PATH}/topic.json")


def test_a_producer_behind_a_hole_is_not_believed() -> None:
    """A power cut removed a page of an unacknowledged batch. The producer sends all of it again, and the lost part must be
    stored, so the sequences behind the hole must not count as stored. Recovery does so (ADR 0013), and repair must not undo
    it."""
    frames = [encode_frame(n, 1, b"producer", b"payload" * 9, encode_attributes(sequence=n)) for n in range(9)]
    data = bytearray(b"".join(frames))
    data[4 * len(frames[0]) + 9] ^= 1
    disk = disk_with({0: bytes(data)})
    assert recover_log(disk.kill(), PATH, dedupe_keys=10).producers == {b"producer": (3, 3)}
    disk = disk_with({0: bytes(data)})
    check(disk, "a hole")
    state = offsets.load(disk, PATH).state
    assert recover_log(disk, PATH, next_id=state.next_id, dedupe_keys=10).producers == {b"producer": (3, 3)}


def test_other_topics_and_a_whole_directory_are_left_alone() -> None:
    disk = disk_with({0: LOG})
    before = disk.snapshot()
    assert mend(disk) is None
    assert disk.snapshot().items() - before.items() <= {("/data/LOCK", b"1\ntoymq repair\n")}


def test_a_broker_that_runs_keeps_it_out() -> None:
    disk = disk_with({0: LOG})
    lock = DirectoryLock.take(disk, "/data", 7)
    with pytest.raises(DirectoryLocked):
        mend(disk)
    lock.release()


def test_it_says_in_the_lock_what_it_is() -> None:
    disk = disk_with({0: LOG})
    said: list[bytes] = []
    assert list(repair(disk, "/data", pid=7, progress=lambda _bytes: said.append(disk.read_file("/data/LOCK")))) == []
    assert set(said) == {b"7\ntoymq repair\n"}


def test_a_repaired_topic_is_published_to_and_consumed() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x%d" % n for n in range(9)])
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    path = f"{DIR}/topics/t/{segment_name(0)}"
    data = rig.disk.snapshot()[path]
    at = data.index(b"x4")
    rig.put(f"topics/t/{segment_name(0)}", data[:at] + b"XX" + data[at + 2 :])
    rig.reopen()
    assert rig.broker.topic("t").state == "degraded"
    rig.broker.close()
    (done,) = repair(rig.disk, DIR, pid=2)
    assert done.lost == [(4, 4)]
    rig.restart()
    topic = rig.broker.topic("t")
    assert (topic.state, topic.log.messages(), topic.log.committed_id) == ("ok", 8, 9)
    (outcome,) = rig.publish("t", b"new")
    assert outcome.first_id == 9
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("cut", [0, 40, -3])
def test_one_run_is_enough_when_the_newest_segment_was_cut(cut: int) -> None:
    """Found: a second run put the cut file aside: the first run had created a segment behind it, and only then did the torn
    tail count as damage."""
    frames = some_frames(12)
    disk = disk_with({0: b"".join(frames[:6]), 6: b"".join(frames[6:])[:cut]})
    offsets.write(disk, PATH, offsets.encode(OffsetsState(next_id=12)))
    mend(disk)
    assert not report_of(disk).findings
    assert mend(disk) is None, "nothing is left to do"


def test_a_directory_in_the_place_of_a_segment_harms_itself_alone(tmp_path: Path) -> None:
    """Found: beside other damage it ended the repair half-way with "Is a directory" and no name. A readable file put there
    later is not taken for another log's."""
    fs, topic = RealFileSystem(), tmp_path / "topics" / "t"
    topic.mkdir(parents=True)
    frames = some_frames(16)
    for base_id in range(0, 16, 4):
        (topic / segment_name(base_id)).write_bytes(b"".join(frames[base_id : base_id + 4]))
    segment_heads.store(fs, str(topic), segment_heads.read_heads(fs, str(topic), range(0, 16, 4), {}))
    aside = (topic / segment_name(4)).rename(tmp_path / "aside")
    (topic / segment_name(4)).mkdir()
    hit = bytearray((topic / segment_name(8)).read_bytes())
    hit[len(frames[8]) + 6] ^= 1
    (topic / segment_name(8)).write_bytes(hit)

    done = list(repair(fs, str(tmp_path), pid=1))
    stays = [f"{topic}/{segment_name(4)}"]
    assert [(each.topic, each.lost, each.unreadable) for each in done] == [("t", [(9, 9)], stays)]
    (topic / segment_name(4)).rmdir()
    aside.rename(topic / segment_name(4))
    report = verify_topic(fs, str(topic), "t")
    assert (report.findings, report.records, report.lost) == ([], 15, 0)


def test_a_newest_segment_that_cannot_be_read_is_not_given_up(tmp_path: Path) -> None:
    """Found: its records were entered as removed, although the note said that they were not given up."""
    fs, topic = RealFileSystem(), tmp_path / "topics" / "t"
    topic.mkdir(parents=True)
    frames = some_frames(8)
    (topic / segment_name(0)).write_bytes(b"".join(frames[:4]))
    aside = tmp_path / "aside"
    aside.write_bytes(b"".join(frames[4:]))
    (topic / segment_name(4)).mkdir()
    for next_id in (0, 7):
        offsets.write(fs, str(topic), offsets.encode(OffsetsState(next_id=next_id)))
        ((_, lost, unreadable),) = [(each.topic, each.lost, each.unreadable) for each in repair(fs, str(tmp_path), pid=1)]
        assert (lost, unreadable) == ([], [f"{topic}/{segment_name(4)}"])
        assert offsets.load(fs, str(topic)).state.removed == ()
        assert sorted(path.name for path in topic.glob("*.log")) == [segment_name(0), segment_name(4)]
    (topic / segment_name(4)).rmdir()
    aside.rename(topic / segment_name(4))
    report = verify_topic(fs, str(topic), "t")
    assert (report.findings, report.records, report.lost) == ([], 8, 0)


def test_damaged_webhooks_are_found_and_put_aside() -> None:
    """Found: one flipped byte switched all webhooks off, and verify and repair reported no damage."""
    disk = disk_with({0: b"".join(some_frames(3))})
    data = webhooks_file.encode({"hook": Webhook("t", "http://a.example/")})
    webhooks_file.FILE.write(disk, "/data", data.replace(b"a.example", b"b.example"))
    *_, found = verify(disk, "/data")
    assert (found.topic, found.damaged) == ("webhooks.json", True)
    assert found.findings[0].text.startswith("checksum of the webhooks does not fit")
    (done,) = repair(disk, "/data", pid=1)
    assert (done.topic, done.quarantined) == ("webhooks.json", ["webhooks.json"])
    disk = disk.crash()
    assert disk.read_file("/data/quarantine/1/webhooks.json") == data.replace(b"a.example", b"b.example")
    assert not any(report.damaged for report in verify(disk, "/data"))
    assert not list(repair(disk, "/data", pid=1))


def test_offsets_that_a_start_put_aside_are_damage_until_they_are_written() -> None:
    """Found: the broker reported `degraded` at each start, but verify and repair found no damage."""
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    rig.subscribe("t", "younger")
    rig.flush("t")
    rig.disk = rig.disk.kill()
    rig.put("topics/t/offsets.json", b"damaged")
    for _ in range(2):
        rig.restart()
        assert rig.numbers("t")["state"] == "degraded"
        rig.disk = rig.disk.kill()
        assert verify_topic(rig.disk, f"{DIR}/topics/t", "t").damaged
    (done,) = repair(rig.disk, DIR, pid=1)
    assert done.notes == ["offsets.json: the file is missing; taken is its previous generation"]
    assert not verify_topic(rig.disk, f"{DIR}/topics/t", "t").damaged
    rig.restart()
    assert rig.numbers("t")["state"] == "ok"


def test_a_topic_that_cannot_be_repaired_stops_no_other() -> None:
    rig = BrokerRig()
    for topic in ("a", "b"):
        rig.publish(topic, b"x" * 100, b"y")
    rig.disk = rig.disk.kill()
    for topic in ("a", "b"):
        name = f"topics/{topic}/{segment_name(0)}"
        data = rig.disk.read_file(f"{DIR}/{name}")
        rig.put(name, data.replace(b"x" * 100, b"z" * 100))
    rig.disk.fail("mkdir", 1, errno.EIO, path="quarantine/1/a")
    done = repair(rig.disk, DIR, pid=1)
    assert next(done).topic == "b"
    with pytest.raises(OSError, match="Input/output error"):
        next(done)
    assert [report.damaged for report in verify(rig.disk, DIR)] == [True, False]
