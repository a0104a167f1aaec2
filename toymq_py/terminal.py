"""Write payloads to standard output, escaped for a terminal."""

import sys
import unicodedata


def write(data: bytes, *, flush: bool = True) -> None:
    """Write bytes unchanged to a file or pipe. For a terminal, escape control characters: the payload may be hostile."""
    out = sys.stdout.buffer
    out.write(shown(data) if sys.stdout.isatty() else data)
    if flush:
        out.flush()


def shown(data: bytes) -> bytes:
    """Escape control characters except newline and tab, and bytes that are not UTF-8, as ``\\x1b`` or ``\\u202e``."""
    return "".join(map(_shown, data.decode("utf-8", "surrogateescape"))).encode()


def _shown(char: str) -> str:
    if char in "\n\t" or char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
