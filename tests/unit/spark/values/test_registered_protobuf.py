"""Protobuf with a registry: values as Kafka's serializers write them, built by hand with Google's runtime."""

import pickle
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from tests.support.schema_registry import SchemaRegistry, schema_registry
from toymq_spark.errors import BadValue, OptionError, RegistryFailed
from toymq_spark.options import ValueOptions
from toymq_spark.values.codec import Codec, Decoded
from toymq_spark.values.formats import codec_of, value_type
from toymq_spark.values.letters import Letter
from toymq_spark.values.typed import TypedRows

pytest.importorskip("google.protobuf")
pytest.importorskip("grpc_tools")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
INT32, INT64, STRING, BOOL = FIELD.TYPE_INT32, FIELD.TYPE_INT64, FIELD.TYPE_STRING, FIELD.TYPE_BOOL
ORDERS = """
syntax = "proto3";
package shop;
import "common/money.proto";
message Order {
  int64 id = 1;
  string name = 2;
  common.Money price = 3;
  message Part { string sku = 1; }
  repeated Part parts = 4;
}
message Refund { int64 id = 1; }
"""
MONEY = 'syntax = "proto3"; package common; message Money { int64 units = 1; string currency = 2; }'
ORDER_TYPE = "struct<id:bigint,name:string,price:struct<units:bigint,currency:string>,parts:array<struct<sku:string>>>"


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


