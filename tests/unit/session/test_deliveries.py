"""Which messages of the last write count as delivered when the connection ends."""

import random

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.consumer_options import Start
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.replies import WRITE_BYTES, Replies


@pytest.mark.parametrize(("whole", "part"), [(0, 0), (0, 5), (2, 0), (2, 7), (5, 0)])
def test_what_the_socket_took_whole_counts_as_an_attempt(request: pytest.FixtureRequest, whole: int, part: int) -> None:
    """Found by simulated world 105030: twelve of 26 messages of one write had arrived, and none of them counted."""
    rig = BrokerRig()
    rig.publish("t", *(bytes([n]) * 10 * n for n in range(5)))
    loop = SimEventLoop(random.Random(1))
    request.addfinalizer(loop.close)
    place = Runnable(FairQueue(rig.clock, loop), lambda slice_end: False)
    replies = Replies(rig.broker.metrics, place, rig.clock)
    deliveries = Deliveries(replies, place, rig.clock, loop.call_later)
    topic = rig.broker.topic("t")
    subscription, _ = topic.subscribe(
        "c", Start("earliest"), window=100, visibility_s=None, wake=deliveries.wake, ended=deliveries.ended
    )
    deliveries.add(subscription)
    deliveries.released(subscription)
    out = [b"OK 1\n"]
    deliveries.take(out, rig.clock.monotonic() + 1, WRITE_BYTES)
    assert len(out) == 1 + 5
    taken = len(out[0]) + sum(map(len, out[1 : 1 + whole])) + part
    deliveries.give_back(taken)
    deliveries.close()
    assert [topic.consumers["c"].has_delivered(n, n) for n in range(5)] == [n < whole for n in range(5)]
    again = rig.subscribe("t")
    assert rig.take(again) == [(n, 2 if n < min(whole, 1) else 1) for n in range(5)], "and the lowest of them counts"
