"""Retention and damaged segments. Contract: storage.md, "Retention"; ADR 0064, 0065."""

import errno
import random

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.disk_errors import BeingExamined
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.segment import segment_name

FIRST = segment_name(0)


def damage(rig: BrokerRig, where: bytes) -> None:
    """Damage the first segment of t behind the broker's back."""
    path = f"topics/t/{segment_name(0)}"
    data = bytearray(rig.disk.snapshot()[f"{DIR}/{path}"])
    data[data.index(where)] ^= 1
    rig.put(path, bytes(data))


@pytest.mark.parametrize("found", ["by a read", "by a read, then by a sidecar", "by a read, then by a scan", "by a scan"])
def test_damage_where_a_message_would_expire_takes_none_along_that_never_does(found: str) -> None:
    """After the damage as many records are left as were counted to expire, but they are not the same ones."""
    rig = BrokerRig(retain_acked_for_ms=0)
    rig.subscribe("t").close()
    rig.broker.topic("t").publisher.publish([b""], [b"B" * 1500], None, None, [5_000])
    rig.publish("t", b"never expires" * 115)
    rig.publish("t", b"x" * 3000)
    rig.flush("t")
    rig.advance(1)
    damage(rig, b"B" * 100)
    if found.startswith("by a read"):
        assert rig.take(rig.subscribe("t", "other", start="earliest", window=1)) == [(1, 1)]
        assert rig.broker.topic("t").log.lost == [(0, 0)]
    if found.endswith("by a scan"):
        rig.disk.unlink(f"{DIR}/topics/t/{segment_name(0)[:-4]}.idx")
    if found != "by a read":
        rig.reopen()
    for _ in range(4):
        rig.advance(10)
    assert rig.broker.topic("t").context.expired_total == 0
    assert rig.take(rig.subscribe("t")) == [(1, 1), (2, 1)]
    assert segment_name(0) in rig.segment_files("t")


@pytest.mark.parametrize("scanned", [False, True])
def test_where_all_expired_but_the_damage_it_goes_since_the_scan_counted_anew(scanned: bool) -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    rig.subscribe("t").close()
    rig.broker.topic("t").publisher.publish([b""] * 2, [b"B" * 1500, b"A" * 1500], None, None, [5_000] * 2)
    rig.loop.drain()
    rig.publish("t", b"x" * 3000)
    rig.flush("t")
    rig.advance(1)
    damage(rig, b"B" * 100)
    with pytest.raises(BeingExamined):
        rig.broker.topic("t").log.read(0, 1)
    rig.loop.drain()
    assert rig.broker.topic("t").log.read(0, 1)[0] is None
    if scanned:
        rig.disk.unlink(f"{DIR}/topics/t/{segment_name(0)[:-4]}.idx")
        rig.reopen()
    for _ in range(4):
        rig.advance(10)
    topic = rig.broker.topic("t")
    assert (topic.context.expired_total, topic.log.first_id) == (1, 2)


@pytest.mark.parametrize("found", ["cut to nothing", "all zeros", "its newest records zeroed"])
@pytest.mark.parametrize("restart", [False, True])
def test_damage_is_no_age(found: str, restart: bool) -> None:
    """Found: the segment was unlinked as soon as all was acked, minutes old, and the loss was forgotten with it."""
    rig = BrokerRig(retain_acked_for_ms=3_600_000)
    rig.subscribe("t").close()
    for n in range(12):
        rig.publish("t", b"%d" % n * 1300)
    rig.advance(120)
    rig.flush("t")
    path = f"topics/t/{segment_name(3)}"
    assert segment_name(3) in rig.segment_files("t")
    data = rig.disk.snapshot()[f"{DIR}/{path}"]
    keep = {"cut to nothing": 0, "all zeros": 0, "its newest records zeroed": 1400}[found]
    rig.put(path, data[:keep] + (b"" if found == "cut to nothing" else bytes(len(data) - keep)))
    rig.disk.unlink(f"{DIR}/{path[:-4]}.idx")
    rig.reopen()
    lost = rig.broker.topic("t").log.lost
    assert lost
    subscription = rig.subscribe("t", window=100)
    rig.take(subscription)
    rig.ack("t", 0, 11)
    if restart:
        rig.reopen()
    rig.advance(60)
    assert segment_name(3) in rig.segment_files("t"), "damaged bytes are evidence"
    assert (rig.broker.topic("t").log.lost, rig.broker.topic("t").log.degraded) == (lost, True)
    for _ in range(9):
        rig.advance(1000)
    assert segment_name(3) not in rig.segment_files("t"), "old enough by what was appended behind it"
    rig.reopen()
    assert rig.broker.topic("t").log.lost == []


