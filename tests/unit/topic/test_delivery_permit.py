"""A leader whose lease may have ended delivers nothing: replication.md, section 5."""

from tests.support.broker_rig import BrokerRig
from toymq_py.topic import DeliveryPermit

TAKE_BYTES = 1 << 20
VISIBILITY_S = 30.0


def permitted(rig: BrokerRig, seconds: float) -> None:
    rig.broker.permit.extend(rig.clock.monotonic() + seconds)


def test_deliveries_stop_when_the_permit_ends_and_go_on_when_it_is_extended() -> None:
    rig = BrokerRig()
    subscription = rig.subscribe("t")
    permitted(rig, 3)
    rig.publish("t", b"a")
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["t 0-0 x1"]
    rig.advance(3)
    rig.publish("t", b"b")
    assert subscription.take(TAKE_BYTES) is None, "from the very moment on"
    assert rig.ack("t", 0, 0) == 1, "acks are taken: their promises do not rest on the lease"
    rig.woken.clear()
    permitted(rig, 3)
    assert rig.woken == [subscription], "it does not wait for the next message"
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["t 1-1 x1"]


def test_a_redelivery_waits_for_the_permit_too() -> None:
    rig = BrokerRig()
    subscription = rig.subscribe("t")
    rig.publish("t", b"a")
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["t 0-0 x1"]
    permitted(rig, 3)
    rig.advance(VISIBILITY_S + 1)
    assert subscription.take(TAKE_BYTES) is None
    permitted(rig, 3)
    assert rig.shown(subscription.take(TAKE_BYTES)) == ["t 0-0 x2"]


def test_a_poll_finds_nothing_without_the_permit() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a")
    permitted(rig, 0)
    woken: list[bool] = []

    def wake() -> bool:
        woken.append(True)
        return True

    poll = rig.broker.poll("t", "c", visibility_s=None, wake=wake)
    assert poll.take(10, TAKE_BYTES) == []
    permitted(rig, 3)
    assert woken == [True]
    assert [len(each) for each in poll.take(10, TAKE_BYTES)] == [1]


def test_a_consumer_that_is_gone_is_not_woken() -> None:
    rig = BrokerRig()
    subscription = rig.subscribe("t")
    rig.publish("t", b"a")
    permitted(rig, 0)
    assert subscription.take(TAKE_BYTES) is None
    subscription.close()
    rig.broker.delete("t", lambda count, error: None)
    rig.woken.clear()
    permitted(rig, 3)
    assert rig.woken == []


def test_each_waits_once_and_may_wait_again() -> None:
    permit, called = DeliveryPermit(), []

    def call() -> None:
        called.append(permit.until_s)
        if permit.until_s < 2:
            permit.wait(call)

    permit.wait(call)
    permit.wait(call)
    permit.extend(1)
    permit.extend(2)
    permit.extend(3)
    assert called == [1, 2]
