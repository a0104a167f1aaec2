"""The ids of an ack. ``test_poll_operations.py`` has acks, nacks and seeks over HTTP."""

import re

import pytest

from toymq_py.errors import BadArgument
from toymq_py.gateway.consumer_operations import parse_ids
from toymq_py.records import MSG_ID_MAX

WHOLE = f"write a whole number from 0 to {MSG_ID_MAX}"


@pytest.mark.parametrize(
    ("found", "ranges"),
    [
        ([7], [(7, 7)]),
        (["7"], [(7, 7)]),
        ([9, "3-5", 6, 4], [(3, 6), (9, 9)]),
        (["0-9", "2-3", 12], [(0, 9), (12, 12)]),
        ([MSG_ID_MAX], [(MSG_ID_MAX, MSG_ID_MAX)]),
    ],
)
def test_ids_and_ranges_become_ascending_ranges(found: list[object], ranges: list[tuple[int, int]]) -> None:
    assert parse_ids(found) == ranges


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (True, f"'True': {WHOLE}"),
        (-1, f"'-1': {WHOLE}"),
        (1.5, f"'1.5': {WHOLE}"),
        (MSG_ID_MAX + 1, f"'{hex(MSG_ID_MAX + 1)}': {WHOLE}"),
        ("x", f"'x': {WHOLE}"),
        ("3-", f"'': write a whole number from 3 to {MSG_ID_MAX}"),
        ("9-3", f"'3': write a whole number from 9 to {MSG_ID_MAX}"),
    ],
)
def test_an_item_that_is_neither_names_itself(item: object, says: str) -> None:
    with pytest.raises(BadArgument, match=f"^invalid id in ids {re.escape(says)}$"):
        parse_ids([0, item])


@pytest.mark.parametrize("found", [None, [], {}, "7", 7], ids=ascii)
def test_ids_are_a_list(found: object) -> None:
    with pytest.raises(BadArgument, match=r"^ids must be a list of message ids and ranges: \[7, "):
        parse_ids(found)
