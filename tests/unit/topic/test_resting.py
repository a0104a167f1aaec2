"""Sessions that let a lease end beside others that work. ADR 0269. Any schedule: tests/property/test_shared_consumers.py."""

from collections import deque

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer_options import Mode
from toymq_py.topic import Subscription


def resting() -> tuple[BrokerRig, Subscription, Subscription]:
    """Return a broker with a session that hangs and lost messages 0 and 1, and one that works, whose window is full with 2."""
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 4)
    hangs, works = rig.subscribe("t", mode="shared", window=2), rig.subscribe("t", mode="shared", window=1)
    assert rig.take(hangs) == [(0, 1), (1, 1)]
    assert rig.take(works) == [(2, 1)]
    rig.advance(20)
    rig.broker.topic("t").touch("c", [(2, 2)], 60.0)
    rig.advance(11)
    assert rig.take(hangs) == []
    rig.woken.clear()
    return rig, hangs, works


def test_it_gets_nothing_for_a_visibility_timeout_and_the_others_come_to_what_it_lost() -> None:
    rig, hangs, works = resting()
    rig.ack("t", 2, 2)
    assert rig.take(works) == [(0, 2)]
    assert rig.take(hangs) == []
    rig.broker.topic("t").touch("c", [(0, 0)], 60.0)
    rig.woken.clear()
    rig.advance(29)
    assert rig.woken == []
    rig.advance(2)
    assert rig.woken == [hangs]
    assert rig.take(hangs) == [(1, 1), (3, 1)]


def test_it_goes_on_when_it_settles_something() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 3)
    slow, works = rig.subscribe("t", mode="shared", window=2), rig.subscribe("t", mode="shared", window=1)
    assert rig.take(slow) == [(0, 1), (1, 1)]
    assert rig.take(works) == [(2, 1)]
    rig.broker.topic("t").touch("c", [(1, 2)], 90.0)
    rig.advance(31)
    assert rig.take(slow) == []
    rig.woken.clear()
    rig.ack("t", 1, 1)
    assert rig.woken == [slow]
    assert rig.take(slow) == [(0, 2)]


@pytest.mark.parametrize("how", ["leaves", "hangs"])
def test_it_goes_on_when_no_other_works(how: str) -> None:
    rig, hangs, works = resting()
    if how == "leaves":
        works.close()
    else:
        rig.broker.topic("t").touch("c", [(2, 2)], 1.0)
        rig.advance(2)
    assert rig.woken[0] is hangs
    assert rig.take(hangs) == ([(0, 2), (1, 1)])


def test_it_goes_on_when_it_has_come_to_what_it_got_since() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 5)
    hangs, works = rig.subscribe("t", mode="shared", window=2), rig.subscribe("t", mode="shared", window=1)
    assert (rig.take(hangs), rig.take(works)) == ([(0, 1), (1, 1)], [(2, 1)])
    rig.advance(31)  # neither works: it gets others
    hangs.lessee.window = 3
    assert (rig.take(works), rig.take(hangs)) == ([(0, 2)], [(1, 1), (2, 2), (3, 1)])
    rig.broker.topic("t").nack("c", [(2, 2)], 60.0, lease=0)
    hangs.lessee.late = True
    rig.ack("t", 0, 0)
    assert rig.take(hangs) == [], "the other one works"
    rig.woken.clear()
    rig.broker.topic("t").touch("c", [(1, 1)], 600.0)
    assert rig.woken == [hangs]
    assert rig.take(hangs) == [(4, 1)]


def test_one_that_hangs_alone_for_many_leases_takes_no_message_along() -> None:
    """Found by a blind attack: every four leases made a dead letter, six of seven of messages that no handler got."""
    rig = BrokerRig(max_attempts=4)
    rig.publish("t", *[b"x"] * 20)
    hangs = rig.subscribe("t", window=5, visibility_s=30)
    for _ in range(8):
        rig.take(hangs)
        rig.advance(31)
    assert rig.numbers("t")["dead_lettered_total"] == 1
    assert rig.broker.topic("t").channel("c").consumer.floor == 1, "the one that it hangs on"


def test_one_that_is_paused_does_not_work() -> None:
    rig, hangs, works = resting()
    works.pause(True)
    assert rig.take(hangs) == [(0, 2), (1, 1)]


@pytest.mark.parametrize("mode", ["shared", "keyed"])
def test_one_that_hangs_for_hours_beside_a_busy_one_takes_no_message_along(mode: Mode) -> None:
    """Found by a blind attack: messages that it lost came back to it, because the other session's window was full, and counted:
    5 of 150."""
    rig = BrokerRig(max_attempts=4)
    rig.publish("t", *[b"x"] * 150)
    hangs, works = rig.subscribe("t", mode=mode, window=5), rig.subscribe("t", mode=mode, window=5)
    rig.take(hangs)
    held, done = deque[int](), 0
    while done < 149:  # all but the one that it hangs on
        held += [msg_id for msg_id, _ in rig.take(works)]
        rig.advance(3)
        rig.take(hangs)  # at once, when its leases have ended
        if held:
            msg_id = held.popleft()
            rig.broker.topic("t").touch("c", [(each, each) for each in held], None)
            done += rig.ack("t", msg_id, msg_id)
        assert rig.numbers("t")["dead_lettered_total"] <= 1
