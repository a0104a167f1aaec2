"""Bodies of requests, with their limits while they arrive.

Contract: gateway.md (413 "refused while it arrives"). Knows no broker.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from toymq_py.errors import BadArgument, BadFraming, PayloadTooLarge

JSON_BYTES_MAX = 64 * 1024
"""Of what arranges or asks for something: settings, ids. The longest list of ids that makes sense has a few thousand."""
PARSED_PER_TURN_BYTES = 8 * 1024
"""Of a multipart body, whose parser is slow where there are many small parts: some milliseconds."""


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body.

    Raises: PayloadTooLarge, before the first byte where the request says its length, else with the byte that is too much;
        BadArgument for a length that is none; ClientDisconnect.
    """
    announced = request.headers.get("content-length", "0")
    if not announced.isdigit():
        raise BadArgument("Content-Length is a whole number")
    if len(announced) > 18 or int(announced) > bytes_max:
        raise too_large(bytes_max)
    receive = request.receive
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(first) > bytes_max:
            raise too_large(bytes_max)
        return first
    body = bytearray(first)
    while message.get("more_body", False):
        if len(body) > bytes_max:
            raise too_large(bytes_max)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    return bytes(body)


def too_large(bytes_max: int) -> PayloadTooLarge:
    """The refusal of a body."""
    return PayloadTooLarge(f"at most {bytes_max} bytes are taken here")


async def read_object(request: Request, known: frozenset[str]) -> dict[str, Any]:
    """A JSON object; no body is an empty one.

    Raises: BadFraming for what is no JSON object, BadArgument for a member that is not ``known``, PayloadTooLarge.
    """
    body = await read_body(request, JSON_BYTES_MAX)
    found = parse_object(body) if body else {}
    check_members(found, known)
    return found


def parse_object(text: bytes) -> dict[str, Any]:
    """Raises: BadFraming."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFraming("the body is no JSON") from None
    if type(found) is not dict:
        raise BadFraming("a JSON object is expected")
    return found


def check_members(found: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises: BadArgument."""
    if not known.issuperset(found):
        unknown = next(name for name in found if name not in known)
        raise BadArgument(f"{unknown[:100]} is not known here; there are {', '.join(sorted(known))}")


def media_type(request: Request) -> str:
    """Of the body, without parameters, in small letters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


Part = tuple[Mapping[str, bytes], bytes]
"""Headers with their names in small letters, and the content."""


async def parse_multipart(content_type: str, body: bytes, parts_max: int, pause: Callable[[], Awaitable[None]]) -> list[Part]:
    """The parts of a multipart body. ``pause`` lets others have a turn. Raises: BadFraming, BadArgument."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise BadFraming("a multipart body needs its boundary in Content-Type")
    collector = _Parts()
    try:
        parser = MultipartParser(boundary, {
            "on_part_begin": collector.begin,
            "on_header_field": collector.name,
            "on_header_value": collector.value,
            "on_header_end": collector.end_header,
            "on_part_data": collector.data,
            "on_part_end": collector.end,
            "on_end": collector.finish,
        })  # fmt: skip
        for start in range(0, len(body), PARSED_PER_TURN_BYTES):
            parser.write(body[start : start + PARSED_PER_TURN_BYTES])
            if len(collector.parts) > parts_max:
                raise BadArgument(f"at most {parts_max} messages are taken at once")
            await pause()
        parser.finalize()
    except (MultipartParseError, ValueError) as error:
        raise BadFraming(f"the multipart body cannot be read: {error}") from None
    if not collector.finished:
        raise BadFraming("the multipart body ends before its last boundary")
    return collector.parts


class _Parts:
    """Collects what the parser finds."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.finished = False
        self._headers: dict[str, bytes] = {}
        self._name = self._value = b""
        self._content: list[bytes] = []

    def begin(self) -> None:
        self._headers, self._content = {}, []

    def name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._value
        self._name = self._value = b""

    def data(self, data: bytes, start: int, end: int) -> None:
        self._content.append(data[start:end])

    def end(self) -> None:
        self.parts.append((self._headers, b"".join(self._content)))

    def finish(self) -> None:
        self.finished = True
