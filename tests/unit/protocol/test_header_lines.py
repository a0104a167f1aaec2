"""Header lines: how they are parsed, and with which code they are refused. Contract: protocol.md."""

import re
import subprocess
import sys

import pytest

from toymq_py.consumer_options import Start
from toymq_py.errors import RequestError
from toymq_py.failure import Failure, failure_of
from toymq_py.protocol import Command, commands, encode_command
from toymq_py.protocol.header_lines import parse_line

U64 = 2**64 - 1
TEN_YEARS_MS = 10 * 366 * 24 * 3600 * 1000

LINES: dict[str, Command] = {
    "HELLO 1": commands.Hello(1),
    "HELLO 1 auth=s3cret name=billing": commands.Hello(1, "s3cret", "billing"),
    "SUB orders billing": commands.Subscribe("orders", "billing"),
    "SUB o c window=1 visibility=1 start=latest mode=exclusive": (
        commands.Subscribe("o", "c", 1, 1, Start("latest"), "exclusive")
    ),
    "SUB o c start=0": commands.Subscribe("o", "c", start=Start("id", 0)),
    "SUB o c start=@0": commands.Subscribe("o", "c", start=Start("time", 0)),
    "SUB orders.* c mode=shared": commands.Subscribe("orders.*", "c", mode="shared"),
    "UNSUB o c": commands.Unsubscribe("o", "c"),
    "HELD o.* c": commands.Held("o.*", "c"),
    "HELD o c uncounted=0": commands.Held("o", "c", uncounted=False),
    "HELD o c uncounted=1": commands.Held("o", "c", uncounted=True),
    "UNSUB o c uncounted=1": commands.Unsubscribe("o", "c", uncounted=True),
    "PULL o c 10": commands.Pull("o", "c", 10),
    "PULL o c 10 wait=5 visibility=7": commands.Pull("o", "c", 10, 5, 7),
    "ACK o c 0": commands.Ack("o", "c", ((0, 0),)),
    "ACK o c 3-9,12,20-31 sync=1": commands.Ack("o", "c", ((3, 9), (12, 12), (20, 31)), sync=True),
    "ACK o c 7 sync=0": commands.Ack("o", "c", ((7, 7),)),
    f"ACK o c {U64}": commands.Ack("o", "c", ((U64, U64),)),
    "NACK o c 1 delay=0 dead=1 reason=poison": commands.Nack("o", "c", ((1, 1),), 0, True, failure_of("poison")),
    "NACK o c 1 uncounted=1": commands.Nack("o", "c", ((1, 1),), uncounted=True),
    "NACK o c 1 uncounted=1 lease=7": commands.Nack("o", "c", ((1, 1),), uncounted=True, lease=7),
    "SUB o c lease=9007199254740991": commands.Subscribe("o", "c", lease=2**53 - 1),
    "PULL o c 1 lease=1": commands.Pull("o", "c", 1, lease=1),
    "TOUCH o c 1 lease=1": commands.Touch("o", "c", ((1, 1),), lease=1),
    "TOUCH o c 1-2 visibility=9": commands.Touch("o", "c", ((1, 2),), 9),
    "PAUSE": commands.Pause(),
    "RESUME": commands.Resume(),
    "FETCH o 0 1": commands.Fetch("o", 0, 1),
    "FETCH o 5 9 max_bytes=1 wait=3": commands.Fetch("o", 5, 9, 1, 3),
    "OFFSETS o": commands.Offsets("o"),
    "OFFSETS o at=0": commands.Offsets("o", 0),
    "CREATE o": commands.Create("o"),
    "CREATE o visibility=5 dedupe_keys=default": commands.Create("o", {"visibility": "5", "dedupe_keys": "default"}),
    "CONFIG o": commands.Config("o"),
    "DELETE o": commands.Delete("o"),
    "PURGE o": commands.Purge("o"),
    "SEEK o c earliest": commands.Seek("o", "c", Start("earliest")),
    "SEEK o c 7 create=0": commands.Seek("o", "c", Start("id", 7), creates=False),
    "SEEK o c @1781767800000": commands.Seek("o", "c", Start("time", 1_781_767_800_000)),
    "FORGET o c": commands.Forget("o", "c"),
    "REDRIVE o.dlq": commands.Redrive("o.dlq"),
    "REDRIVE o.dlq ids=1-3,9 max=4": commands.Redrive("o.dlq", ((1, 3), (9, 9)), 4),
    "TOPICS": commands.Topics(),
    "TOPICS orders.>": commands.Topics("orders.>"),
    "DESCRIBE o": commands.Describe("o"),
    "STATS": commands.Stats(),
    "STATS partial=1": commands.Stats(partial=True),
    "CLUSTER": commands.Cluster(),
    "CLUSTER moved=1": commands.Cluster(moved=True),
    "PING": commands.Ping(),
    "QUIT": commands.Quit(),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_this_command(line: str) -> None:
    assert parse_line(line.encode()) == LINES[line]


@pytest.mark.parametrize("line", [line for line in LINES if line not in ("ACK o c 7 sync=0",)])
def test_a_command_is_this_line(line: str) -> None:
    assert encode_command(LINES[line]) == line.encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("", "UNKNOWN_COMMAND"),
        (" ", "UNKNOWN_COMMAND"),
        ("ping", "UNKNOWN_COMMAND"),
        ("PINGPONG", "UNKNOWN_COMMAND"),
        ("\x00", "UNKNOWN_COMMAND"),
        ("PING x", "BAD_ARGUMENT"),
        ("PING ", "BAD_ARGUMENT"),
        ("SUB o  c", "BAD_ARGUMENT"),
        ("SUB o c ", "BAD_ARGUMENT"),
        ("SUB o", "BAD_ARGUMENT"),
        ("SUB o c\tx", "BAD_ARGUMENT"),
        ("SUB o c extra", "BAD_ARGUMENT"),
        ("SUB o c window=0", "BAD_ARGUMENT"),
        ("SUB o c window=-1", "BAD_ARGUMENT"),
        ("SUB o c window=2147483648", "BAD_ARGUMENT"),
        ("SUB o c window=", "BAD_ARGUMENT"),
        ("SUB o c window=1 window=1", "BAD_ARGUMENT"),
        ("SUB o c windows=1", "BAD_ARGUMENT"),
        ("SUB o c visibility=0", "BAD_ARGUMENT"),
        ("SUB o c start=soon", "BAD_ARGUMENT"),
        ("SUB o c start=@", "BAD_ARGUMENT"),
        ("SUB o c start=-1", "BAD_ARGUMENT"),
        ("SUB o c mode=both", "BAD_ARGUMENT"),
        ("SUB .o c", "BAD_NAME"),
        ("SUB o -c", "BAD_NAME"),
        ("SUB o a/b", "BAD_NAME"),
        ("SUB a#b c", "BAD_NAME"),
        (f"SUB {'x' * 197} c", "BAD_NAME"),
        ("SUB ../../x c", "BAD_NAME"),
        ("SUB o.>.x c", "BAD_NAME"),
        ("SUB o* c", "BAD_NAME"),
        ("SUB o \xe9", "BAD_ARGUMENT"),
        ("ACK o c", "BAD_ARGUMENT"),
        ("ACK o c x", "BAD_ARGUMENT"),
        ("ACK o c 1_0", "BAD_ARGUMENT"),
        ("ACK o c +1", "BAD_ARGUMENT"),
        ("ACK o c 9-3", "BAD_ARGUMENT"),
        ("ACK o c 3,3", "BAD_ARGUMENT"),
        ("ACK o c 5,3", "BAD_ARGUMENT"),
        ("ACK o c 1-", "BAD_ARGUMENT"),
        ("ACK o c 1,,2", "BAD_ARGUMENT"),
        (f"ACK o c {U64 + 1}", "BAD_ARGUMENT"),
        (f"ACK o c {'9' * 3000}", "BAD_ARGUMENT"),
        ("ACK o c 1 sync=2", "BAD_ARGUMENT"),
        ("ACK o c 1 sync=yes", "BAD_ARGUMENT"),
        ("ACK o.* c 1", "BAD_NAME"),
        ("NACK o c 1 delay=x", "BAD_ARGUMENT"),
        (f"NACK o c 1 delay={TEN_YEARS_MS * 2}", "BAD_ARGUMENT"),
        ("NACK o c 1 reason=\x7f", "BAD_ARGUMENT"),
        ("TOUCH o c 1 visibility=0", "BAD_ARGUMENT"),
        ("TOUCH o c 1 lease=0", "BAD_ARGUMENT"),
        ("SUB o c lease=9007199254740992", "BAD_ARGUMENT"),
        ("PULL o c 0", "BAD_ARGUMENT"),
        ("FETCH o -1 1", "BAD_ARGUMENT"),
        ("FETCH o 0 0", "BAD_ARGUMENT"),
        ("FETCH o 0 1 max_bytes=0", "BAD_ARGUMENT"),
        ("OFFSETS o at=x", "BAD_ARGUMENT"),
        ("CREATE o Visibility=1", "BAD_ARGUMENT"),
        ("SEEK o c", "BAD_ARGUMENT"),
        ("REDRIVE o.dlq max=0", "BAD_ARGUMENT"),
        ("TOPICS a b", "BAD_ARGUMENT"),
        ("TOPICS /", "BAD_NAME"),
        ("HELLO one", "BAD_ARGUMENT"),
        ("HELLO 1 password=x", "BAD_ARGUMENT"),
    ],
)
def test_a_bad_line_has_a_documented_code(line: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_line(line.encode("latin-1"))
    assert caught.value.code == code
    assert not caught.value.fatal
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "command",
    [
        commands.Subscribe("o c", "x"),
        commands.Subscribe("o", "c\nQUIT"),
        commands.Subscribe("", "c"),
        commands.Delete("../x"),
        commands.Nack("o", "c", ((0, 0),), failure=Failure("not made\nby failure_of")),
        commands.Ack("o", "c", ((5, 3),)),
        commands.Hello(1, auth="a b"),
        commands.Create("o", {"visibility": "1 dedupe_keys=0"}),
        commands.Publish("o", [b"a key"], [b""]),
        commands.Publish("o", [b"-"], [b""]),
        commands.Publish("o", [b"k" * 513], [b""]),
        commands.Publish("o\n", [b""], [b""]),
        commands.Publish("o", [b"", b""], [b"", b""], hdr=1),
    ],
    ids=repr,
)
def test_what_the_grammar_cannot_carry_is_never_sent(command: Command) -> None:
    with pytest.raises(RequestError):
        encode_command(command)


