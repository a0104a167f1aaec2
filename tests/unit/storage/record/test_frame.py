"""The frame, byte by byte. Contract: storage.md, "Record frame"; ADR 0001."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.errors import DamagedData
from toymq_py.storage.record import (
    FRAME_OVERHEAD,
    LENGTH_MAX,
    Stop,
    claimed_extent,
    decode_frame,
    encode_records,
    frame,
    iter_frames,
    possible_ends,
    scan,
)


def test_a_frame_is_these_bytes() -> None:
    body = struct.pack("<IQQH", 26 + 3 + 5 + 7, 9, 1234, 3) + b"key" + struct.pack("<I", 5) + b"hello"
    body += b"\x07" + struct.pack("<I", 2) + b"zz"
    expected = body + struct.pack("<I", zlib.crc32(body))
    assert b"".join(encode_records(9, 1234, [b"key"], [b"hello"], [b"\x07\x02\0\0\0zz"])) == expected
    assert len(b"".join(encode_records(0, 0, [b""], [b""]))) == FRAME_OVERHEAD == 30


def test_without_attributes_nothing_is_added() -> None:
    assert len(b"".join(encode_records(1, 2, [b"k"], [b"payload"]))) == 4 + 8 + 8 + 2 + 1 + 4 + 7 + 4


@given(st.data())
def test_no_single_flipped_bit_goes_unnoticed(data: st.DataObject) -> None:
    frame = encode_frame(5, 6, b"key", b"payload", encode_attributes(headers=b"A: b\n"))
    at = data.draw(st.integers(0, len(frame) * 8 - 1))
    damaged = bytearray(frame)
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises(DamagedData):
        decode_frame(bytes(damaged))
    assert scan(bytes(damaged), 0, 5)[1] == 5


@pytest.mark.parametrize("length", [0, 25, LENGTH_MAX + 1, 0xFFFFFFFF])
def test_a_length_out_of_bounds_claims_nothing(length: int) -> None:
    data = length.to_bytes(4, "little") + bytes(100)
    assert claimed_extent(data, 0) is None
    if length:
        assert scan(data, 0, 0)[2] is Stop.INVALID, "before anything is allocated"


def test_lengths_that_disagree_claim_nothing() -> None:
    frame = bytearray(encode_frame(0, 0, b"key", b"payload"))
    assert claimed_extent(bytes(frame), 0) == (0, len(frame))
    frame[25] += 1  # payload_len
    assert claimed_extent(bytes(frame), 0) is None
    assert claimed_extent(bytes(frame[:21]), 0) is None, "too little to say"
    frame[20:22] = b"\xff\xff"  # key_len
    assert claimed_extent(bytes(frame), 0) is None


def test_where_a_frame_ends_whose_length_was_hit() -> None:
    plain = encode_frame(0, 0, b"key", b"payload")
    assert possible_ends(b"\xff" * 4 + plain[4:], 0) == [len(plain)]
    attributed = encode_frame(0, 0, b"key", b"payload", encode_attributes(headers=b"A: b\n"))
    assert len(attributed) in possible_ends(b"\0" * 4 + attributed[4:], 0)
    assert possible_ends(plain[:20], 0) == []
    assert possible_ends(plain[:24], 0) == []


def test_random_sizes_do_not_fill_the_memory() -> None:
    for size in range(5000):
        encode_records(0, 0, [b""], [b"x" * size])
    assert len(frame._packers) <= 4096


def test_a_frame_that_is_none_has_a_position_in_its_error() -> None:
    with pytest.raises(DamagedData, match="byte 33"):
        list(iter_frames(encode_frame(0, 10, b"", b"abc") + b"garbage"))
