"""Scans the frames of a segment: checks ids and checksums, and collects columns. ADR 0012."""

import struct
from enum import Enum
from functools import lru_cache
from itertools import count, repeat

from toymq_py.fixed_rows import LAYOUTS_CACHED_MAX, RowLayout, columns_are
from toymq_py.records import Records
from toymq_py.storage.record.attributes import (
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_HEADERS,
    ATTRIBUTE_SEQUENCE,
    NUMBER,
    NUMBER_BYTES,
    TAG_LENGTH,
    parse_attributes,
)
from toymq_py.storage.record.checksum import CRC_RESIDUE, crc32, run_residue
from toymq_py.storage.record.frame import HEADER, LENGTH_MAX, LENGTH_MIN, U32, U64

ALIKE_BYTES_MAX = 4096
"""Most bytes of a frame that is taken with others: the checksum of longer ones costs most, and taking many at a time gains
nothing."""
ALIKE_MIN = 8
"""Least number of frames that are taken at once: with fewer this gains nothing."""
ALIKE_ROWS_MAX = 1024
"""Most rows that are checked and taken apart in one piece: where one is damaged, so many are looked at one by one."""


class Stop(Enum):
    """Why a scan ended at its position."""

    END = "the data ends on a frame boundary"
    PARTIAL = "the frame goes on beyond the data"
    ZERO = "a zero length: unwritten space"
    INVALID = "no valid frame of the expected id"
    COUNT = "as many records as asked for"


class Columns:
    """Columns of the valid frames that a scan saw. ``scan`` appends to them."""

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
        max_count: stop after this number of records.
        max_bytes: stop before the record with which they would take more bytes than this, but not before the first.

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
    """The layout by which a scan takes fields from frames: the id and, with columns, the time, the key, the payload if asked
    for, and a single numeric attribute."""
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
    """Scan frames that have the lengths of the one before, without attributes or with one number alone.

    Many at a time cost a third as much: one ``struct`` call unpacks their headers, and one checksum over all of them is
    compared with that of valid frames of this length (``run_residue``; ADR 0012).

    Args:
        shape: frame length as stored, key length, payload length, tag of the one numeric attribute or 0.
        room: how many frames there may be.

    Returns: how many were valid. It stops at a frame with other lengths or an invalid one, or earlier; the caller goes on.
    """
    length, key_len, payload_len, tag = shape
    stride = 4 + length
    layout = _scan_layout(shape, columns is not None, with_payloads)
    total, step = 0, 16
    while total < room:
        step = min(step, room - total)
        last = pos + (step - 1) * stride
        if U64.unpack_from(view, last + 4)[0] != first_id + step - 1:  # cheap, and rarely wrong
            break
        if crc32(view[pos : pos + step * stride]) != run_residue(stride, step):
            break
        values = layout.unpack(view, pos, step)
        fields = layout.fields
        if (
            values[::fields] != list(range(first_id, first_id + step))
            or not columns_are(view, pos, stride, step, U32.pack(length))
            or not columns_are(view, pos + 20, stride, step, key_len.to_bytes(2, "little"))
            or not columns_are(view, pos + 22 + key_len, stride, step, U32.pack(payload_len))
            or (tag and not columns_are(view, pos + length - NUMBER_BYTES, stride, step, TAG_LENGTH.pack(tag, 8)))
        ):
            break
        if columns is not None:
            if tag == ATTRIBUTE_SEQUENCE:
                if key_len:
                    columns.sequences.update(zip(count(len(columns.positions)), values[fields - 1 :: fields]))
            elif tag:
                blocks = map(NUMBER.pack, repeat(tag), repeat(8), values[fields - 1 :: fields])
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


def to_records(first_id: int, columns: Columns) -> Records:
    """Make a run of records from scanned rows. Needs ``with_payloads``."""
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
