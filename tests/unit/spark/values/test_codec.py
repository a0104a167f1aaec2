"""The common part of all formats: rows that cannot be encoded, and reasons of one line."""

import pyarrow as pa
import pytest

from toymq_spark.values.codec import REASON_CHARS_MAX, Unencodable, python_rows, reason_of, rows_encoded


def test_rows_are_encoded_one_by_one_and_the_one_that_fails_is_named() -> None:
    column = pa.array([{"n": 1}, None, {"n": 300}], pa.struct([("n", pa.int64())]))
    assert rows_encoded(column, lambda value: str(value["n"]).encode()) == [b"1", None, b"300"]
    with pytest.raises(Unencodable, match="range") as found:
        rows_encoded(column, lambda value: bytes([value["n"]]))
    assert found.value.row == 2


def test_rows_by_columns_are_the_rows() -> None:
    inner = pa.struct([("x", pa.list_(pa.int8())), ("m", pa.map_(pa.string(), pa.int64()))])
    rows = [{"a": 1, "in": {"x": [1, None], "m": {"k": 1}}}, None, {"a": 2, "in": None}, {"a": 3, "in": {"x": None, "m": {}}}]
    given = [row and {**row, "in": row["in"] and {**row["in"], "m": list(row["in"]["m"].items())}} for row in rows]
    column = pa.array(given, pa.struct([("a", pa.int64()), ("in", inner)]))
    assert python_rows(column) == rows
    assert python_rows(column.slice(2)) == rows[2:]


def test_a_reason_is_a_short_line() -> None:
    assert reason_of(ValueError("a\n  b\x0bc")) == "a b c"
    assert reason_of(EOFError()) == "EOFError"
    assert len(reason_of(ValueError("x" * 10_000))) == REASON_CHARS_MAX
