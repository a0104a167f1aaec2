"""Faults that a reviewer found by trying to break the broker; each case has the name of what happened."""

import errno
import random
from contextlib import suppress

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.frames import encode_frame
from tests.support.log_rig import LogRig
from tests.support.logs import PATH, disk_with, recover
from tests.support.sim_disk import SimDisk
from toymq_py.consumer_options import Start
from toymq_py.errors import DiskLow, NoSuchTopic, StorageFailed
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.commit.space_guard import FREE_SPACE_VALID_S
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.segment import segment_name

FIRST = f"{DIR}/topics/t/{segment_name(0)}"


def payloads(rig: BrokerRig, topic: str = "t") -> dict[int, bytes]:
    """Return the payload by id of every message that can be read."""
    log = rig.broker.topic(topic).log
    log.tail.clear()
    found: dict[int, bytes] = {}
    at = log.first_id
    while at < log.committed_id:
        run, row, after = log.read(at, 100)
        if run is not None:
            found |= {run.ids[row + n]: run.payloads[row + n] for n in range(after - at)}
        at = after
    return found


def test_a_hole_at_the_end_and_a_refused_publish_before_the_first_good_one() -> None:
    """Found: the new segment that the hole requires was forgotten with the refused batch; later messages were unreadable."""
    rig = BrokerRig(min_free_bytes=1000)
    rig.publish("t", *[b"%d" % n for n in range(10)])
    rig.subscribe("t")
    rig.flush("t")
    rig.disk.open(FIRST).truncate(31 * 8)
    rig.disk.capacity_bytes = rig.disk.used_bytes
    rig.reopen()
    (refused,) = rig.publish("t", b"low")
    assert isinstance(refused.error or refused.commit.error, DiskLow)
    rig.disk.capacity_bytes = None
    rig.advance(1)
    assert rig.publish("t", b"ten")[0].first_id == 10
    assert rig.publish("t", b"eleven")[0].first_id == 11
    rig.reopen(power_cut=True)
    assert payloads(rig) == {n: b"%d" % n for n in range(8)} | {10: b"ten", 11: b"eleven"}


def acked_segments() -> BrokerRig:
    """Return a broker with five acked messages, each in its own segment, and a sixth in the active segment."""
    rig = BrokerRig(retain_acked_for_ms=0)
    for n in range(6):
        rig.publish("t", b"%d" % n * 3000)
    assert len(rig.take(rig.subscribe("t"))) == 6
    return rig


def test_seek_back_while_the_flush_of_the_acks_is_running() -> None:
    rig = acked_segments()
    topic = rig.broker.topic("t")
    topic.ack("c", [(0, 4)])
    answers: list[object] = []
    topic.flush_offsets(answers.append)
    rig.loop._timers.sort()
    rig.loop._timers.pop(0)[2]()  # the snapshot is taken, the file is being written
    assert topic.seek("c", Start("earliest")) == 0
    rig.loop.advance(1)
    assert answers == [None]
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == list(range(6))


def test_another_consumer_in_the_place_of_one_that_was_forgotten() -> None:
    rig = acked_segments()
    rig.broker.topic("t").ack("c", [(0, 4)])
    rig.broker.topic("t").flush_offsets(lambda error: None)
    rig.loop._timers.sort()
    rig.loop._timers.pop(0)[2]()
    rig.broker.topic("t").forget("c")
    subscription = rig.subscribe("t", "d")
    rig.loop.advance(1)
    assert [msg_id for msg_id, _ in rig.take(subscription)] == list(range(6))


def test_a_length_and_its_neighbour_are_hit() -> None:
    """Found: the damaged length claimed a megabyte, and all records behind it were cut as a torn tail."""
    frames = [encode_frame(n, 1, b"", b"p" * 70) for n in range(200)]
    data = bytearray(b"".join(frames))
    data[100 * 50 + 2] ^= 0x10
    data[100 * 51 + 60] ^= 1
    found = recover(disk_with({0: bytes(data)}))
    assert (found.next_id, sum(last - first + 1 for first, last in found.lost)) == (200, 2)


