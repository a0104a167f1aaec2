"""Converts Python values to JSON and back, by types such as those of a function's parameters. Needs no library.

A value is encoded by its own type, and decoded by the type that the reader asks for: a ``datetime`` is a text in ISO 8601,
``bytes`` are base64, a dataclass is an object. So programs in other languages can take part.
"""

import base64
import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, Union
from uuid import UUID

from toymq.arguments import shown
from toymq_py.errors import BadArgument

Reader = Callable[[str, Any], Any]
"""Converts a value of a JSON document; takes its name for errors. Raises: BadArgument."""


class BytesText(str):
    """A str with the base64 of bytes, at the sender. Its type tells it from an ordinary text until it is JSON, so that no
    reader of another type accepts it as a text."""

    __slots__ = ()


DEPTH_MAX = 64
"""The deepest nesting of values: a document of ten thousand brackets is refused before it is walked."""
_TEXTS: dict[type, tuple[Callable[[str], Any], str]] = {
    datetime: (datetime.fromisoformat, "a date and time, 2026-11-27T09:30:00+00:00 say"),
    date: (date.fromisoformat, "a date, 2026-11-27 say"),
    time: (time.fromisoformat, "a time of day, 09:30:00 say"),
    UUID: (UUID, "a UUID"),
    Decimal: (Decimal, "a decimal number in quotes"),
    Path: (Path, "a path"),
    bytes: (lambda text: base64.b64decode(text, validate=True), "bytes in base64"),
}
"""Types that are a text in JSON: how the text is read, and what an error calls it."""


