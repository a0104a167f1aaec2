"""Protobuf schemas: messages by name and index, and the bound on columns. More is in test_protobuf_codec."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")
pytest.importorskip("grpc_tools")

from toymq_spark.values.codec import COLUMNS_MAX
from toymq_spark.values.protobuf_schema import (
    columns,
    file_of,
    indexes_of,
    message_at,
    message_in,
    read_indexes,
    written_indexes,
)
from toymq_spark.values.protoc import compiled

SOURCE = """
syntax = "proto3";
package shop;
message Zebra { int32 a = 1; }
enum Color { RED = 0; }
message Order {
  map<string, int32> counts = 1;
  message Part { message Deep { int32 a = 1; } Deep deep = 1; }
  Part part = 2;
}
message Apple { int32 a = 1; }
"""
FILE = file_of(compiled((("a.proto", SOURCE),), "a.proto"), "a.proto")
INDEXES = {
    "shop.Zebra": (0,), "shop.Order": (1,), "shop.Order.Part": (1, 0), "shop.Order.Part.Deep": (1, 0, 0), "shop.Apple": (2,),
}  # fmt: skip


def test_messages_have_the_places_of_their_declarations() -> None:
    """The entry message that protoc declares for a map does not count."""
    for name, indexes in INDEXES.items():
        message = message_in(FILE, name)
        assert (message.full_name, indexes_of(message)) == (name, indexes)
        assert message_at(FILE, indexes).full_name == name
    assert message_in(FILE, "").full_name == "shop.Zebra", "the first of the file"
    for indexes in ((3,), (1, 1), (0, 0), (2**30,)):
        with pytest.raises(ValueError, match=r"it has no message \["):
            message_at(FILE, indexes)
    with pytest.raises(ValueError, match=r"no message 'Order': there are shop\.Zebra, shop\.Order, shop\.Order\.Part, "):
        message_in(FILE, "Order")
    empty = file_of(compiled((("a.proto", 'syntax = "proto3";'),), "a.proto"), "a.proto")
    with pytest.raises(ValueError, match="there is no message in it"):
        message_in(empty, "")


@pytest.mark.parametrize(
    ("indexes", "written"),
    [
        ((0,), b"\0"), ((1,), b"\x02\x02"), ((1, 0), b"\x04\x02\x00"), ((64,), b"\x02\x80\x01"),
        ((2, 0, 300), b"\x06\x04\x00\xd8\x04"),
    ],
)  # fmt: skip
def test_indexes_are_what_kafkas_serializer_writes(indexes: tuple[int, ...], written: bytes) -> None:
    assert written_indexes(indexes) == written
    assert read_indexes(b"12345" + written + b"\xff", 5) == (indexes, 5 + len(written))


def test_the_first_message_may_be_written_in_full() -> None:
    assert read_indexes(b"\x02\x00", 0) == ((0,), 2)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=32).map(tuple))
def test_indexes_that_were_written_are_read(indexes: tuple[int, ...]) -> None:
    assert read_indexes(written_indexes(indexes), 0)[0] == indexes


@given(st.binary(max_size=30))
def test_other_bytes_are_an_error_or_indexes(value: bytes) -> None:
    try:
        indexes, end = read_indexes(value, 0)
    except ValueError:
        return
    assert end <= len(value)
    assert all(index >= 0 for index in indexes)


@pytest.mark.parametrize("value", [b"", b"\x02", b"\x80" * 9, b"\x01", b"\x42" + b"\0" * 33, b"\x02\x01"])
def test_bad_indexes(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"indexes of its message"):
        read_indexes(value, 0)


def test_columns_are_bounded() -> None:
    """Each message has two fields of the next one: without a limit this fills the memory."""
    messages = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(40))
    source = f'syntax = "proto3"; {messages} message M40 {{ int32 a = 1; }}'
    message = message_in(file_of(compiled((("a.proto", source),), "a.proto"), "a.proto"), "")
    with pytest.raises(ValueError, match=f"message M0 has more than {COLUMNS_MAX} columns"):
        columns(message)
