"""Seals and states: what is written is read, and anything else is damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_frame
from toymq_py.errors import DamagedData
from toymq_py.storage.record import crc32
from toymq_py.tier.objects import Seal, State


@given(st.binary(max_size=99), st.integers(0, 2**64 - 1))
def test_a_seal_fits_its_segment_alone(data: bytes, next_id: int) -> None:
    seal = Seal.decode(Seal.of(data, next_id).encode())
    assert (seal.next_id, seal.fits(data), seal.fits(data + b"x")) == (next_id, True, False)
    assert not data or not seal.fits(bytes([data[0] ^ 1]) + data[1:])


def test_a_seal_tells_records_from_others_of_their_lengths() -> None:
    """A CRC-32 did not: a record ends in its own, and what follows it begins from the same remainder."""
    one, other = (encode_frame(msg_id, 1, b"", payload) for msg_id, payload in ((0, b"a"), (1, b"b")))
    assert crc32(one) == crc32(other)
    assert not Seal.of(one, 1).fits(other)


@given(st.integers(0, 2**64 - 1), st.none() | st.binary(), st.none() | st.binary())
def test_a_state_is_read_back(next_id: int, offsets: bytes | None, settings: bytes | None) -> None:
    state = State(next_id, offsets, settings)
    assert State.decode(state.encode()) == state


@pytest.mark.parametrize("kind", [Seal, State])
def test_damage_is_named(kind: type[Seal] | type[State]) -> None:
    for data in (b"", b"{}", Seal.of(b"x", 1).encode()[:-3], State(1, None, None).encode().replace(b"1", b"2")):
        with pytest.raises(DamagedData):
            kind.decode(data)
    with pytest.raises(DamagedData):
        kind.decode((State(1, None, None) if kind is Seal else Seal.of(b"", 1)).encode())