@pytest.mark.parametrize("sector", [512, 4096])
def test_a_sector_of_noise_costs_the_records_that_it_touches(sector: int) -> None:
    frames = [encode_frame(n, 1, b"", bytes([n]) * 70) for n in range(200)]
    data = b"".join(frames)
    for seed in range(150):
        rng = random.Random(seed)
        at = rng.randrange(0, len(data) * 6 // 10 // sector) * sector
        damaged = bytearray(data)
        damaged[at : at + sector] = rng.randbytes(sector)
        found = recover(disk_with({0: bytes(damaged)}))
        lost = {n for first, last in found.lost for n in range(first, last + 1)}
        assert lost <= set(range(at // 100, (at + sector - 1) // 100 + 1)), f"seed {seed}"
        assert found.next_id == 200, f"seed {seed}"


def test_two_damaged_records_found_while_running_cost_two() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    for _ in range(40):
        rig.publish("t", b"p" * 70)
    file = rig.disk.open(FIRST)
    for position, mask in ((100 * 10 + 2, 0x10), (100 * 11 + 60, 1)):
        file.pwrite(bytes([file.pread(1, position)[0] ^ mask]), position)
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [n for n in range(40) if n not in (10, 11)]


@pytest.mark.parametrize("msg_id", [3, 5, 200])
def test_payloads_of_frames_with_zeros_between_them_do_not_become_records(msg_id: int) -> None:
    """A torn record's payload holds frames with earlier ids, with the record's own id, or with ids that are too high for the
    bytes before them. A frame with the next id is left out: nothing tells it from a record behind a damaged one (ADR 0101)."""
    unit = encode_frame(msg_id, 1, b"", b"FORGED") + bytes(28)
    for seed in range(60):
        rig = BrokerRig(disk=SimDisk(random.Random(seed)), segment_bytes=1 << 20)
        rig.publish("t", *[b"x" * 100] * 5)
        for op in ("sync", "truncate"):
            rig.disk.fail(op, 1, errno.EIO, path=".log")
        rig.publish("t", unit * 80)
        rig.reopen(power_cut=True)
        found = payloads(rig)
        assert b"FORGED" not in found.values(), f"seed {seed}"
        assert set(range(5)) <= set(found), f"seed {seed}"


def test_a_low_disk_whose_only_segment_is_acked_makes_room() -> None:
    rig = BrokerRig(min_free_bytes=300_000, segment_bytes=1 << 20)
    rig.disk.capacity_bytes = 1_000_000
    while (outcome := rig.publish("t", bytes(50_000))[0]).error is None and outcome.commit.error is None:
        pass
    rig.take(rig.subscribe("t", window=1000))
    rig.ack("t", 0, 1000)
    rig.advance(5)
    assert rig.publish("t", b"again")[0].commit.state is CommitState.DONE


def test_a_completely_full_disk_whose_messages_are_all_acked_makes_room() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    rig.disk.capacity_bytes = 300_000
    for size in (3000, 100, 1):
        while rig.publish("t", bytes(size))[0].commit.error is None:
            pass
    rig.disk.capacity_bytes = rig.disk.used_bytes
    rig.take(rig.subscribe("t", window=100_000))
    rig.broker.topic("t").ack("c", [(0, 100_000)])
    rig.advance(5)
    assert rig.publish("t", b"again")[0].commit.state is CommitState.DONE


def test_damage_in_front_of_a_bad_sector_does_not_stop_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    rig.publish("t", *[b"%03d" % n + b"." * 997 for n in range(300)])
    rig.reopen()
    file = rig.disk.open(FIRST)
    file.pwrite(b"\xff", 1030 * 3 + 500)
    true_pread = type(file).pread

    def pread(self: object, length: int, offset: int) -> bytes:
        if offset < 200_512 and offset + length > 200_000:
            raise OSError(errno.EIO, "bad sector", "")
        return true_pread(self, length, offset)  # type: ignore[arg-type]

    subscription = rig.subscribe("t", window=1000)
    monkeypatch.setattr(type(file), "pread", pread)
    got = [msg_id for msg_id, _ in rig.take(subscription)]
    assert got[:3] == [0, 1, 2]
    assert got[-1] == 299
    assert 3 not in got


def test_a_disk_that_does_not_say_how_full_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the dedupe keys of a publish that failed here stayed known, and the retry was answered DUP."""
    rig = BrokerRig(min_free_bytes=1000)
    rig.publish("t", b"zero")
    topic = rig.broker.topic("t")
    with monkeypatch.context() as patch:
        patch.setattr(topic.committer._space, "admit", lambda: 1 / 0)
        with suppress(ZeroDivisionError):
            rig.publish("t", b"precious", key=b"k")
    rig.disk.fail("free_bytes", 1, errno.EIO, sticky=True)
    (retry,) = rig.publish("t", b"precious", key=b"k")
    assert (retry.duplicate, retry.first_id, retry.commit.state) == (False, 1, CommitState.DONE)
    assert rig.broker.stats()["disk_free_bytes"] == 0, "it is not known"


def test_retention_goes_on_after_a_restart_and_for_idle_topics() -> None:
    rig = BrokerRig(retain_acked_for_ms=10_000)
    for n in range(5):
        rig.publish("t", b"%d" % n * 3000)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 4)
    rig.reopen()
    rig.advance(60)
    assert rig.broker.topic("t").log.messages() == 0


def test_an_idle_topic_hears_of_a_disk_that_gets_low() -> None:
    rig = BrokerRig(min_free_bytes=100_000)
    rig.disk.capacity_bytes = 1_000_000
    for n in range(20):
        rig.publish("idle", b"%d" % n * 1500)
    rig.take(rig.subscribe("idle"))
    rig.ack("idle", 0, 19)
    assert len(rig.broker.topic("idle").log.segments) > 3
    rig.disk.capacity_bytes = rig.disk.used_bytes + 150_000
    rig.advance(FREE_SPACE_VALID_S)
    rig.publish("busy", b"x")
    rig.advance(1)
    assert len(rig.broker.topic("idle").log.segments) <= 1


def test_create_stores_what_lived_in_memory_alone_and_can_be_repeated() -> None:
    rig = BrokerRig()
    rig.broker.topic_or_new("memory")
    assert rig.change("create", "memory") == "OK"
    rig.disk.fail("mkdir", 1, errno.EIO, path="new")
    assert rig.change("create", "new", visibility="5000") == "STORAGE"
    assert rig.change("create", "new", visibility="5000") == "OK"
    rig.reopen(power_cut=True)
    assert sorted(rig.broker.topics) == ["memory", "new"]
    assert rig.broker.topic("new").settings.visibility == 5000


def test_an_ack_that_waits_for_the_disk_when_its_topic_is_deleted_is_not_promised() -> None:
    rig = acked_segments()
    topic = rig.broker.topic("t")
    topic.ack("c", [(0, 1)])
    told: list[object] = []
    topic.flush_offsets(told.append)
    rig.disk.fail("rename", 1, errno.EIO, path="topics/t")
    assert rig.delete("t") == "Input/output error"
    assert isinstance(told[0], NoSuchTopic)


def test_a_file_that_cannot_be_opened_leaves_no_lease() -> None:
    rig = BrokerRig()
    for _ in range(3):
        rig.publish("t", bytes(3000))
    subscription = rig.subscribe("t")
    rig.take(subscription)
    subscription.close()
    topic = rig.broker.topic("t")
    topic.log.close()
    subscription = rig.subscribe("t")
    topic.log.tail.clear()
    rig.disk.fail("open", 1, errno.EMFILE)
    with pytest.raises(OSError, match="Too many"):
        rig.take(subscription)
    assert rig.take(subscription) == [(0, 2), (1, 1), (2, 1)], "at once, and the attempt was not counted"


def test_a_lost_record_in_a_removed_segment_is_counted_once() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    for n in range(10):
        rig.publish("t", b"%d" % n * 3000)
    rig.disk.open(f"{DIR}/topics/t/{segment_name(2)}").pwrite(b"\xff", 1000)
    got = rig.take(rig.subscribe("t"))
    assert len(got) == 9
    rig.ack("t", 1, 8)
    rig.loop.drain()
    described = rig.broker.topic("t").describe()
    assert (described["messages"], described["lost"]) == (2, 0)


def test_a_batch_behind_a_failed_interval_sync_is_refused() -> None:
    rig = LogRig(fsync="interval", fsync_interval_s=0.005)
    rig.publish(b"a")
    rig.disk.fail("sync", 1, errno.EIO, path=".log")
    rig.clock.advance(0.005)
    _, _, due = rig.loop._timers.pop()
    due()
    job, done = rig.loop._jobs.pop()
    commit = rig.append(b"b")[0].commit
    job()
    done()
    rig.loop.drain()
    assert isinstance(commit.error, StorageFailed)


def test_a_log_whose_files_are_all_gone_is_a_loss() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.subscribe("t")
    rig.flush("t")
    rig.disk.unlink(FIRST)
    report = verify_topic(rig.disk, f"{DIR}/topics/t", "t")
    rig.reopen()
    topic = rig.broker.topic("t")
    numbers = topic.describe()
    assert (topic.state, numbers["lost"]) == ("degraded", 2)
    assert (report.first_id, report.next_id, report.lost) == (numbers["first_id"], numbers["next_id"], 2)
    assert rig.publish("t", b"c")[0].first_id == 2


def test_a_segment_made_ahead_does_not_stay_when_its_roll_is_refused() -> None:
    rig = LogRig(segment_bytes=4 << 20)
    for _ in range(8):
        rig.publish(*[b"y" * 100_000] * 5)
    assert any(path.endswith(".tmp") for path in rig.disk.snapshot())
    rig.disk.fail("truncate", 1, errno.ENOSPC, path=segment_name(0))
    rig.publish(*[b"z" * 100_000] * 5)
    assert not any(path.startswith(PATH) and path.endswith(".tmp") for path in rig.disk.snapshot())
