"""Rows of ascending ids, such as ranges, stored as columns of machine integers."""

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice

ID_ROWS_BLOCK = 1024
"""The rows of a block where ``IdRows`` makes its blocks itself."""


class IdRows:
    """Rows of ascending ids, stored by columns: 8 bytes per number, in blocks that are copied and encoded
    one at a time. Immutable by convention.

    Assumes that rows ascend and no block is empty.
    """

    __slots__ = ("blocks", "width")

    def __init__(self, width: int, blocks: "Sequence[tuple[array[int], ...]]" = ()) -> None:
        """``width``: the numbers of a row; each block has as many arrays of u64, all of one length."""
        self.width = width
        self.blocks = blocks

    @classmethod
    def of(cls, width: int, rows: Collection[Sequence[int]]) -> "IdRows":
        """Make columns of rows. Raises: OverflowError, TypeError, ValueError when a row is not a list or tuple of ``width``
        numbers, each a u64."""
        if not set(map(type, rows)) <= {list, tuple} or not set(map(type, chain.from_iterable(rows))) <= {int}:
            raise TypeError("rows of whole numbers were expected")
        if not set(map(len, rows)) <= {width}:
            raise ValueError(f"{width} numbers a row were expected")
        flat = array("Q", chain.from_iterable(rows))
        step = ID_ROWS_BLOCK * width
        parts = (flat[at : at + step] for at in range(0, len(flat), step))
        return cls(width, [tuple(part[column::width] for column in range(width)) for part in parts])

    def row_at(self, msg_id: int) -> tuple[int, ...] | None:
        """The last row that begins at or below an id."""
        at = bisect_right(self.blocks, msg_id, key=lambda block: block[0][0]) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        row = bisect_right(block[0], msg_id) - 1
        return tuple(column[row] for column in block)

    def __len__(self) -> int:
        return sum(len(block[0]) for block in self.blocks)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return chain.from_iterable(zip(*block, strict=True) for block in self.blocks)

    def __eq__(self, other: object) -> bool:
        """Whether the rows are equal, however they are divided into blocks; also compares with a list of lists, as in JSON."""
        if isinstance(other, IdRows | tuple | list):
            return list(self) == list(map(tuple, other))
        return NotImplemented

    def __repr__(self) -> str:
        return f"IdRows({', '.join(map(str, islice(self, 8)))}{', ...' if len(self) > 8 else ''})"
