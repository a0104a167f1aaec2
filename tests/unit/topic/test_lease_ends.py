"""Log lines about messages that are redelivered without a NACK."""

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
