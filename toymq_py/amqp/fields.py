"""Values of AMQP 0-9-1: numbers, strings and field tables. Sans-IO.

Contract: the specification, 4.2.5, with RabbitMQ's types of table values (its page "AMQP 0-9-1 Errata"). Written by hand: the
decoder of pamqp copies the rest of a table for each of its values, which is quadratic, and accepts a string that is shorter
than its announced length (ADR 0123).
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from toymq_py.amqp.errors import SYNTAX_ERROR, AmqpError
from toymq_py.amqp.timestamp import Long, Timestamp
from toymq_py.config.amqp_definitions import TABLES_DEPTH_MAX

SHORT_STRING_MAX = 255
VALUES_MAX = 8192
"""Most values in the tables and arrays of a frame that arrives. Of 131,072 bytes they could be 130,000, which takes 25 ms."""

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I32, _I64, _DOUBLE = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">d")
_NUMBERS = {
    ord("b"): struct.Struct(">b"), ord("B"): struct.Struct(">B"), ord("s"): struct.Struct(">h"), ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"), ord("i"): struct.Struct(">I"), ord("l"): struct.Struct(">q"), ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"), ord("d"): struct.Struct(">d"),
}  # fmt: skip


class Reader:
    """Reads values from a payload, each once, from the front. Raises: AmqpError (SYNTAX_ERROR) where it ends too early."""

    __slots__ = ("_values_left", "at", "data", "end")

    def __init__(self, data: bytes, at: int = 0, *, values_max: int | None = None) -> None:
        """``values_max``: of tables and arrays, for data that arrives; a message that is stored may have any number."""
        self._values_left = len(data) if values_max is None else values_max
        self.data = data
        self.at = at
        self.end = len(data)

    def _take(self, count: int) -> int:
        """Consume ``count`` bytes. Returns: the position of the first one."""
        at = self.at
        if count > self.end - at:
            raise AmqpError(SYNTAX_ERROR, "a value goes on behind the end of its frame")
        self.at = at + count
        return at

    def octet(self) -> int:
        return self.data[self._take(1)]

    def short(self) -> int:
        number: int = _U16.unpack_from(self.data, self._take(2))[0]
        return number

    def long(self) -> int:
        number: int = _U32.unpack_from(self.data, self._take(4))[0]
        return number

    def longlong(self) -> int:
        number: int = _U64.unpack_from(self.data, self._take(8))[0]
        return number

    def timestamp(self) -> Timestamp:
        return Timestamp(self.longlong())

    def decimal(self) -> Decimal:
        scale = self.octet()
        return Decimal(_I32.unpack_from(self.data, self._take(4))[0]).scaleb(-scale)

    def shortstr(self) -> str:
        size = self.octet()
        at = self._take(size)
        try:
            return self.data[at : at + size].decode()
        except UnicodeDecodeError:
            raise AmqpError(SYNTAX_ERROR, "a short string is not UTF-8") from None

    def longstr(self) -> bytes:
        size = self.long()
        at = self._take(size)
        return self.data[at : at + size]

    def table(self, depth: int = 0) -> dict[str, Any]:
        stop = self._nested(depth)
        found: dict[str, Any] = {}
        while self.at < stop:
            name = self.shortstr()
            found[name] = self._value(depth)
        if self.at != stop:
            raise AmqpError(SYNTAX_ERROR, "the last value of a table goes on behind its end")
        return found

    def array(self, depth: int) -> list[Any]:
        stop = self._nested(depth)
        found: list[Any] = []
        while self.at < stop:
            found.append(self._value(depth))
        if self.at != stop:
            raise AmqpError(SYNTAX_ERROR, "the last value of an array goes on behind its end")
        return found

    def _nested(self, depth: int) -> int:
        """Read the size of a table or an array. Returns: its end."""
        if depth >= TABLES_DEPTH_MAX:
            raise AmqpError(SYNTAX_ERROR, f"tables are nested more than {TABLES_DEPTH_MAX} deep")
        size = self.long()
        if size > self.end - self.at:
            raise AmqpError(SYNTAX_ERROR, "a table goes on behind the end of its frame")
        return self.at + size

    def _value(self, depth: int) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise AmqpError(SYNTAX_ERROR, f"tables have more than {VALUES_MAX} values in all")
        kind = self.octet()
        if kind == 0x53:  # S
            text = self.longstr()
            try:
                return text.decode()
            except UnicodeDecodeError:
                return text
        number = _NUMBERS.get(kind)
        if number is not None:
            return number.unpack_from(self.data, self._take(number.size))[0]
        other = _OTHERS.get(kind)
        if other is None:
            raise AmqpError(SYNTAX_ERROR, f"a table has a value of type {bytes((kind,))!r}, which is not known")
        return other(self, depth)


_OTHERS: dict[int, Callable[[Reader, int], Any]] = {
    ord("t"): lambda reader, _: bool(reader.octet()),
    ord("D"): lambda reader, _: reader.decimal(),
    ord("x"): lambda reader, _: reader.longstr(),
    ord("T"): lambda reader, _: reader.timestamp(),
    ord("V"): lambda reader, _: None,
    ord("F"): lambda reader, depth: reader.table(depth + 1),
    ord("A"): lambda reader, depth: reader.array(depth + 1),
}


def shortstr(text: str) -> bytes:
    """Encode a short string. Raises: ValueError for more than 255 bytes."""
    data = text.encode()
    if len(data) > SHORT_STRING_MAX:
        raise ValueError(f"a short string has {len(data)} bytes, of 255 at most")
    return bytes((len(data),)) + data


def longstr(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return _U32.pack(len(data)) + data


def table(values: Mapping[str, Any]) -> bytes:
    """Encode a field table. Raises: ValueError for a name over 255 bytes, or a value of a type that a table does not have."""
    body = b"".join(shortstr(name) + _value(value) for name, value in values.items())
    return _U32.pack(len(body)) + body


def _array(values: Sequence[Any]) -> bytes:
    body = b"".join(map(_value, values))
    return _U32.pack(len(body)) + body


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return b"S" + longstr(value)
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, Timestamp):
        return b"T" + _U64.pack(value)
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31 and not isinstance(value, Long):
            return b"I" + _I32.pack(value)
        if -(1 << 63) <= value < 1 << 63:
            return b"l" + _I64.pack(value)
        raise ValueError(f"{value} does not fit into 64 bits")
    if value is None:
        return b"V"
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, bytes | bytearray):
        return b"x" + longstr(bytes(value))
    if isinstance(value, Mapping):
        return b"F" + table(value)
    if isinstance(value, list | tuple):
        return b"A" + _array(value)
    if isinstance(value, Decimal):
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or exponent > 0 or exponent < -255:
            raise ValueError(f"{value} does not fit into a decimal")
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        return b"D" + bytes((-exponent,)) + _I32.pack(number)
    raise ValueError(f"a table has no {type(value).__name__}")
