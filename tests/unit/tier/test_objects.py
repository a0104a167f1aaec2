"""Seals and states: what was written is read again, and anything else is damage."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.frames import encode_frame
from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.record import adler32, crc32
from toymq_py.tier.keys import Place
from toymq_py.tier.objects import MisplacedObject, Part, Seal, Span, State

PLACE = Place("t", "0123456789abcdef")


@given(st.binary(max_size=99), st.integers(0, 2**64 - 1))
def test_a_seal_fits_its_segment_alone(data: bytes, next_id: int) -> None:
    seal = Seal.decode(Seal.of(data, PLACE, 0, next_id).encode(), PLACE, 0)
    assert (seal.next_id, seal.fits(data), seal.fits(data + b"x")) == (next_id, True, False)
    assert seal.quick_misfit(data) is None
    for other in (data + b"x", bytes([data[0] ^ 1]) + data[1:] if data else b"y"):
        assert not seal.fits(other)
        assert seal.quick_misfit(other)


def test_a_seal_tells_records_from_others_of_their_lengths() -> None:
    """Found: a CRC-32 did not: each record ends in its own checksum, so the next one begins from the same remainder."""
    one, other = (encode_frame(msg_id, 1, b"", payload) for msg_id, payload in ((0, b"a"), (1, b"b")))
    assert crc32(one) == crc32(other)
    seal = Seal.of(one, PLACE, 0, 1)
    assert not seal.fits(other)
    assert seal.quick_misfit(other) == f"its Adler-32 is {adler32(other):08x}, and its seal says {adler32(one):08x}"


def test_a_seal_without_an_adler_32_is_compared_by_its_sha_256() -> None:
    old = replace(Seal.of(b"one", PLACE, 0, 1), adler32=None)
    old = Seal.decode(old.encode(), PLACE, 0)
    assert (old.adler32, old.quick_misfit(b"one")) == (None, None)
    assert "SHA-256" in (old.quick_misfit(b"two") or "")


@given(st.integers(0, 2**64 - 1), st.none() | st.binary(), st.none() | st.binary())
def test_a_state_is_read_back(next_id: int, offsets: bytes | None, settings: bytes | None) -> None:
    state = State(next_id, offsets, settings)
    assert State.decode(state.encode(PLACE), PLACE) == state


DECODE = [lambda data: Seal.decode(data, PLACE, 0), lambda data: State.decode(data, PLACE)]


@pytest.mark.parametrize("decode", DECODE, ids=["seal", "state"])
def test_damage_is_named(decode: Callable[[bytes], object]) -> None:
    seal, state = Seal.of(b"x", PLACE, 0, 1).encode(), State(1, None, None).encode(PLACE)
    for data in (b"", b"{}", seal[:-3], state.replace(b"1", b"2")):
        with pytest.raises(DamagedData):
            decode(data)
    refused = 0
    for data in (seal, state):
        try:
            decode(data)
        except DamagedData:
            refused += 1
    assert refused == 1, "the other kind"


OTHERS = [Place("u", PLACE.incarnation), Place("t", "f" * 16)]


@pytest.mark.parametrize("other", OTHERS, ids=["topic", "incarnation"])
def test_a_seal_and_a_state_of_another_topic_or_incarnation_are_refused(other: Place) -> None:
    with pytest.raises(MisplacedObject, match=f"{other.topic}/{other.incarnation}"):
        Seal.decode(Seal.of(b"x", other, 0, 1).encode(), PLACE, 0)
    with pytest.raises(MisplacedObject, match=f"{other.topic}/{other.incarnation}"):
        State.decode(State(1, None, None).encode(other), PLACE)


def test_a_seal_of_another_segment_is_refused() -> None:
    with pytest.raises(MisplacedObject, match="begins at 7"):
        Seal.decode(Seal.of(b"x", PLACE, 7, 9).encode(), PLACE, 0)


def test_a_seal_says_where_its_parts_are_and_when_it_begins() -> None:
    frame = encode_frame(5, 77, b"", b"a")
    parts = [Part(5, 0, "a"), Part(8, 30, "b")]
    seal = Seal.decode(Seal.of(frame, PLACE, 5, 9, parts).encode(), PLACE, 5)
    assert (seal.begins_ns, [*seal.spans()]) == (77, [Span(5, 8, 0, 30, "a"), Span(8, 9, 30, len(frame), "b")])
    begin = [[Part(6, 0, "a")], [Part(5, 1, "a")], [Part(5, "0", "a")]]  # type: ignore[arg-type]
    for bad in (*begin, [*parts, Part(8, 40, "c")], [*parts, Part(9, 30, "c")]):
        with pytest.raises(DamagedData):
            Seal.decode(Seal.of(frame, PLACE, 5, 9, bad).encode(), PLACE, 5)


def test_seals_and_states_without_names_are_read() -> None:
    seal = checked_json.encode("seal", {"next_id": 3, "bytes": 1, "sha256": "x"})
    assert Seal.decode(seal, PLACE, 0) == Seal(3, 1, "x")
    state = checked_json.encode("state", {"next_id": 3, "offsets": None, "settings": None})
    assert State.decode(state, PLACE) == State(3, None, None)
