"""Multipart bodies (RFC 2046, 5.1): parts with headers and content, from memory.

Contract: gateway.md; ADR 0078. Strict: lines end with CRLF, and every part has an empty line after its headers.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.message import Message

from toymq_py.errors import BadArgument, BadFraming, LineTooLong
from toymq_py.gateway.http_heads import HEAD_BYTES_MAX

CONTENT_TYPE_CHARS_MAX = 1024
"""Most characters of a Content-Type: the parser of its parameters is not linear."""
BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]", re.ASCII)
DELIMITER_END = re.compile(rb"--|[ \t]*\r\n")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)")
PARSED_PER_TURN_BYTES = 64 * 1024
"""Bytes that are parsed before other tasks get a turn of the event loop; a millisecond."""
PART_COST_BYTES = 256
"""A part without content takes as long as so many bytes."""
HEAD_COST = 16
"""A byte of a part's headers takes as long as so many bytes of content."""

Part = tuple[Mapping[str, bytes], bytes]
"""A part: its headers by lower-case name, several of one name joined by commas (RFC 9110, 5.3), and its content."""


async def parse_multipart(
    content_type: str, pieces: list[bytes], parts_max: int, pause: Callable[[], Awaitable[None]]
) -> list[Part]:
    """Parse the parts of a body.

    Args:
        pieces: the body; emptied, so that it is in memory twice at most.
        pause: gives other tasks a turn of the event loop.

    Raises: BadFraming, BadArgument.
    """
    delimiter = b"\r\n--" + parse_boundary(content_type)
    body = b"".join((b"\r\n", *pieces))  # the first delimiter may begin the body
    pieces.clear()
    parts: list[Part] = []
    parsed = 0
    for part, head_bytes in _split(body, delimiter):
        if len(parts) == parts_max:
            raise BadArgument(f"the batch has more than {parts_max} messages: send it as several batches")
        parts.append(part)
        parsed += len(part[1]) + HEAD_COST * head_bytes + PART_COST_BYTES
        if parsed >= PARSED_PER_TURN_BYTES:
            parsed = 0
            await pause()
    return parts


def parse_boundary(content_type: str) -> bytes:
    """The parameter ``boundary`` of a multipart media type. Raises: BadFraming."""
    if len(content_type) > CONTENT_TYPE_CHARS_MAX:
        raise BadFraming(f"Content-Type has {len(content_type)} characters: at most {CONTENT_TYPE_CHARS_MAX} are accepted")
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if boundary is None or not BOUNDARY.fullmatch(boundary):
        raise BadFraming("a multipart body needs boundary=… of 1 to 70 characters in its Content-Type (RFC 2046, 5.1.1)")
    return boundary.encode()


def _split(body: bytes, delimiter: bytes) -> Iterator[tuple[Part, int]]:
    """Split a multipart body. Yields: each part, with the size of its headers in bytes."""
    begin, at = None, 0
    while (found := body.find(delimiter, at)) >= 0:
        at = found + len(delimiter)
        end = DELIMITER_END.match(body, at)
        if end is None:
            continue  # a line of the content that only begins like the delimiter
        if begin is not None:
            part = _part(body[begin:found])
            yield part, found - begin - len(part[1])
        if end[0] == b"--":
            return
        begin = at = end.end()
    raise BadFraming("the multipart body ends before its last boundary, --boundary--")


def _part(raw: bytes) -> Part:
    end = 0 if raw.startswith(b"\r\n") else raw.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX + 4)
    if end < 0 and len(raw) > HEAD_BYTES_MAX:
        raise LineTooLong(f"the headers of a part of the multipart body have more than the limit of {HEAD_BYTES_MAX} bytes")
    if end < 0:
        raise BadFraming("a part of the multipart body has no empty line behind its headers")
    headers: dict[str, list[bytes]] = {}
    for line in raw[:end].split(b"\r\n") if end else ():
        found = HEADER.fullmatch(line)
        if found is None:
            raise BadFraming(f"invalid header {line[:100]!a} in a part of the multipart body: write Name: value")
        headers.setdefault(found[1].decode().lower(), []).append(found[2])
    return {name: b", ".join(values) for name, values in headers.items()}, raw[end + 4 if end else 2 :]
