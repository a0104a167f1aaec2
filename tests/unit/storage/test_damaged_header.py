"""What is left of a damaged header. Contract: storage.md, "Recovery", step 6; ADR 0289."""

import random

import pytest

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.storage.damaged_header import frame_bytes, likely_ends, payload_end, reaches_beyond

FRAME = encode_frame(7, 5, b"key", b"p" * 1000, encode_attributes(sequence=9))
"""Ends at 1046, 13 bytes behind its payload and its checksum."""


def test_a_header_that_its_payload_does_not_bear_out_gives_no_length() -> None:
    frame = encode_frame(0, 5, b"", b"x" * 1000)
    assert frame_bytes(frame[:100]) == len(frame)
    wrong = (len(frame) - 5).to_bytes(4, "little") + frame[4:100]
    assert frame_bytes(wrong) is None


def changed(offset: int, mask: int, lost: int = 0) -> bytes:
    """The frame with flipped bits, without the last ``lost`` bytes, and with bytes behind it."""
    data = bytearray(FRAME + b"\x99" * 4000)
    data[offset] ^= mask
    data[len(FRAME) - lost : len(FRAME)] = b"\x99" * lost
    return bytes(data)


@pytest.mark.parametrize("lost", [0, 4, 17, 500])
def test_a_header_without_a_fault_tells_one_end(lost: int) -> None:
    assert likely_ends(changed(0, 0, lost), 0) == [len(FRAME)]


@pytest.mark.parametrize("lost", [0, 17])
@pytest.mark.parametrize(
    ("offset", "bit"),
    [*((0, bit) for bit in range(27)), *((25, bit) for bit in range(32)), *((20, bit) for bit in range(16))],
)
def test_a_flipped_bit_of_a_length_leaves_the_end(offset: int, bit: int, lost: int) -> None:
    ends = likely_ends(changed(offset + bit // 8, 1 << bit % 8, lost), 0)
    assert len(FRAME) in ends
    assert len(ends) <= 3, "with those by a length of which the same bit would be flipped, with or without attributes"


def test_noise_and_the_ends_of_the_data_tell_no_end() -> None:
    assert likely_ends(random.Random(1).randbytes(3000), 0) == []
    assert likely_ends(bytes(3000), 0) == []
    for size in (0, 21, 25, 29, len(FRAME) - 1):
        assert likely_ends(FRAME[:size], 0) == []


def test_two_flipped_bits_of_a_length_tell_no_end() -> None:
    assert likely_ends(changed(1, 0x30, 17), 0) == []


def test_a_small_number_behind_another_key_length_tells_nothing() -> None:
    """Found by the property test: 10, a part of the next header, passed for a payload length."""
    frame = bytearray(encode_frame(8, 5, b"k8", b"", b"")) + bytes(200)
    frame[0], frame[22 + 2 : 22 + 6] = 102, b"\x53\x86\x0c\x58"
    frame[22 + 66] = 10
    assert likely_ends(bytes(frame), 0) == []


def test_a_header_block_that_is_lost_is_believed_up_to_a_limit() -> None:
    for size, told in ((1000, True), (1100, False)):
        frame = encode_frame(7, 5, b"", b"p" * 70, encode_attributes(headers=b"x" * size))
        assert (likely_ends(frame[:96] + b"\x99" * (len(frame) - 96), 0) == [len(frame)]) is told


def test_a_record_that_goes_on_behind_the_data_says_so_twice() -> None:
    assert reaches_beyond(FRAME[:500], 0, strict=True)
    assert not reaches_beyond(changed(1, 64)[:500], 0, strict=True)


def test_a_payload_ends_where_a_key_and_its_length_say() -> None:
    assert payload_end(FRAME, 0) == len(FRAME) - 17
    assert payload_end(changed(20, 64), 0) is None, "the lengths would be a part of the key"
