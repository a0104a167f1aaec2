"""Arithmetic on lists of id ranges, both ends included: what is lost, removed or unreadable in a log. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from toymq_py.records import IdRange
from toymq_py.units import agreeing


def record_range(first_id: int, last_id: int, predicate: str = "", noun: str = "record") -> str:
    """The text ``records 4 to 6`` or ``record 4``; with a plural predicate such as ``are lost``: ``record 4 is lost``."""
    words = f"{noun}s {first_id} to {last_id}" if first_id != last_id else f"{noun} {first_id}"
    return f"{words} {agreeing(predicate, last_id - first_id + 1)}" if predicate else words


def above(ranges: Sequence[IdRange], first_id: int) -> list[IdRange]:
    """The parts of the ranges at or above an id."""
    return [(max(first, first_id), last) for first, last in ranges if last >= first_id]


def subtract(ranges: Sequence[IdRange], others: Iterable[IdRange]) -> list[IdRange]:
    """The parts of ascending, separate ranges that none of the others holds."""
    others = sorted(others)
    left: list[IdRange] = []
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        row = at
        while row < len(others) and others[row][0] <= last and first <= last:
            if others[row][0] > first:
                left.append((first, others[row][0] - 1))
            first = max(first, others[row][1] + 1)
            row += 1
        if first <= last:
            left.append((first, last))
    return left


def last_of_range(ranges: Sequence[IdRange], msg_id: int) -> int | None:
    """The last id of the range that holds an id; None when none does. Assumes ascending, separate ranges."""
    at = bisect_right(ranges, (msg_id, 1 << 64)) - 1
    return ranges[at][1] if at >= 0 and ranges[at][1] >= msg_id else None


def union(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Ascending, separate ranges with the same ids: those that overlap or touch become one."""
    joined: list[IdRange] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined
