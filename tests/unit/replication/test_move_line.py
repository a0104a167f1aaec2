"""The line with which a leader asks another group for a topic: encoded and decoded, and every other line refused."""

import pytest

from toymq_py.errors import BadOperation
from toymq_py.replication.move_line import MOVE, MoveRequest, decode, decode_sizes, encode, encode_sizes
from toymq_py.replication.pass_line import PASS

ASKED = MoveRequest("orders_1", "a", "b-2", 17, 42, "x.y-z_1", None)
SIZES = {"topics/t/00000000000000000000.log": 7, "topics/t.dlq/offsets.json": 0}


@pytest.mark.parametrize("token", [None, "secret", "a b/ä%=&"])
def test_what_is_asked_for_is_read(token: str | None) -> None:
    asked = MoveRequest("orders_1", "a", "b-2", 17, 42, "x.y-z_1", token)
    line = encode(asked)
    assert line.startswith(MOVE)
    assert len(MOVE) == len(PASS), "so many bytes tell what a connection is for"
    assert decode(line) == asked


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(MoveRequest("orders", "a", "b", 1, 2, "t", "secret"))


@pytest.mark.parametrize(
    "change",
    [(b"topic=", b"topic=../"), (b"MOVE 1", b"MOVE x"), (b"\n", b""), (b"\n", b" auth=\n"), (b"epoch=17", b"epoch=-1")],
)
def test_anything_else_is_refused(change: tuple[bytes, bytes]) -> None:
    with pytest.raises(BadOperation, match="an invalid line"):
        decode(encode(ASKED).replace(*change))


def test_the_sizes_of_files_are_read() -> None:
    assert decode_sizes(encode_sizes(SIZES)) == SIZES


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b'{"topics/../x": 1}', b'{"topics/t/topic.json": -1}', b'{"topics/t/topic.json": "1"}'],
)
def test_other_sizes_are_refused(data: bytes) -> None:
    with pytest.raises(BadOperation, match="the sizes are"):
        decode_sizes(data)
