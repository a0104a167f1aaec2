"""The frame: one record as bytes, decoded and checked.

Contract: storage.md, "Record frame"; ADR 0001. Little-endian:

    0        4         12       20        22       22+k         26+k     26+k+p        4+length
    +--------+---------+--------+---------+--------+------------+--------+-------------+-------+
    | length | msg_id  | ts_ns  | key_len | key    | payload_len| payload| attributes  | crc32 |
    | u32    | u64     | u64    | u16 = k | k bytes| u32 = p    | p bytes| (often none)| u32   |
    +--------+---------+--------+---------+--------+------------+--------+-------------+-------+

``length`` counts what follows it. ``crc32`` covers everything before it, the length included. Zero is never a valid
length, so preallocated space ends a scan.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from toymq_py.errors import DamagedData
from toymq_py.storage.record.attributes import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_HEADERS,
    NUMBER_BYTES,
    TAG_LENGTH,
    attribute_spans,
    parse_attributes,
)
from toymq_py.storage.record.checksum import CRC_RESIDUE, crc32

FRAME_OVERHEAD = 30
"""Bytes of a frame without key, payload and attributes: the smallest frame there is."""
LENGTH_MIN = FRAME_OVERHEAD - 4
FRAME_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
"""The format's limit for a whole frame, whatever ``--max-payload`` says today (storage.md)."""
LENGTH_MAX = FRAME_BYTES_MAX - 4

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
HEADER = struct.Struct("<IQQH")
"""length, msg_id, ts_ns and key_len."""

_PACKERS_MAX = 4096  # random sizes must not grow the cache without end
_packers: dict[tuple[int, int], struct.Struct] = {}


def frame_packer(key_len: int, payload_len: int) -> struct.Struct:
    """The struct that packs a frame up to its attributes: length, msg_id, ts_ns, key_len, key, payload_len, payload."""
    packer = _packers.get((key_len, payload_len))
    if packer is None:
        if len(_packers) >= _PACKERS_MAX:
            _packers.clear()
        packer = _packers[key_len, payload_len] = struct.Struct(f"<IQQH{key_len}sI{payload_len}s")
    return packer


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded record with everything it carries. For tools, not for the hot path."""

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
        return None if raw is None else int(U64.unpack(raw)[0])


def claimed_extent(data: bytes, pos: int, *, check_attributes: bool = True) -> tuple[int, int] | None:
    """Read an unchecked header at ``pos``, when its lengths agree with each other.

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
        rest = length - LENGTH_MIN - key_len - U32.unpack_from(data, at)[0]
        if rest < 0:
            return None
        stop = pos + length
        if rest and check_attributes and stop <= end and attribute_spans(data, stop - rest, stop) is None:
            return None
    return msg_id, length + 4


def possible_ends(data: bytes, pos: int) -> list[int]:
    """Where the frame at ``pos`` may end if its length field is damaged: behind its payload, and behind each attribute that can
    be read there."""
    if pos + 22 > len(data):
        return []
    at = pos + 22 + HEADER.unpack_from(data, pos)[3]
    if at + 4 > len(data):
        return []
    at += 4 + U32.unpack_from(data, at)[0]
    ends: list[int] = []
    while at + 4 <= len(data) and at - pos <= FRAME_BYTES_MAX and len(ends) < 8:
        ends.append(at + 4)
        if at + 5 > len(data):
            break
        at += 5 + TAG_LENGTH.unpack_from(data, at)[1]
    return ends


def valid_frame(data: bytes, pos: int) -> tuple[int, int] | None:
    """(msg_id, bytes of the frame) when there is a whole frame at ``pos`` whose lengths agree and whose CRC is right; otherwise
    None."""
    claim = claimed_extent(data, pos)
    if claim is None or pos + claim[1] > len(data):
        return None
    if crc32(memoryview(data)[pos : pos + claim[1]]) != CRC_RESIDUE:
        return None
    return claim


def decode_frame(data: bytes, pos: int = 0) -> Frame:
    """Decode the frame at ``pos``. Raises: DamagedData when it is not valid."""
    claim = valid_frame(data, pos)
    if claim is None:
        raise DamagedData(f"no valid record at byte {pos}")
    length, msg_id, ts_ns, key_len = HEADER.unpack_from(data, pos)
    at = pos + 22 + key_len
    key = bytes(data[pos + 22 : at])
    (payload_len,) = U32.unpack_from(data, at)
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
"""Time, key, payload, header block, and when it expires (0: never)."""


def decode_row(data: bytes, msg_id: int) -> Row | None:
    """Decode the record that is exactly ``data``; None when it is not valid or has another id. Takes a third of the time of
    ``decode_frame``."""
    if len(data) < FRAME_OVERHEAD or crc32(data) != CRC_RESIDUE:
        return None
    length, found_id, ts_ns, key_len = HEADER.unpack_from(data)
    at = 26 + key_len
    if found_id != msg_id or length + 4 != len(data) or at > length:
        return None
    end = at + U32.unpack_from(data, at - 4)[0]
    headers, expires_at_ns = b"", 0
    if end != length and (end + NUMBER_BYTES != length or data[end] != ATTRIBUTE_DELIVER_AT):
        found = parse_attributes(data[end:length]) if end < length else None
        if found is None:
            return None
        headers = found.get(ATTRIBUTE_HEADERS, b"")
        expires_at_ns = int.from_bytes(found.get(ATTRIBUTE_EXPIRES_AT, b""), "little")
    return ts_ns, data[22 : at - 4], data[at:end], headers, expires_at_ns
