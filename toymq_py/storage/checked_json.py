"""Small JSON files whose bytes are covered by a checksum.

``{"crc32": "1f0a2b3c", "<name>": {...}}``: the checksum is over the bytes of the object as written, so one flipped digit
is seen. Used by ``offsets.json`` and the segments' sidecars (storage.md).

``read`` is the one way to read such a file: one that is too large, not a regular file, or refused by the disk counts as
damaged, and stops nothing else (ADR 0217).
"""

import errno
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from toymq_py.disk_errors import is_lasting, unreadable_text
from toymq_py.errors import DamagedData
from toymq_py.id_rows import IdRows
from toymq_py.names import is_incarnation
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.record import crc32

FILE_BYTES_MAX = 1 << 30
"""Most bytes of a file. The largest that a broker writes is ``offsets.json``: the 1,048,576 consumers that ``--max-consumers``
allows with names of 196 bytes are 350 MB; the rest is room for 25 million ranges of scattered acks."""
PEEK_BYTES = 512
"""A generation and an incarnation stand before settings and consumers, at most 350 bytes from the beginning."""
NO_FILE = {
    errno.EISDIR: "it is a directory, and no file",
    errno.ENXIO: "it is no regular file",
    errno.ELOOP: "its symbolic links lead nowhere",
}
"""Errors of a path that is no regular file, so that a later try could not read it either."""
_OPENING = re.compile(rb'\{"crc32": "([0-9a-f]{8})", "([a-z]+)": ')


class Unreadable(DamagedData):
    """The disk or the permissions refuse a file that may be intact."""


def read(fs: FileSystem, path: str) -> bytes | None:
    """The bytes of a file; None when there is none. Blocks.

    Raises:
        DamagedData: it is too large, or no regular file.
        Unreadable: the disk refuses it, and a retry would fail again.
        OSError: of a passing shortage (no descriptor left).
    """
    try:
        size = fs.file_size(path)
        if size <= FILE_BYTES_MAX:
            return fs.read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_lasting(error):
            raise
        if error.errno in NO_FILE:
            raise DamagedData(NO_FILE[error.errno]) from None
        raise Unreadable(unreadable_text(error)) from None
    raise DamagedData(f"it has {size} bytes, and no such file has more than {FILE_BYTES_MAX}")


def peek(fs: FileSystem, path: str, pattern: re.Pattern[bytes]) -> str | None:
    """The group of a pattern in the first bytes of a file, unchecked; None without it, or when the file cannot be read. Raises:
    OSError of a passing shortage."""
    try:
        file = fs.open(path, write=False)
        try:
            found = pattern.search(file.pread(PEEK_BYTES, 0))
        finally:
            file.close()
    except OSError as error:
        if not is_lasting(error):
            raise
        return None
    return None if found is None else found[1].decode()


def encode(name: str, value: dict[str, Any]) -> bytes:
    """Encode an object as a checked file."""
    body = json.dumps(value, separators=(", ", ": ")).encode()
    return b'{"crc32": "%08x", "%b": %b}\n' % (crc32(body), name.encode(), body)


def encode_pieces(name: str, pieces: Iterable[bytes]) -> bytes:
    """Join the pieces of an object to a checked file. Other threads may run between two pieces."""
    checksum = 0
    parts = [b""]
    for piece in pieces:
        checksum = crc32(piece, checksum)
        parts.append(piece)
    parts[0] = b'{"crc32": "%08x", "%b": ' % (checksum, name.encode())
    parts.append(b"}\n")
    return b"".join(parts)


def pieces_of(value: Any) -> Iterator[bytes]:
    """Encode an object as ``encode`` does, in pieces: one for each member, and one for each block of ``IdRows``."""
    if isinstance(value, dict):
        opening = b"{"
        for name, member in value.items():
            yield opening + json.dumps(name).encode() + b": "
            yield from pieces_of(member)
            opening = b", "
        yield b"}" if value else b"{}"
    elif isinstance(value, IdRows):
        row = "[" + ", ".join(["%d"] * value.width) + "]"
        opening = b"["
        for block in value.blocks:
            text = ", ".join([row] * len(block[0])) % tuple(chain.from_iterable(zip(*block, strict=True)))
            yield opening + text.encode()
            opening = b", "
        yield b"]" if value else b"[]"
    else:
        yield json.dumps(value, separators=(", ", ": ")).encode()


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Decode a checked file.

    Raises: DamagedData when its checksum does not fit, or its form is wrong.
    """
    opening = _OPENING.match(data)
    if opening is None or opening[2] != name.encode():
        raise DamagedData(f"not a checked {name} file")
    text = data.rstrip()  # a copy only where there is more than the line feed
    if not text.endswith(b"}") or crc32(body := text[opening.end() : -1]) != int(opening[1], 16):
        raise DamagedData(f"checksum of the {name} does not fit")
    return parse_object(name, body)


def parse_object(name: str, data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises: DamagedData for anything else, however deep it is nested."""
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError:
        raise DamagedData(f"the {name} is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise DamagedData(f"the {name} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise DamagedData(f"the {name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DamagedData(f"the {name} is not a JSON object")
    return value


def incarnation_of(found: dict[str, Any]) -> str | None:
    """The member ``incarnation`` of an object, None where it has none (ADR 0135). Raises: DamagedData."""
    incarnation = found.get("incarnation")
    if incarnation is not None and not (isinstance(incarnation, str) and is_incarnation(incarnation)):
        raise DamagedData(f"invalid incarnation {str(incarnation)[:200]!a}: 16 hexadecimal digits were expected")
    return incarnation


def numbers(values: Any) -> list[int]:
    """Check a list of whole numbers from 0 on. Raises: DamagedData for anything else; ``int`` alone would take 1.5 and "1", and
    fail in another way at 1e999."""
    if not isinstance(values, list) or not {*map(type, values)} <= {int} or (values and min(values) < 0):
        raise DamagedData("a list of whole numbers from 0 on was expected")
    return values
