"""The columns as Spark types, and which schemas a user may ask for."""

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
    """Kafka's columns in Kafka's order."""
    return StructType([*_COLUMNS.fields, StructField("headers", _HEADERS)]) if include_headers else _COLUMNS


def check_projection(wanted: StructType, include_headers: bool) -> None:
    """Raises: OptionError when a schema has a column that the source has not, or has with another type, or has none."""
    if not wanted.fields:
        raise OptionError("the schema has no columns: rows would not be counted; offset alone is read fast")
    columns = {field.name: field for field in source_schema(include_headers)}
    for field in wanted:
        known = columns.get(field.name)
        if known is None:
            hint = " without includeHeaders=true" if field.name == "headers" else ""
            raise OptionError(f"column {field.name} is not known{hint}; known are {', '.join(columns)}")
        if field.dataType != known.dataType:
            raise OptionError(
                f"column {field.name} is {known.dataType.simpleString()}, not {field.dataType.simpleString()}: read it and cast"
            )
        if field.name in _NULLABLE and not field.nullable:
            raise OptionError(f"column {field.name} may be null; the schema says it may not")


def arrow_schema(schema: StructType) -> pa.Schema:
    """What batches must look like, nullability included: Spark compares it."""
    return to_arrow_schema(schema, timezone="UTC")
