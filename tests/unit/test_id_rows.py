"""Rows of ids as columns."""

from typing import Any

import pytest

from toymq_py.id_rows import ID_ROWS_BLOCK, IdRows


@pytest.mark.parametrize("count", [0, 1, ID_ROWS_BLOCK, ID_ROWS_BLOCK + 1, 3 * ID_ROWS_BLOCK])
def test_rows_come_back_in_order_whatever_the_blocks(count: int) -> None:
    rows = [(10 * n, 10 * n + 4) for n in range(count)]
    table = IdRows.of(2, rows)
    assert len(table) == count
    assert list(table) == rows
    blocks = [block for part in (rows[:7], rows[7:]) for block in IdRows.of(2, part).blocks]
    assert table == IdRows(2, blocks)
    assert table == [list(row) for row in rows]


def test_a_row_is_found_by_the_last_id_at_or_below() -> None:
    table = IdRows.of(2, [(10 * n, 10 * n + 4) for n in range(1, 2 * ID_ROWS_BLOCK)])
    assert table.row_at(9) is None
    assert table.row_at(10) == (10, 14)
    assert table.row_at(10 * ID_ROWS_BLOCK + 9) == (10 * ID_ROWS_BLOCK, 10 * ID_ROWS_BLOCK + 4)
    assert table.row_at(2**64 - 1) == (20 * ID_ROWS_BLOCK - 10, 20 * ID_ROWS_BLOCK - 6)


@pytest.mark.parametrize(
    ("rows", "error"),
    [([(1,)], ValueError), ([(1, 2, 3)], ValueError), (["ab"], TypeError), ([(1, True)], TypeError), ([(1, 1.0)], TypeError),
     ([(-1, 0)], OverflowError), ([(0, 2**64)], OverflowError)],
)  # fmt: skip
def test_what_is_not_two_u64_is_refused(rows: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        IdRows.of(2, rows)
