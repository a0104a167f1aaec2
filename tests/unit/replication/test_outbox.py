"""A follower's outgoing frames: one wake-up for all that leave together, and a bound."""

import pytest

from toymq_py.replication import operations as ops
from toymq_py.replication.operations import Operation, encode
from toymq_py.replication.outbox import PARTS_MAX, WAKE_BYTES, Outbox

LOG = "topics/t/00000000000000000000.log"
WRITE = ops.Write(1, LOG, 0, bytes(100))
SYNC = ops.Sync(2, LOG)


class Rig:
    def __init__(self, bytes_max: int = 1 << 22) -> None:
        self.woken = 0
        self.outbox = Outbox(self._wake, bytes_max)

    def _wake(self) -> None:
        self.woken += 1

    def put(self, *operations: Operation) -> None:
        for operation in operations:
            self.outbox.put(operation, encode(operation))


def test_a_write_leaves_with_the_sync_behind_it() -> None:
    rig = Rig()
    rig.put(WRITE)
    assert rig.woken == 0
    rig.put(SYNC)
    assert rig.woken == 1
    assert b"".join(rig.outbox.take()) == b"".join((*encode(WRITE), *encode(SYNC)))


def test_it_wakes_once_until_all_was_taken() -> None:
    rig = Rig()
    rig.put(WRITE, SYNC, WRITE, SYNC)
    assert rig.woken == 1
    assert rig.outbox.take()
    rig.put(SYNC)
    assert rig.woken == 1, "its owner goes on taking until nothing is left"
    assert rig.outbox.take()
    assert rig.outbox.take() == []
    rig.put(SYNC)
    assert rig.woken == 2


@pytest.mark.parametrize("waited", [ops.Sync(1, LOG), ops.SyncDir(1, "topics"), ops.Beat(1, 0, 0), ops.Copied(1), ops.Bye(1)])
def test_it_wakes_for_what_is_waited_for(waited: Operation) -> None:
    rig = Rig()
    rig.put(ops.Create(1, LOG), ops.Unlink(1, LOG), ops.Truncate(1, LOG, 0), ops.Replace(1, LOG, b"x"))
    assert rig.woken == 0
    rig.put(waited)
    assert rig.woken == 1


def test_it_wakes_for_a_mib() -> None:
    rig = Rig()
    rig.put(ops.Write(1, LOG, 0, bytes(WAKE_BYTES)))
    assert rig.woken == 1


def test_what_is_taken_at_once_fits_one_system_call() -> None:
    rig = Rig()
    rig.put(*[WRITE] * 600)
    parts = rig.outbox.take()
    assert len(parts) == PARTS_MAX
    assert rig.outbox.waiting_bytes == sum(map(len, encode(WRITE))) * 600 - sum(map(len, parts))
    assert len(parts) + len(rig.outbox.take()) == 1800
    assert rig.outbox.waiting_bytes == 0
    rig.put(*[ops.Write(1, LOG, 0, bytes(1000))] * 4)
    assert sum(map(len, rig.outbox.take(bytes_max=1500))) < 3000


def test_what_is_taken_are_whole_frames() -> None:
    """The link sends a piece of the bulk copy behind the frames. Found: the piece was sent inside of a frame, so a follower of
    a busy leader had to begin its copy anew."""
    rig = Rig()
    rig.put(*[WRITE, SYNC] * 1000)
    reader, count = ops.OperationReader(), 0
    while parts := rig.outbox.take(bytes_max=5000 + count):
        reader.receive(b"".join(parts))
        while reader.next_operation() is not None:
            count += 1
        reader.receive(b"".join(encode(ops.Copy(0, LOG, 0, b"of the bulk copy"))))
        assert isinstance(reader.next_operation(), ops.Copy)
    assert count == 2000


def test_beyond_its_bound_it_holds_nothing_for_good() -> None:
    rig = Rig(bytes_max=1000)
    rig.put(*[WRITE] * 4, SYNC)
    assert (rig.outbox.overflowed, rig.woken) == (False, 1)
    rig.put(*[WRITE] * 20)
    assert (rig.outbox.overflowed, rig.woken) == (True, 2), "its owner waits for a peer that takes nothing"
    assert rig.outbox.take() == []
    rig.put(SYNC)
    assert rig.outbox.take() == []
    assert rig.outbox.waiting_bytes == 0
