"""The source's columns as Spark types, and the check of a user's schema."""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from toymq_spark.errors import OptionError

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_NULLABLE = ("key", "headers")


def source_schema(include_headers: bool) -> StructType:
    """Return the columns of Spark's Kafka connector, in its order."""
    return StructType([*_COLUMNS.fields, StructField("headers", _HEADERS)]) if include_headers else _COLUMNS


def typed_schema(include_headers: bool, kind: StructType | str) -> StructType | str:
    """Return the columns of the source with typed values of type ``kind``; as DDL text, which Spark parses, if ``kind`` is a
    text."""
    columns = source_schema(include_headers)
    if isinstance(kind, StructType):
        return StructType([StructField("value", kind) if field.name == "value" else field for field in columns])
    return ", ".join(f"{field.name} {kind if field.name == 'value' else field.dataType.simpleString()}" for field in columns)


def check_projection(wanted: StructType, include_headers: bool, *, typed: bool = False) -> None:
    """
    Args:
        typed: whether values are structs, whose columns ``values.formats`` checks.

    Raises: OptionError for a schema without columns, an unknown column, or another type.
    """
    if not wanted.fields:
        raise OptionError("the schema has no columns: choose at least one; offset is cheap")
    columns = {field.name: field for field in source_schema(include_headers)}
    for field in wanted:
        known = columns.get(field.name)
        if known is None:
            hint = " without includeHeaders=true" if field.name == "headers" else ""
            raise OptionError(f"unknown column {field.name}{hint}: the source has {', '.join(columns)}")
        if typed and field.name == "value":
            if not field.nullable:
                raise OptionError("column value may be null with valueFormat: make it nullable in the schema")
            continue
        if field.dataType != known.dataType:
            raise OptionError(
                f"column {field.name} is {known.dataType.simpleString()}, not {field.dataType.simpleString()}: read it and cast"
            )
        if field.name in _NULLABLE and not field.nullable:
            raise OptionError(f"column {field.name} may be null: make it nullable in the schema")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches, nullability included."""
    return to_arrow_schema(schema, timezone="UTC")
