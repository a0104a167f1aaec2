"""Protobuf messages as columns: round trips, defaults, and hostile bytes."""

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from toymq_spark.errors import OptionError
from toymq_spark.options import ValueOptions
from toymq_spark.values.codec import Decoded, Unencodable
from toymq_spark.values.formats import codec_of, value_type

pytest.importorskip("google.protobuf")
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

from toymq_spark.values.protobuf_codec import ProtobufCodec
from toymq_spark.values.protobuf_schema import columns, descriptor_of

FIELD = descriptor_pb2.FieldDescriptorProto
ONE, MANY = FIELD.LABEL_OPTIONAL, FIELD.LABEL_REPEATED


def a_file() -> Any:
    """Return protoc's output for a file with all types."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.enum_type.add(name="Status").value.extend(
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate(("NEW", "PAID"))
    )
    part = file.message_type.add(name="Part")
    part.field.add(name="sku", number=1, type=FIELD.TYPE_STRING, label=ONE)
    order = file.message_type.add(name="Order")
    fields = (
        ("id", FIELD.TYPE_INT64, ONE, ""), ("small", FIELD.TYPE_UINT32, ONE, ""), ("large", FIELD.TYPE_UINT64, ONE, ""),
        ("name", FIELD.TYPE_STRING, ONE, ""), ("raw", FIELD.TYPE_BYTES, ONE, ""), ("ratio", FIELD.TYPE_DOUBLE, ONE, ""),
        ("paid", FIELD.TYPE_BOOL, ONE, ""), ("status", FIELD.TYPE_ENUM, ONE, ".shop.Status"),
        ("at", FIELD.TYPE_MESSAGE, ONE, ".google.protobuf.Timestamp"),
        ("maybe", FIELD.TYPE_MESSAGE, ONE, ".google.protobuf.Int64Value"), ("part", FIELD.TYPE_MESSAGE, ONE, ".shop.Part"),
        ("parts", FIELD.TYPE_MESSAGE, MANY, ".shop.Part"), ("tags", FIELD.TYPE_STRING, MANY, ""),
        ("counts", FIELD.TYPE_MESSAGE, MANY, ".shop.Order.CountsEntry"),
    )  # fmt: skip
    for number, (name, kind, label, type_name) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=ONE)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_INT32, label=ONE)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=FIELD.TYPE_MESSAGE, label=ONE, type_name=".shop.Node")
    file.message_type.add(name="Empty")
    found = descriptor_pb2.FileDescriptorSet()
    for needed in (timestamp_pb2, wrappers_pb2):
        needed.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


DESCRIPTORS = a_file().SerializeToString()
ORDER = columns(descriptor_of(DESCRIPTORS, "shop.Order"))
KIND = to_arrow_type(ORDER, timezone="UTC")
CODEC = ProtobufCodec(DESCRIPTORS, "shop.Order")
DEFAULTS = {
    "id": 0, "small": 0, "large": Decimal(0), "name": "", "raw": b"", "ratio": 0.0, "paid": False, "status": "NEW", "at": None,
    "maybe": None, "part": None, "parts": [], "tags": [], "counts": [],
}  # fmt: skip
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.fixed_dictionaries({
    "id": st.integers(-(2**63), 2**63 - 1), "small": st.integers(0, 2**32 - 1),
    "large": st.integers(0, 2**64 - 1).map(Decimal), "name": TEXT, "raw": st.binary(max_size=5),
    "ratio": st.floats(allow_nan=False), "paid": st.booleans(), "status": st.sampled_from(["NEW", "PAID"]),
    "at": st.none() | st.datetimes().map(lambda at: at.replace(tzinfo=UTC)),
    "maybe": st.none() | st.integers(-5, 5), "part": st.none() | st.fixed_dictionaries({"sku": TEXT}),
    "parts": st.lists(st.fixed_dictionaries({"sku": TEXT}), max_size=2), "tags": st.lists(TEXT, max_size=2),
    "counts": st.dictionaries(TEXT, st.integers(-9, 9), max_size=1).map(lambda found: list(found.items())),
})  # fmt: skip


def decode(*values: bytes) -> Decoded:
    decoded = CODEC.decode(values, KIND)
    assert len(decoded.column) == len(values)
    assert all(not decoded.column[row].is_valid for row in decoded.bad)
    decoded.column.validate(full=True)
    return decoded


def test_columns() -> None:
    assert ORDER.simpleString() == (
        "struct<id:bigint,small:bigint,large:decimal(20,0),name:string,raw:binary,ratio:double,paid:boolean,status:string,"
        "at:timestamp,maybe:bigint,part:struct<sku:string>,parts:array<struct<sku:string>>,tags:array<string>,"
        "counts:map<string,int>>"
    )


@given(st.lists(VALUES, max_size=3))
def test_what_a_sink_writes_a_source_reads(values: list[dict[str, Any]]) -> None:
    column = pa.array(values, KIND)
    written = CODEC.encode(column)
    decoded = decode(*(value or b"" for value in written))
    assert (decoded.bad, decoded.column.to_pylist()) == ({}, column.to_pylist())
    assert CODEC.encode(column) == written, "a batch that is run again has the same bytes"


GOOD = CODEC.encode(pa.array([DEFAULTS | {"id": 7, "tags": ["a"], "at": datetime.fromtimestamp(1, UTC)}], KIND))[0] or b""


@given(st.binary(max_size=40) | st.builds(lambda cut, more: GOOD[:cut] + more, st.integers(0, 20), st.binary(max_size=20)))
def test_no_bytes_end_the_executor(value: bytes) -> None:
    decode(value)


def test_an_empty_value_is_a_message_and_a_null_is_not() -> None:
    assert decode(b"").column.to_pylist() == [DEFAULTS]
    assert CODEC.encode(pa.array([None, dict.fromkeys(DEFAULTS)], KIND)) == [None, b""]


@pytest.mark.parametrize(
    "value",
    [
        GOOD[:-1],
        b"\xff" * 20,
        b"\x22\x02\xff\xfe",  # name, not UTF-8
        b"\x4a\x0a\x08" + b"\xff" * 8 + b"\x7f",  # at, in a year that no timestamp has
    ],
)
def test_a_bad_value_is_one_bad_row(value: bytes) -> None:
    decoded = decode(GOOD, value, GOOD)
    assert decoded.bad.keys() == {1}
    assert [row and row["id"] for row in decoded.column.to_pylist()] == [7, None, 7]


def test_an_enum_that_is_not_known_is_its_number() -> None:
    assert decode(b"\x40\x05").column[0].as_py()["status"] == "5"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"small": 2**32}, "out of range"),
        ({"status": "LOST"}, "status is 'LOST', and Status has no such name"),
        ({"tags": ["a", None]}, "tags has a null, and a repeated field has none"),
        ({"counts": [("a", None)]}, "a map has a null value"),
    ],
)
def test_what_a_message_cannot_carry_is_refused_with_its_row(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Unencodable, match=says) as found:
        CODEC.encode(pa.array([DEFAULTS, DEFAULTS | change], KIND))
    assert found.value.row == 1


def test_the_codec_is_pickled_to_executors() -> None:
    far = datetime.fromtimestamp(0, UTC) - timedelta(days=1, microseconds=1)
    column = pa.array([DEFAULTS | {"at": far}], KIND)
    codec = pickle.loads(pickle.dumps(CODEC))
    assert codec.decode(codec.encode(column), KIND).column == column


def test_the_option_names_a_file_and_a_message(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(DESCRIPTORS)
    values = ValueOptions("protobuf", f"{tmp_path}/shop.desc#shop.Order")
    assert value_type(values) == ORDER
    assert isinstance(codec_of(values, ORDER, reading=True), ProtobufCodec)
    (tmp_path / "alone.desc").write_bytes(a_file().file[2].SerializeToString())
    (tmp_path / "text.proto").write_text('syntax = "proto3";')
    for schema, says in (
        ("shop.Order", "write /path/of/orders.desc#package.Message"),
        ("https://r/subjects/a/versions/new#shop.Order", "invalid URL https://r/subjects/a/versions/new: write https://REGISTRY"),
        ("/none.desc#a", "cannot read /none.desc: No such file"),
        (f"{tmp_path}/shop.desc#shop.Gone", "no message 'shop.Gone': there are .*shop.Order"),
        (f"{tmp_path}/text.proto#shop.Order", "not a whole file of descriptors"),
        (f"{tmp_path}/alone.desc#shop.Order", "not a whole file of descriptors|no message"),
        (f"{tmp_path}/shop.desc#shop.Node", "message shop.Node contains itself"),
        (f"{tmp_path}/shop.desc#shop.Empty", "message shop.Empty has no fields"),
    ):
        with pytest.raises(OptionError, match=f"option valueSchema: .*{says}"):
            value_type(ValueOptions("protobuf", schema))
