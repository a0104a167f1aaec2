"""What follows behind damage. Contract: storage.md, "Recovery", step 6; ADR 0003, 0046, 0067."""

from tests.support.frames import encode_frame
from tests.support.logs import some_frames
from toymq_py.storage.salvage import Chain, Salvage, frame_bytes

FRAMES = some_frames(9)
STARTS = [sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]


def damaged(position: int, data: bytes = b"\xff") -> bytes:
    """The log with other bytes at a position."""
    log = b"".join(FRAMES)
    return log[:position] + data + log[position + len(data) :]


def test_a_sound_header_says_where_its_damaged_record_ends() -> None:
    salvage = Salvage(damaged(STARTS[4] - 1)[STARTS[3] :])
    assert salvage.resume(0, 3) == Chain(STARTS[4] - STARTS[3], STARTS[9] - STARTS[3], 4, 9)


def test_a_length_that_was_hit_is_found_by_the_record_behind_it() -> None:
    salvage = Salvage(damaged(STARTS[3], b"\x7f"))
    assert salvage.trusted_end(STARTS[3], 3) == STARTS[4]


def test_behind_a_lost_header_the_valid_records_are_found() -> None:
    salvage = Salvage(damaged(STARTS[3], b"\xee" * 26))
    assert salvage.trusted_end(STARTS[3], 3) is None
    assert salvage.resume(STARTS[3], 3) == Chain(STARTS[4], STARTS[9], 4, 9)


def test_frames_inside_a_payload_are_not_records() -> None:
    """The carrier's own header is lost, and a payload never ends where a record was broken off."""
    forged = encode_frame(1, 5, b"", b"forged") + encode_frame(2, 5, b"", b"forged")
    carrier = encode_frame(0, 5, b"", forged + b"tail of the payload")
    real = encode_frame(1, 5, b"", b"real")
    salvage = Salvage(bytes(26) + carrier[26:] + real)
    chain = salvage.resume(0, 0)
    assert chain is not None
    assert (chain.start, chain.first_id, chain.next_id) == (len(carrier), 1, 2)


def test_nothing_valid_behind_a_break_is_a_torn_tail() -> None:
    data = b"".join(FRAMES[:3]) + FRAMES[3][:-2] + bytes(500)
    salvage = Salvage(data)
    assert salvage.resume(STARTS[3], 3) is None
    assert salvage.written <= STARTS[4] - 2, "the zeros behind it were never written"


def test_a_checksum_from_prefix_sums_is_that_of_the_bytes() -> None:
    large = encode_frame(7, 5, b"key", bytes(range(256)) * 40)
    data = b"x" * 1001 + large
    salvage = Salvage(data)
    assert salvage.valid_frame(1001) == (7, len(large))
    assert salvage.valid_frame(1001, 8) is None
    assert Salvage(data[:-1] + b"!").valid_frame(1001) is None


def test_a_header_that_its_payload_does_not_bear_out_gives_no_length() -> None:
    frame = encode_frame(0, 5, b"", b"x" * 1000)
    assert frame_bytes(frame[:100]) == len(frame)
    wrong = (len(frame) - 5).to_bytes(4, "little") + frame[4:100]
    assert frame_bytes(wrong) is None
