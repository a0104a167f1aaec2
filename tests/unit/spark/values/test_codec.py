"""What all formats share: rows that cannot be encoded, and reasons of one line."""

import pyarrow as pa
import pytest

from toymq_spark.values.codec import REASON_CHARS_MAX, Unencodable, reason_of, rows_encoded


def test_rows_are_encoded_one_by_one_and_the_one_that_fails_is_named() -> None:
    column = pa.array([{"n": 1}, None, {"n": 300}], pa.struct([("n", pa.int64())]))
    assert rows_encoded(column, lambda value: str(value["n"]).encode()) == [b"1", None, b"300"]
    with pytest.raises(Unencodable, match="range") as found:
        rows_encoded(column, lambda value: bytes([value["n"]]))
    assert found.value.row == 2


def test_a_reason_is_a_short_line() -> None:
    assert reason_of(ValueError("a\n  b\x0bc")) == "a b c"
    assert reason_of(EOFError()) == "EOFError"
    assert len(reason_of(ValueError("x" * 10_000))) == REASON_CHARS_MAX
