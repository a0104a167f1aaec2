"""Finding the records behind damage. Contract: storage.md, "Recovery", step 6; ADR 0046, 0101."""

import pytest

from tests.support.frames import encode_attributes, encode_frame
from tests.support.logs import some_frames
from toymq_py.storage.readings import Chain
from toymq_py.storage.record import FRAME_OVERHEAD, HEADER, LENGTH_MIN
from toymq_py.storage.salvage import Salvage

FRAMES = some_frames(9)
STARTS = [sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)]


def damaged(position: int, data: bytes = b"\xff") -> bytes:
    """Return the log with other bytes at a position."""
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
    """The carrier's own header is damaged, and the end of a payload is never the place at which a record was torn."""
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


def test_a_long_frame_is_checked_as_a_whole() -> None:
    large = encode_frame(7, 5, b"key", bytes(range(256)) * 40)
    data = b"x" * 1001 + large
    salvage = Salvage(data)
    assert salvage.valid_frame(1001) == (7, len(large))
    assert salvage.valid_frame(1001, 8) is None
    assert Salvage(data[:-1] + b"!").valid_frame(1001) is None


def test_records_behind_dense_false_headers_are_found() -> None:
    """Each false header needs a checksum of 4,000 bytes, which is postponed; those of the records behind them are postponed,
    too, and computed later."""
    false = HEADER.pack(4000, 3, 1, 0) + (4000 - LENGTH_MIN).to_bytes(4, "little")
    real = [encode_frame(n, 5, b"", b"r" * 3000) for n in range(2, 7)]
    inner = (false * 600)[:12_000]
    data = bytes(26) + inner + b"".join(real)
    salvage = Salvage(data)
    (kept,) = salvage.find_chains(0, 0)
    assert (kept.start, kept.first_id, kept.next_id) == (26 + len(inner), 2, 7)


def test_a_record_alone_behind_dense_false_headers_is_found() -> None:
    false = HEADER.pack(4000, 3, 1, 0) + (4000 - LENGTH_MIN).to_bytes(4, "little")
    data = bytes(26) + (false * 600)[:12_000] + encode_frame(2, 5, b"", b"r" * 3000) + b"\x77" * 5000
    (kept,) = Salvage(data).find_chains(0, 0)
    assert (kept.first_id, kept.next_id) == (2, 3)


def test_a_header_that_agrees_by_chance_hides_no_records() -> None:
    """A damaged header gives a length beyond the end, and the record's checksum passes for an attribute that ends there,
    too."""
    frame = bytearray(encode_frame(3, 5, b"", b"x" * 50))
    frame[2] = 1
    frame[-4:] = b"\x09\x00\x80\x00"  # an unknown tag, of 32 KiB with the first byte of what follows
    behind = bytearray(encode_frame(4, 5, b"", b"y" * (256 - LENGTH_MIN)))
    behind[4] ^= 32
    real = encode_frame(5, 5, b"", b"real")
    salvage = Salvage(bytes(frame + behind) + real)
    assert salvage.resume(0, 3) is not None


def test_what_may_be_the_logs_gives_no_id_twice() -> None:
    """Two chains of records contradict each other and nothing shows which one ends the log: the ids of both count as used."""
    long = b"".join(encode_frame(n, 5, b"", b"z" * 40) for n in range(1, 20))
    other = b"".join(encode_frame(n, 5, b"", b"y" * 40) for n in range(15, 25))
    salvage = Salvage(b"\x55" * 60 + long + b"\x66" * 70 + other + b"\x77" * 70)
    (kept,) = salvage.find_chains(0, -1)
    assert (kept.first_id, kept.next_id, salvage.reached) == (1, 20, 25)


@pytest.mark.parametrize("there", range(4, FRAME_OVERHEAD))
def test_a_record_that_was_torn_within_its_header_ends_the_log(there: int) -> None:
    """Found by the fuzz target of recovery: with fewer than 22 bytes of a header a start ended in struct.error."""
    others = encode_frame(6, 5, b"", b"of another place") + encode_frame(7, 5, b"", b"of another place")
    records = encode_frame(3, 5, b"", b"of this log") + encode_frame(4, 5, b"", b"of this log")
    torn = encode_frame(5, 5, b"key", b"never whole")[:there]
    data = b"\xee" * 300 + others + records + torn
    (kept,) = Salvage(data).find_chains(0, 0)
    assert (kept.first_id, kept.next_id, kept.end) == (3, 5, len(data) - there)


