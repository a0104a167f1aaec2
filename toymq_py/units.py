"""Numbers, durations and sizes as people write them, such as ``30s`` and ``64MiB``. Knows no protocol and no file format."""

import re
from datetime import UTC, datetime

from toymq_py.errors import BadArgument, ConfigError
from toymq_py.records import MSG_ID_MAX

DURATION_MS_MAX = 10 * 366 * 24 * 3600 * 1000
"""Ten years in milliseconds: the longest duration that any command or setting takes."""

_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OF_ONE = {"are": "is", "were": "was", "run": "runs"}
_PLURAL = re.compile(rf"\b({'|'.join(_OF_ONE)})\b")
_QUANTITY = re.compile(r"(\d{1,19})\s*([A-Za-z]*)\Z", re.ASCII)


def parse_number(what: str, text: str, low: int = 0, high: int = MSG_ID_MAX) -> int:
    """Parse an unsigned decimal number of at most 20 digits, with or without leading zeros; ``int`` alone would accept "1_0",
    "+5" and " 5". Raises: BadArgument, which names ``what``."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
        raise BadArgument(f"invalid {what} {text[:50]!a}: write a whole number from {span(low, high)}")
    return int(text)


def check_number(what: str, value: object, low: int = 0, high: int = MSG_ID_MAX) -> int:
    """Check that a value of a JSON document is an integer in range; ``isinstance`` alone would accept true. Raises:
    BadArgument, which names ``what``."""
    if type(value) is not int or not low <= value <= high:
        # TOML has hexadecimal numbers of any length, and str() refuses to write one of thousands of digits
        shown = hex(value) if type(value) is int and value.bit_length() > 64 else str(value)
        raise BadArgument(f"invalid {what} {shown[:50]!a}: write a whole number from {span(low, high)}")
    return value


def span(low: int, high: int) -> str:
    """A range of numbers for an error text, such as ``1 to 7``; the longest duration is also given in words."""
    return f"{low} to {high}{' (ten years)' if high == DURATION_MS_MAX else ''}"


def counted(count: int, noun: str, predicate: str = "") -> str:
    """A count with its noun: ``1 record``, ``2 records``. With a plural predicate such as ``are lost``: ``1 record is
    lost``."""
    words = f"{count} {noun}" if count == 1 else f"{count} {noun}s"
    return f"{words} {agreeing(predicate, count)}" if predicate else words


def agreeing(predicate: str, count: int) -> str:
    """A plural predicate, adapted to a count: ``are lost`` becomes ``is lost`` for one."""
    return _PLURAL.sub(lambda verb: _OF_ONE[verb[0]], predicate) if count == 1 else predicate


def parse_duration_ms(text: str) -> int:
    """Parse ``250ms``, ``30s``, ``5m``, ``24h``, ``7d`` or plain milliseconds into milliseconds.

    Raises: ConfigError when it is none of these, or longer than ten years.
    """
    match = _QUANTITY.match(text)
    unit = match[2] or "ms" if match else ""
    if match is None or unit not in _DURATION_UNITS_MS:
        raise ConfigError(f"invalid duration {text!r}: write 250ms, 30s, 5m, 24h or 7d")
    value = int(match[1]) * _DURATION_UNITS_MS[unit]
    if value > DURATION_MS_MAX:
        raise ConfigError(f"invalid duration {text!r}: ten years is the longest")
    return value


def parse_time_ns(text: str) -> int:
    """Parse a time, ``2026-11-28T09:30:00Z`` or ``@<unix-ms>``, into nanoseconds since the epoch. Without an offset it is UTC.
    Raises: ConfigError."""
    refused = ConfigError(f"invalid time {text[:50]!r}: write 2026-11-28T09:30:00Z, with an offset +01:00, or @<unix-ms>")
    if text.startswith("@"):
        if not (text[1:].isascii() and text[1:].isdigit() and 12 <= len(text) <= 15):  # ten digits are seconds, most likely
            raise refused
        return int(text[1:]) * 1_000_000
    try:
        time = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError:
        raise refused from None
    since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    if since.days < 0:
        raise refused
    return (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) * 1000


def check_delay(delay_ms: int | None, ttl_ms: int | None) -> None:
    """Refuse a publish that could never be delivered, as its ttl, which counts from the publish, ends before its delay. (The
    TCP protocol accepts such a publish, and the message expires.) Raises: BadArgument."""
    if delay_ms is not None and ttl_ms is not None and delay_ms >= ttl_ms:
        delay, ttl = format_duration(delay_ms), format_duration(ttl_ms)
        why = "it would expire before it is due; ttl counts from the publish"
        raise BadArgument(f"a delay of {delay} with a ttl of {ttl}: {why}")


def duration_doubt(found: object) -> str | None:
    """A question to the user about a duration without a unit below one second, else None: `--visibility 5` means 5 ms, although
    5 s was more likely meant."""
    if not str(found).isdecimal() or not 0 < int(str(found)) < 1000:
        return None
    number = int(str(found))
    return f"{number} is {number}ms, as a number without a unit is milliseconds: write {number}s or {number}ms"


def parse_size(text: str) -> int:
    """Parse bytes, or ``64KiB``, ``64MiB``, ``2GiB``, into bytes.

    Raises: ConfigError.
    """
    match = _QUANTITY.match(text)
    if match is None or match[2] not in _SIZE_UNITS:
        raise ConfigError(f"invalid size {text!r}: write bytes, or 64KiB, 64MiB, 2GiB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def format_duration(ms: int) -> str:
    """The inverse of ``parse_duration_ms``, exactly, in the largest unit that allows it."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _DURATION_UNITS_MS[unit] == 0:
            return f"{ms // _DURATION_UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def format_size(size: int) -> str:
    """The inverse of ``parse_size``, exactly, in the largest unit that allows it: 64MiB, 2GiB, 1000B."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def rounded_size(value: int) -> str:
    """A measured size for people: 49.3GiB."""
    for power in (40, 30, 20, 10):
        if value >= 1 << power:
            return f"{value / (1 << power):.1f}".removesuffix(".0") + format_size(1 << power).removeprefix("1")
    return format_size(value)
