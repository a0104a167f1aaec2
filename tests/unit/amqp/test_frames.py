"""Frames of AMQP, in any pieces. Contract: the specification, 4.2.3."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp.errors import FRAME_ERROR, AmqpError
from toymq_py.amqp.frames import (
    BODY,
    CHUNKS_MAX,
    FRAME_MIN,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    Frame,
    FrameReader,
    body_frames,
    frame,
)

KINDS = st.sampled_from((METHOD, BODY, HEARTBEAT))
FRAMES = st.lists(st.tuples(KINDS, st.integers(0, 65535), st.binary(max_size=60)), max_size=8)


def read(reader: FrameReader, *pieces: bytes) -> list[Frame]:
    found: list[Frame] = []
    for piece in pieces:
        reader.received(piece)
        found += reader.frames()
    return found


@given(FRAMES, st.data())
def test_frames_are_the_same_however_they_are_cut(frames: list[Frame], data: st.DataObject) -> None:
    whole = b"".join(frame(*one) for one in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(FrameReader(FRAME_MIN), *pieces) == frames


@given(FRAMES)
def test_what_is_not_read_to_its_end_is_not_lost(frames: list[Frame]) -> None:
    reader = FrameReader(FRAME_MIN)
    reader.received(b"".join(frame(*one) for one in frames))
    found = []
    for _ in frames:
        once = reader.frames()
        found.append(next(once))
        once.close()  # type: ignore[attr-defined]
    assert found == frames
    assert reader.held_bytes == 0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x01\0\0\xff\xff\xff\xff", "a frame of 4294967295 bytes exceeds frame_max 4096"),
        (b"\x05\0\0\0\0\0\0\xce", "frame type 5"),
        (b"\x01\0\0\0\0\0\1x\0", "does not end with 206"),
        (b"GET / HTTP/1.1\r\n", "frame type 71"),
    ],
)
def test_what_is_no_frame_is_refused_by_its_head(data: bytes, text: str) -> None:
    with pytest.raises(AmqpError, match=text) as refused:
        read(FrameReader(FRAME_MIN), data)
    assert refused.value.code == FRAME_ERROR


def test_a_frame_behind_the_protocol_header_is_refused_by_its_head() -> None:
    """In the same packet, its size was looked at when as much as the limit had come."""
    reader = FrameReader(FRAME_MIN)
    reader.received(PROTOCOL_HEADER + b"\x01\0\0\xff\xff\xff\xff")
    assert reader.take(len(PROTOCOL_HEADER)) == PROTOCOL_HEADER
    with pytest.raises(AmqpError, match="a frame of 4294967295 bytes"):
        list(reader.frames())


def test_a_frame_that_comes_byte_by_byte_is_joined_once() -> None:
    """Found: a body of 128 KiB in as many packets was joined at each of them: 8 GB were copied."""
    reader, whole = FrameReader(1 << 17), frame(BODY, 1, bytes(5000))
    for at in range(len(whole) - 1):
        reader.received(whole[at : at + 1])
        assert list(reader.frames()) == []
    assert len(reader._chunks) == CHUNKS_MAX + 2, "they wait, the later ones in one piece that grows"
    assert read(reader, whole[-1:]) == [(BODY, 1, bytes(5000))]


def test_a_body_is_cut_into_frames_that_the_peer_takes() -> None:
    frames = body_frames(3, bytes(10_000), FRAME_MIN)
    assert [len(one) for one in frames] == [FRAME_MIN, FRAME_MIN, 10_000 - 2 * (FRAME_MIN - OVERHEAD) + OVERHEAD]
    assert body_frames(3, b"", FRAME_MIN) == []


def test_a_frame_that_comes_byte_by_byte_is_not_held_as_objects() -> None:
    size = 30_000
    reader, whole = FrameReader(131_072), frame(BODY, 1, b"x" * size)
    tracemalloc.start()
    try:
        for at in range(len(whole) - 1):
            reader.received(whole[at : at + 1])
            assert list(reader.frames()) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.held_bytes == len(whole) - 1
    assert held < 2 * size
    assert read(reader, whole[-1:]) == [(BODY, 1, b"x" * size)]
