"""One record as bytes: the frame, its checksum, its attributes. Pure codec, no I/O.

Contract: storage.md, "Record frame"; ADR 0001. Little-endian:

    0        4         12       20        22       22+k         26+k     26+k+p        4+length
    +--------+---------+--------+---------+--------+------------+--------+-------------+-------+
    | length | msg_id  | ts_ns  | key_len | key    | payload_len| payload| attributes  | crc32 |
    | u32    | u64     | u64    | u16 = k | k bytes| u32 = p    | p bytes| (often none)| u32   |
    +--------+---------+--------+---------+--------+------------+--------+-------------+-------+

``length`` counts what follows it. ``crc32`` covers everything before it, the length included. Zero is never a valid
length, so preallocated space ends a scan. Attributes are ``u8 tag, u32 len, bytes`` each.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import count, repeat
from operator import add
from typing import Any
from zlib import crc32 as _zlib_crc32

import crcmod.predefined

from toymq_py.errors import DamagedData
from toymq_py.model import Records, Shape
from toymq_py.rows import RowLayout, columns_are

try:  # extra [fast]: 10 to 14 % less CPU per publish
    from zlib_ng.zlib_ng import crc32 as _fast_crc32
except ImportError:
    _fast_crc32 = _zlib_crc32
crc32: Callable[..., int] = _fast_crc32
"""CRC-32 of some bytes, optionally continued from another one; the one line that chooses who computes it."""

crc32_reference = crcmod.predefined.mkPredefinedCrcFun("crc-32")
"""The definition of the checksum; the hot path's ``crc32`` is held equal to it by a property test."""

FRAME_OVERHEAD = 30
"""Bytes of a frame without key, payload and attributes: the smallest frame there is."""
LENGTH_MIN = FRAME_OVERHEAD - 4
FRAME_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
"""The format's limit for a whole frame, whatever ``--max-payload`` says today (storage.md)."""
LENGTH_MAX = FRAME_BYTES_MAX - 4

CRC_RESIDUE = 0x2144DF1C
"""CRC-32 of any bytes followed by their own little-endian CRC-32: one call checks a frame."""

ATTRIBUTE_DELIVER_AT = 1
ATTRIBUTE_EXPIRES_AT = 2
ATTRIBUTE_HEADERS = 3
ATTRIBUTE_SEQUENCE = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
HEADER = struct.Struct("<IQQH")
"""length, msg_id, ts_ns, key_len."""
_ATTRIBUTE = struct.Struct("<BI")
_NUMBER = struct.Struct("<BIQ")
"""An attribute that is a u64: tag, 8, value."""

_TIME = struct.Struct("<QH")
"""ts_ns, key_len: neighbours in a frame that are the same in a whole run."""
_CHECKSUMS = RowLayout("I")
LAYOUTS_CACHED_MAX = 64
"""About 60 KiB each."""
ENCODE_ALIKE_MIN = 16
"""Rows from which ``encode_alike`` pays."""

_PACKERS_MAX = 4096  # random sizes must not grow the cache without end
_packers: dict[tuple[int, int], struct.Struct] = {}


def _packer(key_len: int, payload_len: int) -> struct.Struct:
    packer = _packers.get((key_len, payload_len))
    if packer is None:
        if len(_packers) >= _PACKERS_MAX:
            _packers.clear()
        packer = _packers[key_len, payload_len] = struct.Struct(f"<IQQH{key_len}sI{payload_len}s")
    return packer


def encode_frame(msg_id: int, ts_ns: int, key: bytes, payload: bytes, attributes: bytes = b"") -> bytes:
    """One whole frame. ``key`` b"" means none; ``attributes`` is the encoded block."""
    body = _body(msg_id, ts_ns, key, payload, attributes)
    return body + crc32(body).to_bytes(4, "little")


def encode_run(
    first_id: int,
    ts_ns: int,
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    attributes: Sequence[bytes] | None = None,
) -> list[bytes]:
    """Frames of consecutive ids with one time stamp.

    Returns: two pieces per record, the frame without its checksum and the checksum: joining them is left to the one
        join of the whole batch.
    """
    bodies: list[bytes] = []
    for key_len, payload_len, rest, rows in _stretches(keys, payloads, attributes):
        packed = map(
            _packer(key_len, payload_len).pack,
            repeat(LENGTH_MIN + key_len + payload_len + rest),
            count(first_id + rows.start),
            repeat(ts_ns),
            repeat(key_len),
            keys[rows],
            repeat(payload_len),
            payloads[rows],
        )
        bodies += packed if attributes is None else map(add, packed, attributes[rows])
    pieces = [b""] * (2 * len(bodies))
    pieces[::2] = bodies
    pieces[1::2] = map(_U32.pack, map(crc32, bodies))
    return pieces


