"""The source's columns, and the schemas that a user may ask for."""

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from toymq_spark.errors import OptionError
from toymq_spark.schema import arrow_schema, check_projection, source_schema


def test_the_columns_are_those_of_sparks_kafka_connector() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert source_schema(include_headers=False).fieldNames() == names
    assert source_schema(include_headers=True).fieldNames() == [*names, "headers"]
    arrow = arrow_schema(source_schema(include_headers=True))
    assert arrow.names == [*names, "headers"]
    assert str(arrow.field("timestamp").type) == "timestamp[us, tz=UTC]"


def test_some_of_the_columns_in_any_order() -> None:
    wanted = StructType([StructField("offset", LongType(), False), StructField("key", BinaryType())])
    check_projection(wanted, include_headers=False)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "the schema has no columns: choose at least one; offset is cheap"),
        ([StructField("color", StringType())], "unknown column color: the source has key, value, topic"),
        ([source_schema(include_headers=True)["headers"]], "unknown column headers without includeHeaders=true"),
        ([StructField("value", StringType())], "column value is binary, not string: read it and cast"),
        ([StructField("key", BinaryType(), False)], "column key may be null: make it nullable in the schema"),
    ],
)
def test_a_schema_that_the_source_cannot_give(fields: list[StructField], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        check_projection(StructType(fields), include_headers=False)