def message(*fields: tuple[str, int, Any]) -> Any:
    """Return a message as another program would build it with generated code."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", package="w", syntax="proto3")
    kind = file.message_type.add(name="M")
    for number, (name, field, value) in enumerate(fields, 1):
        label = FIELD.LABEL_REPEATED if isinstance(value, list) else FIELD.LABEL_OPTIONAL
        kind.field.add(name=name, number=number, type=field, label=label)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("w.M"))()
    for name, _, value in fields:
        getattr(made, name).extend(value) if isinstance(value, list) else setattr(made, name, value)
    return made


def wire(*fields: tuple[str, int, Any]) -> bytes:
    return bytes(message(*fields).SerializeToString())


def prefixed(schema_id: int, indexes: bytes, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + body


MONEY_BYTES = wire(("units", INT64, 12), ("currency", STRING, "EUR"))
ORDER_BYTES = wire(
    ("id", INT64, 7), ("name", STRING, "ann"), ("price", FIELD.TYPE_BYTES, MONEY_BYTES),
    ("parts", FIELD.TYPE_BYTES, [wire(("sku", STRING, "a")), b""]),
)  # fmt: skip
"""A field of bytes is written as one of a message is."""
ORDER = {"id": 7, "name": "ann", "price": {"units": 12, "currency": "EUR"}, "parts": [{"sku": "a"}, {"sku": ""}]}


def orders(server: SchemaRegistry) -> int:
    server.add_protobuf("common.money", MONEY)
    return server.add_protobuf("orders-value", ORDERS, ("common/money.proto", "common.money", 1))


def opened(server: SchemaRegistry, name: str = "", subject: str = "orders-value", version: Any = "latest") -> tuple[Codec, Any]:
    values = ValueOptions("protobuf", f"{server.url}/subjects/{subject}/versions/{version}{name}")
    columns = value_type(values)
    assert isinstance(columns, StructType)
    codec = codec_of(values, columns, reading=True)
    return pickle.loads(pickle.dumps(codec)), to_arrow_type(columns, timezone="UTC")


def decode(codec: Codec, kind: Any, *values: bytes) -> Decoded:
    decoded = codec.decode(values, kind)
    assert len(decoded.column) == len(values)
    assert all(not decoded.column[row].is_valid for row in decoded.bad)
    decoded.column.validate(full=True)
    return decoded


def test_what_another_program_writes_is_read_and_what_a_sink_writes_is_the_same(server: SchemaRegistry) -> None:
    schema_id = orders(server)
    values = ValueOptions("protobuf", f"{server.url}/subjects/orders-value/versions/1")
    columns = value_type(values)
    assert isinstance(columns, StructType)
    assert columns.simpleString() == ORDER_TYPE
    codec, kind = opened(server)
    asked = len(server.requests)
    written = prefixed(schema_id, b"\0", ORDER_BYTES)
    found = decode(codec, kind, written, b"", prefixed(schema_id, b"\0", b""), prefixed(schema_id, b"\x02\0", ORDER_BYTES))
    defaults = {"id": 0, "name": "", "price": None, "parts": []}
    assert (found.bad, found.column.to_pylist()) == ({}, [ORDER, None, defaults, ORDER]), "an empty value is a tombstone"
    assert codec.encode(pa.array([ORDER, None], kind)) == [written, None]
    assert len(server.requests) == asked, "the schema itself came with the codec"


@pytest.mark.parametrize(
    ("name", "indexes", "columns"),
    [
        ("", b"\0", ORDER_TYPE), ("#shop.Order", b"\0", ORDER_TYPE), ("#shop.Refund", b"\x02\x02", "struct<id:bigint>"),
        ("#shop.Order.Part", b"\x04\0\0", "struct<sku:string>"),
    ],
)  # fmt: skip
def test_one_message_of_several_is_named(server: SchemaRegistry, name: str, indexes: bytes, columns: str) -> None:
    schema_id = orders(server)
    codec, kind = opened(server, name)
    field = kind.field(0).name
    value = {field: 5 if field == "id" else "x"}
    body = wire((field, INT64 if field == "id" else STRING, value[field]))
    (row,) = decode(codec, kind, prefixed(schema_id, indexes, body)).column.to_pylist()
    assert row[field] == value[field]
    assert codec.encode(pa.array([value], kind)) == [prefixed(schema_id, indexes, body)]
    found = value_type(ValueOptions("protobuf", f"{server.url}/subjects/orders-value/versions/1{name}"))
    assert isinstance(found, StructType)
    assert found.simpleString() == columns


def test_another_message_is_a_bad_row(server: SchemaRegistry) -> None:
    schema_id = orders(server)
    good = prefixed(schema_id, b"\0", ORDER_BYTES)
    bad = {
        prefixed(schema_id, b"\x02\x02", b"\x08\x05"): f"schema {schema_id}: it is a message shop.Refund, and not a shop.Order",
        prefixed(schema_id, b"\x04\0\0", b""): f"schema {schema_id}: it is a message shop.Order.Part, and not a shop.Order",
        prefixed(schema_id, b"\x02\x0a", b""): f"schema {schema_id}: it has no message [5]",
        prefixed(schema_id, b"\x01", b""): "the indexes of its message are not valid",
        prefixed(schema_id, b"", b""): "it ends within the indexes of its message",
        prefixed(1, b"\0", MONEY_BYTES): "schema 1: it is a message common.Money, and not a shop.Order",
        prefixed(99, b"\0", b""): "schema 99: the registry has none of this id",
        prefixed(2**32 - 1, b"\0", b""): f"schema {2**32 - 1}: the registry has none of this id",
        prefixed(schema_id, b"\0", b"\xff"): "Error parsing message",
        b"\0\0": "it does not begin with a zero and the id of a schema",
        b"\x01" + good[1:]: "it does not begin with a zero and the id of a schema",
        ORDER_BYTES: "it does not begin with a zero and the id of a schema",
    }
    codec, kind = opened(server)
    found = decode(codec, kind, good, *bad, good)
    assert [row and row["id"] for row in found.column.to_pylist()] == [7, *[None] * len(bad), 7]
    for row, says in enumerate(bad.values(), 1):
        assert found.bad[row].startswith(says), found.bad[row]


@given(st.binary(max_size=20), st.binary(max_size=30))
def test_no_bytes_end_the_executor(start: bytes, body: bytes) -> None:
    with schema_registry() as server:
        schema_id = server.add_protobuf("orders-value", MONEY)
        codec, kind = opened(server)
        decode(codec, kind, start + body, prefixed(schema_id, start, body), prefixed(schema_id, b"\0", start + body))


OLD = """syntax = "proto3"; package shop; enum Color { RED = 0; BLUE = 1; }
message Order {
  int32 id = 1; string title = 2; string gone = 3; Color color = 4; int64 size = 5; sint32 turned = 6; optional int32 set = 7;
  message Line { int32 n = 1; } repeated Line lines = 8; map<string, Line> by_name = 9; uint32 large = 10; float ratio = 11;
}"""
NEW = """syntax = "proto3"; package shop; enum Color { RED = 0; NAVY = 1; }
message Order {
  int64 id = 1; string name = 2; Color color = 4; int32 size = 5; int32 turned = 6; int32 set = 7;
  message Line { int64 n = 1; string more = 2; } repeated Line lines = 8; map<string, Line> by_name = 9; uint64 large = 10;
  double ratio = 11; string more = 12; Color another = 13; repeated string tags = 14; optional int32 maybe = 15; Line line = 16;
}"""


def test_another_version_has_the_columns_of_the_chosen_one(server: SchemaRegistry) -> None:
    """Fields match by number, as Protobuf's rules say: names may change, and a missing number counts as not set."""
    old, new = server.add_protobuf("orders-value", OLD), server.add_protobuf("orders-value", NEW)
    writer, kind_written = opened(server, version=1)
    values: list[dict[str, Any]] = [
        {"id": 1, "title": "a", "gone": "x", "color": "BLUE", "size": 5, "turned": -3, "set": None, "lines": [{"n": 4}],
         "by_name": [("k", {"n": 6})], "large": 2**32 - 1, "ratio": 0.5},
        {"id": 2, "size": 2**40},
    ]  # fmt: skip
    written = writer.encode(pa.array(values, kind_written))
    assert [value and value[:6] for value in written] == [prefixed(old, b"\0", b"")] * 2
    codec, kind = opened(server)
    found = decode(codec, kind, *(value or b"" for value in written))
    line = {"n": 4, "more": ""}
    assert found.column.to_pylist()[0] == {
        "id": 1, "name": "a", "color": "NAVY", "size": 5, "turned": -3, "set": 0, "lines": [line],
        "by_name": [("k", {"n": 6, "more": ""})], "large": Decimal(2**32 - 1), "ratio": 0.5, "more": "", "another": "RED",
        "tags": [], "maybe": None, "line": None,
    }  # fmt: skip
    assert found.bad.keys() == {1}, "a number that the column does not hold is not cut off"
    (newer,) = codec.encode(pa.array([{"id": 3, "more": "-"}], kind))
    assert newer is not None
    assert newer.startswith(prefixed(new, b"\0", b""))
    refused = {0: f"schema {new}: field 11 of shop.Order, ratio, has another type"}
    assert decode(writer, kind_written, newer).bad == refused, "a double is not rounded to a float"


