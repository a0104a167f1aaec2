"""A session's lines in the audit trail. Contract: docs/security.md, "The audit trail"."""

import logging
from collections.abc import Iterator

import pytest

from tests.support.session_rig import SessionRig
from toymq_py.placement import Placement
from toymq_py.protocol import Nack, SettlementRun, commands, encode_ok
from toymq_py.session.replies import PendingReply
from toymq_py.session.trail import Trail, verb

FORGET = commands.Forget("orders", "billing")


@pytest.fixture
def session(caplog: pytest.LogCaptureFixture) -> Iterator[SessionRig]:
    caplog.set_level(logging.INFO, "toymq_py.audit")
    with SessionRig() as session:
        yield session


def trail_of(session: SessionRig, address: str | None = "10.0.0.7") -> Trail:
    return Trail(session.rig.broker, session.replies, address)


def test_a_command_is_recorded_with_what_it_is_about(session: SessionRig, caplog: pytest.LogCaptureFixture) -> None:
    trail = trail_of(session)
    trail.record(FORGET, "OK")
    trail.record(commands.Hello(1), "AUTH_FAILED", "late")
    trail.token = "ann"
    trail.record(FORGET, "FORBIDDEN", "late")
    assert caplog.messages == [
        "action=forget topic=orders consumer=billing token=- address=10.0.0.7 via=tcp result=OK",
        "action=hello token=late address=10.0.0.7 via=tcp result=AUTH_FAILED",
        "action=forget topic=orders consumer=billing token=ann address=10.0.0.7 via=tcp result=FORBIDDEN",
    ]


def test_a_topic_that_a_command_makes_is_recorded_where_there_are_tokens(
    session: SessionRig, caplog: pytest.LogCaptureFixture
) -> None:
    trail = trail_of(session)
    trail.made("orders")
    assert caplog.messages == [], "else there is no name to tell it by"
    trail.token = "ann"
    trail.made("orders")
    assert caplog.messages == ["action=create topic=orders token=ann address=10.0.0.7 via=tcp result=OK"]


def test_what_another_worker_passed_on_is_marked(session: SessionRig, caplog: pytest.LogCaptureFixture) -> None:
    session.rig.broker.placement = Placement(0, ("host:1", "host:2"))
    for address in (None, "10.0.0.7"):
        trail_of(session, address).record(FORGET, "OK")
    assert [line.partition(" token=- ")[2] for line in caplog.messages] == [
        "address=- via=passed result=OK", "address=10.0.0.7 via=tcp result=OK",
    ]  # fmt: skip


@pytest.mark.parametrize(("reply", "result"), [(encode_ok(0), "OK"), (b"ERR NO_SUCH_TOPIC x\n", "NO_SUCH_TOPIC")])
def test_what_is_passed_on_is_recorded_as_its_client_is_told(
    session: SessionRig, caplog: pytest.LogCaptureFixture, reply: bytes, result: str
) -> None:
    trail = trail_of(session)
    held = session.replies.hold(PendingReply(10))
    trail.passed_on(FORGET)
    assert caplog.messages == []
    session.replies.fill(held, lambda: reply)
    assert session.write() == reply
    assert [line.rpartition(" ")[2] for line in caplog.messages] == [f"result={result}"]
    trail.passed_on(commands.Ping())
    assert len(caplog.messages) == 1, "no change"


def test_a_run_has_the_verb_of_its_commands() -> None:
    assert verb(SettlementRun(Nack("t", "c", ((0, 0),)), [0, 1])) == verb(Nack("t", "c", ((0, 0),))) == "NACK"
