"""The checksum of the on-disk format. ADR 0001, ADR 0012."""

import random
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.frames import encode_frame
from toymq_py.storage.record import CRC_RESIDUE, LENGTH_MIN, checksum, crc32, crc32_reference, run_residue
from toymq_py.storage.record.checksum import HELD_BYTES


@given(st.binary(max_size=2000))
@example(b"")
@example(b"123456789")
def test_every_checksum_is_the_one_that_crcmod_defines(data: bytes) -> None:
    expected = crc32_reference(data)
    assert zlib.crc32(data) == expected
    assert crc32(data) == expected
    assert crc32(data[7:], crc32(data[:7])) == expected, "continued"
    assert crc32(data + expected.to_bytes(4, "little")) == CRC_RESIDUE


@pytest.mark.parametrize("size", [0, 1, HELD_BYTES, HELD_BYTES + 1, 3 * HELD_BYTES, 100_000])
def test_a_checksum_under_a_lock_is_the_same_and_never_of_so_much_that_it_gives_up_the_interpreter(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(size).randbytes(size)
    sizes: list[int] = []

    def counted(piece: bytes, value: int) -> int:
        sizes.append(len(piece))
        return crc32(piece, value)

    monkeypatch.setattr(checksum, "crc32", counted)
    for form in (data, memoryview(data)):
        assert checksum.crc32_held(form, 7) == crc32(data, 7)
    assert max(sizes) <= HELD_BYTES


def test_the_checksum_is_the_ieee_one() -> None:
    assert crc32_reference(b"123456789") == 0xCBF43926


@given(stride=st.integers(LENGTH_MIN + 4, 90), count=st.integers(1, 40), seed=st.binary(max_size=8))
def test_the_checksum_of_a_run_depends_on_its_shape_alone(stride: int, count: int, seed: bytes) -> None:
    size = stride - LENGTH_MIN - 4
    frames = [encode_frame(i, i * 7, b"", (seed * 90 + bytes(90))[i : i + size]) for i in range(count)]
    assert crc32(b"".join(frames)) == run_residue(stride, count)
    assert {len(frame) for frame in frames} == {stride}
