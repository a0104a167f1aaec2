"""Protobuf messages as columns, by Google's runtime: C, a row at a time, since Arrow reads no Protobuf.

The schema is a file of descriptors, ``protoc --include_imports --descriptor_set_out=…``, and a message in it. Columns are
those of Spark's ``from_protobuf``: enums are names, a Timestamp is a timestamp, a wrapper its value, uint32 a bigint, uint64 a
decimal. A field that is not set is null where the schema tells that from its default, else the default. So an empty value is a
message of defaults, and no tombstone.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from toymq_spark.values.codec import Decoded, columns_of, reason_of, rows_encoded

_TYPES: Mapping[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(), FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(), FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(), FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(), FieldDescriptor.CPPTYPE_ENUM: StringType(),
    FieldDescriptor.CPPTYPE_STRING: StringType(),
}  # fmt: skip
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(f"google.protobuf.{name}Value" for name in (
    "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes",
))  # fmt: skip
_EPOCH = datetime.fromtimestamp(0, UTC)
_BAD = (ArithmeticError, AttributeError, DecodeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What the runtime raises for bytes that are not of a message, and what their fields may not be."""

Reader = Callable[[Any], Any]
"""From a field's value to a column's; a writer is the inverse."""


def descriptor_of(descriptors: bytes, name: str) -> Descriptor:
    """Raises: ValueError."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except KeyError:
        own = [file for file in files.file if not file.package.startswith("google.protobuf")]
        names = sorted(f"{file.package}.{kind.name}".lstrip(".") for file in own for kind in file.message_type)
        raise ValueError(f"no message {name!r}: there are {', '.join(names)[:200] or 'none'}") from None
    except (DecodeError, TypeError, ValueError):
        raise ValueError("not a whole file of descriptors: protoc --include_imports --descriptor_set_out makes one") from None


def columns(message: Descriptor, within: tuple[str, ...] = ()) -> StructType:
    """Raises: ValueError for a message that contains itself or has no fields."""
    if message.full_name in within:
        raise ValueError(f"message {message.full_name} contains itself, which no column can")
    if not message.fields:
        raise ValueError(f"message {message.full_name} has no fields")
    inside = (*within, message.full_name)
    return StructType([StructField(field.name, _column(field, inside)) for field in message.fields])


def _column(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return MapType(_single(key, within), _single(value, within))
    return ArrayType(_single(field, within)) if field.is_repeated else _single(field, within)


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> DataType:
    message = field.message_type
    if message is not None:
        if message.full_name == _TIMESTAMP:
            return TimestampType()
        if message.full_name in _WRAPPERS:
            return _single(message.fields_by_name["value"], within)
        return columns(message, within)
    return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]


class ProtobufCodec:
    """``name``: of the message, with its package."""

    def __init__(self, descriptors: bytes, name: str) -> None:
        self._descriptors = descriptors
        self._name = name

    def __getstate__(self) -> dict[str, Any]:
        return {"_descriptors": self._descriptors, "_name": self._name}

    def decode(self, values: Sequence[bytes], kind: pa.DataType) -> Decoded:
        rows: list[dict[str, Any] | None] = []
        bad: dict[int, str] = {}
        parse, read = self._class.FromString, self._read
        for row, value in enumerate(values):
            try:
                rows.append(read(parse(value)))
            except _BAD as error:
                rows.append(None)
                bad[row] = reason_of(error)
        return columns_of(rows, kind, bad)

    def encode(self, values: pa.Array) -> list[bytes | None]:
        def write(value: dict[str, Any]) -> bytes:
            message = self._class()
            try:
                _fill(message, value)
                return bytes(message.SerializeToString(deterministic=True))
            except (AttributeError, EncodeError) as error:  # of proto2, without a required field
                raise ValueError(str(error)) from None

        return rows_encoded(values, write)

    @cached_property
    def _class(self) -> type[Message]:
        found: type[Message] = message_factory.GetMessageClass(descriptor_of(self._descriptors, self._name))
        return found

    @cached_property
    def _read(self) -> Reader:
        return _reader_of(self._class.DESCRIPTOR)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _reader_of(message: Descriptor) -> Reader:
    parts = [(field.name, field.has_presence and not field.is_repeated, _field_reader(field)) for field in message.fields]

    def read(found: Any) -> dict[str, Any]:
        return {
            name: read_field(getattr(found, name)) if not optional or found.HasField(name) else None
            for name, optional, read_field in parts
        }

    return read


def _field_reader(field: FieldDescriptor) -> Reader:
    if _is_map(field):
        key, value = (_single_reader(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        return lambda found: [(key(one), value(found[one])) for one in found]
    read = _single_reader(field)
    return (lambda found: [read(one) for one in found]) if field.is_repeated else read


def _single_reader(field: FieldDescriptor) -> Reader:
    message = field.message_type
    if message is not None:
        if message.full_name == _TIMESTAMP:
            return lambda found: _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
        if message.full_name in _WRAPPERS:
            inner = _single_reader(message.fields_by_name["value"])
            return lambda found: inner(found.value)
        return _reader_of(message)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda found: names.get(found, str(found))
    return Decimal if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else lambda found: found


def _fill(message: Any, value: Mapping[str, Any]) -> None:
    """Set the fields that are not null. Raises: ValueError, TypeError."""
    for name, given in value.items():
        if given is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            for key, one in given.items() if isinstance(given, dict) else given:
                _set_entry(getattr(message, name), _plain(field.message_type.fields_by_name["key"], key), inner, one)
        elif field.is_repeated:
            for one in given:
                if one is None:
                    raise ValueError(f"{name} has a null, and a repeated field has none")
                if field.message_type is None:
                    getattr(message, name).append(_plain(field, one))
                else:
                    _fill_message(getattr(message, name).add(), one)
        elif field.message_type is not None:
            getattr(message, name).SetInParent()
            _fill_message(getattr(message, name), given)
        else:
            setattr(message, name, _plain(field, given))


def _set_entry(entries: Any, key: Any, field: FieldDescriptor, value: Any) -> None:
    if value is None:
        raise ValueError("a map has a null value, and a map field has none")
    if field.message_type is None:
        entries[key] = _plain(field, value)
    else:
        _fill_message(entries[key], value)


def _fill_message(message: Any, value: Any) -> None:
    kind = message.DESCRIPTOR.full_name
    if kind == _TIMESTAMP:
        second, since = timedelta(seconds=1), value - _EPOCH
        message.seconds, message.nanos = since // second, (since % second).microseconds * 1000
    elif kind in _WRAPPERS:
        message.value = _plain(message.DESCRIPTOR.fields_by_name["value"], value)
    else:
        _fill(message, value)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"{field.name} is {value!r}, and {field.enum_type.name} has no such name")
        return known.number
    return int(value) if isinstance(value, Decimal) else value
