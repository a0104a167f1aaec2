"""Converts Protobuf messages to columns with Google's runtime, in C but row by row, since Arrow cannot read Protobuf.

The schema is a set of descriptors (a file of ``protoc --include_imports --descriptor_set_out=…``, or compiled from the source
that a registry has) and a message in it. An unset field is null if its schema distinguishes that from the default value, else
it has the default. So an empty value is a message with defaults, and not a tombstone.

With a schema registry a value begins with a zero byte, the id of the writer's schema, and the indexes of its message in that
schema, as Kafka's serializers write them; there an empty value is a tombstone. The message is decoded by the writer's schema; a
column gets the field with the same field number.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from toymq_spark.values.codec import Decoded, columns_of, reason_of, rows_encoded
from toymq_spark.values.protobuf_schema import (
    TIMESTAMP,
    WRAPPERS,
    descriptor_of,
    file_of,
    indexes_of,
    is_map,
    message_at,
    read_indexes,
    written_indexes,
)
from toymq_spark.values.protobuf_sources import MAIN, sources_of
from toymq_spark.values.protoc import compiled
from toymq_spark.values.registry import PREFIX_BYTES, SCHEMAS_MAX, Registry, Schema

_EPOCH = datetime.fromtimestamp(0, UTC)
_BAD = (ArithmeticError, AttributeError, DecodeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What the runtime raises for bytes that are not of a message, and what their fields may not be."""
_INTEGERS = frozenset((
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64,
))  # fmt: skip

Reader = Callable[[Any], Any]
"""From a field's value to a column's; a writer is the inverse."""


class ProtobufCodec:
    """Encodes and decodes Protobuf messages.

    Args:
        name: full name of the message, with its package.
        registry: has the schemas that values were written with; None for values without a prefix.
        schema_id: the id of ``descriptors`` in the registry, which a sink writes.
    """

    def __init__(self, descriptors: bytes, name: str, registry: Registry | None = None, schema_id: int = 0) -> None:
        self._descriptors = descriptors
        self._name = name
        self._registry = registry
        self._schema_id = schema_id
        self._files: dict[int, FileDescriptor | str] = {}
        self._readers: dict[tuple[int, tuple[int, ...]], Reader | str] = {}

    def __reduce__(self) -> tuple[type["ProtobufCodec"], tuple[bytes, str, Registry | None, int]]:
        return ProtobufCodec, (self._descriptors, self._name, self._registry, self._schema_id)

    def decode(self, values: Sequence[bytes], kind: pa.DataType) -> Decoded:
        """Decode values to a column of structs; see ``Codec``. Raises: RegistryFailed, ProtocFailed; OptionError where there is
        no protoc."""
        rows: list[dict[str, Any] | None] = []
        bad: dict[int, str] = {}
        parse, read = self._class.FromString, self._read
        prefix, more, registry = self._prefix, len(self._prefix), self._registry
        for row, value in enumerate(values):
            try:
                if registry is None:
                    rows.append(read(parse(value)))
                elif value.startswith(prefix):
                    rows.append(read(parse(value[more:])))
                else:
                    rows.append(self._prefixed(value, registry) if value else None)
            except _BAD as error:
                rows.append(None)
                bad[row] = reason_of(error)
        return columns_of(rows, kind, bad)

    def encode(self, values: pa.Array) -> list[bytes | None]:
        prefix = self._prefix

        def write(value: dict[str, Any]) -> bytes:
            message = self._class()
            try:
                _fill(message, value)
                return prefix + bytes(message.SerializeToString(deterministic=True))
            except (AttributeError, EncodeError) as error:  # of proto2, without a required field
                raise ValueError(str(error)) from None

        return rows_encoded(values, write)

    @cached_property
    def _class(self) -> type[Message]:
        found: type[Message] = message_factory.GetMessageClass(descriptor_of(self._descriptors, self._name))
        return found

    @cached_property
    def _read(self) -> Reader:
        return _reader_of(self._class.DESCRIPTOR, self._class.DESCRIPTOR)

    @cached_property
    def _prefix(self) -> bytes:
        if self._registry is None:
            return b""
        return b"\0%b%b" % (self._schema_id.to_bytes(4, "big"), written_indexes(indexes_of(self._class.DESCRIPTOR)))

    def _prefixed(self, value: bytes, registry: Registry) -> dict[str, Any]:
        """Decode a value with a prefix, which another schema, or another message, may have been written with."""
        if len(value) < PREFIX_BYTES or value[0]:
            raise ValueError("it does not begin with a zero and the id of a schema")
        schema_id = int.from_bytes(value[1:PREFIX_BYTES], "big")
        indexes, start = read_indexes(value, PREFIX_BYTES)
        read = self._readers.get((schema_id, indexes))
        if read is None:
            if len(self._readers) >= SCHEMAS_MAX:
                self._readers.clear()
            try:
                read = self._reader(schema_id, indexes, registry)
            except (LookupError, ValueError) as error:
                read = f"schema {schema_id}: {reason_of(error)}"
            self._readers[schema_id, indexes] = read
        if isinstance(read, str):
            raise ValueError(read)  # noqa: TRY004 (the schema is wrong, not a type)
        found: dict[str, Any] = read(value[start:])
        return found

    def _reader(self, schema_id: int, indexes: tuple[int, ...], registry: Registry) -> Reader:
        """Return a function from a writer's bytes to columns. Raises: ValueError when they cannot be read, RegistryFailed,
        ProtocFailed, OptionError."""
        message = message_at(self._file(schema_id, registry), indexes)
        if message.full_name != self._name:
            raise ValueError(f"it is a message {message.full_name}, and not a {self._name}")
        parse, read = message_factory.GetMessageClass(message).FromString, _reader_of(message, self._class.DESCRIPTOR)
        return lambda value: read(parse(value))

    def _file(self, schema_id: int, registry: Registry) -> FileDescriptor:
        """Return the compiled schema with an id. Raises: as ``_reader``."""
        found = self._files.get(schema_id)
        if found is None:
            if len(self._files) >= SCHEMAS_MAX:
                self._files.clear()
            try:
                found = self._class.DESCRIPTOR.file if schema_id == self._schema_id else _file_of(schema_id, registry)
            except ValueError as error:
                found = str(error)
            self._files[schema_id] = found
        if isinstance(found, str):
            raise ValueError(found)  # noqa: TRY004 (the schema is wrong, not a type)
        return found


