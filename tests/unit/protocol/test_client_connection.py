"""Replies and pushes at the client's end, and invalid ones that it refuses."""

import pytest

from toymq_py.errors import (
    REQUEST_ERRORS,
    BadArgument,
    CommandFailed,
    OutOfRange,
    PayloadTooLarge,
    ProtocolViolation,
    RequestError,
)
from toymq_py.protocol import ClientConnection, Reply, replies
from toymq_py.records import Records

HELLO = replies.HelloReply(1, "toymq/1", 100, tells_errors=True, takes_uncounted=True, numbers_leases=True)
STREAM = b"".join(
    [
        replies.encode_ok(0),
        replies.encode_ok_run(5, 1),
        replies.encode_ok_run(7, 3),
        replies.encode_dup(4),
        replies.encode_pong(),
        replies.encode_hello(HELLO),
        replies.encode_json(b"{}\n{}"),
        replies.encode_batch_header("t", 2, 9, 5) + b"ab\ncd\n",
        replies.encode_offsets("t", 3, 9),
        replies.encode_closed("t", "c", "SEEK"),
        replies.encode_error(BadArgument("what\nis this \xfc")),
        *replies.encode_messages("t", Records(range(2), [10, 11], [b"", b"k"], [b"a\n", b""], None), 1).pieces,
        *replies.encode_messages("t", Records([7], [12], [b""], [b"body"], [b"A: b\n"]), 3).pieces,
        *replies.encode_messages("t", Records([8], [13], [b""], [b"body"], [b""]), 2).pieces,
    ]
)
REPLIES: list[Reply] = [
    replies.OkReply(0),
    replies.OkReply(5),
    replies.OkReply(7),
    replies.OkReply(8),
    replies.OkReply(9),
    replies.DupReply(4),
    replies.PongReply(),
    HELLO,
    replies.JsonReply(b"{}\n{}"),
    replies.BatchReply("t", 2, 9, b"ab\ncd"),
    replies.OffsetsReply("t", 3, 9),
    replies.ClosedPush("t", "c", "SEEK"),
    replies.ErrReply("BAD_ARGUMENT", "what is this \\xfc"),
    replies.MessagePush("t", 0, 1, 10, b"", b"", b"a\n"),
    replies.MessagePush("t", 1, 1, 11, b"k", b"", b""),
    replies.MessagePush("t", 7, 3, 12, b"", b"A: b\n", b"body"),
    replies.MessagePush("t", 8, 2, 13, b"", b"", b"body"),
]


def replies_of(data: bytes, step: int) -> list[Reply]:
    connection = ClientConnection()
    found: list[Reply] = []
    for at in range(0, len(data), step):
        connection.receive_data(data[at : at + step])
        found += connection.next_replies()
    assert connection.idle
    return found


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 10_000])
def test_what_the_broker_says_is_what_a_client_hears(step: int) -> None:
    assert replies_of(STREAM, step) == REPLIES


def test_a_port_that_speaks_http_is_named() -> None:
    connection = ClientConnection()
    connection.receive_data(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ProtocolViolation, match="this port speaks HTTP: connect to the port of --listen"):
        connection.next_replies()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HELLO 2 server=x max_payload=1\n", "speaks version 2 of the protocol, this client 1: use a client of the broker's"),
        (b"HELLO 2 anything else\n", "speaks version 2 of the protocol"),
        (b"MSG t 1 1 1 - 3 hdr=99\nabc\n", "a message of 3 bytes with hdr=99"),
    ],
)
def test_another_version_and_headers_longer_than_their_message_are_named(data: bytes, text: str) -> None:
    """Found: another protocol version was taken for version 1, and headers longer than their message for a message without a
    payload."""
    connection = ClientConnection()
    connection.receive_data(data)
    with pytest.raises(ProtocolViolation, match=text):
        connection.next_replies()


def test_inside_a_frame_the_connection_is_not_idle() -> None:
    connection = ClientConnection()
    connection.receive_data(b"JSON 5\nab")
    assert connection.next_replies() == []
    assert not connection.idle


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\n",
        b"OK\n",
        b"OK -1\n",
        b"OK 1 2\n",
        b"OK one\n",
        b"DUP x\n",
        b"MSG t 1\n",
        b"MSG t 1 1 1 - x\nx\n",
        b"MSG t x 1 1 - 1\na\n",
        b"MSG t 1 1 1 - 1 hdr=x\na\n",
        b"JSON 2\nabc",
        b"JSON 268435457\n",
        b"BATCH t 1 2 x\n",
        b"HELLO 1\n",
        b"HELLO 1 server\n",
        b"HELLO one server=x max_payload=1\n",
        b"HELLO 1 server=x max_payload=-5\n",
        b"OFFSETS t 1 x\n",
        b"CLOSED \xff c SEEK\n",
        b"x" * 4096,
    ],
)
def test_another_protocol_is_noticed(data: bytes) -> None:
    connection = ClientConnection()
    connection.receive_data(data)
    with pytest.raises(ProtocolViolation):
        connection.next_replies()


@pytest.mark.parametrize("code", sorted(REQUEST_ERRORS))
def test_every_code_comes_back_as_its_own_error(code: str) -> None:
    error = replies.ErrReply(code, "7 and more").to_exception()
    assert type(error) is REQUEST_ERRORS[code]
    assert isinstance(error, RequestError)
    assert error.code == code
    assert str(error) == "7 and more"
    assert isinstance(error.fatal, bool)
    if isinstance(error, OutOfRange):
        assert error.first_id == 7
    if isinstance(error, PayloadTooLarge):
        assert not error.fatal


def test_a_code_of_a_later_version_is_still_an_error() -> None:
    error = replies.ErrReply("NEVER_HEARD_OF", "text").to_exception()
    assert isinstance(error, CommandFailed)
    assert error.code == "NEVER_HEARD_OF"


def test_an_error_is_one_line_whatever_its_text_holds() -> None:
    line = replies.encode_error(BadArgument("a\r\nOK 1\n" + "x" * 10_000 + "é\x00"))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert len(line) <= 4096
    assert line.isascii()