@pytest.mark.parametrize(
    "field",
    ["string id = 1;", "repeated int64 id = 1;", "Order id = 1;", "double id = 1;", "map<int32, bool> id = 1;", "bool id = 1;"],
)
def test_a_number_with_another_type_is_a_bad_row(server: SchemaRegistry, field: str) -> None:
    """Protobuf's runtime would read such a field as not set."""
    source = 'syntax = "proto3"; package shop; message Order { %s }'
    other, mine = (server.add_protobuf("orders-value", source % one) for one in (field, "int64 id = 1;"))
    codec, kind = opened(server)
    found = decode(codec, kind, prefixed(mine, b"\0", b"\x08\x05"), prefixed(other, b"\0", b""))
    assert found.bad == {1: f"schema {other}: field 1 of shop.Order, id, has another type"}


def test_schemas_that_are_none_are_bad_rows_and_asked_for_once(server: SchemaRegistry) -> None:
    bad = {
        server.add("x", "string"): "it is AVRO",
        server.add_protobuf("x", "messag"): "protoc: toymq-value.proto:1:",
        server.add_protobuf("x", MONEY, ("../x.proto", "common", 1)): "it refers to '../x.proto', which is not a path",
        server.add_protobuf("x", MONEY, ("x.proto", "gone", 1)): "its reference x.proto is not in the registry: gone, ",
        server.register("x", {"schemaType": "JSON", "schema": "{}"}): "it is JSON",
        server.add_protobuf("x", "\ud800"): "",
    }
    mine = server.add_protobuf("orders-value", MONEY)
    codec, kind = opened(server)
    server.requests.clear()
    rows = [prefixed(schema_id, b"\0", b"") for schema_id in bad] * 2
    found = decode(codec, kind, prefixed(mine, b"\0", b""), *rows)
    assert len(found.bad) == len(rows)
    for row, (schema_id, says) in enumerate(bad.items(), 1):
        assert found.bad[row].startswith(f"schema {schema_id}: {says}"), found.bad[row]
    assert sorted(server.requests) == sorted([*(f"/schemas/ids/{schema_id}" for schema_id in bad), "/subjects/gone/versions/1"])


