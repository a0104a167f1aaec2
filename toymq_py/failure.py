"""The failure texts of a NACK, bounded and printable.

Contract: protocol.md, NACK; ADR 0062. The texts come from a handler's exceptions and may contain parts of a message: they are
reduced to printable lines, safe to show in a terminal.
"""

from dataclasses import dataclass
from urllib.parse import quote, unquote

REASON_BYTES_MAX = ERROR_BYTES_MAX = 1024
ERROR_TYPE_BYTES_MAX = 256
FAILURE_BYTES_MAX = 3400
"""Most bytes of all texts of one NACK, percent-encoded: they fit into a header line with the longest names and one range of
ids."""
CUT = "..."
"""The mark of a cut text."""
_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure texts of a NACK, None where missing. Made by ``failure_of``, which bounds them.

    ``traceback`` has line breaks, the other texts have none.
    """

    reason: str | None = None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None


def failure_of(
    reason: str | None = None, error_type: str | None = None, error: str | None = None, traceback: str | None = None
) -> Failure | None:
    """Make a failure from any texts. Cuts the end of a long text, but the beginning of a long traceback.

    Returns: None when all texts are empty.
    """
    left = FAILURE_BYTES_MAX
    fitted: list[str | None] = []
    for text, bytes_max in ((reason, REASON_BYTES_MAX), (error_type, ERROR_TYPE_BYTES_MAX), (error, ERROR_BYTES_MAX)):
        line = None if text is None else cut(_one_line(text[:bytes_max + 1]).strip(), bytes_max)
        left -= 0 if line is None else encoded_len(line)
        fitted.append(line or None)
    last_lines = None if traceback is None else _last_lines(traceback[-FAILURE_BYTES_MAX:], left) or None
    if last_lines is None and not any(fitted):
        return None
    return Failure(fitted[0], fitted[1], fitted[2], last_lines)


def encode_text(text: str) -> str:
    """Encode a text as one token of a header line: UTF-8, percent-encoded."""
    return quote(text, _SAFE)


def decode_text(token: str) -> str:
    """The inverse of ``encode_text``. A percent sign without a code is kept; bytes that are not UTF-8 become U+FFFD."""
    return unquote(token)


def encoded_len(text: str) -> int:
    """Length of the encoded text."""
    return len(encode_text(text))


def _one_line(text: str) -> str:
    """Replace unprintable characters, such as line breaks and terminal controls, by spaces."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def cut(line: str, bytes_max: int) -> str:
    """The beginning of a line, as much as fits into ``bytes_max`` when encoded."""
    if encoded_len(line) <= bytes_max:
        return line
    left = bytes_max - len(CUT)
    for at, char in enumerate(line):
        left -= encoded_len(char)
        if left < 0:
            return line[:at] + CUT
    return line


def _last_lines(text: str, bytes_max: int) -> str:
    """The last lines of a text that fit into ``bytes_max`` when encoded, or the beginning of a single long line."""
    lines = [_one_line(line).rstrip() for line in text.strip("\r\n").split("\n")]
    kept: list[str] = []
    left = bytes_max
    for line in reversed(lines):
        size = encoded_len(line + "\n")
        if size > left:
            break
        left -= size
        kept.append(line)
    if not kept:
        return cut(lines[-1], bytes_max)
    return "\n".join(reversed(kept)).strip("\n")
