"""Converts Avro schemas to columns, and refuses schemas with which hostile bytes could do harm. Knows fastavro's parsed form.

Only a union of null and one type can be a column. Logical types that Spark does not have (uuid, time of day, duration) are read
as their underlying types.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from toymq_spark.values.codec import COLUMNS_MAX

_PLAIN: Mapping[str, DataType] = {
    "boolean": BooleanType(), "int": IntegerType(), "long": LongType(), "float": FloatType(), "double": DoubleType(),
    "bytes": BinaryType(), "string": StringType(), "enum": StringType(), "fixed": BinaryType(),
}  # fmt: skip
_LOGICAL: Mapping[tuple[str, str], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_SIZES = {"null": 0, "float": 4, "double": 8}
_DECIMAL_DIGITS_MAX = 38
_PARTS_MAX = 10 * COLUMNS_MAX
"""A column that may be null has three."""

Schema = Any
"""A JSON document."""


def parsed(text: str) -> tuple[Schema, dict[str, Schema]]:
    """Parse a schema. Returns: the schema with full names, and its named types. Raises: ValueError."""
    names: dict[str, Schema] = {}
    try:
        found = fastavro.parse_schema(_without_unknown(json.loads(text)), named_schemas=names)
        least_size(found, names)
    except (SchemaParseException, UnknownType, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"invalid Avro schema: {error}") from None
    return found, names


def columns(schema: Schema, names: Mapping[str, Schema]) -> StructType:
    """Return the columns for a record. Raises: ValueError for a type that Spark does not have."""
    found = _type(schema, names, "value")
    if not isinstance(found, StructType):
        raise ValueError(f"the schema is {found.simpleString()}: a record has columns")  # noqa: TRY004
    return found


def least_size(schema: Schema, names: Mapping[str, Schema]) -> int:
    """Return the fewest bytes that a value of the schema can have.

    Raises: ValueError for a type that contains itself (hostile bytes could nest it until the stack overflows), for an array
        whose items may have no bytes (ten bytes could stand for any number of items), and for too many parts (which may need no
        bytes at all).
    """
    return _least_size(schema, names, (), count(1))


def _least_size(schema: Schema, names: Mapping[str, Schema], within: tuple[str, ...], counted: Iterator[int]) -> int:
    if next(counted) > _PARTS_MAX:
        raise ValueError(f"the schema has more than {_PARTS_MAX} parts")
    if isinstance(schema, list):
        for branch in schema:
            _least_size(branch, names, within, counted)
        return 1
    if isinstance(schema, str):
        if schema not in names:
            return _SIZES.get(schema, 1)
        if schema in within:
            raise ValueError(f"type {schema} contains itself")
        schema = names[schema]
    kind = schema["type"]
    match kind:
        case "record" | "error":
            inside = (*within, schema["name"])
            return sum(_least_size(field["type"], names, inside, counted) for field in schema["fields"])
        case "array":
            if _least_size(schema["items"], names, within, counted) == 0:
                raise ValueError("an array has items without bytes")
            return 1
        case "map":
            _least_size(schema["values"], names, within, counted)
            return 1
        case "fixed":
            return int(schema["size"])
        case "enum":
            return 1
        case _:
            return _least_size(kind, names, within, counted)


def _type(schema: Schema, names: Mapping[str, Schema], place: str) -> DataType:
    if isinstance(schema, list):
        others = [branch for branch in schema if _name(branch) != "null"]
        if len(others) != 1:
            raise ValueError(f"{place} is a union of {', '.join(map(_name, schema))}: only those of null and one type are read")
        return _type(others[0], names, place)
    if isinstance(schema, str):
        if schema in names:
            return _type(names[schema], names, place)
        if schema not in _PLAIN:
            raise ValueError(f"{place} is {schema}, which has no type in Spark")
        return _PLAIN[schema]
    kind, logical = schema["type"], schema.get("logicalType")
    match kind:
        case "record" | "error":
            if not schema["fields"]:
                raise ValueError(f"{place} is a record without fields")
            return StructType([
                StructField(field["name"], _type(field["type"], names, f"{place}.{field['name']}"))
                for field in schema["fields"]
            ])  # fmt: skip
        case "array":
            return ArrayType(_type(schema["items"], names, place))
        case "map":
            return MapType(StringType(), _type(schema["values"], names, place))
        case "bytes" | "fixed" if logical == "decimal":
            digits, scale = schema["precision"], schema.get("scale", 0)
            if digits > _DECIMAL_DIGITS_MAX:
                raise ValueError(f"{place} is a decimal of {digits} digits: Spark has {_DECIMAL_DIGITS_MAX}")
            return DecimalType(digits, scale)
        case str() if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        case "enum" | "fixed":
            return _PLAIN[kind]
        case _:
            return _type(kind, names, place)


def _name(branch: Schema) -> str:
    return branch if isinstance(branch, str) else str(branch.get("name") or branch["type"])


def _without_unknown(schema: Schema) -> Schema:
    """Remove the logical types that are read as their underlying types."""
    if isinstance(schema, list):
        return [_without_unknown(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    kind, logical = str(found.get("type")), str(found.get("logicalType"))
    if logical != "decimal" and (kind, logical) not in _LOGICAL:
        found.pop("logicalType", None)
    for part in ("type", "items", "values"):
        if isinstance(found.get(part), (dict, list)):
            found[part] = _without_unknown(found[part])
    if isinstance(found.get("fields"), list):
        found["fields"] = [_without_unknown(field) for field in found["fields"]]
    return found
