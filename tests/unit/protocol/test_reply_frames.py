"""A broker's output split into frames: the same frames however the bytes are split."""

import pytest

from toymq_py.errors import ProtocolViolation
from toymq_py.protocol import ReplyFrames, first_word
from toymq_py.protocol.frames import LINE_BYTES_MAX

FRAMES = [
    b"OK 1\n", b"DUP 2\n", b"PONG\n", b"ERR NO_SUCH_TOPIC there is no topic t\n", b"MSG t 0 1 9 - 4\na\nb\n\n",
    b"MSG t 1 1 9 k 0\n\n", b"JSON 3\n{}\n\n", b"BATCH t 1 1 5\n\nOK 1\n", b"MSG t 2 1 9 k 4 hdr=2\nOK 7\n",
    b"CLOSED t c DELETED\n", b"OFFSETS t 0 1\n", b"HELLO 1 server=x/1 max_payload=1\n",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_split_gives_the_same_frames(size: int) -> None:
    data, frames, found = b"".join(FRAMES), ReplyFrames(), []
    for at in range(0, len(data), size):
        found += frames.split(data[at : at + size])
    assert found == FRAMES


def test_the_first_word_says_what_it_is() -> None:
    assert [first_word(frame).decode() for frame in FRAMES] == [
        "OK", "DUP", "PONG", "ERR", "MSG", "MSG", "JSON", "BATCH", "MSG", "CLOSED", "OFFSETS", "HELLO",
    ]  # fmt: skip


@pytest.mark.parametrize("data", [b"MSG t 0 1 9 - x\n", b"JSON\n", b"JSON \n", b"x" * (LINE_BYTES_MAX + 1)])
def test_what_no_broker_sends(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        ReplyFrames().split(data)