@lru_cache(LAYOUTS_CACHED_MAX)
def _alike_layouts(shape: Shape) -> tuple[RowLayout, RowLayout]:
    """Of frames without attributes: how they are put together, and what of them the checksum covers."""
    key_len, payload_len = shape
    return RowLayout(f"4sQ10s{key_len}s4s{payload_len}s4x"), RowLayout(f"{FRAME_OVERHEAD - 4 + key_len + payload_len}s4x")


def encode_alike(first_id: int, ts_ns: int, keys: Sequence[bytes], payloads: Sequence[bytes], shape: Shape) -> bytes:
    """As ``encode_run``, joined, for records without attributes that all have one shape: six tenths of its time, as nothing of
    it is done record by record but the checksum."""
    key_len, payload_len = shape
    rows = len(keys)
    frames, bodies = _alike_layouts(shape)
    values: list[Any] = [_U32.pack(LENGTH_MIN + key_len + payload_len)] * (6 * rows)
    values[1::6] = range(first_id, first_id + rows)
    values[2::6] = [_TIME.pack(ts_ns, key_len)] * rows
    values[3::6] = keys
    values[4::6] = [_U32.pack(payload_len)] * rows
    values[5::6] = payloads
    data = bytearray().join(frames.pack(values, rows))
    checksums = b"".join(_CHECKSUMS.pack(list(map(crc32, bodies.unpack(memoryview(data), 0, rows))), rows))
    for byte in range(4):
        data[frames.size - 4 + byte :: frames.size] = checksums[byte::4]
    return bytes(data)


def _stretches(
    keys: Sequence[bytes], payloads: Sequence[bytes], attributes: Sequence[bytes] | None
) -> Iterator[tuple[int, int, int, slice]]:
    """Length of key, payload and attributes, and the rows that have them, one after the other. Most runs are one stretch."""
    rests = repeat(0, len(keys)) if attributes is None else map(len, attributes)
    shapes = list(zip(map(len, keys), map(len, payloads), rests, strict=True))
    start, rows = 0, len(shapes)
    alike = shapes.count(shapes[0]) == rows
    while start < rows:
        shape = shapes[start]
        stop = rows if alike else start + 1
        while stop < rows and shapes[stop] == shape:
            stop += 1
        yield *shape, slice(start, stop)
        start = stop


def _body(msg_id: int, ts_ns: int, key: bytes, payload: bytes, attributes: bytes) -> bytes:
    """A frame without its checksum."""
    length = LENGTH_MIN + len(key) + len(payload) + len(attributes)
    body: bytes = _packer(len(key), len(payload)).pack(length, msg_id, ts_ns, len(key), key, len(payload), payload)
    return body + attributes


def encode_attributes(
    *,
    deliver_at_ns: int | None = None,
    expires_at_ns: int | None = None,
    headers: bytes = b"",
    sequence: int | None = None,
) -> bytes:
    """The attribute block; b"" when nothing is set."""
    parts = []
    for tag, number in (
        (ATTRIBUTE_DELIVER_AT, deliver_at_ns),
        (ATTRIBUTE_EXPIRES_AT, expires_at_ns),
    ):
        if number is not None:
            parts.append(_NUMBER.pack(tag, 8, number))
    if headers:
        parts.append(_ATTRIBUTE.pack(ATTRIBUTE_HEADERS, len(headers)) + headers)
    if sequence is not None:
        parts.append(_NUMBER.pack(ATTRIBUTE_SEQUENCE, 8, sequence))
    return b"".join(parts)


def encode_sequences(sequences: Sequence[int]) -> list[bytes]:
    """Attribute blocks that hold a sequence and nothing else."""
    pack = _NUMBER.pack
    return [pack(ATTRIBUTE_SEQUENCE, 8, sequence) for sequence in sequences]


