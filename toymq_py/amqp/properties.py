"""Properties of an AMQP message, and their form in the header block of a record in the log.

Contract: amqp.md, "Model" (basic.publish); the specification, 1.8.3; ADR 0123. The block of a message that came by AMQP begins
with the line ``amqp-properties``: exchange, routing key and properties byte for byte, in base64, so that nothing is lost. The
lines after it show the same to other protocols, as far as header lines can.
"""

import binascii
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from toymq_py.amqp import fields
from toymq_py.amqp.errors import SYNTAX_ERROR, AmqpError
from toymq_py.amqp.fields import VALUES_MAX, Reader
from toymq_py.units import DURATION_MS_MAX

_FORM = (
    ("content-type", "shortstr"), ("content-encoding", "shortstr"), ("headers", "table"), ("delivery-mode", "octet"),
    ("priority", "octet"), ("correlation-id", "shortstr"), ("reply-to", "shortstr"), ("expiration", "shortstr"),
    ("message-id", "shortstr"), ("timestamp", "timestamp"), ("type", "shortstr"), ("user-id", "shortstr"),
    ("app-id", "shortstr"), ("cluster-id", "shortstr"),
)  # fmt: skip
"""The properties, from the highest bit of the flags down."""
_READ = {"shortstr": Reader.shortstr, "table": Reader.table, "octet": Reader.octet, "timestamp": Reader.timestamp}
HAS_EXPIRATION = 0x8000 >> [name for name, _ in _FORM].index("expiration") >> 8
"""The bit of ``expiration`` in the first byte of the flags."""
HAS_PRIORITY = 0x8000 >> [name for name, _ in _FORM].index("priority") >> 8
SHOWN = frozenset(name for name, kind in _FORM if kind == "shortstr") - {"cluster-id", "expiration"}
"""Properties that are also header lines."""
NOTHING = b"\0\0"
"""The encoding of no properties."""

MARK = b"amqp-properties: "
EXCHANGE, ROUTING_KEY = "amqp-exchange", "amqp-routing-key"
_OWN = SHOWN | {EXCHANGE, ROUTING_KEY, "amqp-properties"}
BROKERS = "toymq-"
"""The prefix of headers that the broker sets: a dead letter says why it is one."""
GROUP = "toymq-group"


ALIKE_MAX, ALIKE_BYTES_MAX = 1024, 1024
"""How many small property blocks are cached, and their size: messages of one publisher often differ in their bodies only."""


class Envelope(NamedTuple):
    """The envelope of a published message: exchange, routing key, and ``properties`` as bytes."""

    exchange: str
    routing_key: str
    properties: bytes


def decode(data: bytes, *, values_max: int | None = None) -> dict[str, Any]:
    """Decode properties to a dict by name. ``values_max``: as for ``Reader``. Raises: AmqpError (SYNTAX_ERROR)."""
    reader = Reader(data, values_max=values_max)
    flags = reader.short()
    if flags & 0b11:
        raise AmqpError(SYNTAX_ERROR, "property flags that the class basic does not have")
    found: dict[str, Any] = {}
    if flags:
        for bit, (name, kind) in enumerate(_FORM):
            if flags & (0x8000 >> bit):
                found[name] = _READ[kind](reader)  # type: ignore[operator]
    if reader.at != len(data):
        raise AmqpError(SYNTAX_ERROR, "a content header goes on behind its properties")
    return found


def encode(found: Mapping[str, Any]) -> bytes:
    """Encode properties. Raises: ValueError, as ``fields.table`` and ``fields.shortstr``."""
    flags, pieces = 0, [b""]
    for bit, (name, kind) in enumerate(_FORM):
        value = found.get(name)
        if value is None:
            continue
        flags |= 0x8000 >> bit
        if kind == "shortstr":
            pieces.append(fields.shortstr(value))
        elif kind == "table":
            pieces.append(fields.table(value))
        else:
            pieces.append(int(value).to_bytes(1 if kind == "octet" else 8))
    pieces[0] = flags.to_bytes(2)
    return b"".join(pieces)


def expiration_of(raw: bytes) -> int | None:
    """The expiration of encoded properties, in milliseconds; None without a valid one."""
    if not raw or not raw[0] & HAS_EXPIRATION:
        return None
    try:
        found = decode(raw).get("expiration")
    except AmqpError:
        return None
    return None if found is None else milliseconds(found)


