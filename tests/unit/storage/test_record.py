"""The frame, byte by byte. Contract: storage.md, "Record frame"; ADR 0001."""

import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toymq_py.errors import DamagedData
from toymq_py.model import shape_of
from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_SEQUENCE,
    CRC_RESIDUE,
    FRAME_OVERHEAD,
    LENGTH_MAX,
    LENGTH_MIN,
    Columns,
    Stop,
    claimed_extent,
    crc32,
    crc32_reference,
    decode_frame,
    encode_alike,
    encode_attributes,
    encode_frame,
    encode_run,
    frame,
    iter_frames,
    parse_attributes,
    possible_ends,
    run_residue,
    scan,
    scanning,
    to_records,
)

u64 = st.integers(0, 2**64 - 1)


@given(st.binary(max_size=2000))
@example(b"")
@example(b"123456789")
def test_every_checksum_is_the_one_that_crcmod_defines(data: bytes) -> None:
    expected = crc32_reference(data)
    assert zlib.crc32(data) == expected
    assert crc32(data) == expected
    assert crc32(data[7:], crc32(data[:7])) == expected, "continued"
    assert crc32(data + expected.to_bytes(4, "little")) == CRC_RESIDUE


def test_the_checksum_is_the_ieee_one() -> None:
    assert crc32_reference(b"123456789") == 0xCBF43926


def test_a_frame_is_these_bytes() -> None:
    body = struct.pack("<IQQH", 26 + 3 + 5 + 7, 9, 1234, 3) + b"key" + struct.pack("<I", 5) + b"hello"
    body += b"\x07" + struct.pack("<I", 2) + b"zz"
    expected = body + struct.pack("<I", zlib.crc32(body))
    assert encode_frame(9, 1234, b"key", b"hello", b"\x07\x02\0\0\0zz") == expected
    assert len(encode_frame(0, 0, b"", b"")) == FRAME_OVERHEAD == 30


def test_without_attributes_nothing_is_added() -> None:
    assert len(encode_frame(1, 2, b"k", b"payload")) == 4 + 8 + 8 + 2 + 1 + 4 + 7 + 4


@given(
    first_id=st.integers(0, 2**64 - 20),
    ts_ns=u64,
    rows=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9)), min_size=1, max_size=9),
    with_headers=st.booleans(),
)
def test_a_run_is_the_frames_one_by_one(
    first_id: int, ts_ns: int, rows: list[tuple[bytes, bytes, bytes]], with_headers: bool
) -> None:
    keys, payloads, headers = (list(column) for column in zip(*rows, strict=True))
    blocks = [encode_attributes(headers=block) for block in headers] if with_headers else None
    data = b"".join(encode_run(first_id, ts_ns, keys, payloads, blocks))
    one_by_one = [
        encode_frame(first_id + row, ts_ns, key, payload, blocks[row] if blocks else b"")
        for row, (key, payload) in enumerate(zip(keys, payloads, strict=True))
    ]
    assert data == b"".join(one_by_one)
    frames = list(iter_frames(data))
    assert [frame.payload for frame in frames] == payloads
    assert [frame.key for frame in frames] == keys
    assert [frame.headers for frame in frames] == (headers if with_headers else [b""] * len(rows))


@given(
    first_id=st.integers(0, 2**64 - 300),
    ts_ns=u64,
    shape=st.tuples(st.integers(0, 20), st.integers(0, 40)),
    rows=st.sampled_from([1, 15, 16, 17, 64, 80, 127, 128, 129, 272]),
    seed=st.binary(min_size=7, max_size=7),
)
def test_alike_ones_are_the_same_frames(first_id: int, ts_ns: int, shape: tuple[int, int], rows: int, seed: bytes) -> None:
    text = seed * (60 * rows)
    keys = [text[61 * row : 61 * row + shape[0]] for row in range(rows)]
    payloads = [text[53 * row : 53 * row + shape[1]] for row in range(rows)]
    assert shape_of(keys, payloads) == shape
    assert shape_of([*keys, b"k" * 21], [*payloads, b""]) is None
    one_by_one = [encode_frame(first_id + row, ts_ns, keys[row], payloads[row]) for row in range(rows)]
    assert encode_alike(first_id, ts_ns, keys, payloads, shape) == b"".join(one_by_one)


@given(deliver_at=st.none() | u64, expires_at=st.none() | u64, headers=st.binary(max_size=20), sequence=st.none() | u64)
def test_attributes_come_back(deliver_at: int | None, expires_at: int | None, headers: bytes, sequence: int | None) -> None:
    block = encode_attributes(deliver_at_ns=deliver_at, expires_at_ns=expires_at, headers=headers, sequence=sequence)
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


@given(st.data())
def test_no_single_flipped_bit_goes_unnoticed(data: st.DataObject) -> None:
    frame = encode_frame(5, 6, b"key", b"payload", encode_attributes(headers=b"A: b\n"))
    at = data.draw(st.integers(0, len(frame) * 8 - 1))
    damaged = bytearray(frame)
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises(DamagedData):
        decode_frame(bytes(damaged))
    assert scan(bytes(damaged), 0, 5)[1] == 5


