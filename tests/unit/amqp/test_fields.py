"""Values and field tables of AMQP, and hostile ones. Contract: the specification, 4.2.5; ADR 0123."""

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp import fields
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.fields import VALUES_MAX, Reader
from toymq_py.amqp.timestamp import Timestamp
from toymq_py.config.amqp_definitions import TABLES_DEPTH_MAX

NAMES = st.text(max_size=20)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False), st.text(max_size=50),
    st.binary(max_size=20), st.integers(0, 1 << 40).map(Timestamp),
    st.decimals(min_value=-(10**6), max_value=10**6, places=2),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_a_table_is_read_as_it_was_written(table: dict[str, Any]) -> None:
    data = fields.table(table)
    reader = Reader(data)
    assert reader.table() == table
    assert reader.at == len(data)


@given(st.binary(max_size=200))
def test_junk_is_a_table_or_a_syntax_error(data: bytes) -> None:
    with suppress(AmqpError):
        Reader(data).table()


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4), st.data())
def test_a_table_that_is_cut_is_a_syntax_error(table: dict[str, Any], data: st.DataObject) -> None:
    whole = fields.table(table)
    with pytest.raises(AmqpError):
        Reader(whole[: data.draw(st.integers(0, len(whole) - 1))]).table()


def test_depth_is_bounded() -> None:
    """Nested tables are refused at a limit: a RecursionError is no answer to a client."""
    data = b""
    for _ in range(TABLES_DEPTH_MAX):
        data = fields.table({}) if not data else (len(data) + 2).to_bytes(4) + b"\0F" + data
    assert Reader(data).table() is not None
    for _ in range(5000):
        data = (len(data) + 2).to_bytes(4) + b"\0F" + data
    with pytest.raises(AmqpError, match="nested more than 32 deep"):
        Reader(data).table()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 << 63, "does not fit into 64 bits"), ({"x" * 256: 1}, "256 bytes"), (object(), "a table has no object"),
        (Decimal("1e5"), "decimal"),
    ],
)  # fmt: skip
def test_what_a_table_cannot_hold_is_refused(value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fields.table({"a": value})


@pytest.mark.parametrize(("kind", "data", "value"), [
    (b"b", b"\xff", -1), (b"B", b"\xff", 255), (b"s", b"\xff\xfe", -2), (b"u", b"\xff\xfe", 65534),
    (b"i", b"\xff\xff\xff\xff", 2**32 - 1),
    (b"L", b"\xff" * 8, -1), (b"f", b"\x3f\x80\0\0", 1.0), (b"S", b"\0\0\0\2\xff\xfe", b"\xff\xfe"),
])  # fmt: skip
def test_types_that_only_others_write(kind: bytes, data: bytes, value: object) -> None:
    body = b"\x01a" + kind + data
    assert Reader(len(body).to_bytes(4) + body).table() == {"a": value}


def test_a_type_that_is_not_known_is_named() -> None:
    with pytest.raises(AmqpError, match="value of type b'Z'"):
        Reader(b"\0\0\0\3\x01aZ").table()


@pytest.mark.parametrize(("head", "one"), [(b"", b"\0V"), (b"\0A", b"V"), (b"\0A", b"F\0\0\0\0")])
def test_the_number_of_values_is_bounded(head: bytes, one: bytes) -> None:
    """Found by an attack: one frame with 65,000 values took 24 ms, for which all other clients waited."""

    def table(count: int) -> bytes:
        body = one * count
        whole = head + len(body).to_bytes(4) + body if head else body
        return len(whole).to_bytes(4) + whole

    assert Reader(table(VALUES_MAX - 1), values_max=VALUES_MAX).table()
    many = table(VALUES_MAX + 9)
    reader = Reader(many, values_max=VALUES_MAX)
    with pytest.raises(AmqpError, match=f"more than {VALUES_MAX} values"):
        reader.table()
    assert reader.at <= len(many) - len(one), "the rest is not read"
    assert Reader(many).table(), "a stored message keeps what it has"
