"""The option valueSchema: DDL, Spark's JSON, files; and types that a format does not support."""

from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from toymq_spark.errors import OptionError
from toymq_spark.options import ValueOptions
from toymq_spark.values.formats import codec_of, value_type
from toymq_spark.values.json_codec import JsonCodec

ORDER = StructType([StructField("id", LongType()), StructField("tags", ArrayType(StringType()))])


def json_options(schema: str) -> ValueOptions:
    return ValueOptions("json", schema)


def test_ddl_is_left_to_spark_and_its_own_json_is_not(tmp_path: Path) -> None:
    assert value_type(json_options("id BIGINT, tags ARRAY<STRING>")) == "struct<id BIGINT, tags ARRAY<STRING>>"
    assert value_type(json_options(ORDER.json())) == ORDER
    for name, text, expected in (("order.ddl", "id BIGINT", "struct<id BIGINT>"), ("order.json", ORDER.json(), ORDER)):
        (tmp_path / name).write_text(text)
        assert value_type(json_options(str(tmp_path / name))) == expected
        assert value_type(json_options(f"file://{tmp_path / name}")) == expected


@pytest.mark.parametrize("text", ["{", '{"type": "struct"}', '{"type": "struct", "fields": [1]}', '{"a":' * 100_000])
def test_json_that_is_not_a_schema_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"option valueSchema: invalid JSON: write what Spark's schema.json\(\) gives"):
        value_type(json_options(text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "gone.ddl"
    with pytest.raises(OptionError, match=f"option valueSchema: cannot read valueSchema {missing}: No such file"):
        value_type(json_options(str(missing)))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(OptionError, match="is not UTF-8"):
        value_type(json_options(str(tmp_path / "latin")))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (BinaryType(), "column value is binary: with valueFormat it is a struct"),
        (StructType([]), "column value has no fields"),
        (StructType([StructField("b", BinaryType())]), "column value.b is binary, which valueFormat=json does not"),
        (StructType([StructField("m", MapType(StringType(), LongType()))]), "column value.m is map<string,bigint>, which"),
        (StructType([StructField("n", LongType(), False)]), "column value.n is NOT NULL, and any value may lack it"),
        (StructType([StructField("l", ArrayType(LongType(), False))]), "column value.l is an array without nulls"),
        (StructType([StructField("l", ArrayType(StructType([])))]), "column value.l has no fields"),
    ],
)
def test_a_column_that_json_does_not_have_is_named(kind: DataType, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        codec_of(json_options("-"), kind, reading=True)


def test_a_column_that_json_has() -> None:
    kind = StructType([*ORDER.fields, StructField("sum", DecimalType(12, 2)), StructField("day", DateType())])
    assert isinstance(codec_of(json_options("-"), kind, reading=True), JsonCodec)


def test_a_sink_takes_columns_that_are_never_null() -> None:
    kind = StructType([StructField("n", LongType(), False), StructField("l", ArrayType(LongType(), False))])
    assert isinstance(codec_of(json_options("-"), kind, reading=False), JsonCodec)
    with pytest.raises(OptionError, match=r"column value\.n is NOT NULL"):
        codec_of(json_options("-"), kind, reading=True)