def two_frames() -> bytes:
    return encode_frame(0, 10, b"", b"abc") + encode_frame(1, 11, b"k", b"")


@pytest.mark.parametrize(
    ("data", "stop", "count"),
    [
        (two_frames(), Stop.END, 2),
        (two_frames() + b"\0" * 100, Stop.ZERO, 2),
        (two_frames() + b"\0" * 4, Stop.ZERO, 2),
        (two_frames() + b"\0" * 3, Stop.PARTIAL, 2),
        (two_frames()[:-1], Stop.PARTIAL, 1),
        (two_frames() + encode_frame(3, 12, b"", b""), Stop.INVALID, 2),
        (two_frames() + encode_frame(1, 12, b"", b""), Stop.INVALID, 2),
        (two_frames() + b"\xff" * 30, Stop.INVALID, 2),
        (two_frames() + b"\x19\0\0\0" + b"x" * 30, Stop.INVALID, 2),
        (b"", Stop.END, 0),
    ],
)
def test_why_a_scan_stops(data: bytes, stop: Stop, count: int) -> None:
    columns = Columns()
    pos, msg_id, why = scan(data, 0, 0, columns)
    assert (why, msg_id, len(columns.positions)) == (stop, count, count)
    assert pos == sum(len(frame) for frame in [two_frames()[:33], two_frames()[33:]][:count])


def test_a_scan_stops_at_what_it_was_asked_for() -> None:
    data = two_frames()
    assert scan(data, 0, 0, max_count=1)[1:] == (1, Stop.COUNT)
    assert scan(data, 0, 0, max_bytes=40)[1:] == (1, Stop.COUNT)
    assert scan(data, 0, 0, max_bytes=1)[1:] == (1, Stop.COUNT), "never before the first record"
    assert scan(data, 0, 0, max_bytes=len(data))[1:] == (2, Stop.END)


@st.composite
def logs(draw: st.DrawFn) -> bytearray:
    """Stretches of frames that look alike, a few that do not, perhaps a flipped bit, perhaps a cut."""
    data, msg_id = bytearray(), 0
    for _ in range(draw(st.integers(1, 4))):
        key, payload = draw(st.binary(max_size=3)), draw(st.binary(max_size=5))
        headers, sequenced = draw(st.sampled_from([b"", b"", b"h"])), draw(st.booleans())
        for row in range(draw(st.sampled_from([1, 2, 9, 17, 40, 160]))):
            block = encode_attributes(headers=headers, sequence=row * 3 if sequenced else None)
            data += encode_frame(msg_id, 1000 + row, key, payload, block)
            msg_id += 1
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return data[: draw(st.integers(len(data) // 2, len(data)))] if draw(st.booleans()) else data


@given(
    data=logs(), limit=st.none() | st.integers(1, 200), max_bytes=st.none() | st.integers(1, 9000), with_payloads=st.booleans()
)
def test_many_at_a_time_are_what_they_are_one_by_one(
    data: bytearray, limit: int | None, max_bytes: int | None, with_payloads: bool
) -> None:
    def scanned(alike_min: int) -> tuple[object, ...]:
        columns = Columns()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scanning, "ALIKE_MIN", alike_min)
            found = scan(
                bytes(data), 0, 0, columns, with_payloads=with_payloads, max_count=limit, max_bytes=max_bytes
            )
        return (*found, *(getattr(columns, name) for name in Columns.__slots__))

    assert scanned(scanning.ALIKE_MIN) == scanned(1 << 30)


@given(stride=st.integers(LENGTH_MIN + 4, 90), count=st.integers(1, 40), seed=st.binary(max_size=8))
def test_the_checksum_of_a_run_depends_on_its_shape_alone(stride: int, count: int, seed: bytes) -> None:
    size = stride - LENGTH_MIN - 4
    frames = [encode_frame(i, i * 7, b"", (seed * 90 + bytes(90))[i : i + size]) for i in range(count)]
    assert crc32(b"".join(frames)) == run_residue(stride, count)
    assert {len(frame) for frame in frames} == {stride}


def test_rows_become_records() -> None:
    data = encode_frame(7, 1, b"k", b"a") + encode_frame(8, 2, b"", b"b", encode_attributes(headers=b"H: 1\n"))
    columns = Columns()
    scan(data, 0, 7, columns, with_payloads=True)
    records = to_records(7, columns)
    assert list(records.ids) == [7, 8]
    assert (records.keys, records.payloads, records.headers) == ([b"k", b""], [b"a", b"b"], [b"", b"H: 1\n"])


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
        encode_frame(0, 0, b"", b"x" * size)
    assert len(frame._packers) <= 4096


def test_a_frame_that_is_none_has_a_position_in_its_error() -> None:
    with pytest.raises(DamagedData, match="byte 33"):
        list(iter_frames(two_frames()[:33] + b"garbage"))
