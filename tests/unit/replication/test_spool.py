"""A queue on the disk: items are taken once, in order, whatever their sizes."""

import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.replication import spool as spool_module
from toymq_py.replication.operations import Beat, Operation, Write, encode
from toymq_py.replication.spool import Spool

ROOT = "/data/d"
LOG = "topics/t/00000000000000000000.log"


def frame(operation: Operation) -> bytes:
    return b"".join(map(bytes, encode(operation)))


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.mkdir(ROOT)
    return disk


def test_what_is_put_while_others_take_is_taken_once_and_in_order(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "READ_BYTES", 50)
    spool = Spool(disk, ROOT)
    spool.begin()
    put = [Write(seq, LOG, seq, bytes(seq)) for seq in range(1, 60)]
    for operation in put[:20]:
        spool.put(frame(operation))
    end = spool.end
    taken = []
    for operation in spool.take(end):
        taken.append(operation)
        if len(put) > 20 + len(taken):
            spool.put(frame(put[19 + len(taken)]))
    assert taken == put[:20], "no further than asked for"
    taken += spool.take(spool.end)
    assert taken == put[: len(taken)]
    assert len(taken) == 40
    spool.clear()
    assert spool.end == 0
    spool.put(frame(Beat(60, 1, 1)))
    assert list(spool.take(spool.end)) == [Beat(60, 1, 1)]


def test_a_join_begins_with_an_empty_spool_and_leaves_none(disk: SimDisk) -> None:
    first = Spool(disk, ROOT)
    first.begin()
    first.put(frame(Beat(1, 1, 1)))
    first.close()
    second = Spool(disk, ROOT)
    second.begin()
    assert list(second.take(second.end)) == []
    second.put(frame(Beat(7, 1, 1)))
    assert list(second.take(second.end)) == [Beat(7, 1, 1)]
    second.remove()
    second.remove()
    assert disk.listdir(ROOT) == []


def test_a_full_disk_is_told(disk: SimDisk) -> None:
    spool = Spool(disk, ROOT)
    spool.begin()
    disk.fail("pwrite", 1, 28)
    with pytest.raises(OSError, match="spool"):
        spool.put(b"x" * 100)
