"""The handshake's parser: any split of the bytes gives the same messages; any bytes give a message or a named error, within
limits."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toymq_py.errors import BadOperation
from toymq_py.replication.handshake import (
    LINE_BYTES_MAX,
    Follow,
    HandshakeReader,
    Lead,
    ManifestBytes,
    Message,
    Refused,
    StreamFrom,
    Wait,
    encode,
)

REPLICA = "0123456789abcdef0123456789abcdef"
numbers = st.integers(0, 2**64 - 1)
tokens = st.none() | st.text(min_size=1, max_size=60)
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=100)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Follow, numbers, st.just("6f6e6c79-0000-4000-8000-746573747321"), st.just("g0"), st.just(REPLICA), st.just("n-1.a"),
        numbers, tokens,
    ),
    st.builds(Lead, numbers, st.just("0123456789abcdef")),
    st.builds(Refused, st.sampled_from(["FENCED", "NOT_LEADER"]), printable),
    st.builds(ManifestBytes, st.binary(max_size=3000)),
    st.builds(StreamFrom, numbers),
    st.just(Wait()),
)  # fmt: skip


def read(*pieces: bytes) -> list[Message]:
    reader, found = HandshakeReader(), []
    for piece in pieces:
        reader.receive(piece)
        while True:
            reader.manifest_allowed = True
            message = reader.next_message()
            if message is None:
                break
            found.append(message)
    return found


@given(st.lists(messages, max_size=5), st.integers(1, 40))
@example([Follow(1, "c", "g", REPLICA, "n", 0, "\N{SNOWMAN} =%20\n")], 1)
def test_what_is_said_is_read_however_it_is_split(said: list[Message], step: int) -> None:
    data = b"".join(map(encode, said))
    assert read(*(data[at : at + step] for at in range(0, len(data), step))) == said


@given(st.lists(st.binary(max_size=80), max_size=6))
@example([b"FOLLOW 1 x=y\n"])
@example([b"LEAD 1 \n"])
@example([b"ERR  \n"])
def test_any_bytes_are_messages_or_a_named_error(pieces: list[bytes]) -> None:
    with suppress(BadOperation):
        read(*pieces)


@given(st.text(min_size=1, max_size=400))
def test_the_text_of_a_refusal_is_one_line_within_the_limit(text: str) -> None:
    line = encode(Refused("NOT_READY", text))
    assert line.count(b"\n") == 1
    assert len(line) < LINE_BYTES_MAX
    assert len(read(line)) == 1


FOLLOW = f"FOLLOW 1 cluster=c group=g replica={REPLICA} name=n promised=0"


@pytest.mark.parametrize(("line", "why"), [
    (b"x" * LINE_BYTES_MAX, "more than 1024 bytes"), (b"\xff\n", "not ASCII"), (b"\n", "unknown line"),
    (b"follow 1\n", "unknown line"),
    (b"WAIT 1\n", "argument"), (b"STREAM \n", "number"),
    (b"STREAM 01\n", "number"), (b"STREAM 18446744073709551616\n", "number"),
    (b"STREAM -1\n", "number"), (b"LEAD 1 0123456789ABCDEF\n", "stream id"),
    (b"LEAD 1 ../../etc/passwd\n", "stream id '../../etc/passwd'"),
    (b"LEAD x 0123456789abcdef\n", "number"), (b"ERR fenced 1\n", "code"), (b"MANIFEST 33554433\n", "at most"),
    (f"{FOLLOW} cluster=d\n".encode(), "twice"), (FOLLOW.replace("name=n", "").encode() + b"\n", "lacks name"),
    (FOLLOW.replace(REPLICA, "..").encode() + b"\n", "invalid replica '..': is"),
    (f"{FOLLOW} auth=a/b\n".encode(), "invalid auth: is the peer"),
    (FOLLOW.replace("name=n", "name=a/b").encode() + b"\n", "invalid name 'a/b': is"),
    (FOLLOW.replace("group=g", "group=").encode() + b"\n", "invalid group"), (b"FOLLOW\n", "number"),
])  # fmt: skip
def test_a_hostile_line_is_refused_by_name_and_for_good(line: bytes, why: str) -> None:
    reader = HandshakeReader()
    reader.manifest_allowed = True
    reader.receive(line)
    for _ in range(2):
        with pytest.raises(BadOperation, match=why):
            reader.next_message()
        reader.receive(encode(Wait()))


def test_a_manifest_is_not_collected_from_a_peer_that_has_not_said_its_name() -> None:
    reader = HandshakeReader()
    reader.receive(encode(ManifestBytes(b"{}")))
    with pytest.raises(BadOperation, match="where none is expected"):
        reader.next_message()


def test_a_manifest_that_is_on_its_way_is_the_only_one() -> None:
    reader = HandshakeReader()
    reader.manifest_allowed = True
    reader.receive(encode(ManifestBytes(b"{}")) * 2)
    assert reader.next_message() == ManifestBytes(b"{}")
    with pytest.raises(BadOperation, match="where none is expected"):
        reader.next_message()


def test_the_binary_part_begins_behind_the_last_line() -> None:
    reader = HandshakeReader()
    reader.receive(encode(StreamFrom(5)) + b"\x01\x02WAIT\n")
    assert reader.next_message() == StreamFrom(5)
    assert reader.take_rest() == b"\x01\x02WAIT\n"


def test_fields_of_a_later_version_are_left_to_the_number() -> None:
    [found] = read(f"{FOLLOW} tls=1\n".encode())
    assert found == Follow(1, "c", "g", REPLICA, "n", 0, None)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Follow(1, "c", "g", REPLICA, "n", 0, "secret"))
