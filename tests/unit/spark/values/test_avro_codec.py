"""Avro records as columns: round trips, resolution of schemas, and hostile bytes."""

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schema_registry import SchemaRegistry, schema_registry
from toymq_spark.errors import RegistryFailed
from toymq_spark.values.codec import Decoded, Unencodable
from toymq_spark.values.registry import Registry

fastavro = pytest.importorskip("fastavro")
from toymq_spark.values.avro_codec import AvroCodec  # noqa: E402 (it needs fastavro)

ORDER = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}  # fmt: skip
KIND = pa.struct([
    ("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(12, 2)), ("at", pa.timestamp("us", "UTC")),
    ("day", pa.date32()), ("tags", pa.list_(pa.string())), ("counts", pa.map_(pa.string(), pa.int32())),
])  # fmt: skip
EPOCH = datetime.fromtimestamp(0, UTC)
VALUE = {
    "id": 7, "name": "ann", "price": Decimal("12.50"), "at": EPOCH + timedelta(days=20_000), "day": date(2026, 11, 28),
    "tags": ["a"], "counts": [("x", 1)],
}  # fmt: skip
TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
VALUES = st.none() | st.fixed_dictionaries({
    "id": st.integers(-(2**63), 2**63 - 1), "name": st.none() | TEXT, "price": st.decimals(-(10**9), 10**9, places=2),
    "at": st.datetimes().map(lambda at: at.replace(tzinfo=UTC)), "day": st.dates(), "tags": st.lists(TEXT, max_size=3),
    "counts": st.dictionaries(TEXT, st.integers(-(2**31), 2**31 - 1), max_size=2).map(lambda found: list(found.items())),
})  # fmt: skip
PLAIN = AvroCodec(json.dumps(ORDER))


def a_record(name: str = "R", **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields.items()]}


def written(schema: Any, value: dict[str, Any], schema_id: int | None = None) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue() if schema_id is None else b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def decode(codec: AvroCodec, *values: bytes, kind: pa.DataType = KIND) -> Decoded:
    decoded = codec.decode(values, kind)
    assert len(decoded.column) == len(values)
    assert all(not decoded.column[row].is_valid for row in decoded.bad)
    decoded.column.validate(full=True)
    return decoded


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


@given(st.lists(VALUES, max_size=4))
def test_what_a_sink_writes_a_source_reads(values: list[dict[str, Any] | None]) -> None:
    column = pa.array(values, KIND)
    decoded = decode(PLAIN, *(value or b"" for value in PLAIN.encode(column)))
    assert (decoded.bad, decoded.column) == ({}, column)


@given(st.binary(max_size=60) | st.builds(lambda cut, more: GOOD[:cut] + more, st.integers(0, 40), st.binary(max_size=30)))
def test_no_bytes_end_the_executor(value: bytes) -> None:
    decode(PLAIN, value)


GOOD = PLAIN.encode(pa.array([VALUE], KIND))[0] or b""


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (GOOD + b"x", "1 bytes follow the record"),
        (GOOD[:-1], ""),
        (b"\x0e\x04", ""),
        (b"\xff" * 30, ""),
        (b"\x0e\x02" + b"\xfe" * 9 + b"\x01", ""),
    ],
)
def test_a_bad_value_is_one_bad_row(value: bytes, says: str) -> None:
    decoded = decode(PLAIN, GOOD, value, GOOD, b"")
    assert decoded.bad.keys() == {1}
    assert says in decoded.bad[1]
    assert decoded.column.to_pylist() == [VALUE, None, VALUE, None]


