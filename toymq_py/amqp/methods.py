"""The methods of AMQP 0-9-1: names, fields, and their bytes. Sans-IO.

Contract: the specification, 1.4 to 1.9, with RabbitMQ's confirm, basic.nack, exchange.bind, connection.blocked, update-secret.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from toymq_py.amqp import fields
from toymq_py.amqp.errors import COMMAND_INVALID, AmqpError
from toymq_py.amqp.fields import VALUES_MAX, Reader
from toymq_py.amqp.frames import METHOD, frame

Index = tuple[int, int]
"""The numbers of a class and a method."""

_SPECIFICATION = """
10 10 connection.start octet version_major, octet version_minor, table server_properties, longstr mechanisms, longstr locales
10 11 connection.start-ok table client_properties, shortstr mechanism, longstr response, shortstr locale
10 20 connection.secure longstr challenge
10 21 connection.secure-ok longstr response
10 30 connection.tune short channel_max, long frame_max, short heartbeat
10 31 connection.tune-ok short channel_max, long frame_max, short heartbeat
10 40 connection.open shortstr virtual_host, shortstr reserved1, bit reserved2
10 41 connection.open-ok shortstr reserved1
10 50 connection.close short reply_code, shortstr reply_text, short class_id, short method_id
10 51 connection.close-ok
10 60 connection.blocked shortstr reason
10 61 connection.unblocked
10 70 connection.update-secret longstr new_secret, shortstr reason
10 71 connection.update-secret-ok
20 10 channel.open shortstr reserved1
20 11 channel.open-ok longstr reserved1
20 20 channel.flow bit active
20 21 channel.flow-ok bit active
20 40 channel.close short reply_code, shortstr reply_text, short class_id, short method_id
20 41 channel.close-ok
40 10 exchange.declare short reserved1, shortstr exchange, shortstr type, bit passive, bit durable, bit auto_delete, \
bit internal, bit no_wait, table arguments
40 11 exchange.declare-ok
40 20 exchange.delete short reserved1, shortstr exchange, bit if_unused, bit no_wait
40 21 exchange.delete-ok
40 30 exchange.bind short reserved1, shortstr destination, shortstr source, shortstr routing_key, bit no_wait, table arguments
40 31 exchange.bind-ok
40 40 exchange.unbind short reserved1, shortstr destination, shortstr source, shortstr routing_key, bit no_wait, table arguments
40 51 exchange.unbind-ok
50 10 queue.declare short reserved1, shortstr queue, bit passive, bit durable, bit exclusive, \
bit auto_delete, bit no_wait, table arguments
50 11 queue.declare-ok shortstr queue, long message_count, long consumer_count
50 20 queue.bind short reserved1, shortstr queue, shortstr exchange, shortstr routing_key, bit no_wait, table arguments
50 21 queue.bind-ok
50 30 queue.purge short reserved1, shortstr queue, bit no_wait
50 31 queue.purge-ok long message_count
50 40 queue.delete short reserved1, shortstr queue, bit if_unused, bit if_empty, bit no_wait
50 41 queue.delete-ok long message_count
50 50 queue.unbind short reserved1, shortstr queue, shortstr exchange, shortstr routing_key, table arguments
50 51 queue.unbind-ok
60 10 basic.qos long prefetch_size, short prefetch_count, bit global
60 11 basic.qos-ok
60 20 basic.consume short reserved1, shortstr queue, shortstr consumer_tag, bit no_local, bit no_ack, \
bit exclusive, bit no_wait, table arguments
60 21 basic.consume-ok shortstr consumer_tag
60 30 basic.cancel shortstr consumer_tag, bit no_wait
60 31 basic.cancel-ok shortstr consumer_tag
60 40 basic.publish short reserved1, shortstr exchange, shortstr routing_key, bit mandatory, bit immediate
60 50 basic.return short reply_code, shortstr reply_text, shortstr exchange, shortstr routing_key
60 60 basic.deliver shortstr consumer_tag, longlong delivery_tag, bit redelivered, shortstr exchange, shortstr routing_key
60 70 basic.get short reserved1, shortstr queue, bit no_ack
60 71 basic.get-ok longlong delivery_tag, bit redelivered, shortstr exchange, shortstr routing_key, long message_count
60 72 basic.get-empty shortstr reserved1
60 80 basic.ack longlong delivery_tag, bit multiple
60 90 basic.reject longlong delivery_tag, bit requeue
60 100 basic.recover-async bit requeue
60 110 basic.recover bit requeue
60 111 basic.recover-ok
60 120 basic.nack longlong delivery_tag, bit multiple, bit requeue
85 10 confirm.select bit no_wait
85 11 confirm.select-ok
90 10 tx.select
90 11 tx.select-ok
90 20 tx.commit
90 21 tx.commit-ok
90 30 tx.rollback
90 31 tx.rollback-ok
"""


class _Form:
    """The fields of one method, in their order."""

    __slots__ = ("fields", "index", "name")

    def __init__(self, line: str) -> None:
        class_id, method_id, name, *rest = line.split(" ", 3)
        self.index: Index = int(class_id), int(method_id)
        self.name = name
        pairs = [field.split(" ") for field in rest[0].split(", ")] if rest else []
        self.fields = [(kind, field) for kind, field in pairs]


FORMS: Mapping[Index, _Form] = {form.index: form for form in map(_Form, _SPECIFICATION.strip().splitlines())}
INDEXES: Mapping[str, Index] = {form.name: index for index, form in FORMS.items()}

_ACK, _PUBLISH = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x28"
ALIKE_MAX = 1024
PUBLISH_BYTES_MAX = 4 + 2 + 256 + 256 + 1
"""The longest basic.publish, with two short strings. What goes on behind them is not cached."""
_INDEX = struct.Struct(">HH")
_READ: Mapping[str, Callable[[Reader], Any]] = {
    "octet": Reader.octet, "short": Reader.short, "long": Reader.long, "longlong": Reader.longlong,
    "shortstr": Reader.shortstr, "longstr": Reader.longstr, "table": Reader.table,
}  # fmt: skip
_WRITE: Mapping[str, Callable[[Any], bytes]] = {
    "octet": struct.Struct(">B").pack, "short": struct.Struct(">H").pack, "long": struct.Struct(">I").pack,
    "longlong": struct.Struct(">Q").pack, "shortstr": fields.shortstr, "longstr": fields.longstr, "table": fields.table,
}  # fmt: skip
_NOTHING: Mapping[str, Any] = {"shortstr": "", "longstr": b"", "table": {}}


class Method:
    """A method with the values of its fields: ``method["queue"]``."""

    __slots__ = ("_values", "index", "name")

    def __init__(self, index: Index, name: str, values: dict[str, Any]) -> None:
        self.index = index
        self.name = name
        self._values = values

    def __getitem__(self, field: str) -> Any:
        return self._values[field]

    def get(self, field: str) -> Any:
        """A field's value, None where the method has no such field."""
        return self._values.get(field)

    def __repr__(self) -> str:
        return f"{self.name}({self._values})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and (self.index, self._values) == (other.index, other._values)

    __hash__ = None  # type: ignore[assignment]


