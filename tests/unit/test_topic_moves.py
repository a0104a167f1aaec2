"""A topic that is closed and opened while the broker serves others, and how a start treats the marks of moves."""

import errno
from typing import Any

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.session_rig import SessionRig
from toymq_py.consumer_options import EARLIEST
from toymq_py.errors import NoSuchTopic, PlacementUnknown, StorageFailed
from toymq_py.placement import Placement
from toymq_py.protocol import Fetch, Pull, Subscribe
from toymq_py.storage.moves_file import Mark


class Records(Placement):
    """The records of etcd for topics that were being moved."""

    def __init__(self, **here: bool) -> None:
        super().__init__()
        self._here = here

    def is_here_by_record(self, topic: str, cluster: str) -> bool | None:
        return self._here.get(topic)


def close(rig: BrokerRig, topic: str) -> list[Any]:
    told: list[Any] = []
    rig.broker.moves.quiet(topic, lambda: rig.broker.moves.close(topic, told.append))
    rig.advance(1)
    return told


def mark(rig: BrokerRig, topic: str, value: Mark) -> None:
    told: list[Any] = []
    rig.broker.moves.mark(topic, value, told.append)
    rig.loop.drain()
    assert told == [None]


def test_a_topic_that_was_closed_is_opened_as_it_was() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"a", b"b", b"c", key=b"")
    first = rig.subscribe("t", window=1)
    assert rig.take(first) == [(0, 1)]
    rig.nack("t", 0, 0)
    assert rig.take(first) == [(1, 1)]
    assert close(rig, "t") == [None]
    assert "t" not in rig.broker.topics
    assert "t.dlq" not in rig.broker.topics
    assert first.closed
    with pytest.raises(NoSuchTopic):
        rig.broker.topic("t")
    rig.broker.moves.open("t")
    rig.loop.drain()
    assert rig.take(rig.subscribe("t")) == [(1, 1), (2, 1)], "that a move ended the lease is no attempt"
    assert len(rig.records("t.dlq")) == 1
    rig.publish("t", b"d")
    assert rig.broker.topic("t").next_id == 4


def test_an_ack_without_a_flush_is_kept() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0, flush=False)
    assert close(rig, "t") == [None]
    rig.broker.moves.open("t")
    assert rig.take(rig.subscribe("t")) == [(1, 1)]


def test_a_disk_that_takes_no_offsets_is_told_and_the_topic_opens_again() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.take(rig.subscribe("t"))
    rig.disk.fail("rename", 1, errno.EIO, path="offsets.json", sticky=True)
    (error,) = close(rig, "t")
    assert isinstance(error, OSError)
    rig.disk.heal()
    rig.broker.moves.open("t")
    assert rig.broker.topic("t").next_id == 1


def test_dead_letters_that_wait_are_moved_when_the_topic_stays() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"a")
    rig.take(rig.subscribe("t"))
    told: list[bool] = []
    rig.broker.moves.quiet("t", lambda: told.append(True))
    assert told == [True]
    rig.broker.topic("t").nack("c", [(0, 0)], None)
    rig.loop.drain()
    assert "t.dlq" not in rig.broker.topics
    rig.broker.moves.resume("t")
    rig.loop.drain()
    assert len(rig.records("t.dlq")) == 1


def test_a_redrive_ends_with_its_batch_and_says_why() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"a")
    rig.take(rig.subscribe("t"))
    rig.nack("t", 0, 0)
    told: list[Any] = []
    rig.broker.redrive("t.dlq", None, None, lambda count, error: told.append((count, type(error))))
    rig.broker.moves.quiet("t", lambda: told.append("quiet"))
    assert not told, "it is on its way"
    rig.loop.drain()
    assert told[1] == "quiet" or told[0] == "quiet"
    assert (0, PlacementUnknown) in told
    with pytest.raises(PlacementUnknown):
        rig.broker.redrive("t.dlq", None, None, lambda count, error: None)


def test_a_topic_that_is_not_well_does_not_go() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    assert rig.broker.moves.refusal("t") is None
    rig.broker.topic("t").committer.poison("a test")
    assert rig.broker.moves.refusal("t") == "t is failed: see `toymqctl describe t`"
    rig.broker.unopened["u.dlq"] = StorageFailed("u.dlq could not be opened")
    assert rig.broker.moves.refusal("u") == "u.dlq could not be opened"


@pytest.mark.parametrize("way", ["from", "to"])
@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("power_cut", [True, False])
def test_a_start_serves_what_is_here_and_removes_what_is_not(way: Any, here: bool, power_cut: bool) -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    rig.publish("u", b"b")
    mark(rig, "t", Mark(way, "b", "u"))
    rig.reopen(power_cut=power_cut, placement=Records(t=here))
    assert ("t" in rig.broker.topics) == here
    assert rig.disk.is_dir(f"{DIR}/topics/t") == here
    assert "u" in rig.broker.topics
    assert rig.broker.moves.marks == {}
    rig.reopen(placement=Records())
    assert ("t" in rig.broker.topics) == here, "its mark is gone from the disk"


def test_where_etcd_does_not_say_it_stays_closed() -> None:
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"a")
    mark(rig, "t", Mark("to", "b", "u"))
    for _ in range(2):
        rig.reopen()
        assert "t" not in rig.broker.topics
        with pytest.raises(StorageFailed, match="t stays closed: it was being moved to group b, and etcd says of no group"):
            rig.broker.topic("t")
        assert rig.broker.moves.marks == {"t": Mark("to", "b", "u")}


def test_marks_that_are_stored_at_once_are_all_there() -> None:
    rig = BrokerRig()
    for name in ("t", "u", "v"):
        rig.broker.moves.mark(name, Mark("to", "b", "u"), lambda error: None)
    rig.broker.moves.mark("u", None, lambda error: None)
    rig.loop.drain()
    assert rig.broker.directory.read_moves() == dict.fromkeys(("t", "v"), Mark("to", "b", "u"))


def test_what_waits_at_a_session_goes_on_elsewhere() -> None:
    """The client of a subscription is told to subscribe again; waiting PULLs and FETCHes are answered."""
    with SessionRig() as session:
        session.rig.publish("t", b"a")
        session.apply(Subscribe("t", "s", EARLIEST))
        session.write()
        session.apply(Fetch("t", 1, 9, wait_ms=9000))
        assert close(session.rig, "t") == [None]
        written = session.write()
        assert b"CLOSED t s MOVED\n" in written
        assert b"BATCH t 0 1" in written or b"ERR PLACEMENT_UNKNOWN t is being moved" in written
    with SessionRig() as session:
        session.rig.publish("t", b"a")
        session.apply(Pull("t", "c", 9, 0))
        session.write()
        session.apply(Pull("t", "c", 9, 9000))
        assert session.write() == b""
        assert close(session.rig, "t") == [None]
        assert session.write() == b"OK 0\n"