@dataclass(slots=True)
class Extras:
    """What records carry beside key and payload, a sequence apart: columns of one length, None where no record has it.

    ``headers[i]`` is b"" for none. Times are the wall clock's, in nanoseconds; an ``expires_at_ns`` of 0 is none.
    """

    headers: Sequence[bytes] | None = None
    deliver_at_ns: Sequence[int] | None = None
    expires_at_ns: Sequence[int] | None = None

    def part(self, rows: slice) -> "Extras":
        return Extras(
            self.headers and self.headers[rows],
            self.deliver_at_ns and self.deliver_at_ns[rows],
            self.expires_at_ns and self.expires_at_ns[rows],
        )

    def encode(self, sequences: Sequence[int] | None = None) -> list[bytes]:
        """Attribute blocks, those of the sequences too."""
        parts: list[Iterable[bytes]] = []
        for tag, numbers in (
            (ATTRIBUTE_DELIVER_AT, self.deliver_at_ns),
            (ATTRIBUTE_EXPIRES_AT, self.expires_at_ns),
        ):
            if numbers is not None:
                parts.append(map(_NUMBER.pack, repeat(tag), repeat(8), numbers))
        if self.headers is not None:
            parts.append(encode_attributes(headers=block) for block in self.headers)
        if sequences is not None:
            parts.append(encode_sequences(sequences))
        return list(parts[0]) if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def deliver_at_of(block: bytes) -> int | None:
    """When the record of an attribute block is due, None when it says nothing of it. Nanoseconds."""
    found = (parse_attributes(block) or {}).get(ATTRIBUTE_DELIVER_AT)
    return None if found is None else int.from_bytes(found, "little")


def parse_attributes(block: bytes) -> dict[int, bytes] | None:
    """Tag to raw value; an unknown tag is kept. None when the block is not well formed."""
    spans = _attribute_spans(block, 0, len(block))
    return None if spans is None else {tag: block[at:end] for tag, at, end in spans}