def descriptors_of(schema: Schema, registry: Registry) -> bytes:
    """Compile a registry's Protobuf schema. Raises: ValueError, RegistryFailed, ProtocFailed, OptionError."""
    return compiled(tuple(sources_of(registry, schema).items()), MAIN)


def _file_of(schema_id: int, registry: Registry) -> FileDescriptor:
    known = registry.schema(schema_id)
    if known is None:
        raise ValueError("the registry has none of this id")
    if known.kind != "PROTOBUF":
        raise ValueError(f"it is {known.kind}")
    return file_of(descriptors_of(known, registry), MAIN)


def _reader_of(message: Descriptor, wanted: Descriptor) -> Reader:
    """Return a function from a message to the columns of ``wanted``, its own type or another version of it; fields are matched
    by their numbers.

    Raises: ValueError when a field number has another type in ``wanted``.
    """
    parts: list[tuple[str, str, bool, Any, Reader]] = []
    missing: dict[str, Any] = {}
    for field in wanted.fields:
        unset = None if field.has_presence and not field.is_repeated else _default(field)
        own = message.fields_by_number.get(field.number)
        if own is None:
            missing[field.name] = unset
        else:
            parts.append((own.name, field.name, own.has_presence and not own.is_repeated, unset, _field_reader(own, field)))

    def read(found: Any) -> dict[str, Any]:
        return {
            name: read_field(getattr(found, own)) if not optional or found.HasField(own) else unset
            for own, name, optional, unset, read_field in parts
        }

    return (lambda found: read(found) | missing) if missing else read


def _default(field: FieldDescriptor) -> Any:
    return [] if field.is_repeated else _field_reader(field, field)(field.default_value)


def _field_reader(field: FieldDescriptor, wanted: FieldDescriptor) -> Reader:
    if (is_map(field), field.is_repeated) != (is_map(wanted), wanted.is_repeated):
        raise _another(wanted)
    if is_map(field):
        key, value = (
            _single_reader(field.message_type.fields_by_name[name], wanted.message_type.fields_by_name[name])
            for name in ("key", "value")
        )
        return lambda found: [(key(one), value(found[one])) for one in found]
    read = _single_reader(field, wanted)
    return (lambda found: [read(one) for one in found]) if field.is_repeated else read


def _single_reader(field: FieldDescriptor, wanted: FieldDescriptor) -> Reader:
    message, into = field.message_type, wanted.message_type
    if message is not None and into is not None:
        special = {message.full_name, into.full_name} & {TIMESTAMP, *WRAPPERS}
        if special and message.full_name != into.full_name:
            raise _another(wanted)
        if into.full_name == TIMESTAMP:
            return lambda found: _EPOCH + timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)
        if into.full_name in WRAPPERS:
            inner = _single_reader(message.fields_by_name["value"], into.fields_by_name["value"])
            return lambda found: inner(found.value)
        return _reader_of(message, into)
    own, kind = field.cpp_type, wanted.cpp_type
    widened = own == FieldDescriptor.CPPTYPE_FLOAT and kind == FieldDescriptor.CPPTYPE_DOUBLE
    if own != kind and not widened and not {own, kind} <= _INTEGERS:
        raise _another(wanted)
    if wanted.enum_type is not None:
        kinds = (field.enum_type, wanted.enum_type)
        names = {number: value.name for one in kinds for number, value in one.values_by_number.items()}
        return lambda found: names.get(found, str(found))
    return Decimal if kind == FieldDescriptor.CPPTYPE_UINT64 else lambda found: found


def _another(wanted: FieldDescriptor) -> ValueError:
    return ValueError(f"field {wanted.number} of {wanted.containing_type.full_name}, {wanted.name}, has another type")


def _fill(message: Any, value: Mapping[str, Any]) -> None:
    """Set the fields of a message that are not null in ``value``. Raises: ValueError, TypeError."""
    for name, given in value.items():
        if given is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if is_map(field):
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
    if kind == TIMESTAMP:
        second, since = timedelta(seconds=1), value - _EPOCH
        message.seconds, message.nanos = since // second, (since % second).microseconds * 1000
    elif kind in WRAPPERS:
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
