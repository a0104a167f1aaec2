"""Lines of a body, however it arrived, and its JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.gateway.bodies import lines_of, parse_json


@given(st.lists(st.text("ab\n", max_size=6).map(str.encode), min_size=1))
def test_lines_do_not_depend_on_where_pieces_end(pieces: list[bytes]) -> None:
    expected = b"".join(pieces).split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(lines_of(pieces)) == expected


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "-1e999", "[" * 100_000, "1" * 5000, ""])
def test_what_python_takes_for_json_and_others_do_not(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (which of them says so does not matter)
        parse_json(text)
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text.encode())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))  # fmt: skip
def test_all_other_json_is_taken(value: object) -> None:
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value