def _attribute_spans(data: bytes, at: int, end: int) -> list[tuple[int, int, int]] | None:
    """(tag, start, end) of each attribute in ``data[at:end]``. None when the lengths do not fill the block exactly, a
    number is not 8 bytes long, or a tag stands twice. Copies nothing: the block may be a hostile 64 MiB."""
    spans = []
    seen = set()
    while at < end:
        if at + 5 > end:
            return None
        tag, length = _ATTRIBUTE.unpack_from(data, at)
        at += 5 + length
        if at > end or tag in seen:
            return None
        if length != 8 and tag in (ATTRIBUTE_DELIVER_AT, ATTRIBUTE_EXPIRES_AT, ATTRIBUTE_SEQUENCE):
            return None
        seen.add(tag)
        spans.append((tag, at - length, at))
    return spans


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded record with everything it carries; for tools, not for the hot path."""

    msg_id: int
    ts_ns: int
    key: bytes
    payload: bytes
    attributes: dict[int, bytes]
    size: int

    @property
    def headers(self) -> bytes:
        return self.attributes.get(ATTRIBUTE_HEADERS, b"")

    def number(self, tag: int) -> int | None:
        """The value of a u64 attribute, None when it is not there."""
        raw = self.attributes.get(tag)
        return None if raw is None else int(_U64.unpack(raw)[0])


def claimed_extent(data: bytes, pos: int, *, check_attributes: bool = True) -> tuple[int, int] | None:
    """What an unchecked header at ``pos`` says, when its lengths agree with each other.

    Returns: (msg_id, bytes of the whole frame), the frame possibly reaching beyond ``data``; None when the length is out
    of bounds, disagrees with the key, payload and attribute lengths as far as they are visible, or fewer than the 22
    bytes up to the key are there.
    """
    end = len(data)
    if pos + 22 > end:
        return None
    length, msg_id, _, key_len = HEADER.unpack_from(data, pos)
    if not LENGTH_MIN <= length <= LENGTH_MAX or LENGTH_MIN + key_len > length:
        return None
    at = pos + 22 + key_len
    if at + 4 <= end:
        rest = length - LENGTH_MIN - key_len - _U32.unpack_from(data, at)[0]
        if rest < 0:
            return None
        stop = pos + length
        if rest and check_attributes and stop <= end and _attribute_spans(data, stop - rest, stop) is None:
            return None
    return msg_id, length + 4


def possible_ends(data: bytes, pos: int) -> list[int]:
    """Where the frame at ``pos`` may end if its length field is hit: behind its payload, and behind each attribute
    that can be read there."""
    if pos + 22 > len(data):
        return []
    at = pos + 22 + HEADER.unpack_from(data, pos)[3]
    if at + 4 > len(data):
        return []
    at += 4 + _U32.unpack_from(data, at)[0]
    ends: list[int] = []
    while at + 4 <= len(data) and at - pos <= FRAME_BYTES_MAX and len(ends) < 8:
        ends.append(at + 4)
        if at + 5 > len(data):
            break
        at += 5 + _ATTRIBUTE.unpack_from(data, at)[1]
    return ends


def valid_frame(data: bytes, pos: int) -> tuple[int, int] | None:
    """(msg_id, bytes of the frame) when a whole frame with agreeing lengths and the right CRC stands at ``pos``."""
    claim = claimed_extent(data, pos)
    if claim is None or pos + claim[1] > len(data):
        return None
    if crc32(memoryview(data)[pos : pos + claim[1]]) != CRC_RESIDUE:
        return None
    return claim


def decode_frame(data: bytes, pos: int = 0) -> Frame:
    """Raises: DamagedData when no valid frame stands at ``pos``."""
    claim = valid_frame(data, pos)
    if claim is None:
        raise DamagedData(f"no valid record at byte {pos}")
    length, msg_id, ts_ns, key_len = HEADER.unpack_from(data, pos)
    at = pos + 22 + key_len
    key = bytes(data[pos + 22 : at])
    (payload_len,) = _U32.unpack_from(data, at)
    at += 4
    payload = bytes(data[at : at + payload_len])
    block = bytes(data[at + payload_len : pos + length])
    return Frame(msg_id, ts_ns, key, payload, parse_attributes(block) or {}, claim[1])


def iter_frames(data: bytes) -> Iterator[Frame]:
    """Decode a body of whole frames, such as FETCH answers. Raises: DamagedData."""
    pos = 0
    while pos < len(data):
        frame = decode_frame(data, pos)
        yield frame
        pos += frame.size


Row = tuple[int, bytes, bytes, bytes, int]
"""Time, key, payload, header block, when it expires (0: never)."""


def decode_row(data: bytes, msg_id: int) -> Row | None:
    """The record that is exactly ``data``; None when it is not valid or has another id. As ``decode_frame``, and a third of its
    time: for records that are read one by one."""
    if len(data) < FRAME_OVERHEAD or crc32(data) != CRC_RESIDUE:
        return None
    length, found_id, ts_ns, key_len = HEADER.unpack_from(data)
    at = 26 + key_len
    if found_id != msg_id or length + 4 != len(data) or at > length:
        return None
    end = at + _U32.unpack_from(data, at - 4)[0]
    headers, expires_at_ns = b"", 0
    if end != length and (end + NUMBER_BYTES != length or data[end] != ATTRIBUTE_DELIVER_AT):
        found = parse_attributes(data[end:length]) if end < length else None
        if found is None:
            return None
        headers = found.get(ATTRIBUTE_HEADERS, b"")
        expires_at_ns = int.from_bytes(found.get(ATTRIBUTE_EXPIRES_AT, b""), "little")
    return ts_ns, data[22 : at - 4], data[at:end], headers, expires_at_ns


ALIKE_BYTES_MAX = 4096
"""Of longer frames the checksum costs most: taking many at a time gains nothing."""
ALIKE_MIN = 8
NUMBER_BYTES = 13
"""Of attributes that are one number and nothing else: a sequence, or a time."""
ALIKE_ROWS_MAX = 1024


class Stop(Enum):
    """Why a scan ended at its position."""

    END = "the data ends on a frame boundary"
    PARTIAL = "the frame goes on beyond the data"
    ZERO = "a zero length: unwritten space"
    INVALID = "no valid frame of the expected id"
    COUNT = "as many records as asked for"


class Columns:
    """What a scan saw of each valid frame, as far as it was asked to look. Appended to by ``scan``."""

    __slots__ = ("attributes", "keys", "payloads", "positions", "sequences", "ts_ns")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.ts_ns: list[int] = []
        self.keys: list[bytes] = []
        self.payloads: list[bytes] = []
        self.attributes: dict[int, bytes] = {}
        """Row to raw attribute block, only for rows that have one and hold more in it than a sequence."""
        self.sequences: dict[int, int] = {}
        """Row to sequence, only for rows whose key names a producer."""

    def plain_keys(self) -> list[bytes]:
        """The keys, b"" where there is none or it names a producer."""
        if not self.sequences:
            return self.keys
        keys = self.keys.copy()
        for row in self.sequences:
            keys[row] = b""
        return keys


_unpackers: dict[int, struct.Struct] = {}


def _unpacker(key_len: int) -> struct.Struct:
    unpacker = _unpackers.get(key_len)
    if unpacker is None:
        unpacker = _unpackers[key_len] = struct.Struct(f"<IQQH{key_len}sI")  # at most 65,536 of them
    return unpacker


def scan(
    data: bytes,
    pos: int,
    expected_id: int,
    columns: Columns | None = None,
    *,
    with_payloads: bool = False,
    max_count: int | None = None,
    max_bytes: int | None = None,
) -> tuple[int, int, Stop]:
    """Walk valid frames of consecutive ids.

    Args:
        data: bytes of a segment, from anywhere.
        pos: where the frame of ``expected_id`` should begin.
        columns: filled with position, time, key and attribute block of each frame; with the payload too when asked.
        max_count: stop after so many records.
        max_bytes: stop before the record that would pass so many bytes, but not before the first.

    Returns: position and id after the last valid frame, and why it stopped there.
    """
    view = memoryview(data)
    end = len(data)
    crc = crc32
    unpacker = _unpacker(0)
    unpack, head = unpacker.unpack_from, unpacker.size
    guess = 0
    left = -1 if max_count is None else max_count
    bytes_end = end + 1 if max_bytes is None else pos + max_bytes
    start = pos
    msg_id = expected_id
    row = len(columns.positions) if columns is not None else 0
    while True:
        if left == 0:
            return pos, msg_id, Stop.COUNT
        if pos + 22 > end:
            if pos == end:
                return pos, msg_id, Stop.END
            if pos + 4 <= end and data[pos : pos + 4] == b"\0\0\0\0":
                return pos, msg_id, Stop.ZERO
            return pos, msg_id, Stop.PARTIAL
        if pos + head > end:
            length, found_id, ts_ns, key_len = HEADER.unpack_from(data, pos)
            key, payload_len = b"", 0
        else:
            length, found_id, ts_ns, key_len, key, payload_len = unpack(data, pos)
        if length == 0:
            return pos, msg_id, Stop.ZERO
        if found_id != msg_id or length > LENGTH_MAX or length < LENGTH_MIN + key_len:
            return pos, msg_id, Stop.INVALID
        stop = pos + 4 + length
        if stop > end:
            return pos, msg_id, Stop.PARTIAL
        if stop > bytes_end and pos > start:
            return pos, msg_id, Stop.COUNT
        if crc(view[pos:stop]) != CRC_RESIDUE:
            return pos, msg_id, Stop.INVALID
        if key_len != guess:
            guess = key_len
            unpacker = _unpacker(key_len)
            unpack, head = unpacker.unpack_from, unpacker.size
            length, found_id, ts_ns, key_len, key, payload_len = unpack(data, pos)
        rest = length - LENGTH_MIN - key_len - payload_len
        tag = 0
        if rest:
            found = parse_attributes(data[stop - 4 - rest : stop - 4]) if rest > 0 else None
            if found is None:
                return pos, msg_id, Stop.INVALID
            tag = data[stop - 4 - rest]
            if columns is not None:
                sequence = found.get(ATTRIBUTE_SEQUENCE)
                if sequence is None or len(found) > 1:
                    columns.attributes[row] = data[stop - 4 - rest : stop - 4]
                if sequence is not None and key:
                    columns.sequences[row] = int.from_bytes(sequence, "little")
        if columns is not None:
            columns.positions.append(pos)
            columns.ts_ns.append(ts_ns)
            columns.keys.append(key)
            if with_payloads:
                columns.payloads.append(data[pos + head : pos + head + payload_len])
            row += 1
        before, pos = pos, stop
        msg_id += 1
        left -= 1
        if rest and (rest != NUMBER_BYTES or not tag):
            continue
        if length > ALIKE_BYTES_MAX or data[pos : pos + 4] != data[before : before + 4]:
            continue
        room = min((min(end, bytes_end) - pos) // (4 + length), left if max_count is not None else end)
        if room >= ALIKE_MIN:
            shape = length, key_len, payload_len, tag
            taken = _scan_alike(view, pos, shape, msg_id, room, columns, with_payloads)
            pos += taken * (4 + length)
            msg_id += taken
            left -= taken
            row += taken


@lru_cache(LAYOUTS_CACHED_MAX)
def _scan_layout(shape: tuple[int, int, int, int], with_columns: bool, with_payloads: bool) -> RowLayout:
    """What is taken out of frames: the id, and with columns time, key, payload if asked for and the attribute's number."""
    length, key_len, payload_len, tag = shape
    if not with_columns:
        return RowLayout(f"4xQ{length - 8}x")
    payload = f"{payload_len}s" if with_payloads else f"{payload_len}x"
    return RowLayout(f"4xQQ2x{key_len}s4x{payload}{'5xQ' if tag else ''}4x")


