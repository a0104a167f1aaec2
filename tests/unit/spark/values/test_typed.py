"""Batches with typed values, and what becomes of bad rows."""

import pyarrow as pa
import pytest

from toymq_spark.batches import HEADERS_TYPE
from toymq_spark.errors import BadValue, OptionError
from toymq_spark.values.json_codec import JsonCodec
from toymq_spark.values.letters import Letter
from toymq_spark.values.typed import TypedRows, encoded

VALUE = pa.struct([("a", pa.int64())])
WANTED = pa.schema([pa.field("topic", pa.string(), nullable=False), pa.field("value", VALUE)])


def rows(typed: TypedRows, *values: bytes) -> list[pa.RecordBatch]:
    columns = {
        "topic": ["orders"] * len(values), "value": values, "offset": range(10, 10 + len(values)),
        "key": [b"k%d" % n for n in range(len(values))],
        "headers": pa.array([[("color", b"red")], *[None] * (len(values) - 1)], HEADERS_TYPE),
    }  # fmt: skip
    arrays = [pa.array(columns[field.name], field.type) for field in typed.raw]
    return list(typed([pa.RecordBatch.from_arrays(arrays, schema=typed.raw)]))


def test_it_reads_beside_the_wanted_columns_what_names_a_bad_row() -> None:
    assert TypedRows(JsonCodec(), WANTED, "orders", "fail").raw.names == ["topic", "value", "offset"]
    typed = TypedRows(JsonCodec(), WANTED, "orders", "deadletter", lambda letters: None)
    assert typed.raw.names == ["topic", "value", "offset", "key", "headers"]
    assert typed.raw.field("value").type == pa.binary()


def test_bad_rows_fail_with_their_place_and_the_way_out() -> None:
    typed = TypedRows(JsonCodec(), WANTED, "orders", "fail")
    (batch,) = rows(typed, b'{"a": 1}', b"")
    assert batch.schema == WANTED
    assert batch.to_pylist() == [{"topic": "orders", "value": {"a": 1}}, {"topic": "orders", "value": None}]
    says = r"topic orders, offset 11: value does not fit valueSchema: not one JSON object. badRows=null reads"
    with pytest.raises(BadValue, match=says):
        rows(typed, b"{}", b"x", b"y")


def test_bad_rows_are_null() -> None:
    (batch,) = rows(TypedRows(JsonCodec(), WANTED, "orders", "null"), b'{"a": 1}', b"x")
    assert batch.column("value").to_pylist() == [{"a": 1}, None]


def test_bad_rows_become_dead_letters_before_the_others_are_passed_on() -> None:
    sent: list[Letter] = []
    typed = TypedRows(JsonCodec(), WANTED, "orders", "deadletter", sent.extend)
    (batch,) = rows(typed, b"x", b'{"a": 1}', b"\xff")
    assert batch.to_pylist() == [{"topic": "orders", "value": {"a": 1}}]
    assert sent == [
        Letter(10, b"k0", b"x", [("color", b"red")], "value does not fit valueSchema", "not one JSON object"),
        Letter(12, b"k2", b"\xff", None, "value does not fit valueSchema", "not one JSON object"),
    ]
    assert rows(typed, b"x") == [], "nothing is left of a batch"


def test_a_sink_encodes_values_and_names_the_row_that_it_cannot() -> None:
    kind = pa.struct([("r", pa.float64())])
    columns = {"value": pa.array([{"r": 0.5}, None], kind), "topic": pa.array(["t", "t"]), "offset": pa.array([4, 5])}
    (batch,) = encoded([pa.RecordBatch.from_pydict(columns)], JsonCodec())
    assert batch.column("value").to_pylist() == [b'{"r":0.5}', None]
    columns["value"] = pa.array([{"r": 0.5}, {"r": float("inf")}], kind)
    with pytest.raises(OptionError, match=r"column value cannot be written: .* \(in the row of topic t, offset 5\)"):
        list(encoded([pa.RecordBatch.from_pydict(columns)], JsonCodec()))
    with pytest.raises(OptionError, match=r"cannot be written: [^(]*$"):
        list(encoded([pa.RecordBatch.from_pydict({"value": columns["value"]})], JsonCodec()))