def test_a_rejection_is_not_something_to_send() -> None:
    with pytest.raises(TypeError):
        encode_command(commands.Rejected(RequestError("x")))


def test_a_token_is_not_in_the_repr() -> None:
    assert "s3cret" not in repr(commands.Hello(1, "s3cret"))


def test_publishes_are_encoded_with_their_bodies() -> None:
    run = commands.Publish("o", [b"", b"k"], [b"", b"a\nb"])
    assert encode_command(run) == b"PUB o - 0\n\nPUB o k 3\na\nb\n"
    one = commands.Publish("o", [b"p"], [b"A: b\nbody"], hdr=5, delays_ms=[1], ttls_ms=[2], seqs=[3])
    assert encode_command(one) == b"PUB o p 9 hdr=5 delay=1 ttl=2 seq=3\nA: b\nbody\n"


def test_an_unknown_option_is_shown_without_an_import() -> None:
    """Found: with ten thousand connections, the first unknown option imported a codec, whose objects kept memory of theirs from
    being freed (ADR 0203)."""
    program = (
        "import sys; from toymq_py.protocol.header_lines import parse_line\n"
        "before = set(sys.modules)\n"
        "try: parse_line(b'SUB o c wi\\\\ndow=1')\n"
        "except Exception as error: print(error)\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    assert first.startswith(r"unknown option wi\\ndow: this command takes ")
    assert last == "[]"


@pytest.mark.parametrize(
    "line",
    [
        "HELLO 1", "SUB o c window=8 visibility=9 lease=7", "SUB o c start=8", "SUB o c start=@978307200000", "SEEK o c 8",
        "PULL o c 8 wait=9 visibility=7 lease=6", "ACK o c 3-9,12", "NACK o c 8 delay=9 lease=7", "TOUCH o c 8 visibility=9",
        "FETCH o 8 9 max_bytes=7 wait=6", "OFFSETS o at=8", "REDRIVE o ids=3-9,12", "REDRIVE o max=8",
    ],
)  # fmt: skip
def test_zeros_ahead_of_a_number_do_not_count(line: str) -> None:
    padded = re.sub(r"\d+", lambda number: f"0{number[0]}", line)
    assert parse_line(padded.encode()) == parse_line(line.encode())
    longest = re.sub(r"\d+", lambda number: f"{number[0]:0>20}", line)
    assert parse_line(longest.encode()) == parse_line(line.encode())
    with pytest.raises(RequestError):
        parse_line(re.sub(r"\d+", lambda number: f"{number[0]:0>21}", line).encode())