def test_a_value_that_fits_no_column_is_one_bad_row() -> None:
    """A time ten years past the year 9999, and a decimal with more digits than its schema allows."""
    far = a_record(at={"type": "long", "logicalType": "timestamp-micros"})
    codec = AvroCodec(json.dumps(far))
    good, bad = written(a_record(at="long"), {"at": 1}), written(a_record(at="long"), {"at": 2**62})
    decoded = decode(codec, good, bad, good, kind=pa.struct([("at", pa.timestamp("us", "UTC"))]))
    assert decoded.bad.keys() == {1}
    price = a_record(p={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    digits = [written(a_record(p="bytes"), {"p": (10**n).to_bytes(9, "big")}) for n in (2, 9)]
    decoded = decode(AvroCodec(json.dumps(price)), *digits, kind=pa.struct([("p", pa.decimal128(4, 2))]))
    assert (decoded.bad.keys(), decoded.column[0].as_py()) == ({1}, {"p": Decimal("1.00")})


def test_values_of_older_and_newer_schemas_have_the_columns_of_the_readers(server: SchemaRegistry) -> None:
    old = a_record(id="int", gone="string")
    new = a_record(id="long")
    new["fields"].append({"name": "more", "type": "string", "default": "-"})
    ids = server.add("s", old), server.add("s", new)
    codec = AvroCodec(json.dumps(new), Registry(server.url), ids[1])
    values = [
        written(old, {"id": 1, "gone": "x"}, ids[0]),
        written(new, {"id": 2, "more": "y"}, ids[1]),
        written(old, {"id": 3, "gone": ""}, ids[0]),
    ]
    kind = pa.struct([("id", pa.int64()), ("more", pa.string())])
    found = decode(pickle.loads(pickle.dumps(codec)), *values, b"", kind=kind)
    assert found.bad == {}
    assert found.column.to_pylist() == [{"id": 1, "more": "-"}, {"id": 2, "more": "y"}, {"id": 3, "more": "-"}, None]
    assert server.requests == [f"/schemas/ids/{ids[0]}", f"/schemas/ids/{ids[1]}"]
    (again,) = codec.encode(pa.array([{"id": 2, "more": "y"}], kind))
    assert again == values[1], "a sink writes the prefix"


def test_schemas_that_do_not_exist_or_do_not_fit_are_bad_rows(server: SchemaRegistry) -> None:
    mine = a_record(id="long")
    ids = [server.add("s", schema) for schema in (
        mine, a_record(id="string"), a_record(other="long"), a_record("L", id="long", next=["null", "L"]), "string",
        a_record(id={"type": "array", "items": "null"}), {"type": "what"},
    )]  # fmt: skip
    good = written(mine, {"id": 5}, ids[0])
    body = good[5:]
    bad = [b"\0" + schema_id.to_bytes(4, "big") + body for schema_id in (*ids[1:], 999, 2**32 - 1)]
    bad += [b"\0\0", b"\x01" + good[1:], b"{}"]
    codec = AvroCodec(json.dumps(mine), Registry(server.url), ids[0])
    decoded = decode(codec, good, *bad, good, kind=pa.struct([("id", pa.int64())]))
    assert sorted(decoded.bad) == list(range(1, len(bad) + 1))
    assert decoded.column.to_pylist() == [{"id": 5}, *[None] * len(bad), {"id": 5}]
    reasons = list(decoded.bad.values())
    assert reasons[2] == f"schema {ids[3]}: type L contains itself"
    assert reasons[3] == f"schema {ids[4]} is not a record"
    assert reasons[4] == f"schema {ids[5]}: an array has items without bytes"
    assert reasons[6] == "the registry has no schema 999"
    assert reasons[-1] == "it does not begin with a zero and the id of a schema"


def test_a_registry_that_is_away_makes_no_row_bad() -> None:
    with schema_registry() as gone:
        pass
    codec = AvroCodec(json.dumps(a_record(id="long")), Registry(gone.url, sleep=lambda seconds: None))
    with pytest.raises(RegistryFailed):
        decode(codec, b"\0\0\0\0\x05\x02", kind=pa.struct([("id", pa.int64())]))


@pytest.mark.parametrize("change", [{"id": None}, {"tags": None}])
def test_a_null_that_the_schema_does_not_have_is_refused_with_its_row(change: dict[str, Any]) -> None:
    with pytest.raises(Unencodable) as found:
        PLAIN.encode(pa.array([VALUE, VALUE | change], KIND))
    assert found.value.row == 1
