"""The schema of options: kind of value, unit, default, range and help of an option, defined once, as a dataclass field.

Contract: clients.md, "Command lines". The command line, ``TOYMQ_*``, ``toymq.toml`` and docs/configuration.md are made from
these fields; ``config.options`` lists the options. Knows no source of values.

An option has one name in four spellings: the field ``visibility_ms`` (unit last) is ``visibility`` in the file,
``--visibility`` and ``TOYMQ_VISIBILITY``.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from itertools import combinations
from typing import Any
from urllib.parse import urlsplit

from toymq_py.errors import BadArgument, ConfigError
from toymq_py.names import check_host
from toymq_py.units import (
    DURATION_MS_MAX,
    duration_doubt,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_number,
    parse_size,
)

SIZE_MAX = 1 << 62
KEY_SHOWN_MAX = 64


class Kind(ABC):
    """A kind of value: how it is written, read and checked."""

    noun: str
    """What the type is called in texts for people: "a duration"."""
    metavar: str

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Parse a value. Raises: ConfigError, whose text begins with the invalid value."""

    def from_toml(self, found: object) -> Any:
        """Convert a value from TOML. Raises: ConfigError."""
        if not isinstance(found, str):
            raise ConfigError(f"{_shown(found)} is not {self.noun}")
        return self.parse(found)

    def show(self, value: Any) -> str:
        """The inverse of ``parse``."""
        return str(value)

    @abstractmethod
    def check(self, value: Any) -> None:
        """Check a value. Raises: ConfigError when the value is out of its range."""

    def limits(self) -> str:
        """The allowed values, for people; "" when the noun says it all."""
        return ""


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A whole number with or without a unit, within limits (both included)."""

    noun: str
    metavar: str
    low: int
    high: int
    parse_number: Callable[[str], int]
    show_number: Callable[[int], str]

    def parse(self, text: str) -> int:
        value = self.parse_number(text)
        self.check(value)
        return value

    def from_toml(self, found: object) -> int:
        if isinstance(found, int) and not isinstance(found, bool):
            if found.bit_length() > 64:  # more digits than can be shown
                raise ConfigError(f"it must be {self._range()}")
            self.check(found)
            return found
        return int(Kind.from_toml(self, found))

    def show(self, value: int) -> str:
        return self.show_number(value)

    def check(self, value: int) -> None:
        if not self.low <= value <= self.high:
            raise ConfigError(f"{self.show(value)} is out of range: it must be {self._range()}")

    def limits(self) -> str:
        return f"{self.show(self.low)} or more" if self.high == SIZE_MAX else self._range()  # 4194304TiB tells a person nothing

    def _range(self) -> str:
        return f"{self.show(self.low)} to {self.show(self.high)}"

    def doubt(self, found: object) -> str | None:
        """A question to the user about a duration without a unit that may have been meant in seconds; None if there is none."""
        return duration_doubt(found) if self.parse_number is parse_duration_ms else None


@dataclass(frozen=True, slots=True)
class OneOf(Kind):
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def noun(self) -> str:  # type: ignore[override] # computed from the choices
        return f"one of {', '.join(self.choices)}"

    @property
    def metavar(self) -> str:  # type: ignore[override] # computed from the choices
        return "|".join(self.choices)

    def parse(self, text: str) -> str:
        self.check(text)
        return text

    def check(self, value: str) -> None:
        if value not in self.choices:
            raise ConfigError(f"{value!r} is not {self.noun}")

    def limits(self) -> str:
        return ", ".join(self.choices)


class Flag(Kind):
    """On or off."""

    noun = "true or false"
    metavar = ""

    def parse(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ConfigError(f"{text!r} is not {self.noun}")
        return text == "true"

    def from_toml(self, found: object) -> bool:
        if not isinstance(found, bool):
            raise ConfigError(f"{_shown(found)} is not {self.noun}")
        return found

    def check(self, value: bool) -> None:
        self.from_toml(value)

    def show(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text, checked by a function."""

    noun: str
    metavar: str
    checked: Callable[[str], object]

    def parse(self, text: str) -> str:
        self.check(text)
        return text

    def check(self, value: str) -> None:
        self.checked(value)


@dataclass(frozen=True, slots=True)
class Several(Kind):
    """Any number of values: repeated on the command line, separated by spaces in the environment, an array in the file."""

    each: Kind

    @property
    def noun(self) -> str:  # type: ignore[override] # computed from what it has several of
        return f"an array, each {self.each.noun}"

    @property
    def metavar(self) -> str:  # type: ignore[override]
        return self.each.metavar

    def parse(self, text: str) -> tuple[Any, ...]:
        return tuple(map(self.each.parse, text.split()))

    def from_toml(self, found: object) -> tuple[Any, ...]:
        if not isinstance(found, list):
            raise ConfigError(f"{_shown(found)} is not {self.noun}")
        return tuple(map(self.each.from_toml, found))

    def show(self, value: Sequence[Any]) -> str:
        return " ".join(map(self.each.show, value))

    def check(self, value: Sequence[Any]) -> None:
        for one in value:
            self.each.check(one)

    def limits(self) -> str:
        return self.each.limits()


@dataclass(frozen=True, slots=True)
class Option:
    """One option. ``attribute`` is its field in the options class, ``name`` its key in the file."""

    attribute: str
    name: str
    kind: Kind
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "TOYMQ_" + self.name.upper()

    def show(self, value: Any) -> str:
        """A value as the user would write it; "none" for one that is not set."""
        return "none" if value is None or value == () else self.kind.show(value)


# -- fields: one line each in the dataclass that has the option