def priority_of(most: int, block: bytes) -> int:
    """The priority of a message from its header block, at most ``most``; 0 if it has none or came by another protocol."""
    if not block.startswith(MARK):
        return 0
    end = block.find(b"\n")
    try:
        reader = Reader(binascii.a2b_base64(block[len(MARK) : end if end >= 0 else None], strict_mode=True))
        reader.shortstr(), reader.shortstr()
        flags = reader.short()
        if not flags >> 8 & HAS_PRIORITY:
            return 0
        for bit, (name, kind) in enumerate(_FORM):
            if flags & (0x8000 >> bit):
                value = _READ[kind](reader)  # type: ignore[operator]
                if name == "priority":
                    return min(int(value), most)
    except (AmqpError, ValueError):
        pass  # another protocol's client wrote this line
    return 0


def milliseconds(expiration: str) -> int | None:
    """Parse the text of an expiration, cut to the largest duration; None for a text that is not a number."""
    if not (expiration.isascii() and expiration.isdigit() and len(expiration) <= 15):
        return None
    return min(int(expiration), DURATION_MS_MAX)


def as_logged(envelope: Envelope) -> tuple[bytes, Mapping[str, Any]]:
    """The header block of a published message, and its decoded properties, which callers must not change. Raises: AmqpError."""
    return (_as_logged_before if len(envelope.properties) <= ALIKE_BYTES_MAX else _as_logged)(envelope)


def _as_logged(envelope: Envelope) -> tuple[bytes, Mapping[str, Any]]:
    found = decode(envelope.properties, values_max=VALUES_MAX)
    return block_of(envelope, found), found


_as_logged_before = lru_cache(ALIKE_MAX)(_as_logged)


def block_of(envelope: Envelope, found: Mapping[str, Any]) -> bytes:
    """The header block of a published message. ``found``: its properties, decoded."""
    exchange, routing_key, properties = envelope
    blob = fields.shortstr(exchange) + fields.shortstr(routing_key) + properties
    lines = [MARK + binascii.b2a_base64(blob, newline=False)]
    shown: list[tuple[str, Any]] = [(EXCHANGE, exchange), (ROUTING_KEY, routing_key)] if exchange else []
    shown += [(name, value) for name, value in found.items() if name in SHOWN]
    for name, value in found.get("headers", {}).items():
        if name not in _OWN and (name == GROUP or not name.startswith(BROKERS)) and ":" not in name and "\n" not in name:
            shown.append((name, value))
    lines += [f"{name}: {value}".encode() for name, value in shown if name and type(value) is str and "\n" not in value]
    lines.append(b"")
    return b"\n".join(lines)


def envelope_of(queue: str, block: bytes) -> Envelope:
    """The envelope to deliver a logged message with (``_envelope_of``); reuses the result for the same small block."""
    return (_envelope_before if len(block) <= ALIKE_BYTES_MAX else _envelope_of)(queue, block)


def _envelope_of(queue: str, block: bytes) -> Envelope:
    """The envelope to deliver a logged message with: as it was published, with the broker's additions to a dead letter. A
    message of another protocol has the default exchange and its headers."""
    if block.startswith(MARK):
        end = block.find(b"\n")
        try:
            return _as_published(block[len(MARK) : end if end >= 0 else None], block)
        except (AmqpError, ValueError):
            pass  # another protocol's client wrote this line
    found = _lines(block) if block else {}
    properties: dict[str, Any] = {name: found.pop(name) for name in SHOWN if name in found}
    try:
        return Envelope("", queue, encode({**properties, "headers": found} if found else properties))
    except ValueError:  # a name or a value over 255 bytes
        longs = {name: value for name, value in properties.items() if len(value.encode()) > fields.SHORT_STRING_MAX}
        kept = {name: value for name, value in properties.items() if name not in longs}
        headers = {name: value for name, value in {**found, **longs}.items() if len(name.encode()) <= fields.SHORT_STRING_MAX}
        return Envelope("", queue, encode({**kept, "headers": headers}))


_envelope_before = lru_cache(ALIKE_MAX)(_envelope_of)


def _as_published(blob: bytes, block: bytes) -> Envelope:
    """Decode the exchange, routing key and properties of an AMQP publish. Raises: AmqpError, ValueError."""
    reader = Reader(binascii.a2b_base64(blob, strict_mode=True))
    exchange, routing_key = reader.shortstr(), reader.shortstr()
    properties = reader.data[reader.at :]
    found = decode(properties)
    if b"\ntoymq-" in block:
        added = {name: value for name, value in _lines(block).items() if name.startswith(BROKERS)}
        found["headers"] = {**found.get("headers", {}), **added}
        properties = encode(found)
    return Envelope(exchange, routing_key, properties)


def _lines(block: bytes) -> dict[str, Any]:
    headers = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name:
            headers[name] = value.removeprefix(" ")
    return headers
