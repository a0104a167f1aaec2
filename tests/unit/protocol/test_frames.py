"""Ids and keys as tokens of a header line. Contract: protocol.md, "Framing"."""

import pytest

from toymq_py.errors import BadArgument
from toymq_py.protocol.frames import format_ids, is_key, parse_ids
from toymq_py.records import MSG_ID_MAX


@pytest.mark.parametrize("text", ["0", "3-9", "3-9,12,20-31", str(MSG_ID_MAX)])
def test_ids_are_read_and_written(text: str) -> None:
    assert format_ids(parse_ids(text)) == text


@pytest.mark.parametrize("text", ["", "-", "3-", "9-3", "3,3", "3-9,9", "5,4", "1,", "a", "1_0", str(MSG_ID_MAX + 1)])
def test_ids_ascend_and_do_not_overlap(text: str) -> None:
    with pytest.raises(BadArgument, match=r"^invalid message ids? "):
        parse_ids(text)


@pytest.mark.parametrize(
    ("key", "legal"),
    [(b"k", True), (b"k" * 512, True), (b"--", True), (b"", False), (b"-", False), (b"k" * 513, False), (b"a b", False),
     (b"a\n", False), (b"\x7f", False), (b"\xfc", False)],
)  # fmt: skip
def test_a_key_is_printable_ascii(key: bytes, legal: bool) -> None:
    assert is_key(key) is legal
