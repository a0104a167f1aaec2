"""A PULL among the replies of a session: when it leases, and what goes back when its write is not taken."""

import random
from collections.abc import Iterator

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.protocol import Ping, Pull
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.fair_queue import FairQueue, Runnable
from toymq_py.session.handler import Handler
from toymq_py.session.replies import Replies


class Desk:
    """A session without a transport: commands go in, writes come out when they are asked for."""

    def __init__(self) -> None:
        self.rig = BrokerRig()
        self.loop = SimEventLoop(random.Random(1))
        place = Runnable(FairQueue(self.rig.clock, self.loop), lambda slice_end: False)
        self.replies = Replies(self.rig.broker.metrics, place, self.rig.clock)
        self.deliveries = Deliveries(self.replies, place, self.rig.clock, self.loop.call_later)
        self.handler = Handler(1, self.rig.broker, self.replies, self.deliveries, self.loop)

    def pull(self, *, max_count: int = 9, wait_ms: int = 0) -> None:
        self.handler.apply(Pull("t", "c", max_count, wait_ms))
        self.rig.loop.advance(0)

    def write(self) -> bytes:
        """What is due now."""
        self.deliveries.begin_write()
        return b"".join(self.replies.take_due(self.rig.clock.monotonic() + 1))

    def inflight(self) -> int:
        return self.rig.broker.topic("t").consumers["c"].inflight


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.loop.close()


def test_the_lease_is_taken_when_the_reply_is_written(desk: Desk) -> None:
    desk.rig.publish("t", b"x", b"y")
    desk.pull()
    assert desk.inflight() == 0, "it is due, and the socket has not asked for it"
    written = desk.write()
    assert written.endswith(b"y\nOK 2\n")
    assert written.startswith(b"MSG t 0 1 ")
    assert desk.inflight() == 2


@pytest.mark.parametrize(("whole", "part"), [(0, 0), (0, 9), (1, 0), (1, 9), (3, 0)])
def test_what_the_socket_did_not_take_goes_back_uncounted(desk: Desk, whole: int, part: int) -> None:
    desk.rig.publish("t", b"a" * 50, b"b" * 50, b"c" * 50)
    desk.handler.apply(Ping())
    desk.pull()
    written = desk.write()
    assert written.startswith(b"PONG\nMSG t 0 1 ")
    begins = [written.index(b"MSG t %d" % n) for n in range(3)] + [written.index(b"OK 3")]
    desk.deliveries.give_back(begins[whole] + part)
    desk.handler.close()
    desk.deliveries.close()
    assert desk.inflight() == whole, "what was taken whole stays leased, whatever becomes of the session"
    assert [desk.rig.broker.topic("t").consumers["c"].has_delivered(n) for n in range(3)] == [n < whole for n in range(3)]
    desk.rig.advance(31)
    poll = desk.rig.poll("t")
    taken = [(n, d.attempt) for _ in range(3) for d in poll.take(9, 1 << 20) for n in d.records.ids[d.start : d.stop]]
    assert taken == [(n, 2 if n < min(whole, 1) else 1) for n in range(3)]


def test_one_that_waits_is_answered_by_what_comes_and_never_twice(desk: Desk) -> None:
    desk.pull(wait_ms=1000)
    desk.handler.apply(Ping())
    assert desk.write() == b""
    assert not desk.replies.due, "nothing turns while it waits"
    desk.rig.publish("t", b"x")
    assert desk.replies.due
    assert desk.write().endswith(b"x\nOK 1\nPONG\n")
    desk.rig.publish("t", b"y")
    assert desk.write() == b""
    assert desk.inflight() == 1


def test_a_stalled_socket_leaves_what_it_was_woken_for_to_others(desk: Desk) -> None:
    other = desk.rig.subscribe("t", "c", mode="shared")
    desk.pull(wait_ms=1000)
    assert desk.write() == b""
    assert other.take(1 << 20) is None
    desk.rig.publish("t", b"x")
    assert desk.rig.woken == [], "the poll waits longer"
    desk.deliveries.stall(True)
    assert desk.rig.woken == [other]
    assert desk.rig.take(other) == [(0, 1)]
    desk.deliveries.stall(False)
    assert desk.write() == b"", "it goes on waiting"
    desk.handler.end_waits()
    assert desk.write() == b"OK 0\n"


def test_one_whose_connection_ends_leaves_nothing_behind(desk: Desk) -> None:
    desk.pull(wait_ms=1000)
    assert desk.write() == b""
    desk.handler.close()
    (attached,) = desk.rig.broker.topic("t").channels.values()
    assert (attached.takers, len(attached.idle)) == (0, 0)
    assert all(timer.cancelled() for timer in desk.loop._scheduled)
