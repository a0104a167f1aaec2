"""The lines of wire debug: header lines as they were sent, no bodies, never a token."""

import pytest

from toymq_py.errors import BadArgument
from toymq_py.protocol import (
    Ack,
    ClientConnection,
    Command,
    Hello,
    Ping,
    Publish,
    Quit,
    Rejected,
    ServerConnection,
    SettlementRun,
    Touch,
    command_lines,
    reply_line,
)
from toymq_py.protocol.header_lines import VERBS


def lines_of(data: bytes) -> list[str]:
    connection = ServerConnection(1000)
    connection.receive_data(data)
    return [line for command in connection.next_commands(512) for line in command_lines(command)]


@pytest.mark.parametrize(
    "line",
    [
        "HELLO 1 name=x", "PING", "SUB a.* b window=5 mode=shared", "ACK a b 1-3,7 sync=1", "NACK a b 1 delay=5",
        "CREATE a visibility=5", "FETCH a 0 5 wait=7", "SEEK a b @5", "TOPICS", "QUIT", "REDRIVE a.dlq max=5",
    ],
)  # fmt: skip
def test_a_command_is_shown_as_it_was_said(line: str) -> None:
    assert lines_of(line.encode() + b"\n") == [line]


def test_bodies_are_counted() -> None:
    data = b"PUB a - 3\nxyz\nPUB a k 0\n\nPUB a k 5 hdr=3\nA:b\n\n\nPUB a p 1 seq=7\nx\nPUB a p 2 seq=8\nxy\n"
    connection = ServerConnection(1000)
    connection.receive_data(data)
    shown = [line for command in connection.next_commands(512) for line in command_lines(command)]
    assert shown[:2] == ["PUB a - 3", "PUB a k 0"]
    assert shown[-2:] == ["PUB a p 1 seq=7", "PUB a p 2 seq=8"]
    assert not any("xy" in line for line in shown)
    timed = Publish("a", [b"k"], [b"abc"], hdr=2, delays_ms=[5], ttls_ms=[9])
    assert next(command_lines(timed)) == "PUB a k 3 hdr=2 delay=5 ttl=9"


@pytest.mark.parametrize(
    "line",
    [
        "HELLO 1 auth=s3cret", "HELLO 1 auht=s3cret", "HELLO 1 s3cret", "HELLO s3cret", "hello 1 auth=s3cret", "s3cret",
        "HELLO 1 auth=s3cret auth=s3cret", "HELLO 1 name=x auth=s3cret ", "AUTH s3cret", "PING auth=s3cret",
    ],
)  # fmt: skip
def test_no_token_is_shown_wherever_it_stands(line: str) -> None:
    assert lines_of(line.encode() + b"\n"), "it is shown"
    assert "s3cret" not in "".join(lines_of(line.encode() + b"\n"))
    replies = ClientConnection()
    replies.receive_data(b"ERR BAD_ARGUMENT unknown option auht=s3cret\nERR UNKNOWN_COMMAND unknown command s3cret\n")
    assert [reply_line(reply) for reply in replies.next_replies()] == ["ERR BAD_ARGUMENT", "ERR UNKNOWN_COMMAND"]


def test_a_refusal_keeps_its_place() -> None:
    assert lines_of(b"PING\nNONSENSE\nPING\n") == ["PING", "(refused: UNKNOWN_COMMAND)", "PING"]


def test_replies() -> None:
    connection = ClientConnection()
    said = [
        b"OK 7\n", b"DUP 3\n", b"PONG\n", b"HELLO 1 server=toymq/1 max_payload=5\n", b"JSON 2\n{}\n", b"BATCH a 0 5 0\n\n",
        b"OFFSETS a 0 5\n", b"ERR NO_SUCH_TOPIC there is no topic a\n", b"MSG a 5 1 99 k 3\nxyz\n",
        b"MSG a 6 1 99 - 3 hdr=2\nA:z\n", b"CLOSED a b TAKEN_OVER\n",
    ]  # fmt: skip
    connection.receive_data(b"".join(said))
    shown = [reply_line(reply) for reply in connection.next_replies()]
    assert shown == [one.split(b"\n")[0].decode() for one in said]


def test_every_command_can_be_shown() -> None:
    run = SettlementRun(Touch("a", "b", ((2, 2),), lease=5), [2, 7])
    examples: list[Command] = [Hello(1, "s3cret", "n"), Ack("a", "b", ((1, 1),)), run, Ping(), Quit()]
    assert [line for command in examples for line in command_lines(command)] == [
        "HELLO 1 auth=*** name=n", "ACK a b 1", "TOUCH a b 2 lease=5", "TOUCH a b 7 lease=5", "PING", "QUIT",
    ]  # fmt: skip
    assert list(command_lines(Rejected(BadArgument("s3cret")))) == ["(refused: BAD_ARGUMENT)"]
    assert "PUB" not in VERBS, "it has a body, and its own way"
