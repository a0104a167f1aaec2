"""The option ``valueSchema``: loads the schema from a file or a registry; gives its columns, and the codec of its format.

Schemas are loaded on the driver only; the codec has what executors need.
"""

import json
import re
from pathlib import Path

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
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from toymq_py.errors import ConfigError
from toymq_py.text_files import read_bounded, read_text
from toymq_spark.errors import OptionError
from toymq_spark.options import ValueOptions
from toymq_spark.values.codec import Codec, reason_of
from toymq_spark.values.json_codec import JsonCodec
from toymq_spark.values.registry import Registry, subject_of

_PATHS = ("/", "./")
_URL = re.compile("https?://")
_JSON_TYPES = (
    BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType, StringType, DateType,
    TimestampType, TimestampNTZType,
)  # fmt: skip


def value_type(values: ValueOptions) -> StructType | str:
    """Return the type of a value: a struct, or DDL text that Spark parses. Raises: OptionError, RegistryFailed."""
    if values.format != "json":
        return _of_schema(values)[1]
    text = _text(values.schema or "")
    if _URL.match(text):
        raise OptionError("option valueSchema: a registry's JSON Schema is not read: write DDL, or what schema.json() gives")
    if not text.lstrip().startswith("{"):
        return f"struct<{text}>"
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise OptionError("option valueSchema: invalid JSON: write what Spark's schema.json() gives, or DDL") from None


def codec_of(values: ValueOptions, kind: DataType, *, reading: bool) -> Codec:
    """Return the codec for a ``value`` column. Raises: OptionError for a type that the format does not have; RegistryFailed."""
    if not isinstance(kind, StructType):
        raise OptionError(f"column value is {kind.simpleString()}: with valueFormat it is a struct")
    if not kind.fields:
        raise OptionError("column value has no fields")
    if reading:
        _check_nullable(kind, "value")
    if values.format != "json":
        codec, columns = _of_schema(values)
        _check_given(kind, columns)
        return codec
    _check_json(kind, "value")
    return JsonCodec()


def _of_schema(values: ValueOptions) -> tuple[Codec, StructType]:
    """Return the codec and columns for a format whose schema defines the columns (Avro, Protobuf). Raises: OptionError,
    RegistryFailed."""
    return _avro(values) if values.format == "avro" else _protobuf(values)


def _protobuf(values: ValueOptions) -> tuple[Codec, StructType]:
    """Return the codec and columns of a Protobuf schema in a descriptor file or a registry. Raises: OptionError."""
    try:
        from toymq_spark.values import protobuf_codec, protobuf_schema
    except ImportError:
        raise OptionError("option valueFormat: protobuf needs its runtime: pip install 'toymq[protobuf]'") from None
    if _URL.match(values.schema or ""):
        return _registered_protobuf(values)
    path, _, name = (values.schema or "").removeprefix("file://").rpartition("#")
    if not path.startswith(_PATHS):
        raise OptionError(
            "option valueSchema: write /path/of/orders.desc#package.Message, a file of descriptors and a message in it, or "
            "https://REGISTRY/subjects/NAME/versions/latest#package.Message"
        )
    try:
        with Path(path).open("rb") as file:
            descriptors = read_bounded(file, path)
        return protobuf_codec.ProtobufCodec(descriptors, name), protobuf_schema.columns(
            protobuf_schema.descriptor_of(descriptors, name)
        )
    except OSError as error:
        raise OptionError(f"option valueSchema: cannot read {path}: {error.strerror or error}") from None
    except (ConfigError, ValueError) as error:
        raise OptionError(f"option valueSchema: {path}: {error}") from None


def _registered_protobuf(values: ValueOptions) -> tuple[Codec, StructType]:
    """Return the codec and columns of a Protobuf schema in a registry. Raises: OptionError, RegistryFailed, ProtocFailed."""
    from toymq_spark.values import protobuf_codec, protobuf_schema, protobuf_sources

    url, _, name = (values.schema or "").partition("#")
    subject = subject_of(url)
    registry = Registry(subject.base, values.credentials_file)
    schema_id, schema = registry.version(subject, "PROTOBUF")
    try:
        descriptors = protobuf_codec.descriptors_of(schema, registry)
        message = protobuf_schema.message_in(protobuf_schema.file_of(descriptors, protobuf_sources.MAIN), name)
        columns = protobuf_schema.columns(message)
    except (LookupError, RuntimeError, ValueError) as error:  # the first two of what is called as Google's types are
        raise OptionError(f"option valueSchema: {subject.name}: {reason_of(error)}") from None
    return protobuf_codec.ProtobufCodec(descriptors, message.full_name, registry, schema_id), columns


def _avro(values: ValueOptions) -> tuple[Codec, StructType]:
    """Return the codec and columns of an Avro schema. Raises: OptionError, RegistryFailed."""
    try:
        from toymq_spark.values import avro_codec, avro_schema
    except ImportError:
        raise OptionError("option valueFormat: avro needs fastavro: pip install 'toymq[avro]'") from None
    text, registry, schema_id = _text(values.schema or ""), None, 0
    if _URL.match(text):
        subject = subject_of(text)
        registry = Registry(subject.base, values.credentials_file)
        schema_id, schema = registry.version(subject, "AVRO")
        text = schema.text
    try:
        columns = avro_schema.columns(*avro_schema.parsed(text))
    except ValueError as error:
        raise OptionError(f"option valueSchema: {error}") from None
    return avro_codec.AvroCodec(text, registry, schema_id), columns


def _check_given(kind: StructType, columns: StructType) -> None:
    """Check that the columns of a DataFrame fit a schema; nullable ones may be missing. Raises: OptionError."""
    known = {field.name: field.dataType.simpleString() for field in columns}
    for field in kind:
        found = field.dataType.simpleString()
        if field.name not in known:
            raise OptionError(f"column value.{field.name} is not in the schema, which has {', '.join(known)}")
        if found != known[field.name]:
            raise OptionError(f"column value.{field.name} is {found}, and {known[field.name]} by the schema: cast it")


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
        case MapType():
            if not kind.valueContainsNull:
                raise OptionError(f"column {place} is a map without nulls, and any value may have them: allow nulls")
            _check_nullable(kind.valueType, place)
        case _:
            pass


def _text(given: str) -> str:
    """Return the text of a schema; if a path is given, that of the file. Raises: OptionError."""
    path = given.removeprefix("file://")
    if not path.startswith(_PATHS):
        return given
    try:
        return read_text(path, "valueSchema")
    except ConfigError as error:
        raise OptionError(f"option valueSchema: {error}") from None
