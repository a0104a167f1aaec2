"""Headers as text, and lists of ids as ranges."""

from typing import Any

import pytest

from toymq.message import format_headers, parse_headers, to_ranges
from toymq_py.errors import (
    BadArgument,
)


@pytest.mark.parametrize("headers", [{}, {"a": "b"}, {"a": "", "b": " c"}, {"x": "a:b\u2028c\rd"}, {"ü": "ö"}])
def test_headers_come_back_as_they_were(headers: dict[str, str]) -> None:
    assert parse_headers(format_headers(headers)) == headers


@pytest.mark.parametrize("headers", [{"": "x"}, {"a:b": "c"}, {"a\n": "b"}, {"a": "b\nc: d"}, {"a": "\ud800"}])
def test_headers_that_would_be_read_as_something_else(headers: dict[str, str]) -> None:
    with pytest.raises(BadArgument):
        format_headers(headers)


@pytest.mark.parametrize(
    ("ids", "ranges"),
    [([], []), ([3], [(3, 3)]), ([3, 1, 2, 2], [(1, 3)]), ([9, 1, 2, 7, 8], [(1, 2), (7, 9)])],
)
def test_ids_become_ranges(ids: list[int], ranges: list[tuple[int, int]]) -> None:
    assert to_ranges(ids) == ranges


def test_headers_are_read_leniently() -> None:
    block: Any = b"A: b\nno colon\nB:c\nC: d: e\n\xff: x\n"
    assert parse_headers(block) == {"A": "b", "B": "c", "C": "d: e", "\ufffd": "x"}
