"""The common part of both ways between a topic and its dead letters. Contract: delivery.md, "Attempts"; ADR 0023, 0041."""

import errno

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.deadletter.transfer import SLICE_BYTES_MAX, RecordReader, TransferBatch, is_redriven_letter
from toymq_py.errors import DiskFull, RequestError
from toymq_py.letter import Return
from toymq_py.topic import Published

BACK = Return(b"key", b"payload", b"a: 1\n", b"c")


def rows(count: int, first: int = 0) -> TransferBatch:
    it = TransferBatch()
    for n in range(first, first + count):
        it.add(n, b"k%d" % n, b"p%d" % n, b"")
    return it


def test_a_slice_is_full_by_rows_or_bytes() -> None:
    it = TransferBatch(rows_max=2)
    it.add(1, b"", b"x", b"")
    assert not it.full
    it.add(2, b"", b"x", b"")
    assert it.full
    large = TransferBatch()
    large.add(1, b"", bytes(SLICE_BYTES_MAX), b"")
    assert large.full


def test_rows_are_told_when_they_are_stored_and_the_end_once() -> None:
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    rig.publish("t", b"p1", key=b"k1")
    told: list[tuple[int, int, bool]] = []
    ends: list[RequestError | None] = []

    def stored(start: int, stop: int, outcome: Published) -> None:
        told.append((start, stop, outcome.duplicate))

    rows(3).append_to(topic, stored, ends.append)
    assert (told, ends) == ([(1, 2, True)], []), "a duplicate is stored already"
    rig.loop.drain()
    assert sorted(told) == [(0, 1, False), (1, 2, True), (2, 3, False)]
    assert ends == [None]


def test_a_disk_that_refuses_is_told_once_and_stores_nothing() -> None:
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    rig.disk.fail("pwrite", 1, errno.ENOSPC, path=".log")
    ends: list[RequestError | None] = []
    rows(3).append_to(topic, lambda *_: pytest.fail("nothing is stored"), ends.append)
    rig.loop.drain()
    (refused,) = ends
    assert isinstance(refused, DiskFull)


def test_neighbours_are_read_at_once() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"%d" % n for n in range(20)])
    topic = rig.broker.topic("t")
    reader = RecordReader(topic)
    found = [reader.find(n) for n in (3, 5, 17)]
    assert [run.payloads[row] for run, row in found if run is not None] == [b"3", b"5", b"17"]
    assert len({id(run) for run, _ in found}) == 1
    rig.purge("t")
    assert RecordReader(topic).find(3) == (None, 20), "no record is there any more"


@pytest.mark.parametrize(
    ("change", "stored"),
    [({}, True), ({"key": b"other"}, False), ({"payload": b"other"}, False), ({"headers": b""}, False)],
    ids=str,
)
def test_a_record_is_the_letter_only_with_all_that_it_carries(change: dict[str, bytes], stored: bool) -> None:
    rig = BrokerRig()
    rig.publish("t", BACK.payload, key=BACK.key, headers=BACK.headers)
    topic = rig.broker.topic("t")
    assert is_redriven_letter(topic, RecordReader(topic), 0, BACK._replace(**change)) == stored
    assert not is_redriven_letter(topic, RecordReader(topic), 1, BACK), "not committed"


@pytest.mark.parametrize("times", [{"delays_ms": [1000]}, {"ttls_ms": [1000]}], ids=str)
def test_a_record_that_waits_or_expires_is_not_the_letter(times: dict[str, list[int]]) -> None:
    rig = BrokerRig()
    topic = rig.broker.topic_or_new("t")
    topic.publish([BACK.key], [BACK.payload], [BACK.headers], **times)
    rig.loop.drain()
    assert not is_redriven_letter(topic, RecordReader(topic), 0, BACK)