@pytest.mark.parametrize("over", [4, 8])
@pytest.mark.parametrize("of", [-2, -1, 1, 2, 4])
def test_the_head_of_another_record_says_nothing_about_the_place_that_it_stands_on(over: int, of: int) -> None:
    """Found: the id of record 5 differs from that of record 4 in one bit, so its header, copied over that of record 4, was
    taken for a damaged one of record 4: its length hid record 5."""
    frames = [encode_frame(n, 5, b"", b"p" * (300 + 211 * (n * 7 % 11))) for n in range(14)]
    head = frames[over + of][:200]
    data = head + b"".join(frames[over:])[200:]
    chain = Salvage(data).resume(0, over)
    assert chain is not None
    assert (chain.start, chain.first_id, chain.next_id) == (len(frames[over]), over + 1, 14)


def test_the_head_of_a_cut_copy_hides_no_records() -> None:
    frames = [encode_frame(n, 5, b"", b"p" * 900) for n in range(20)]
    size = len(frames[0])
    log = b"".join(frames)
    page = log[11 * size - 500 : 11 * size + 2100]  # the end of a record, two whole ones, the head of a third
    data = page + log[len(page) :]
    (kept,) = Salvage(data).find_chains(0, -1)
    assert (kept.start, kept.first_id, kept.next_id) == (3 * size, 3, 20)


def test_records_that_reach_the_end_that_a_header_tells_are_not_its_payload() -> None:
    """Bytes were removed behind a header, and a record of the log happens to end where the header says. The checksum of a
    record stands between its payload and its end, so that no frame of a payload reaches it."""
    behind = [encode_frame(n, 5, b"", b"p" * 90) for n in range(5, 10)]
    cut = encode_frame(3, 5, b"", b"q" * (40 + 3 * len(behind[0]) - FRAME_OVERHEAD))
    chain = Salvage(cut[:40] + b"".join(behind)).resume(0, 3)
    assert chain is not None
    assert (chain.start, chain.first_id, chain.next_id) == (40, 5, 10)


def test_records_inside_the_end_that_two_faults_of_a_header_tell_are_kept() -> None:
    """The length leads too far, and the attributes that would contradict it are lost. The records that do are checked although
    the budget for checksums was spent on the header."""
    block = encode_attributes(headers=b"A: " + b"b" * 60 + b"\n")
    hit = bytearray(encode_frame(3, 5, b"", b"p" * 3000, block))
    hit[1] ^= 2
    hit[-4 - len(block) :] = bytes(len(block) + 4)
    lost = bytes(40)
    records = [encode_frame(5, 5, b"", b"r" * 670), encode_frame(6, 5, b"", b"r" * 700)]
    chain = Salvage(bytes(hit) + lost + b"".join(records)).resume(0, 3)
    assert chain is not None
    assert (chain.start, chain.first_id, chain.next_id) == (len(hit) + len(lost), 5, 7)


def test_records_where_attributes_would_stand_are_no_attributes() -> None:
    """Torture seed 36568: two bits of a header were flipped, and its record seemed to have lost 240 bytes of attributes, behind
    the end of the log."""
    hit = bytearray(encode_frame(3, 5, b"", b"pppp"))
    hit[1] ^= 1
    hit[22] ^= 16
    records = [encode_frame(n, 5, b"", b"r" * 10) for n in range(5, 8)]
    chain = Salvage(bytes(hit) + b"\x99" * 40 + b"".join(records) + bytes(400)).resume(0, 3)
    assert chain is not None
    assert (chain.start, chain.first_id, chain.next_id) == (len(hit) + 40, 5, 8)


@pytest.mark.parametrize(("bit", "end"), [(0, None), (40, "told")])
def test_an_id_that_no_record_of_the_segment_has_is_a_flipped_bit(bit: int, end: str | None) -> None:
    """Of a lower bit, the header may be that of another record, unless the record behind it is lost."""
    frame = bytearray(encode_frame(4, 5, b"", b"p" * 300))
    frame[4 + bit // 8] ^= 1 << bit % 8
    frame[-20:] = b"\x99" * 20
    salvage = Salvage(bytes(frame) + b"\x99" * 300)
    assert salvage.trusted_end(0, 4) == (len(frame) if end else None)
    assert Salvage(bytes(frame) + bytes(60) + b"\x99" * 300).trusted_end(0, 4) == len(frame)
