"""Avro schemas as columns, and hostile schemas."""

import json
from typing import Any

import pytest

pytest.importorskip("fastavro")
from toymq_spark.values.avro_schema import columns, parsed

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def ddl(schema: Any) -> str:
    return columns(*parsed(json.dumps(schema))).simpleString().removeprefix("struct<").removesuffix(">")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int", "int"), ("long", "bigint"), ("float", "float"), ("double", "double"), ("boolean", "boolean"),
        ("string", "string"), ("bytes", "binary"), (["null", "long"], "bigint"), (["long", "null"], "bigint"),
        ({"type": "long"}, "bigint"), (MONEY, "decimal(12,2)"), (["null", MONEY], "decimal(12,2)"),
        ({"type": "int", "logicalType": "date"}, "date"), ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz"),
        ({"type": "string", "logicalType": "uuid"}, "string"), ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "long", "logicalType": "wrong"}, "bigint"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string"), ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "array", "items": ["null", "string"]}, "array<string>"),
        ({"type": "map", "values": "long"}, "map<string,bigint>"),
        ({"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]}, "struct<n:int>"),
    ],
)  # fmt: skip
def test_types(kind: Any, expected: str) -> None:
    assert ddl(record(a=kind)) == f"a:{expected}"


def test_a_type_is_named_again_with_its_namespace() -> None:
    part = {"type": "record", "name": "Part", "namespace": "shop", "fields": [{"name": "n", "type": "int"}]}
    found = ddl(record(first=part, more={"type": "array", "items": "shop.Part"}))
    assert found == "first:struct<n:int>,more:array<struct<n:int>>"


def doubled(times: int) -> dict[str, Any]:
    """Return a schema in which each record has two fields of the next one: without a limit this fills the memory."""
    if not times:
        return record(a="null") | {"name": "R0"}
    return record(a=doubled(times - 1), b=f"R{times - 1}") | {"name": f"R{times}"}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "Expecting"),
        (json.dumps("string"), "the schema is string: a record has columns"),
        (json.dumps("Nothing"), "invalid Avro schema: Nothing"),
        (json.dumps(record(a="null")), "value.a is null, which has no type in Spark"),
        (json.dumps(record(a=["int", "string"])), r"value.a is a union of int, string: only those of null and one type"),
        (json.dumps(record(a={"type": "record", "name": "E", "fields": []})), "value.a is a record without fields"),
        (json.dumps(record(a=MONEY | {"precision": 39})), "value.a is a decimal of 39 digits: Spark has 38"),
        (json.dumps(record(a=["null", "Order"])), "type Order contains itself"),
        (json.dumps(record(a={"type": "array", "items": "Order"})), "type Order contains itself"),
        (json.dumps(record(a={"type": "array", "items": "null"})), "an array has items without bytes"),
        (json.dumps(record(a={"type": "array", "items": record() | {"name": "E"}})), "an array has items without bytes"),
        (json.dumps({"type": "record", "name": "R"}), "value is a record without fields"),
        (json.dumps([]), "value is a union of"),
        (json.dumps(doubled(40)), "the schema has more than 100000 parts"),
        ('{"type":' * 100_000, "invalid Avro schema: maximum recursion"),
    ],
)
def test_a_schema_that_is_not_read(schema: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        columns(*parsed(schema))
