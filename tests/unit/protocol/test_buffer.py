"""The receive buffer: all bytes in order, at a linear cost."""

import pytest

from toymq_py.protocol.buffer import Buffer


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("wanted", [0, 7, 200])
def test_bytes_come_out_as_they_went_in(step: int, wanted: int) -> None:
    data = bytes(range(200))
    buffer = Buffer()
    buffer.add(b"##")
    buffer.pos = 2
    if wanted:
        buffer.want(wanted)
    for at in range(0, len(data), step):
        buffer.add(data[at : at + step])
        assert len(buffer) == len(data[: at + step])
    assert buffer.data[buffer.pos :] == data


def test_a_body_that_trickles_in_is_joined_once() -> None:
    buffer = Buffer()
    buffer.add(b"head")
    buffer.pos = 1
    buffer.want(1000)
    assert buffer.data == b""
    for _ in range(996):
        buffer.add(b"x")
        assert buffer.data == b"", "not before all of it is there"
    buffer.add(b"x")
    assert buffer.data == b"ead" + b"x" * 997


def test_clear_drops_what_is_collected() -> None:
    buffer = Buffer()
    buffer.want(10)
    buffer.add(b"abc")
    buffer.clear()
    assert len(buffer) == 0
    buffer.add(b"next")
    assert buffer.data == b"next"
