"""Encodes records as bytes, one at a time. Simple on purpose: tests compare the broker's faster code with it (storage.md)."""

import struct
import zlib

from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_HEADERS,
    ATTRIBUTE_SEQUENCE,
    FRAME_OVERHEAD,
)


def encode_frame(msg_id: int, ts_ns: int, key: bytes, payload: bytes, attributes: bytes = b"") -> bytes:
    """Encode one record. ``key`` b"" means none; ``attributes`` is the encoded attribute block."""
    length = FRAME_OVERHEAD - 4 + len(key) + len(payload) + len(attributes)
    body = struct.pack("<IQQH", length, msg_id, ts_ns, len(key)) + key + struct.pack("<I", len(payload)) + payload + attributes
    return body + zlib.crc32(body).to_bytes(4, "little")


def encode_attributes(
    *,
    deliver_at_ns: int | None = None,
    expires_at_ns: int | None = None,
    headers: bytes = b"",
    sequence: int | None = None,
) -> bytes:
    """Encode an attribute block; b"" when nothing is set."""

    def number(tag: int, value: int | None) -> bytes:
        return b"" if value is None else struct.pack("<BIQ", tag, 8, value)

    block = number(ATTRIBUTE_DELIVER_AT, deliver_at_ns) + number(ATTRIBUTE_EXPIRES_AT, expires_at_ns)
    if headers:
        block += struct.pack("<BI", ATTRIBUTE_HEADERS, len(headers)) + headers
    return block + number(ATTRIBUTE_SEQUENCE, sequence)
