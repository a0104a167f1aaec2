"""JSON objects as columns: round trips, refused values, and bytes that try to shift other rows."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_spark.values.codec import Decoded, Unencodable
from toymq_spark.values.json_codec import JsonCodec

CODEC = JsonCodec()
ALL = pa.struct([
    ("flag", pa.bool_()), ("tiny", pa.int8()), ("count", pa.int64()), ("ratio", pa.float64()), ("price", pa.decimal128(12, 2)),
    ("name", pa.string()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
    ("tags", pa.list_(pa.string())), ("lines", pa.list_(pa.struct([("days", pa.list_(pa.date32())), ("sku", pa.string())]))),
])  # fmt: skip
A = pa.struct([("a", pa.int64())])
TEXT = st.text(st.characters(codec="utf-8"))
NAIVE = st.datetimes()
VALUES = st.none() | st.fixed_dictionaries({
    "flag": st.none() | st.booleans(), "tiny": st.none() | st.integers(-128, 127),
    "count": st.none() | st.integers(-(2**63), 2**63 - 1),
    "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "price": st.none() | st.decimals(-(10**9), 10**9, places=2), "name": st.none() | TEXT, "day": st.none() | st.dates(),
    "at": st.none() | NAIVE.map(lambda at: at.replace(tzinfo=UTC)), "local": st.none() | NAIVE,
    "tags": st.none() | st.lists(st.none() | TEXT, max_size=3),
    "lines": st.none() | st.lists(
        st.none() | st.fixed_dictionaries({"days": st.lists(st.none() | st.dates(), max_size=2), "sku": TEXT}), max_size=2
    ),
})  # fmt: skip


def decode(*values: bytes, kind: pa.DataType = A) -> Decoded:
    decoded = CODEC.decode(values, kind)
    assert len(decoded.column) == len(values)
    assert all(not decoded.column[row].is_valid for row in decoded.bad), "a bad row is null"
    decoded.column.validate(full=True)
    return decoded


@given(st.lists(VALUES, max_size=5))
def test_what_a_sink_writes_a_source_reads(values: list[dict[str, Any] | None]) -> None:
    column = pa.array(values, ALL)
    written = CODEC.encode(column)
    assert [value is None for value in written] == [value is None for value in values]
    decoded = decode(*(value or b"" for value in written), kind=ALL)
    assert decoded.bad == {}
    assert decoded.column == column


@given(st.lists(VALUES.filter(bool), min_size=1, max_size=4), st.data())
def test_any_other_encoder_of_json_will_do(values: list[dict[str, Any]], data: st.DataObject) -> None:
    """Other encoders differ in spaces, line breaks, escapes, unknown names, and order."""
    texts = []
    for value in CODEC.encode(pa.array(values, ALL)):
        found = {**json.loads(value or b""), "other": {"a": [1, None]}}
        names = data.draw(st.permutations(list(found)))
        indent = data.draw(st.none() | st.integers(0, 2))
        texts.append(json.dumps({name: found[name] for name in names}, indent=indent).encode())
    decoded = decode(*texts, kind=ALL)
    assert (decoded.bad, decoded.column) == ({}, pa.array(values, ALL))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{", "object member"),
        (b"null", "not one JSON object"),
        (b"[1]", "not one JSON object"),
        (b" ", "not one JSON object"),
        (b"{} {}", "not one JSON object"),
        (b"{}null", "not one JSON object"),
        (b'{"a": 1} x', "Invalid value"),
        (b'{"a": 1}\x00', ""),
        (b'{"a": 1.0}', "couldn't parse:1.0"),
        (b'{"a": "1"}', "column a is bigint, and the value has a JSON string"),
        (b'{"a": 9223372036854775808}', "couldn't parse"),
        (b'{"a": 1, "a": 2}', "specified twice"),
        (b'{"b": "\xff"}', "'utf-8' codec can't decode"),
        (b'{"b": "\\ud800"}', "surrogate"),
        (b"\xef\xbb\xbf{}", "not one JSON object"),
        (b'{"b": ' + b"[" * 100_000, ""),
        (b'{"b": ' + b'{"a":' * 100_000, ""),
    ],
)
def test_a_bad_value_is_one_bad_row(value: bytes, says: str) -> None:
    decoded = decode(b'{"a": 1}', value, b'{"a": 2}')
    assert decoded.bad.keys() == {1}, "the rows beside it are read"
    assert says in decoded.bad[1]
    assert "in row" not in decoded.bad[1]
    assert len(decoded.bad[1]) < 400, "a reason is a line"
    assert decoded.column.to_pylist() == [{"a": 1}, None, {"a": 2}]
    assert decode(value).bad.keys() == {0}, "alone, too"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"lines": [{"sku": 7}]}', "column lines.[].sku is string, and the value has a JSON number"),
        (b'{"price": true}', "column price is decimal(12,2), and the value has a JSON boolean"),
        (b'{"lines": {}}', "column lines is array<struct<days:array<date>,sku:string>>, and the value has a JSON object"),
    ],
)
def test_a_value_of_another_type_names_the_column_and_its_type(value: bytes, says: str) -> None:
    assert decode(value, kind=ALL).bad == {0: says}


@pytest.mark.parametrize(
    "values",
    [
        (b"{} {}", b""),
        (b'{"a": 1} {"a": 2}', b'{"b":', b"1}"),
        (b'{"b": [', b'], "a": 7}'),
        (b'{"b": "', b'"}'),
        (b'{"a": 1} {"a": 2} {"a": 3}', b'{"b": [1,', b"]}"),  # as many objects as values and separators
        (b"{", b"}"),
        (b'{"a": 1}}', b'{"a": 2}'),
        (b'{"a": 1} {"a": 2}', b'{"b":', b"{}}"),
        (b'{"a": 1} {"a": 2} {"a": 3}', b'{"b": [', b'{"c": ', b"{}]}"),
    ],
)
def test_values_that_would_be_others_together(values: tuple[bytes, ...]) -> None:
    together = decode(*values)
    alone = [decode(value) for value in values]
    assert together.column.to_pylist() == [one.column[0].as_py() for one in alone]
    assert together.bad == {row: one.bad[0] for row, one in enumerate(alone) if one.bad}
    assert together.bad


PIECES = st.sampled_from([
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true",
    b"1", b"1.5", b'"a"', b'"b"', b" ", b"\n", b"\r", b"\\", b"\x00", b"\xff",
    b'{"a":1}', b'{"a":', b"{}", b'"a":2', b"NaN", b"-", b"e9", b"\\ud800", b"\xef\xbb\xbf",
])  # fmt: skip


@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join) | st.binary(max_size=8), max_size=6))
def test_no_bytes_change_what_another_row_is(values: list[bytes]) -> None:
    """A batch decodes to what each value alone decodes to."""
    together = decode(*values)
    for row, value in enumerate(values):
        alone = decode(value)
        assert (alone.bad.get(0), alone.column[0]) == (together.bad.get(row), together.column[row])
        if row not in together.bad and value:
            assert isinstance(json.loads(value), dict), "Python takes it, too"


def test_many_bad_rows_among_good_ones() -> None:
    values = [b"x" if n % 7 == 0 else b'{"a": %d}' % n for n in range(1000)]
    decoded = decode(*values)
    assert sorted(decoded.bad) == list(range(0, 1000, 7))
    assert decoded.column.to_pylist() == [None if n % 7 == 0 else {"a": n} for n in range(1000)]


def test_dates_times_and_decimals_as_others_write_them() -> None:
    value = b'{"day": "2026-11-28", "at": "2026-11-28T12:00:00+02:00", "local": "2026-11-28 10:00:00.5", "price": 1.25}'
    assert decode(value, kind=ALL).column[0].as_py() == dict.fromkeys(ALL.names) | {
        "day": date(2026, 11, 28), "at": datetime(2026, 11, 28, 10, tzinfo=UTC),
        "local": datetime.fromisoformat("2026-11-28T10:00:00.5"), "price": Decimal("1.25"),
    }  # fmt: skip
    too_large = b'{"price": 1.51e10}'  # Arrow reads it, with more digits than the column has
    for text in (b'{"day": "2026-02-30"}', b'{"price": 1.255}', too_large, b'{"at": "yesterday"}', b'{"tiny": 128}'):
        assert decode(text, kind=ALL).bad, text


def test_a_tombstone_is_null_and_not_bad() -> None:
    decoded = decode(b"", b'{"a": null}', b"{}")
    assert (decoded.bad, decoded.column.to_pylist()) == ({}, [None, {"a": None}, {"a": None}])
    assert decode().column.to_pylist() == []


def test_a_number_that_json_does_not_have_is_refused_with_its_row() -> None:
    with pytest.raises(Unencodable, match="JSON compliant") as found:
        CODEC.encode(pa.array([{"ratio": 1.0}, {"ratio": float("nan")}], pa.struct([("ratio", pa.float64())])))
    assert found.value.row == 1
