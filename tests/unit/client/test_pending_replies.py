"""Slots for replies: the effect of a reply, a refusal and a lost connection on the caller."""

import pytest

from toymq.errors import ClientClosed, ConnectFailed
from toymq.pending_replies import CallSlot, HelloSlot, PullSlot, check_greeting, leaves_no_trace
from toymq_py.errors import (
    AuthFailed,
    CommandFailed,
    ConnectionLost,
    InternalError,
    ProtocolViolation,
    QueueFull,
    StorageFailed,
)
from toymq_py.protocol import Hello, MessagePush, OkReply, Ping, PongReply, Pull

PUSH = MessagePush("t", 7, 1, 0, b"", b"", b"x")


def test_a_reply_of_another_kind_is_the_callers_error_and_ends_the_connection() -> None:
    slot = CallSlot(Ping(), PongReply)
    with pytest.raises(ProtocolViolation, match="answered PING with OkReply"):
        slot.answered(OkReply(1))
    assert isinstance(slot.answer, ProtocolViolation)


def test_only_the_first_answer_counts_and_is_announced() -> None:
    announced: list[None] = []
    slot = CallSlot(Ping(), PongReply)
    slot.when_done(lambda: announced.append(None))
    slot.answered(PongReply())
    slot.failed(ConnectionLost("late"))
    assert (slot.answer, len(announced)) == (PongReply(), 1)


def test_an_abandoned_call_is_done_and_announces_nothing() -> None:
    slot = CallSlot(Ping(), PongReply)
    slot.when_done(lambda: pytest.fail("the caller is gone"))
    slot.abandon()
    assert slot.done


@pytest.mark.parametrize("how", ["answered after abandon", "abandon", "failed", "dropped"])
def test_deliveries_of_a_pull_that_no_caller_takes_are_given_back_once(how: str) -> None:
    returned: list[list[MessagePush]] = []
    slot = PullSlot(Pull("t", "c", 1), returned.append)
    if how == "answered after abandon":
        slot.abandon()
        assert not returned, "nothing had come"
    slot.messages.append(PUSH)
    match how:
        case "answered after abandon":
            slot.answered(OkReply(1))
        case "failed":
            slot.failed(ConnectionLost("gone"))
        case "dropped":
            slot.dropped()
        case _:
            slot.abandon()
    assert returned == [[PUSH]]
    slot.dropped()
    assert len(returned) == 1


def test_deliveries_of_an_answered_pull_are_the_callers() -> None:
    slot = PullSlot(Pull("t", "c", 1), lambda messages: pytest.fail("the caller waits"))
    slot.messages.append(PUSH)
    slot.answered(OkReply(1))
    assert slot.messages == [PUSH]


def test_a_greeting_that_is_none_is_reported_and_raised() -> None:
    answers: list[object] = []
    with pytest.raises(ProtocolViolation):
        HelloSlot(Hello(1), answers.append).answered(OkReply(0))
    assert isinstance(answers[0], ProtocolViolation)
    with pytest.raises(AuthFailed):
        check_greeting(AuthFailed("no"))


def test_a_connection_that_is_lost_before_the_greeting_has_no_outcome() -> None:
    lost = ConnectionLost("the outcome is unknown: the broker closed the connection")
    lost.__cause__ = ConnectionLost("the broker closed the connection")
    with pytest.raises(ConnectFailed, match=r"^no greeting from the broker: the broker closed the connection$"):
        check_greeting(lost)
    with pytest.raises(ConnectFailed, match=r"requires a client certificate: .*CERTIFICATE_REQUIRED"):
        check_greeting(ConnectionLost("the connection was lost: [SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"))
    with pytest.raises(ClientClosed):
        check_greeting(ClientClosed("this client is closed"))


def test_which_refusals_leave_the_outcome_open() -> None:
    assert leaves_no_trace(QueueFull("full"))
    assert not any(map(leaves_no_trace, (StorageFailed("disk"), InternalError("bug"), CommandFailed("NEW_CODE", "text"))))