def test_a_registry_that_is_away_makes_no_row_bad() -> None:
    with schema_registry() as server:
        mine = server.add_protobuf("orders-value", MONEY)
        codec, kind = opened(server)
    decode(codec, kind, prefixed(mine, b"\0", b""))
    with pytest.raises(RegistryFailed):
        decode(codec, kind, prefixed(mine + 1, b"\0", b""))


def test_neither_does_a_missing_protoc(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    other = server.add_protobuf("x", 'syntax = "proto3"; message Unread {}')
    server.add_protobuf("orders-value", MONEY)
    codec, kind = opened(server)
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(OptionError, match=r"toymq\[protobuf\]', on every node"):
        decode(codec, kind, prefixed(other, b"\0", b""))


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        ("messag", "", r"orders-value: protoc: toymq-value\.proto:1:1: Expected"),
        ('syntax = "proto3"; import "x.proto"; message M { int32 a = 1; }', "", r"orders-value: protoc: x\.proto: File not"),
        (MONEY, "#Money", r"orders-value: no message 'Money': there are common\.Money"),
        (MONEY, "#google.protobuf.Timestamp", "orders-value: no message"),
        ('syntax = "proto3";', "", "orders-value: there is no message in it"),
        ('syntax = "proto3"; message M { M m = 1; }', "", "orders-value: message M contains itself"),
        ("package google.protobuf; message M { optional Int64Value m = 1; } message Int64Value {}", "", "orders-value: "),
        ("package google.protobuf; message Int64Value { optional Int64Value value = 1; }", "", "orders-value: maximum rec"),
    ],
)  # fmt: skip
def test_a_schema_that_has_no_columns_is_refused_in_one_line(server: SchemaRegistry, source: str, name: str, says: str) -> None:
    server.add_protobuf("orders-value", source)
    with pytest.raises(OptionError, match=rf"^option valueSchema: {says}") as found:
        opened(server, name)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_an_avro_subject_and_a_missing_version_are_refused(server: SchemaRegistry) -> None:
    server.add("orders-value", "string")
    with pytest.raises(OptionError, match="option valueSchema: orders-value is AVRO, and valueFormat=protobuf"):
        opened(server)
    with pytest.raises(OptionError, match="has no version 7 of a subject orders-value"):
        opened(server, version=7)


RAW = pa.schema([pa.field("topic", pa.string(), nullable=False)])


@pytest.mark.parametrize("bad_rows", ["fail", "null", "deadletter"])
def test_bad_rows(server: SchemaRegistry, bad_rows: str) -> None:
    good = prefixed(server.add_protobuf("orders-value", MONEY), b"\0", MONEY_BYTES)
    bad, says = prefixed(9, b"\0", MONEY_BYTES), "schema 9: the registry has none of this id"
    codec, kind = opened(server)
    sent: list[Letter] = []
    typed = TypedRows(codec, RAW.append(pa.field("value", kind)), "orders", bad_rows, sent.extend)
    columns = {"topic": ["orders"] * 2, "value": [good, bad], "offset": [4, 5], "key": [b"a", b"b"], "headers": [None, None]}
    batch = pa.RecordBatch.from_arrays([pa.array(columns[one.name], one.type) for one in typed.raw], schema=typed.raw)
    if bad_rows == "fail":
        with pytest.raises(BadValue, match=f"topic orders, offset 5: value does not fit valueSchema: {says}"):
            list(typed([batch]))
        return
    (found,) = typed([batch])
    money = {"units": 12, "currency": "EUR"}
    assert found.column("value").to_pylist() == ([money, None] if bad_rows == "null" else [money])
    assert sent == ([Letter(5, b"b", bad, None, "value does not fit valueSchema", says)] if bad_rows == "deadletter" else [])
