"""Attributes of a record, behind its payload: ``u8 tag, u32 len, bytes`` each. Contract: storage.md, "Record frame"."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

ATTRIBUTE_DELIVER_AT = 1
ATTRIBUTE_EXPIRES_AT = 2
ATTRIBUTE_HEADERS = 3
ATTRIBUTE_SEQUENCE = 4

TAG_LENGTH = struct.Struct("<BI")
"""The tag and the length, before the bytes of each attribute."""
NUMBER = struct.Struct("<BIQ")
"""An attribute that is a u64, a sequence or a time: tag, 8, value."""
NUMBER_BYTES = 13


def encode_sequences(sequences: Sequence[int]) -> list[bytes]:
    """Encode attribute blocks that hold a sequence and nothing else."""
    pack = NUMBER.pack
    return [pack(ATTRIBUTE_SEQUENCE, 8, sequence) for sequence in sequences]


@dataclass(slots=True)
class Extras:
    """Columns that records carry beside key and payload, without sequences. A column is None where no record has it.

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
        """Encode attribute blocks, with the sequences if given."""
        parts: list[Iterable[bytes]] = []
        for tag, numbers in (
            (ATTRIBUTE_DELIVER_AT, self.deliver_at_ns),
            (ATTRIBUTE_EXPIRES_AT, self.expires_at_ns),
        ):
            if numbers is not None:
                parts.append(map(NUMBER.pack, repeat(tag), repeat(8), numbers))
        if self.headers is not None:
            pack = TAG_LENGTH.pack
            parts.append(pack(ATTRIBUTE_HEADERS, len(block)) + block if block else b"" for block in self.headers)
        if sequences is not None:
            parts.append(encode_sequences(sequences))
        return list(parts[0]) if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def deliver_at_of(block: bytes) -> int | None:
    """The ``deliver_at`` of an attribute block in nanoseconds, None without one."""
    found = (parse_attributes(block) or {}).get(ATTRIBUTE_DELIVER_AT)
    return None if found is None else int.from_bytes(found, "little")


def parse_attributes(block: bytes) -> dict[int, bytes] | None:
    """Parse a block to raw values by tag; unknown tags are kept. None when the block is not well formed."""
    spans = attribute_spans(block, 0, len(block))
    return None if spans is None else {tag: block[at:end] for tag, at, end in spans}


def attribute_spans(data: bytes, at: int, end: int) -> list[tuple[int, int, int]] | None:
    """(tag, start, end) of each attribute in ``data[at:end]``. None when the lengths do not fill the block exactly, a
    number is not 8 bytes long, or a tag stands twice. Copies nothing: the block may be a hostile 64 MiB."""
    spans = []
    seen = set()
    while at < end:
        if at + 5 > end:
            return None
        tag, length = TAG_LENGTH.unpack_from(data, at)
        at += 5 + length
        if at > end or tag in seen:
            return None
        if length != 8 and tag in (ATTRIBUTE_DELIVER_AT, ATTRIBUTE_EXPIRES_AT, ATTRIBUTE_SEQUENCE):
            return None
        seen.add(tag)
        spans.append((tag, at - length, at))
    return spans
