"""The debug lines of a client's connection."""

import logging

import pytest

from toymq.wire_log import Wire, logger
from toymq_py.protocol import OkReply


def test_without_debug_there_is_nothing() -> None:
    assert Wire.made() is None


def test_both_directions_have_their_marks_and_no_token_or_body(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger.name):
        wire = Wire.made()
        assert wire is not None
        wire.sent(b"HELLO 1 token=s3cret\nPUB t - 6\nsecret\n")
        wire.received([OkReply(7)])
        wire.note("x", "the connection was lost")
    lines = [record.getMessage().partition(" ")[2] for record in caplog.records]
    assert [line[0] for line in lines] == ["<" if "OK" in line else "x" if "lost" in line else ">" for line in lines]
    assert lines[-2:] == ["< OK 7", "x the connection was lost"]
    assert not {"s3cret", "secret"} & {word for line in lines for word in line.replace("=", " ").split()}
