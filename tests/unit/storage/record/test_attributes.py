"""The attributes of a record behind its payload. Contract: storage.md, "Record frame"."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.errors import DamagedData
from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_SEQUENCE,
    Extras,
    Stop,
    decode_frame,
    parse_attributes,
    scan,
)

u64 = st.integers(0, 2**64 - 1)


@given(deliver_at=st.none() | u64, expires_at=st.none() | u64, headers=st.binary(max_size=20), sequence=st.none() | u64)
def test_attributes_come_back(deliver_at: int | None, expires_at: int | None, headers: bytes, sequence: int | None) -> None:
    times = (None if at_ns is None else [at_ns] for at_ns in (deliver_at, expires_at))
    (block,) = Extras([headers], *times).encode(None if sequence is None else [sequence])
    assert block == encode_attributes(deliver_at_ns=deliver_at, expires_at_ns=expires_at, headers=headers, sequence=sequence)
    frame = decode_frame(encode_frame(3, 4, b"k", b"p", block))
    assert frame.number(ATTRIBUTE_DELIVER_AT) == deliver_at
    assert frame.number(ATTRIBUTE_EXPIRES_AT) == expires_at
    assert frame.number(ATTRIBUTE_SEQUENCE) == sequence
    assert frame.headers == headers


def test_an_unknown_tag_is_kept() -> None:
    assert parse_attributes(b"\xc8\x03\0\0\0abc") == {200: b"abc"}


@pytest.mark.parametrize(
    "block",
    [
        b"\x03",
        b"\x03\x05\0\0\0abcd",
        b"\x03\x02\0\0\0abc",
        b"\x03\x01\0\0\0a\x03\x01\0\0\0b",
        b"\x01\x04\0\0\0abcd",
        b"\x02\x00\0\0\0",
        b"\x04\x09\0\0\0abcdefghi",
        b"\x03\xff\xff\xff\xffabc",
    ],
)
def test_a_block_that_is_not_well_formed_makes_the_frame_invalid(block: bytes) -> None:
    assert parse_attributes(block) is None
    frame = encode_frame(0, 0, b"", b"", block)
    assert scan(frame, 0, 0)[2] is Stop.INVALID
    with pytest.raises(DamagedData):
        decode_frame(frame)
