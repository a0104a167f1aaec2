"""Multipart bodies (RFC 2046, 5.1): parts with headers and content, from memory.

Contract: gateway.md; ADR 0078. Strict: lines end with CRLF, and every part has an empty line behind its headers.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.message import Message

from toymq_py.errors import BadArgument, BadFraming

CONTENT_TYPE_CHARS_MAX = 1024
"""The parser of its parameters is not linear."""
BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]", re.ASCII)
DELIMITER_END = re.compile(rb"--|[ \t]*\r\n")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)")
PARSED_PER_TURN_BYTES = 64 * 1024
"""Parsed before others get a turn of the loop; a millisecond."""
PART_COST_BYTES = 256
"""A part without content takes as long as so many bytes."""

Part = tuple[Mapping[str, bytes], bytes]
"""Headers by lower-case name, several of one name joined by commas (RFC 9110, 5.3), and the content."""


async def parse_multipart(
    content_type: str, pieces: list[bytes], parts_max: int, pause: Callable[[], Awaitable[None]]
) -> list[Part]:
    """Parse the parts of a body.

    Args:
        pieces: the body; emptied, so that it is in memory twice at most.
        pause: gives other tasks a turn of the loop.

    Raises: BadFraming, BadArgument.
    """
    delimiter = b"\r\n--" + parse_boundary(content_type)
    body = b"".join((b"\r\n", *pieces))  # the first delimiter may begin the body
    pieces.clear()
    parts: list[Part] = []
    parsed = 0
    for part in _split(body, delimiter):
        if len(parts) == parts_max:
            raise BadArgument(f"the batch has more than {parts_max} messages: send it as several batches")
        parts.append(part)
        parsed += len(part[1]) + PART_COST_BYTES
        if parsed >= PARSED_PER_TURN_BYTES:
            parsed = 0
            await pause()
    return parts


def parse_boundary(content_type: str) -> bytes:
    """The parameter ``boundary``. Raises: BadFraming."""
    if len(content_type) > CONTENT_TYPE_CHARS_MAX:
        raise BadFraming(f"Content-Type has {len(content_type)} characters: at most {CONTENT_TYPE_CHARS_MAX} are accepted")
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if boundary is None or not BOUNDARY.fullmatch(boundary):
        raise BadFraming("a multipart body needs boundary=… of 1 to 70 characters in its Content-Type (RFC 2046, 5.1.1)")
    return boundary.encode()


def _split(body: bytes, delimiter: bytes) -> Iterator[Part]:
    begin, at = None, 0
    while (found := body.find(delimiter, at)) >= 0:
        at = found + len(delimiter)
        end = DELIMITER_END.match(body, at)
        if end is None:
            continue  # a line of the content that only begins like the delimiter
        if begin is not None:
            yield _part(body[begin:found])
        if end[0] == b"--":
            return
        begin = at = end.end()
    raise BadFraming("the multipart body ends before its last boundary, --boundary--")


def _part(raw: bytes) -> Part:
    head, empty_line, content = (b"", b"\r\n", raw[2:]) if raw.startswith(b"\r\n") else raw.partition(b"\r\n\r\n")
    if not empty_line:
        raise BadFraming("a part of the multipart body has no empty line behind its headers")
    headers: dict[str, bytes] = {}
    for line in head.split(b"\r\n") if head else ():
        found = HEADER.fullmatch(line)
        if found is None:
            raise BadFraming(f"invalid header {line[:100]!a} in a part of the multipart body: write Name: value")
        name, value = found[1].decode().lower(), found[2]
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers, content
