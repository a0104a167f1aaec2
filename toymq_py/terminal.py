"""What goes to the standard output as bytes: payloads, and lines that have them."""

import sys
import unicodedata


def write(data: bytes, *, flush: bool = True) -> None:
    """To a file or another program the bytes as they are. To a terminal nothing that moves its cursor, sets its title or turns
    text around: strangers wrote it."""
    out = sys.stdout.buffer
    out.write(shown(data) if sys.stdout.isatty() else data)
    if flush:
        out.flush()


def shown(data: bytes) -> bytes:
    """Text as it is, with its line ends and tabs; other controls, and bytes that are no UTF-8, as ``\\x1b`` or ``\\u202e``."""
    return "".join(map(_shown, data.decode("utf-8", "surrogateescape"))).encode()


def _shown(char: str) -> str:
    if char in "\n\t" or char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
