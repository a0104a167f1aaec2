"""Messages that are redelivered without a NACK: they are counted by cause, and a line of the log names them."""

import logging

import pytest

from tests.support.broker_rig import BrokerRig


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    rig.publish("jobs", *[b"x"] * 6)
    return rig


def test_leases_that_end_by_time_are_named(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "toymq_py.topic")
    session = rig.subscribe("jobs", "billing", window=4, visibility_s=5)
    rig.take(session)
    rig.ack("jobs", 1, 1, consumer="billing")
    rig.advance(5)
    assert caplog.messages == ["jobs, consumer billing: the leases of 0,2-3 ended, and nothing had settled them"]


def test_what_a_session_had_is_named_at_its_end(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "toymq_py.topic")
    first, idle = (rig.subscribe("jobs", "billing", mode="shared", window=2) for _ in range(2))
    rig.take(first)
    first.close()
    idle.close()
    assert caplog.messages == ["jobs, consumer billing: a session ended and had 0-1"]


def test_a_line_has_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "toymq_py.topic")
    rig = BrokerRig()
    rig.publish("jobs", *[b"x"] * 300)
    session = rig.subscribe("jobs", window=300)
    rig.take(session)
    for msg_id in range(0, 300, 2):
        rig.ack("jobs", msg_id, msg_id)
    session.close()
    (line,) = caplog.messages
    assert line.startswith("jobs, consumer c: a session ended and had 1,3,5,")
    assert line.endswith(",197,199 and 50 more ranges")


def test_nothing_is_said_or_looked_up_otherwise(rig: BrokerRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq_py.topic")
    session = rig.subscribe("jobs", "billing", window=2, visibility_s=5)
    rig.take(session)
    rig.advance(5)
    session.close()
    assert caplog.messages == []


def test_metrics_tell_a_lease_that_ended_from_a_session_that_left(rig: BrokerRig) -> None:
    """Found: without a debug level that was set beforehand nothing told them apart."""
    metrics = rig.broker.metrics
    hangs, leaves = (rig.subscribe("jobs", "billing", mode="shared", window=3, visibility_s=5) for _ in range(2))
    rig.take(hangs)
    rig.ack("jobs", 1, 1, consumer="billing")
    rig.advance(5)
    assert (metrics.lease_expired_total, metrics.lease_left_total, metrics.nack_total) == (2, 0, 0)
    rig.take(leaves)
    held = rig.broker.topic("jobs").channels["billing"].consumer.inflight
    leaves.close()
    assert (metrics.lease_expired_total, metrics.lease_left_total, metrics.nack_total) == (2, held, 0)
    assert held == 3


def test_a_nack_and_a_backoff_that_ends_are_no_lease_that_ended(rig: BrokerRig) -> None:
    session = rig.subscribe("jobs", "billing", window=2, visibility_s=50)
    rig.take(session)
    rig.broker.topic("jobs").nack("billing", [(0, 1)], 3.0)
    rig.advance(3)
    assert (rig.broker.metrics.lease_expired_total, rig.broker.metrics.nack_total) == (0, 2)
    session.close()
    assert rig.broker.metrics.lease_left_total == 0