def decode(payload: bytes) -> Method:
    """Decode a frame's method, which callers must not change. Raises: AmqpError (COMMAND_INVALID, SYNTAX_ERROR)."""
    if payload.startswith(_ACK) and len(payload) == 13:
        values = {"delivery_tag": int.from_bytes(payload[4:12]), "multiple": bool(payload[12] & 1)}
        return Method((60, 80), "basic.ack", values)
    if payload.startswith(_PUBLISH) and len(payload) <= PUBLISH_BYTES_MAX:
        return _decode_publish(payload)  # with few exchanges and routing keys
    return _decode(payload)


def _decode(payload: bytes) -> Method:
    reader = Reader(payload, values_max=VALUES_MAX)
    index = reader.short(), reader.short()
    form = FORMS.get(index)
    if form is None:
        raise AmqpError(COMMAND_INVALID, f"method {index[0]}.{index[1]} is not known", index)
    values: dict[str, Any] = {}
    bits, left = 0, 0
    try:
        for kind, name in form.fields:
            if kind == "bit":
                if not left:
                    bits, left = reader.octet(), 8
                values[name] = bool(bits & 1)
                bits, left = bits >> 1, left - 1
            else:
                left = 0
                values[name] = _READ[kind](reader)
    except AmqpError as error:
        error.method = index
        raise
    return Method(index, form.name, values)


_decode_publish = lru_cache(ALIKE_MAX)(_decode)


def payload(name: str, **values: Any) -> bytes:
    """The bytes of a method; fields that are not given are 0, empty or false. Raises: ValueError, struct.error."""
    form = FORMS[INDEXES[name]]
    pieces = [_INDEX.pack(*form.index)]
    bits, used = 0, 0
    for kind, field in form.fields:
        if kind == "bit":
            bits |= bool(values.get(field)) << used
            used += 1
            continue
        if used:
            pieces.append(bytes((bits,)))
            bits, used = 0, 0
        value = values.get(field)
        pieces.append(_WRITE[kind](_NOTHING.get(kind, 0) if value is None else value))
    if used:
        pieces.append(bytes((bits,)))
    return b"".join(pieces)


def encode(channel: int, name: str, **values: Any) -> bytes:
    """The frame of a method."""
    return frame(METHOD, channel, payload(name, **values))


def closing(channel: int, name: str, error: AmqpError) -> bytes:
    """``channel.close`` or ``connection.close``, with the reason."""
    class_id, method_id = error.method
    return encode(channel, name, reply_code=error.code, reply_text=error.reply_text, class_id=class_id, method_id=method_id)
