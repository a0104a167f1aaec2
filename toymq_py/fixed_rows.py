"""Pack, unpack and compare consecutive rows of one layout, many at a time.

One ``struct`` call per row would make a tuple per row, which the caller takes apart again. Here one call handles a block of
rows, and constant parts are compared column by column (ADR 0039).
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

BLOCKS = (128, 64, 16)
"""The numbers of rows of one call, largest first; one more call handles the rest. A ``Struct`` of many rows costs time and
memory to make, so there are few sizes, and they are cached."""

LAYOUTS_CACHED_MAX = 64
"""Most layouts that a caller caches by the shape of its rows; about 60 KiB each."""

COLUMNS_MAX = 48
"""Most bytes of a row for which comparing by columns is faster than by rows."""


class RowLayout:
    """The fields of one row as a ``struct`` format, little-endian and without padding."""

    __slots__ = ("_blocks", "_format", "fields", "size")

    def __init__(self, row_format: str) -> None:
        """Raises: struct.error."""
        row = struct.Struct("<" + row_format)
        self.size = row.size
        """The bytes of a row."""
        self.fields = len(row.unpack(bytes(row.size)))
        """The number of values of a row."""
        self._format = row_format
        self._blocks = {1: row}

    def unpack(self, data: bytes | memoryview, pos: int, rows: int) -> list[Any]:
        """Unpack ``rows`` rows from ``pos`` into a flat list: column ``i`` is ``[i :: fields]``. Assumes that ``data`` has
        them."""
        values: list[Any] = []
        for block in _blocks(rows):
            values += self._block(block).unpack_from(data, pos)
            pos += block * self.size
        return values

    def pack(self, values: Sequence[Any], rows: int) -> list[bytes]:
        """Pack ``rows`` rows, in pieces of bytes. ``values``: a flat list, as ``unpack`` returns it."""
        pieces: list[bytes] = []
        at = 0
        for block in _blocks(rows):
            end = at + block * self.fields
            pieces.append(self._block(block).pack(*values[at:end]))
            at = end
        return pieces

    def _block(self, rows: int) -> struct.Struct:
        known = self._blocks.get(rows)
        if known is None:
            known = self._blocks[rows] = struct.Struct("<" + self._format * rows)
        return known


def _blocks(rows: int) -> Iterator[int]:
    for block in BLOCKS:
        while rows >= block:
            yield block
            rows -= block
    if rows:
        yield rows


def columns_are(data: bytes | memoryview, pos: int, stride: int, rows: int, expected: bytes) -> bool:
    """Whether the bytes ``expected`` are at ``pos``, and after every further ``stride``, in each of ``rows`` rows."""
    width, last = len(expected), pos + (rows - 1) * stride
    for at in (last, pos + stride if rows > 1 else last):  # rows that alternate mostly differ here
        if data[at : at + width] != expected:
            return False
    if width > COLUMNS_MAX:
        return all(data[at : at + width] == expected for at in range(pos, last, stride))
    return all(
        data[pos + column : last + column + 1 : stride] == expected[column : column + 1] * rows for column in range(width)
    )