def _scan_alike(
    view: memoryview,
    pos: int,
    shape: tuple[int, int, int, int],
    first_id: int,
    room: int,
    columns: Columns | None,
    with_payloads: bool,
) -> int:
    """Frames without attributes, or with one number alone, that have the lengths of the one before.

    Many at a time they cost a third: their headers are taken apart by one ``struct``, and one checksum over all of them is
    compared with what valid frames of this length give (``run_residue``; ADR 0012).

    Args:
        shape: frame length as stored, key length, payload length, tag of the attribute or 0.
        room: how many there may be.

    Returns: how many were valid. It may stop early: what is not alike, or not valid, is left to the caller.
    """
    length, key_len, payload_len, tag = shape
    stride = 4 + length
    layout = _scan_layout(shape, columns is not None, with_payloads)
    total, step = 0, 16
    while total < room:
        step = min(step, room - total)
        last = pos + (step - 1) * stride
        if _U64.unpack_from(view, last + 4)[0] != first_id + step - 1:  # cheap, and rarely wrong
            break
        if crc32(view[pos : pos + step * stride]) != run_residue(stride, step):
            break
        values = layout.unpack(view, pos, step)
        fields = layout.fields
        if (
            values[::fields] != list(range(first_id, first_id + step))
            or not columns_are(view, pos, stride, step, _U32.pack(length))
            or not columns_are(view, pos + 20, stride, step, key_len.to_bytes(2, "little"))
            or not columns_are(view, pos + 22 + key_len, stride, step, _U32.pack(payload_len))
            or (tag and not columns_are(view, pos + length - NUMBER_BYTES, stride, step, _ATTRIBUTE.pack(tag, 8)))
        ):
            break
        if columns is not None:
            if tag == ATTRIBUTE_SEQUENCE:
                if key_len:
                    columns.sequences.update(zip(count(len(columns.positions)), values[fields - 1 :: fields]))
            elif tag:
                blocks = map(_NUMBER.pack, repeat(tag), repeat(8), values[fields - 1 :: fields])
                columns.attributes.update(zip(count(len(columns.positions)), blocks))
            columns.positions.extend(range(pos, pos + step * stride, stride))
            columns.ts_ns.extend(values[1::fields])
            columns.keys.extend(values[2::fields])
            if with_payloads:
                columns.payloads.extend(values[3::fields])
        total += step
        first_id += step
        pos += step * stride
        step = min(step * 8, ALIKE_ROWS_MAX)
    return total