def write(what: str, value: object, depth: int = 0) -> Any:
    """Convert a value for ``json.dumps``. Raises: TypeError, which says what to pass instead; BadArgument (nan, too deep)."""
    if depth > DEPTH_MAX:
        raise BadArgument(f"{what} is nested deeper than {DEPTH_MAX} levels, or contains itself")
    if isinstance(value, enum.Enum):
        return write(what, value.value, depth + 1)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadArgument(f"{what} is {value}, which JSON cannot say")
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return BytesText(base64.b64encode(value).decode())
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID | Decimal | Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {one.name: write(f"{what}.{one.name}", getattr(value, one.name), depth + 1) for one in fields}
    if hasattr(value, "model_dump"):  # a pydantic model
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"a name in {what} is a str, not {shown(name)}")
        return {name: write(f"{what}[{name!r}]", one, depth + 1) for name, one in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [write(f"{what}[{index}]", one, depth + 1) for index, one in enumerate(value)]
    raise TypeError(
        f"{what} is of type {type(value).__name__}, which JSON does not have: pass numbers, texts, lists, sets (as"
        " lists), dicts, bytes (as base64), dates or a dataclass"
    )


def dump(what: str, value: object) -> bytes:
    """Encode a value as a JSON document in UTF-8. Raises: as ``write``."""
    found = write(what, value)
    try:
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a surrogate pair, of a file's name say, which JSON can escape
        return json.dumps(found, separators=(",", ":")).encode()


def _no_constant(name: str) -> None:
    raise ValueError(f"it has {name}, which is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def load(payload: bytes) -> Any:
    """Decode a JSON document in UTF-8. Raises: BadArgument."""
    try:
        text = payload.decode()
        if text[:1] == "{":  # a job; without the searches for white space around it, which cost as much as the rest
            found, end = _DECODER.raw_decode(text)
            if end == len(text):
                return found
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"the payload is not JSON: {error}") from None


def reader_of(what: str, kind: object) -> Reader:
    """Return a function that decodes JSON values for a parameter of the type ``kind``. Raises: TypeError when no JSON value can
    become that type."""
    if kind is Any or kind is object:
        return lambda _, value: value
    if isinstance(kind, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
        return reader_of(what, kind.__value__)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return reader_of(what, inner[0])
    if origin in (Union, types.UnionType):
        return _any_of([reader_of(what, one) for one in inner])
    if origin is Literal:
        return _one_of(inner)
    if kind is None or kind is type(None):
        return _exactly(lambda value: value is None, "null")
    if origin is tuple or kind is tuple:
        return _tuple(what, inner)
    if isinstance(origin or kind, type):
        found = _reader_of_class(what, origin or kind, inner)  # type: ignore[arg-type]
        if found is not None:
            return found
    name = getattr(kind, "__name__", None) or str(kind)
    raise TypeError(
        f"{what}: no {name} is made from JSON; annotate it with a number, text, list, set, dict, bytes, date or a dataclass, or"
        " leave the type out"
    )


def result_reader(kind: object) -> Reader:
    """Return a function that decodes a function's result; it returns the JSON value as it is if no JSON value can become the
    annotated type."""
    try:
        return reader_of("the result", kind)
    except TypeError:
        return reader_of("the result", Any)


def _reader_of_class(what: str, kind: type, inner: tuple[Any, ...]) -> Reader | None:
    if kind is bool:
        return _exactly(lambda value: isinstance(value, bool), "true or false")
    if kind is int:
        return _exactly(lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number")
    if kind is float:
        return _number(float, "a number")
    if kind is bytes:
        return _text(*_TEXTS[bytes])
    if kind is str:
        return _str
    if kind in _TEXTS:
        return _no_bytes(_text(*_TEXTS[kind]), _TEXTS[kind][1])
    if kind is timedelta:
        return _number(lambda value: timedelta(seconds=value), "a number of seconds")
    if issubclass(kind, enum.Enum):
        return _enum(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(what, kind)
    if hasattr(kind, "model_validate"):  # a pydantic model, which says itself what is wrong
        return _model(kind.model_validate)
    if issubclass(kind, Mapping) and (kind is dict or kind.__module__ == "collections.abc"):
        return _dict(what, inner)
    if kind in (list, set, frozenset) or kind.__module__ == "collections.abc":
        made = kind if kind in (list, set, frozenset) else list
        each = reader_of(what, inner[0]) if inner else reader_of(what, Any)
        return lambda name, value: made(each(f"{name}[{at}]", one) for at, one in enumerate(_list(name, value)))
    return None


class _BytesForText(BadArgument):
    """Raised when a value is bytes in base64 where a text is wanted. No other type of a union is tried: the worker would read
    the base64 as that type."""


def _refused(name: str, wanted: str, value: object) -> BadArgument:
    return BadArgument(f"{name} is {wanted}, not {shown(value)}")


def _bytes_refused(name: str, wanted: str, value: BytesText) -> BadArgument:
    return _BytesForText(f"{name} is {wanted}, not {shown(base64.b64decode(value))}: decode the bytes")


def _exactly(fits: Callable[[Any], bool], wanted: str) -> Reader:
    def read(name: str, value: Any) -> Any:
        if not fits(value):
            raise _refused(name, wanted, value)
        return value

    return read


def _str(name: str, value: Any) -> str:
    if type(value) is BytesText:
        raise _bytes_refused(name, "a text", value)
    if not isinstance(value, str):
        raise _refused(name, "a text", value)
    return value


def _no_bytes(reader: Reader, wanted: str) -> Reader:
    """Wrap a reader so that it refuses bytes, whose base64 text a worker would read as another type."""

    def read(name: str, value: Any) -> Any:
        found = reader(name, value)
        if type(value) is BytesText:
            raise _bytes_refused(name, wanted, value)
        return found

    return read


def _number(convert: Callable[[float], Any], wanted: str) -> Reader:
    def read(name: str, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return convert(value)
            except OverflowError:
                pass
        raise _refused(name, wanted, value)

    return read


def _text(convert: Callable[[str], Any], wanted: str) -> Reader:
    def read(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise _refused(name, wanted, value)
        try:
            return convert(value)
        except (ValueError, InvalidOperation):
            raise _refused(name, wanted, value) from None

    return read


def _any_of(readers: list[Reader]) -> Reader:
    def read(name: str, value: Any) -> Any:
        refusals = []
        for one in readers:
            try:
                return one(name, value)
            except _BytesForText:
                raise
            except BadArgument as error:
                refusals.append(str(error))
        raise BadArgument("; or ".join(refusals))

    return read


def _one_of(values: tuple[Any, ...]) -> Reader:
    return _exactly(lambda value: any(value == one and type(value) is type(one) for one in values), f"one of {list(values)}")


def _enum(kind: type[enum.Enum]) -> Reader:
    by_value = {json.dumps(write(kind.__name__, one.value)): one for one in kind}

    def read(name: str, value: Any) -> Any:
        found = by_value.get(json.dumps(value))
        if found is None:
            raise _refused(name, f"one of {[one.value for one in kind]}", value)
        return found

    return read


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _refused(name, "a list", value)
    return value


def _tuple(what: str, inner: tuple[Any, ...]) -> Reader:
    if not inner or (len(inner) == 2 and inner[1] is Ellipsis):
        each = reader_of(what, inner[0] if inner else Any)
        return lambda name, value: tuple(each(f"{name}[{at}]", one) for at, one in enumerate(_list(name, value)))
    readers = [reader_of(what, one) for one in inner]

    def read(name: str, value: Any) -> Any:
        if len(_list(name, value)) != len(readers):
            raise _refused(name, f"a list of {len(readers)}", value)
        return tuple(one(f"{name}[{at}]", part) for at, (one, part) in enumerate(zip(readers, value, strict=True)))

    return read


def _dict(what: str, inner: tuple[Any, ...]) -> Reader:
    if inner and inner[0] not in (str, Any):
        raise TypeError(f"{what}: the names in a JSON object are texts: write dict[str, …]")
    each = reader_of(what, inner[1] if inner else Any)

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise _refused(name, "an object", value)
        return {key: each(f"{name}[{key!r}]", one) for key, one in value.items()}

    return read


def _dataclass(what: str, kind: type) -> Reader:
    fields = {one.name: one for one in dataclasses.fields(kind) if one.init}
    hints = typing.get_type_hints(kind)
    readers = {name: reader_of(f"{what}.{name}", hints[name]) for name in fields}
    needed = {
        name
        for name, one in fields.items()
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    }

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise _refused(name, f"an object with the fields of {kind.__name__}", value)
        if missing := sorted(needed - value.keys()):
            raise BadArgument(f"{name} has no {', '.join(missing)}, which {kind.__name__} needs")
        if unknown := sorted(value.keys() - fields.keys()):
            raise BadArgument(f"{name} has {', '.join(unknown)}, which {kind.__name__} does not know")
        return kind(**{key: readers[key](f"{name}.{key}", one) for key, one in value.items()})

    return read


def _model(validate: Callable[[Any], Any]) -> Reader:
    def read(name: str, value: Any) -> Any:
        try:
            return validate(value)
        except ValueError as error:
            raise BadArgument(f"{name}: {error}") from None

    return read
