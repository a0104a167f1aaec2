"""Bytes removed from the middle of a segment: the records behind them move, and are kept; the ids that are gone are reported as
lost. ADR 0223."""

import random
from itertools import pairwise

import pytest

from tests.fault.test_lost_exactly import LOG, SIZE, World
from tests.support.broker_rig import DIR, BrokerRig
from tests.support.frames import encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, ids_of, recover, report_of
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.reader import DirectoryReader, walk_columns
from toymq_py.storage.record import Frame
from toymq_py.storage.segment import segment_name

COUNT = len(LOG) // SIZE


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("kept", [40, 3, 1])
@pytest.mark.parametrize("into", [0, 8, 30, 100], ids="{} bytes into a record".format)
def test_what_is_behind_most_of_a_log_is_kept_and_told(sealed: bool, kept: int, into: int) -> None:
    """Found: more ids were missing than had room in the remaining bytes, so the records behind counted as a torn tail, and were
    cut without a finding."""
    first = COUNT - kept - (into > 0)
    data = LOG[: 10 * SIZE + into] + LOG[first * SIZE + into :]
    disk = disk_with({0: data} | ({COUNT: b""} if sealed else {}))
    expected = {*range(10), *range(COUNT - kept, COUNT)}
    report = report_of(disk)
    assert {each.msg_id for each in dump_topic(disk, PATH) if isinstance(each, Frame)} == expected
    assert (report.records, report.lost, report.damaged) == (len(expected), COUNT - len(expected), True)
    log = recover(disk)
    assert (set(ids_of(log)), log.next_id) == (expected, COUNT), "no id is used twice"
    assert disk.read_file(f"{PATH}/{segment_name(0)}") == data, "nothing is cut"


@pytest.mark.parametrize("count", [1, 20, 100])
@pytest.mark.parametrize("offset", [0, 5, 26, 50])
def test_bytes_removed_from_a_record_cost_that_record(offset: int, count: int) -> None:
    """Found: by the header of a record that lost bytes it extends into the next record, which was lost, too."""
    at = 7 * SIZE + offset
    disk = disk_with({0: LOG[:at] + LOG[at + count :]})
    assert set(ids_of(recover(disk))) == {*range(COUNT)} - {7}


def test_the_records_of_a_torn_payload_do_not_become_records() -> None:
    """The last record carries frames of an older log, with other ids, in its payload. Its header and its end are lost: none of
    these frames becomes a record."""
    held = b"".join(encode_frame(9000 + n, TS_NS - 1, b"", b"x" * 150) for n in range(40))
    disk = disk_with({100: LOG[100 * SIZE : 101 * SIZE] + bytes(30) + held[:-20]})
    log = recover(disk)
    assert (set(ids_of(log)), log.next_id) == ({100}, 101)


@pytest.mark.parametrize("base_id", [0, 8])
def test_whole_records_removed_leave_a_gap_without_bytes(base_id: int) -> None:
    """The ids are missing and no bytes are damaged. All that read a segment go past the gap: the broker (also from a sidecar),
    readers, repair."""
    rig = BrokerRig(segment_bytes=8192)
    rig.subscribe("t")
    for n in range(12):
        rig.publish("t", b"%02d " % n + b"." * 970)
        rig.clock.advance(0.001)
    rig.flush("t")
    assert rig.segment_files("t") == [segment_name(0), segment_name(8)]
    rig.disk = rig.disk.kill()
    name = f"{DIR}/topics/t/{segment_name(base_id)}"
    data = rig.disk.read_file(name)
    size = 4 + int.from_bytes(data[:4], "little")
    rig.put(name.removeprefix(f"{DIR}/"), data[:size] + data[3 * size :])
    left = [n for n in range(12) if n not in (base_id + 1, base_id + 2)]
    for _ in range(2):
        rig.restart()
        assert [msg_id for msg_id, *_ in rig.records("t")] == left
        assert (rig.numbers("t")["state"], rig.numbers("t")["lost"]) == ("degraded", 2)
        assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == left
        rig.disk = rig.disk.kill()
    seen = DirectoryReader(DIR, rig.disk).topic("t").read(0, base_id + 1, walk_columns)
    assert sum(len(run.seen.payloads) for run in seen) == base_id + 1
    report = verify_topic(rig.disk, f"{DIR}/topics/t", "t")
    assert [each.text for each in report.findings if each.damage] == [
        f"damage from byte {size} to {size}: records {base_id + 1} to {base_id + 2} are lost"
    ]
    (done,) = repair(rig.disk, DIR, pid=1)
    assert done.lost == [(base_id + 1, base_id + 2)]
    assert not verify_topic(rig.disk, f"{DIR}/topics/t", "t").damaged
    rig.restart()
    assert [msg_id for msg_id, *_ in rig.records("t")] == left


def removed(seed: int) -> tuple[bool, bool]:
    """Remove bytes of a random log. Returns: whether exactly the records that were hit are lost, and whether intact ones are
    and nothing says so."""
    rng = random.Random(seed)
    world = World.of(rng)
    part = rng.randrange(len(world.data))
    data, starts, base_id = world.data[part], world.starts[part], world.bases[part]
    at = rng.randrange(len(data) - 1)
    size = rng.choice((rng.randrange(1, 60), rng.randrange(1, len(data)), 512, starts[rng.randrange(1, len(starts))]))
    if rng.random() < 0.3:
        at = max(start for start in starts if start <= at)
    size = min(size, len(data) - at)
    hit = {base_id + n for n, (start, end) in enumerate(pairwise(starts)) if start < at + size and end > at}
    del data[at : at + size]
    if not data:
        return True, False
    disk = disk_with({first_id: bytes(content) for first_id, content in zip(world.bases, world.data, strict=False)})
    report = report_of(disk)
    dumped = {each.msg_id for each in dump_topic(disk, PATH) if isinstance(each, Frame)}
    assert set(ids_of(recover(disk))) == dumped, f"seed {seed}"
    assert report.records == len(dumped), f"seed {seed}"
    lost = {*range(world.bases[-1])} - hit - dumped
    return not lost, bool(lost) and not report.damaged


def test_bytes_removed_from_random_logs() -> None:
    """Not every outcome is exact: where the removed bytes belonged to several records, what is left of two of them may hide one
    more lost record."""
    outcomes = [removed(seed) for seed in range(400)]
    assert sum(silent for _, silent in outcomes) <= 2
    assert sum(exact for exact, _ in outcomes) >= 340
