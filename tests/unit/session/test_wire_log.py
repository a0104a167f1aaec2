"""The frames of a session as debug lines."""

import logging

import pytest

from toymq_py.protocol import Hello, Ping, Publish
from toymq_py.session.wire_log import WireLog


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> WireLog:
    caplog.set_level(logging.DEBUG, "toymq_py.wire")
    found = WireLog.of(7)
    assert found is not None
    return found


def test_there_is_none_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq_py.wire")
    assert WireLog.of(7) is None


def test_each_frame_is_a_line_without_token_and_body(log: WireLog, caplog: pytest.LogCaptureFixture) -> None:
    log.received([Hello(1, auth="s3cret"), Publish("t", [b"", b"k"], [b"abc", b"d"]), Ping()])
    log.written(b"OK 0\nOK 1\nPONG\nMSG t 0 1 5 - 3\nabc\n")
    assert caplog.messages == [
        "7 < HELLO 1 auth=***", "7 < PUB t - 3", "7 < PUB t k 1", "7 < PING",
        "7 > OK 0", "7 > OK 1", "7 > PONG", "7 > MSG t 0 1 5 - 3",
    ]  # fmt: skip


def test_bytes_that_are_no_frames_are_said_and_the_next_are_read(log: WireLog, caplog: pytest.LogCaptureFixture) -> None:
    log.written(b"WHAT\n")
    log.written(b"PONG\n")
    assert caplog.messages[0].startswith("7 ! 5 bytes that are not frames: ")
    assert caplog.messages[1] == "7 > PONG"
