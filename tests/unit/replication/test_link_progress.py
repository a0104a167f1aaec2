"""What a follower still has to acknowledge, since when, and how far it lags."""

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.metrics import BY_NAME, Histogram
from toymq_py.replication import operations as ops
from toymq_py.replication.link_progress import FollowerSink
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets

LOG = "topics/t/00000000000000000000.log"


class Rig:
    def __init__(self, bytes_max: int = 10_000) -> None:
        self.clock = FakeClock()
        self.woken = 0
        self.sync_s = Histogram(BY_NAME["replica_sync_seconds"])
        self.sink = FollowerSink(self._wake, bytes_max, self.clock, self.sync_s)
        self.stream = Stream(Tickets())

    def _wake(self) -> None:
        self.woken += 1

    def join(self) -> int:
        self.stream.attach(self.sink)
        return self.stream.end_copy(self.sink)

    def sync(self) -> int:
        return self.stream.begin_sync(ops.Sync, LOG)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_nothing_is_due_during_the_copy_and_then_its_end_alone(rig: Rig) -> None:
    rig.stream.attach(rig.sink)
    rig.sync()
    rig.stream.beat(1, 1)
    assert not rig.sink.is_due_through(99)
    assert rig.sink.acknowledge(1) is None
    assert rig.stream.end_copy(rig.sink) == 2
    assert rig.sink.copied_seq == 2
    assert rig.sink.is_due_through(2)
    assert rig.sink.acknowledge(2) == 0.0
    assert rig.sink.acknowledge(2) is None, "each is due once"


def test_what_is_due_is_told_by_the_oldest(rig: Rig) -> None:
    copied = rig.join()
    first, second = rig.sync(), rig.sync()
    rig.sink.acknowledge(copied)
    rig.sink.acknowledge(second)
    assert rig.sink.is_due_through(first)
    assert not rig.sink.is_due_through(first - 1)
    rig.clock.advance(1.5)
    assert rig.sink.acknowledge(first) == pytest.approx(1.5)
    assert not rig.sink.is_due_through(second)
    assert rig.sink.stuck_s(rig.clock.monotonic()) == 0.0


def test_a_follower_is_stuck_when_its_oldest_does_not_move(rig: Rig) -> None:
    rig.sink.acknowledge(rig.join())
    seqs = [rig.sync() for _ in range(3)]
    rig.clock.advance(2.0)
    assert rig.sink.stuck_s(rig.clock.monotonic()) == pytest.approx(2.0)
    rig.sink.acknowledge(seqs[1])  # another file's
    assert rig.sink.stuck_s(rig.clock.monotonic()) == pytest.approx(2.0)
    rig.sink.acknowledge(seqs[0])
    assert rig.sink.stuck_s(rig.clock.monotonic()) == pytest.approx(0.0), "it moves, although slowly"
    rig.clock.advance(1.0)
    assert rig.sink.stuck_s(rig.clock.monotonic()) == pytest.approx(1.0)


def test_the_lag_is_what_was_put_since_the_oldest(rig: Rig) -> None:
    rig.sink.acknowledge(rig.join())
    assert rig.sink.lag(rig.clock.monotonic()) == (0, 0.0)
    rig.sync()
    rig.clock.advance(0.5)
    rig.stream.begin_write(LOG, 0, b"x" * 1000)
    size, seconds = rig.sink.lag(rig.clock.monotonic())
    assert 1000 < size < 1300
    assert seconds == pytest.approx(0.5)


def test_a_queue_that_overflows_stays_so(rig: Rig) -> None:
    rig.join()
    rig.stream.begin_write(LOG, 0, b"x" * 10_001)
    assert rig.sink.outbox.overflowed
    assert rig.woken


def test_syncs_are_measured_and_nothing_else(rig: Rig) -> None:
    rig.sink.acknowledge(rig.join())
    synced = rig.sync()
    rig.stream.beat(1, 1)
    rig.clock.advance(0.25)
    rig.sink.acknowledge(synced)
    rig.clock.advance(7.0)
    assert rig.sink.acknowledge(synced + 1) == pytest.approx(7.25), "a BEAT"
    assert (rig.sync_s.count, rig.sync_s.sum) == (1, pytest.approx(0.25))
