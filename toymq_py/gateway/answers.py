"""Encodes HTTP answers: status line, headers, body (RFC 9112). Knows no request."""

from collections.abc import Iterable
from http import HTTPStatus

STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}
HEADERS = [("x-content-type-options", "nosniff")]
"""Headers of every answer."""
COMMON = "".join(f"{name}: {value}\r\n" for name, value in HEADERS).encode()


def encode_head(status: int, headers: Iterable[tuple[bytes, bytes]], common: bytes = COMMON) -> bytes:
    """Encode the head of an answer with the encoded headers ``common``. Raises: ValueError for a header with a line break."""
    lines = [STATUS_LINES[status], common]
    lines += [b"%b: %b\r\n" % pair for pair in headers]
    lines.append(b"\r\n")
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) + common.count(b"\n") - 1 or head.count(b"\r") != head.count(b"\n"):
        raise ValueError("a header of the answer has a line break")
    return head


def encode_last(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Encode an answer after which the connection closes."""
    return encode_head(status, [*headers, (b"connection", b"close")]) + body
