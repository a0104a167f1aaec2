"""Encoding many rows of one layout at a time, compared with struct row by row."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.fixed_rows import BLOCKS, RowLayout, columns_are

counts = st.sampled_from([0, 1, *(block + off for block in BLOCKS for off in (-1, 0, 1)), 2 * BLOCKS[0] + BLOCKS[-1] + 3])


@given(counts, st.binary(min_size=5, max_size=5), st.binary(max_size=3))
def test_blocks_are_the_rows_one_by_one(rows: int, seed: bytes, before: bytes) -> None:
    layout = RowLayout("H2x3s")
    assert (layout.size, layout.fields) == (7, 2)
    data = before + bytes((seed * (7 * rows))[: 7 * rows])
    values = layout.unpack(data, len(before), rows)
    one_by_one = list(struct.Struct("<H2x3s").iter_unpack(data[len(before) :]))
    assert list(zip(values[::2], values[1::2], strict=True)) == one_by_one
    packed = b"".join(layout.pack(values, rows))
    assert packed == b"".join(struct.pack("<H2x3s", *row) for row in one_by_one)


@given(counts, st.data())
def test_a_column_that_differs_anywhere_is_seen(rows: int, data: st.DataObject) -> None:
    rows = max(rows, 1)
    text = bytearray(b"..abc--" * rows)
    assert columns_are(bytes(text), 2, 7, rows, b"abc")
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, 2))
    text[7 * row + 2 + column] ^= 1
    assert not columns_are(bytes(text), 2, 7, rows, b"abc")
    assert columns_are(bytes(text[2:5] + bytes(93)) * rows, 0, 96, rows, bytes(text[2:5] + bytes(60))), "long ones, too"
    if row == rows - 1 and rows > 1:
        assert columns_are(bytes(text), 2, 7, rows - 1, b"abc"), "what is behind is not looked at"