class BadPage:
    """A file of the simulated disk in which reads of some bytes fail."""

    def __init__(self, file: object, start: int, end: int) -> None:
        self._file, self._start, self._end = file, start, end

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, length: int, offset: int) -> bytes:
        if offset < self._end and offset + length > self._start:
            raise OSError(errno.EIO, "bad page")
        return self._file.pread(length, offset)  # type: ignore[attr-defined, no-any-return]


def test_one_page_that_the_disk_refuses_for_a_while_costs_neither_records_nor_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the segment was sealed with the unreadable records as lost, and its delayed messages were delivered at once."""
    rig = BrokerRig(segment_bytes=1 << 20)
    rig.subscribe("t").close()
    rig.broker.topic("t").publisher.publish([b""], [b"later"], None, [3_600_000])
    rig.loop.drain()
    for n in range(30):
        rig.publish("t", b"%02d" % n * 500)
    rig.flush("t")
    opens = type(rig.disk).open

    def open_bad(self: object, path: str, **how: bool) -> object:
        file = opens(self, path, **how)  # type: ignore[arg-type]
        return BadPage(file, 4096, 8192) if path.endswith(FIRST) else file

    with monkeypatch.context() as patched:
        patched.setattr(type(rig.disk), "open", open_bad)
        rig.reopen()
        log = rig.broker.topic("t").log
        unreadable = log.unreadable
        assert unreadable
        assert log.lost == []
        assert 0 not in [msg_id for msg_id, _ in rig.take(rig.subscribe("t", window=100))]
        rig.publish("t", b"behind")
        rig.flush("t")
    rig.reopen()
    log = rig.broker.topic("t").log
    assert (log.lost, log.unreadable) == ([], [])
    (first, last), = unreadable
    assert set(range(first, last + 1)) <= {msg_id for msg_id, _ in rig.take(rig.subscribe("t", window=100))}


@pytest.mark.parametrize("offsets", [True, False])
def test_the_first_segment_lost_is_a_loss(offsets: bool) -> None:
    """Found: the loss was taken for retention: state ok, and unacked messages were never delivered."""
    rig = BrokerRig()
    if offsets:
        rig.subscribe("t").close()
    for n in range(12):
        rig.publish("t", b"%d" % n * 1300)
    if offsets:
        rig.flush("t")
    rig.disk.unlink(f"{DIR}/topics/t/{FIRST}")
    report = verify_topic(rig.disk, f"{DIR}/topics/t", "t")
    assert (report.lost, report.first_id, report.damaged) == (3, 0, True)
    for _ in range(2):
        rig.reopen()
        log = rig.broker.topic("t").log
        assert (log.lost, log.first_id, log.messages(), log.degraded) == ([(0, 2)], 0, 9, True)
        assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t", window=100))] == list(range(3, 12))
        rig.flush("t")


def test_the_last_segment_lost_gives_no_id_twice_although_the_offsets_are_old() -> None:
    rig = BrokerRig()
    for n in range(12):
        rig.publish("t", b"%d" % n * 1300)
    newest = rig.segment_files("t")[-1]
    rig.disk.unlink(f"{DIR}/topics/t/{newest}")
    rig.reopen()
    log = rig.broker.topic("t").log
    assert log.committed_id > int(newest[:-4])
    assert log.lost


@pytest.mark.parametrize("op", ["rename", "sync_dir", "truncate", "unlink", "pwrite", "sync"])
def test_a_power_cut_while_a_full_disk_takes_what_is_acked_is_no_loss(op: str) -> None:
    """On a full disk the offsets cannot record the removal before it, so marks do."""
    marks = 0
    for nth in range(1, 20):
        rig = BrokerRig(retain_acked_for_ms=0)
        for n in range(6):
            rig.publish("t", b"%d" % n * 3000)
        rig.take(rig.subscribe("t"))
        rig.flush("t")
        rig.broker.topic("t").ack("c", [(0, 3)])
        rig.disk.fail("open", 1, errno.ENOSPC, sticky=True, path="offsets.json.tmp")
        fault = rig.disk.fail(op, nth, errno.EIO, sticky=True)
        rig.broker.topic("t").flush_offsets(lambda error: None)
        rig.loop.advance(0)
        for seed in range(3):
            cut = rig.disk.peek_crash(random.Random(seed))
            marks += sum(name.endswith(".removed") for name in cut.snapshot())
            after = BrokerRig(disk=cut)
            log = after.broker.topic("t").log
            assert (log.lost, after.broker.topic("t").state) == ([], "ok")
            assert {4, 5} <= {msg_id for msg_id, _ in after.take(after.subscribe("t", window=100))}
            assert verify_topic(after.disk, f"{DIR}/topics/t", "t").lost == 0
        if not fault.fired:
            break
    else:
        pytest.fail("more steps than were looked at")
    assert marks or op in {"rename", "sync_dir"}