def option(kind: Kind, default: Any, *, name: str | None = None, help: str) -> Any:
    """A field of an options class.

    Args:
        default: None when the option is off unless it is given.
        name: the key in the file; by default the field's name without ``_ms``.
    """
    return field(default=default, metadata={"kind": kind, "name": name, "help": help})


def duration(default_ms: int, low_ms: int = 0, high_ms: int = DURATION_MS_MAX, **words: Any) -> Any:
    """A field for a duration in milliseconds; its name ends with ``_ms``."""
    kind = Number("a duration such as 250ms, 30s or 24h", "DURATION", low_ms, high_ms, parse_duration_ms, format_duration)
    return option(kind, default_ms, **words)


def size(default_bytes: int, low: int = 0, high: int = SIZE_MAX, **words: Any) -> Any:
    """A field for a size in bytes."""
    return option(Number("a size such as 4096 or 64MiB", "SIZE", low, high, parse_size, format_size), default_bytes, **words)


def count(default: int, low: int, high: int, **words: Any) -> Any:
    return option(Number("a whole number", "N", low, high, _parse_count, str), default, **words)


def one_of(default: str | None, *choices: str, **words: Any) -> Any:
    return option(OneOf(choices), default, **words)


def flag(**words: Any) -> Any:
    """A boolean field, False by default."""
    return option(Flag(), False, **words)


def path(default: str | None, **words: Any) -> Any:
    """A field for a file or directory, relative to the broker's working directory."""
    return option(Text("a path", "PATH", _check_path), default, **words)


def is_path(option: Option) -> bool:
    """Whether an option was made by ``path``."""
    return isinstance(option.kind, Text) and option.kind.checked is _check_path


def address(default: str | None, **words: Any) -> Any:
    """A field for ``host:port``, kept as text; ``parse_address`` splits it."""
    return option(Text("an address such as 127.0.0.1:6789", "HOST:PORT", parse_address), default, **words)


def text(default: str | None, metavar: str, checked: Callable[[str], object], *, noun: str, **words: Any) -> Any:
    """A field for a text. ``checked`` raises ConfigError for an invalid one."""
    return option(Text(noun, metavar, checked), default, **words)


def several(each: Kind, **words: Any) -> Any:
    """A field for a tuple of values, by default empty."""
    return option(Several(each), (), **words)


def options_of(cls: type) -> tuple[Option, ...]:
    """The options of a class, in the order of its fields; fields that were not made by ``option`` are left out."""
    found = []
    for f in fields(cls):
        if "kind" not in f.metadata:
            continue
        name = f.metadata["name"] or f.name.removesuffix("_ms")
        found.append(Option(f.name, name, f.metadata["kind"], f.default, f.metadata["help"]))
    return tuple(found)


def check_options(options: Any) -> None:
    """Check that every value is valid for its kind of option. Raises: ConfigError, which names the field."""
    for each in options_of(type(options)):
        value = getattr(options, each.attribute)
        if value is not None or each.default is not None:
            try:
                each.kind.check(value)
            except ConfigError as error:
                raise ConfigError(f"{each.attribute}: {error}") from None


# -- values


def parse_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port`` into host and port. Raises: ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address: write host:port, such as 127.0.0.1:6789, with a port up to 65535")
    return check_host(host.strip("[]")), int(port)


def parse_endpoint(text: str, example: str = "http://localhost:4318") -> str:
    """Check an HTTP URL, which may not have user and password: the process list would show them. Raises: ConfigError."""
    try:
        found = urlsplit(text)
        usable = found.scheme in ("http", "https") and found.hostname and found.port != 0 and found.username is None
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{text!r} is not an endpoint: write http://host:port, such as {example}")
    return text


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Parse URLs of etcd, separated by commas, each as ``parse_endpoint`` takes it. Raises: ConfigError."""
    return tuple(parse_endpoint(each.strip(), "http://e1:2379") for each in text.split(","))


def is_unspecified(host: str) -> bool:
    """Whether a host is every address of the machine, such as 0.0.0.0, where others cannot reach it."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def is_public(host: str) -> bool:
    """Whether other machines can reach an IP address. False for a name, which is not resolved."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return False


def check_apart(listeners: Sequence[tuple[str, tuple[str, int]]]) -> None:
    """Check that no two listeners, given with the words that name each in an error, have one address. Raises: ConfigError.

    The operating system notices only when both listen, or not at all: on some, one of the two then gets no connections.
    """
    for (first, one), (second, other) in combinations(listeners, 2):
        if one[1] == other[1] != 0 and _same_host(one[0], other[0]):
            raise ConfigError(f"{second} is the address of {first}: give each a port of its own")


def _same_host(one: str, other: str) -> bool:
    """Whether two hosts may be the same address; names are only compared."""
    try:
        first, second = ip_address(one), ip_address(other)
    except ValueError:
        return one.lower() == other.lower()
    return first.version == second.version and (first == second or first.is_unspecified or second.is_unspecified)


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """"; did you mean NAME?" with the known name most like ``found``, or "" when none is similar."""
    near = difflib.get_close_matches(found.replace("-", "_"), list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def shown_key(key: str) -> str:
    """An untrusted key for an error message: one printable line of bounded length."""
    return key if key.isascii() and key.isprintable() and len(key) <= KEY_SHOWN_MAX else ascii(key[:KEY_SHOWN_MAX])


def _parse_count(text: str) -> int:
    try:
        number = parse_number("number", text.removeprefix("-"))
    except BadArgument:
        raise ConfigError(f"{text!r} is not a whole number") from None
    return -number if text.startswith("-") else number  # which is out of range, and is told as such


def _check_path(text: str) -> None:
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is not a path")


def _shown(found: object) -> str:
    """Format a value as TOML writes it, or nearly."""
    return str(found).lower() if isinstance(found, bool) else repr(found)
