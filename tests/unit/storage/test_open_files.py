"""Segment files are closed in favour of others, so that descriptors remain for connections and offsets. Counted on the
simulated disk."""

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.sim_names import inodes
from toymq_py.storage.segment import segment_name

LIMIT = 8


def handles(rig: BrokerRig) -> int:
    return sum(inode.handles for inode in inodes(rig.disk._tree.root))


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_hundred_topics_keep_no_more_open_than_is_allowed(fsync: str) -> None:
    rig = BrokerRig(open_files_max=LIMIT, fsync=fsync)
    most = 0
    for round_ in range(3):
        for n in range(100):
            assert rig.publish(f"t{n}", b"%d" % round_ * 2000)[0].commit.error is None
            rig.loop.advance(0.01)
            most = max(most, handles(rig))
    assert most <= LIMIT + 2, "LOCK, and one that was just begun"
    for n in range(100):
        assert len(rig.records(f"t{n}")) == 3
        assert handles(rig) <= LIMIT + 2
    rig.broker.close()
    assert handles(rig) == 0
    rig.reopen(power_cut=fsync == "always")
    assert len(rig.records("t99")) == 3


def test_what_a_sync_thread_writes_stays_open() -> None:
    rig = BrokerRig(open_files_max=2)
    for n in range(10):
        rig.broker.topic_or_new(f"t{n}").publisher.publish([b""], [b"x"])
    rig.loop.drain()
    for n in range(10):
        rig.broker.topic_or_new(f"t{n}").publisher.publish([b""], [b"y"])
    rig.loop.drain()
    assert [len(rig.records(f"t{n}")) for n in range(10)] == [2] * 10


def test_a_file_that_was_replaced_while_it_was_closed_is_not_written() -> None:
    rig = BrokerRig(open_files_max=1)
    rig.publish("a", b"x")
    rig.publish("b", b"x")
    path = f"{DIR}/topics/a/{segment_name(0)}"
    data = rig.disk.read_file(path)
    rig.disk.unlink(path)
    rig.put(f"topics/a/{segment_name(0)}", data)
    outcome = rig.publish("a", b"y")[0]
    assert "was replaced below the running broker" in str(outcome.commit.error)
    assert rig.disk.read_file(path) == data


@pytest.mark.parametrize("ours", [True, False])
def test_a_sealed_segment_that_was_replaced_is_judged_anew(ours: bool) -> None:
    """Found: a replaced segment stopped all deliveries of the topic, with a traceback twice a second and state "ok"; later it
    was skipped until the restart, even when it was an intact copy."""
    rig = BrokerRig(open_files_max=1)
    for n in range(4):
        rig.publish("a", b"%d" % n * 3000)
    rig.publish("b", b"x")
    assert len(rig.segment_files("a")) >= 3
    path = f"{DIR}/topics/a/{segment_name(1)}"
    data = rig.disk.read_file(path)
    rig.disk.unlink(path)
    rig.put(f"topics/a/{segment_name(1)}", data if ours else rig.disk.read_file(f"{DIR}/topics/a/{segment_name(2)}"))
    taken = rig.take(rig.subscribe("a", start="earliest"))
    assert [msg_id for msg_id, _ in taken] == ([0, 1, 2, 3] if ours else [0, 2, 3])
    assert (rig.numbers("a")["state"], rig.broker.topic("a").log.lost) == (("ok", []) if ours else ("degraded", [(1, 1)]))
