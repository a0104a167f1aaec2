"""Protobuf schemas: descriptors, the columns that they give, and the indexes by which Kafka's serializers name a message.

The column types are those of Spark's ``from_protobuf``: an enum is its name, a Timestamp a timestamp, a wrapper its value,
uint32 a bigint, uint64 a decimal.
"""

from collections.abc import Iterator, Mapping
from itertools import count

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError
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

from toymq_spark.values.codec import COLUMNS_MAX

_TYPES: Mapping[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(), FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(), FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(), FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(), FieldDescriptor.CPPTYPE_ENUM: StringType(),
    FieldDescriptor.CPPTYPE_STRING: StringType(),
}  # fmt: skip
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(f"google.protobuf.{name}Value" for name in (
    "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes",
))  # fmt: skip
_INDEXES_MAX = 32
_VARINT_BYTES_MAX = 5


def descriptor_of(descriptors: bytes, name: str) -> Descriptor:
    """Return the descriptor of a message in a descriptor set. Raises: ValueError."""
    pool, files = _pool(descriptors)
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        own = [file for file in files.file if not file.package.startswith("google.protobuf")]
        names = sorted(f"{file.package}.{kind.name}".lstrip(".") for file in own for kind in file.message_type)
        raise ValueError(f"no message {name!r}: there are {', '.join(names)[:200] or 'none'}") from None


def file_of(descriptors: bytes, name: str) -> FileDescriptor:
    """Return the descriptor of a ``.proto`` file in a descriptor set. Raises: ValueError."""
    return _pool(descriptors)[0].FindFileByName(name)


def _pool(descriptors: bytes) -> tuple[descriptor_pool.DescriptorPool, descriptor_pb2.FileDescriptorSet]:
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError, ValueError):
        raise ValueError("not a whole file of descriptors: protoc --include_imports --descriptor_set_out makes one") from None
    return pool, files


def message_in(file: FileDescriptor, name: str) -> Descriptor:
    """Return the message with a full name, or the first message of the file without a name. Raises: ValueError."""
    known = list(_messages(file))
    for message in known:
        if name in ("", message.full_name):
            return message
    names = ", ".join(message.full_name for message in known)[:200]
    raise ValueError(f"no message {name!r}: there are {names}" if known else "there is no message in it")


def _messages(parent: FileDescriptor | Descriptor) -> Iterator[Descriptor]:
    for message in _declared(parent):
        yield message
        yield from _messages(message)


def _declared(parent: FileDescriptor | Descriptor) -> list[Descriptor]:
    """Return the declared messages in their order, without map entries, which protoc generates, and which Kafka's serializers
    do not count."""
    found = parent.message_types_by_name.values() if isinstance(parent, FileDescriptor) else parent.nested_types
    return [message for message in found if not message.GetOptions().map_entry]


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """Return where a message is declared: ``(1, 0)`` is the first message within the second one of its file."""
    outer = message.containing_type
    if outer is None:
        return (_declared(message.file).index(message),)
    return (*indexes_of(outer), _declared(outer).index(message))


def message_at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    """Return the message at ``indexes``, the inverse of ``indexes_of``. Raises: ValueError."""
    found: FileDescriptor | Descriptor = file
    for index in indexes:
        declared = _declared(found)
        if index >= len(declared):
            raise ValueError(f"it has no message {list(indexes)}")
        found = declared[index]
    return found


def written_indexes(indexes: tuple[int, ...]) -> bytes:
    """Encode indexes as zigzag varints: their number, then each; a single zero for the first message of a file."""
    if indexes == (0,):
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def read_indexes(value: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Decode indexes. Returns: the indexes, and the position after them. Raises: ValueError."""
    if value[start : start + 1] == b"\0":  # of nearly all
        return (0,), start + 1
    number, at = _read_varint(value, start)
    if not 0 <= number <= _INDEXES_MAX:
        raise ValueError("the indexes of its message are not valid")
    found = []
    for _ in range(number):
        index, at = _read_varint(value, at)
        if index < 0:
            raise ValueError("the indexes of its message are not valid")
        found.append(index)
    return tuple(found) or (0,), at


def _varint(number: int) -> bytes:
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def _read_varint(value: bytes, start: int) -> tuple[int, int]:
    found = 0
    for place, byte in enumerate(value[start : start + _VARINT_BYTES_MAX]):
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), start + place + 1
    raise ValueError("it ends within the indexes of its message")


def columns(message: Descriptor) -> StructType:
    """Return the columns for a message. Raises: ValueError for a message that contains itself, has no fields, or is nested too
    deep."""
    return _columns(message, (), count(1))


def _columns(message: Descriptor, within: tuple[str, ...], counted: Iterator[int]) -> StructType:
    if message.full_name in within:
        raise ValueError(f"message {message.full_name} contains itself, which no column can")
    if not message.fields:
        raise ValueError(f"message {message.full_name} has no fields")
    inside = (*within, message.full_name)
    return StructType([StructField(field.name, _column(field, inside, counted)) for field in message.fields])


def _column(field: FieldDescriptor, within: tuple[str, ...], counted: Iterator[int]) -> DataType:
    if next(counted) > COLUMNS_MAX:
        raise ValueError(f"message {within[0]} has more than {COLUMNS_MAX} columns")
    if is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return MapType(_single(key, within, counted), _single(value, within, counted))
    return ArrayType(_single(field, within, counted)) if field.is_repeated else _single(field, within, counted)


def _single(field: FieldDescriptor, within: tuple[str, ...], counted: Iterator[int]) -> DataType:
    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return TimestampType()
        if message.full_name in WRAPPERS:
            return _single(message.fields_by_name["value"], within, counted)
        return _columns(message, within, counted)
    return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
