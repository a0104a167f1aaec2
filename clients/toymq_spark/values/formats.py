"""The option ``valueSchema``: where it is from, the columns that it gives, and the codec of its format.

Read on the driver only; what executors need is in the codec.
"""

import json

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from toymq_py.errors import ConfigError
from toymq_py.text_files import read_text
from toymq_spark.errors import OptionError
from toymq_spark.options import ValueOptions
from toymq_spark.values.codec import Codec
from toymq_spark.values.json_codec import JsonCodec

_JSON_TYPES = (
    BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType, StringType, DateType,
    TimestampType, TimestampNTZType,
)  # fmt: skip


def value_type(values: ValueOptions) -> StructType | str:
    """Columns of a value: a type, or the text of one that Spark parses. Raises: OptionError."""
    text = _text(values.schema or "")
    if not text.lstrip().startswith("{"):
        return f"struct<{text}>"
    try:
        found = StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise OptionError("option valueSchema: invalid JSON: write what Spark's schema.json() gives, or DDL") from None
    return found


def codec_of(values: ValueOptions, kind: DataType, *, reading: bool) -> Codec:
    """The codec of a ``value`` column. Raises: OptionError for a type that the format does not have."""
    if not isinstance(kind, StructType):
        raise OptionError(f"column value is {kind.simpleString()}: with valueFormat it is a struct")
    _check_json(kind, "value")
    if reading:
        _check_nullable(kind, "value")
    return JsonCodec()


def _check_json(kind: DataType, place: str) -> None:
    match kind:
        case StructType():
            if not kind.fields:
                raise OptionError(f"column {place} has no fields")
            for field in kind:
                _check_json(field.dataType, f"{place}.{field.name}")
        case ArrayType():
            _check_json(kind.elementType, place)
        case _:
            if not isinstance(kind, _JSON_TYPES):
                remedy = "which valueFormat=json does not read or write: make it a string"
                raise OptionError(f"column {place} is {kind.simpleString()}, {remedy}")


def _check_nullable(kind: DataType, place: str) -> None:
    match kind:
        case StructType():
            for field in kind:
                if not field.nullable:
                    raise OptionError(f"column {place}.{field.name} is NOT NULL, and any value may lack it: make it nullable")
                _check_nullable(field.dataType, f"{place}.{field.name}")
        case ArrayType():
            if not kind.containsNull:
                raise OptionError(f"column {place} is an array without nulls, and any value may have them: allow nulls")
            _check_nullable(kind.elementType, place)
        case _:
            pass


def _text(given: str) -> str:
    """The schema itself: a path is read. Raises: OptionError."""
    path = given.removeprefix("file://")
    if not path.startswith(("/", "./")):
        return given
    try:
        return read_text(path, "valueSchema")
    except ConfigError as error:
        raise OptionError(f"option valueSchema: {error}") from None
