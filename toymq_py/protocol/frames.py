"""Limits, and words of the protocol, that both ends of the wire share.

Contract: protocol.md, "Framing".
"""

from typing import Final

from toymq_py.errors import BadArgument
from toymq_py.records import KEY_BYTES_MAX, IdRange
from toymq_py.units import DURATION_MS_MAX, parse_number

PROTOCOL_VERSION = 1
LINE_BYTES_MAX = 4096
"""Most bytes of a header line with its newline; checked while the line arrives."""
DRAIN_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a refused body that is read and dropped; a longer one ends the connection."""
COUNT_MAX = 2**31 - 1
DEFAULT_FETCH_BYTES = 1024 * 1024
FETCH_BYTES_MAX = 1 << 40
LENGTH_DIGITS_MAX = 20
"""Most digits of a length: a longer one is above every limit, and is not converted."""

NO_KEY = "-".encode()  # noqa: UP012 (the one object for this byte, as slices are; a literal read from a .pyc is another)
NEWLINE: Final = 10
"""The byte that ends a body."""
PRINTABLE = bytes(range(0x21, 0x7F))
"""The bytes of a token."""


def parse_ms(what: str, text: str, low: int = 0) -> int:
    """Parse a number of milliseconds from ``low`` up to ten years. ``what`` names it in the error. Raises: BadArgument."""
    return parse_number(what, text, low, DURATION_MS_MAX)


def parse_ids(text: str) -> tuple[IdRange, ...]:
    """Parse ids and ranges: ``7``, ``3-9`` or ``3-9,12,20-31``, ascending and not overlapping.

    Raises: BadArgument.
    """
    ranges = []
    below = -1
    for part in text.split(","):
        first_text, dash, last_text = part.partition("-")
        first = parse_number("message id", first_text)
        last = parse_number("message id", last_text) if dash else first
        if first <= below or last < first:
            raise BadArgument(f"invalid message ids {text[:50]!a}: write ascending ids and ranges, 3-9,12,20-31")
        ranges.append((first, last))
        below = last
    return tuple(ranges)


def format_ids(ranges: tuple[IdRange, ...]) -> str:
    """The inverse of ``parse_ids``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def is_key(key: bytes) -> bool:
    """Whether a key is legal: 1 to 512 bytes of printable ASCII without space, and not the single character ``-``."""
    return 1 <= len(key) <= KEY_BYTES_MAX and key != NO_KEY and not key.translate(None, PRINTABLE)
