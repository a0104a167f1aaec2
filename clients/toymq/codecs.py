"""Encodes Python values as payloads, and decodes payloads by the content type in a header. For both clients.

The codec ``"json"`` needs no package, ``"msgpack"`` needs the package msgpack. A function from a value to bytes is a codec,
too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toymq import arguments
from toymq_py.errors import BadArgument, ConfigError

CONTENT_TYPE = "content-type"
BYTES = "application/octet-stream"
Item = tuple[None, bytes, dict[str, str]]
"""A message for ``pub_many``: no key, payload, headers."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes values as bytes, and decodes them. ``content_type`` goes into a header of the message; "" for no header."""

    content_type: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def __post_init__(self) -> None:
        """Check the fields. Raises: TypeError."""
        arguments.text("content_type", self.content_type)
        arguments.function("encode", self.encode, optional=False)
        arguments.function("decode", self.decode, optional=False)


AnyCodec = Literal["json", "msgpack"] | Codec | Callable[[Any], Any]
"""A name, a ``Codec``, or a function: from a value to bytes where it publishes, from bytes to a value where it reads."""


def _json() -> Codec:
    from toymq.json_values import dump, load  # most applications need none of it

    return Codec("application/json", lambda value: dump("the value", value), load)


def _msgpack() -> Codec:
    """Make the codec of MessagePack. Raises: ConfigError when the package msgpack is not installed."""
    try:
        import msgpack
    except ModuleNotFoundError:
        raise ConfigError('codec="msgpack" needs the package msgpack: pip install msgpack') from None
    from toymq.json_values import write

    def encode(value: Any) -> bytes:
        try:
            packed: bytes = msgpack.packb(value, default=lambda other: write("the value", other))
        except (ValueError, OverflowError) as error:
            raise BadArgument(f"the value cannot be MessagePack: {error}") from None
        return packed

    def decode(payload: bytes) -> Any:
        try:
            return msgpack.unpackb(payload, strict_map_key=False)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
            raise BadArgument(f"the payload is not MessagePack: {error or type(error).__name__}") from None

    return Codec("application/msgpack", encode, decode)


_BY_NAME: dict[str, Callable[[], Codec]] = {"json": _json, "msgpack": _msgpack}
_BY_TYPE = {
    "application/json": "json", "application/msgpack": "msgpack", "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}  # fmt: skip
"""Content types that ``value()`` reads, beside those that end with ``+json``."""


def _named(codec: object) -> Codec | None:
    """Return the codec with a name, or the argument itself if it is a codec. Raises: TypeError for anything else."""
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str) and codec in _BY_NAME:
        return _BY_NAME[codec]()
    if callable(codec):
        arguments.function("codec", codec)
        return None
    names = " or ".join(f'"{name}"' for name in _BY_NAME)
    raise TypeError(f"a codec is {names}, a toymq.Codec or a function, not {arguments.shown(codec)}")


def encoded(codec: AnyCodec, value: object, headers: Mapping[str, str] | None) -> tuple[bytes, dict[str, str]]:
    """Encode a value. Returns: the payload, and the headers with the content type. A content type in ``headers`` overrides the
    codec's.

    Raises: TypeError, BadArgument, ConfigError; and what a codec that is a function raises.
    """
    found = _named(codec)
    payload = found.encode(value) if found is not None else codec(value)  # type: ignore[operator] # it is callable
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a codec makes bytes of a value, not {type(payload).__name__}: return text.encode()")
    own = {CONTENT_TYPE: found.content_type} if found is not None and found.content_type else {}
    return bytes(payload), own | dict(arguments.headers(headers or {}))


def decoded(codec: AnyCodec | None, payload: bytes, headers: Mapping[str, str]) -> Any:
    """Decode a payload by ``codec``, or else by the content type in its headers; without either the value is the bytes.

    Raises: BadArgument for a payload that the codec cannot decode, or an unknown content type; TypeError, ConfigError.
    """
    if codec is not None:
        found = _named(codec)
        return found.decode(payload) if found is not None else codec(payload)  # type: ignore[operator] # it is callable
    named = next((value for name, value in headers.items() if name.lower() == CONTENT_TYPE), BYTES)
    kind = named.partition(";")[0].strip().lower()
    if kind in ("", BYTES):
        return payload
    name = "json" if kind.endswith("+json") else _BY_TYPE.get(kind)
    if name is None:
        raise BadArgument(f"the content type {named[:100]!r} has no codec here: read value(codec=…), or the bytes of payload")
    return _BY_NAME[name]().decode(payload)


def values(items: Iterable[Any], codec: AnyCodec = "json", headers: Mapping[str, str] | None = None) -> Iterator[Item]:
    """Encode values lazily, as items for ``pub_many``: ``await mq.pub_many("rows", toymq.values(rows))``.

    Raises: as ``pub_value``, while the result is iterated.
    """
    for value in items:
        payload, found = encoded(codec, value, headers)
        yield None, payload, found
