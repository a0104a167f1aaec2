"""Lines of a body, however it arrived."""

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.gateway.bodies import lines_of


@given(st.lists(st.text("ab\n", max_size=6).map(str.encode), min_size=1))
def test_lines_do_not_depend_on_where_pieces_end(pieces: list[bytes]) -> None:
    expected = b"".join(pieces).split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(lines_of(pieces)) == expected