_residues: dict[int, list[int]] = {}


def run_residue(stride: int, count: int) -> int:
    """The checksum of so many valid frames of ``stride`` bytes, one after the other, whatever is in them.

    A frame with its own checksum has a constant one, and a CRC is affine: crc(A || B) is crc(B), and crc(A) carried over
    as many zeros as B has bytes.
    """
    known = _residues.get(stride)
    if known is None or len(known) <= count:
        if len(_residues) >= 64:
            _residues.clear()
        known = (known or [0]).copy()  # another thread may be at it, too
        zeros = bytes(stride)
        constant = CRC_RESIDUE ^ crc32(zeros)
        while len(known) <= count:
            known.append(crc32(zeros, known[-1]) ^ constant)
        _residues[stride] = known
    return known[count]


def to_records(first_id: int, columns: Columns) -> Records:
    """The scanned rows as a run of records; needs ``with_payloads``."""
    n = len(columns.positions)
    headers: list[bytes] | None = None
    expires_at_ns: list[int] | None = None
    for row, block in columns.attributes.items():
        found = parse_attributes(block) or {}
        value = found.get(ATTRIBUTE_HEADERS)
        if value:
            if headers is None:
                headers = [b""] * n
            headers[row] = value
        value = found.get(ATTRIBUTE_EXPIRES_AT)
        if value is not None:
            if expires_at_ns is None:
                expires_at_ns = [0] * n
            expires_at_ns[row] = int.from_bytes(value, "little")
    ids = range(first_id, first_id + n)
    return Records(ids, columns.ts_ns, columns.keys, columns.payloads, headers, expires_at_ns)
