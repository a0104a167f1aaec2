"""Request bodies: read within limits that are checked while they arrive, and parsed as JSON or lines.

Contract: gateway.md (413 "refused while it arrives"). Knows no broker.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # as long as there is JSON in C
from math import isfinite
from typing import Any

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from toymq_py.auth.quotas import Seat
from toymq_py.errors import BadArgument, BadFraming, PayloadTooLarge
from toymq_py.gateway.problems import UnknownCoding

JSON_BYTES_MAX = 64 * 1024
"""Size of a JSON request other than a message: settings, ids. A useful list of ids has a few thousand."""
STRUCTURE_CHARS_MAX = JSON_BYTES_MAX
"""Size of JSON outside of its long strings: to parse two million empty lists holds the event loop for three seconds."""
LONG_TEXT_CHARS = 1024
DISCARD_BYTES_MAX = 1024 * 1024
"""Bytes of a body that are read and dropped after its answer: closed at once, a reset would drop the answer."""
LENGTH_DIGITS_MAX = 18
"""A longer Content-Length is not even converted."""
SEAT = "toymq.seat"
"""Key in the ASGI scope's ``state``: the connection's ``Seat``, which counts what it holds, for its token."""
WHEN_WHOLE = "toymq.when_whole"
"""Key in the ASGI scope for a function that is called when the body is complete, maybe hours after its head; it raises when the
rights are gone."""
PLAIN_CODINGS = frozenset({"", "identity", "7bit", "8bit", "binary"})
"""Codings that change no byte: HTTP's, and those of a part's ``Content-Transfer-Encoding`` (RFC 2045, 6.2)."""


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Read a body. Raises: as ``read_pieces``."""
    pieces = await read_pieces(request, bytes_max)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def seat_of(connection: HTTPConnection) -> Seat | None:
    """The connection's share of the limits; None where no limits are counted."""
    seat: Seat | None = connection.scope.get("state", {}).get(SEAT)
    return seat


async def read_pieces(request: Request, bytes_max: int, line_bytes_max: int | None = None) -> list[bytes]:
    """Read a body as it arrives, in pieces of some hundred KiB; one empty piece when there is none.

    Args:
        line_bytes_max: limit of each line, for a body of lines.

    Raises: PayloadTooLarge, before any byte is read if Content-Length tells, else at the first byte beyond the limit;
        BadArgument for an invalid Content-Length; UnknownCoding; ClientDisconnect; QueueFull, when all bodies together
        are too large; AuthFailed, Forbidden, when the rights were lost meanwhile.
    """
    check_coding(", ".join(request.headers.getlist("content-encoding")))
    announced = request.headers.get("content-length", "0")
    if not announced.isdigit():
        raise BadArgument(f"invalid Content-Length {announced[:50]!a}: write a whole number")
    if len(announced) > LENGTH_DIGITS_MAX or int(announced) > bytes_max:
        raise too_large(bytes_max)
    seat = seat_of(request)
    pieces: list[bytes] = []
    size, line_size, more = 0, 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece: bytes = message.get("body", b"")
        if piece:
            pieces.append(piece)
            if seat is not None:
                seat.hold(len(piece))
        size += len(piece)
        if size > bytes_max:
            raise too_large(bytes_max)
        if line_bytes_max is not None:
            line_size = _check_lines(piece, line_size, line_bytes_max)
        more = message.get("more_body", False)
    check: Callable[[], None] | None = request.scope.get(WHEN_WHOLE)
    if check is not None:
        check()
    return pieces or [b""]


def _check_lines(piece: bytes, begun: int, bytes_max: int) -> int:
    """Check the length of the lines in one piece of a body.

    Args:
        begun: bytes of the first line that were in earlier pieces.

    Returns: bytes of the last line, which the next piece may continue. Raises: PayloadTooLarge.
    """
    end = piece.find(b"\n")
    if end < 0:
        longest = rest = begun + len(piece)
    else:
        rest = len(piece) - 1 - piece.rfind(b"\n")
        longest = max(begun + end, rest)
        if len(piece) > bytes_max:
            longest = max(longest, *map(len, piece.split(b"\n")))
    if longest > bytes_max:
        raise PayloadTooLarge(f"a line has more than {bytes_max} bytes: send payload_base64, or fewer bytes")
    return rest


def check_coding(codings: str) -> None:
    """Refuse compressed bodies: the broker stores bytes as they come.

    Args:
        codings: the values of all ``Content-Encoding`` fields, separated by commas.

    Raises: UnknownCoding.
    """
    if codings and not PLAIN_CODINGS.issuperset(coding.strip().lower() for coding in codings.split(",")):
        raise UnknownCoding(f"coding {codings[:100]!a} is not supported: send the body uncompressed")


def too_large(bytes_max: int) -> PayloadTooLarge:
    """The error for a body beyond the limit."""
    return PayloadTooLarge(f"the body is too large: at most {bytes_max} bytes are accepted")


async def read_object(request: Request, known: frozenset[str]) -> dict[str, Any]:
    """Read a body that is a JSON object; an empty body is an empty object.

    Raises: BadFraming when it is not a JSON object, BadArgument for a member that is not ``known``, PayloadTooLarge.
    """
    body = await read_body(request, JSON_BYTES_MAX)
    found = parse_object(body) if body else {}
    check_members(found, known)
    return found


def parse_object(text: str | bytes, what: str = "body") -> dict[str, Any]:
    """Parse a JSON object; ``what`` names it in the error. Raises: BadFraming."""
    try:
        found = parse_json(text)
    except DuplicateMember as error:
        raise BadFraming(f"the {what} has {error}") from None
    except NotUtf8 as error:
        raise BadFraming(f"the {what} is {error}") from None
    except ValueError:
        raise BadFraming(f"the {what} is not valid JSON") from None
    if type(found) is not dict:
        raise BadFraming(f"the {what} must be a JSON object")
    return found


class DuplicateMember(ValueError):
    """A JSON object has a member twice: some parsers take the first, others the last (RFC 8259, 4)."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the member {name[:100]!a} twice")


class NotUtf8(ValueError):
    """A JSON body in another encoding than UTF-8. Lines in UTF-16 could be read only in part: their ends are not found."""


def parse_json(text: str | bytes, *, may_repeat: bool = False) -> Any:
    """Parse JSON strictly: unlike Python's parser, UTF-8 alone, no NaN, no number that becomes Infinity, and no member twice in
    an object. A byte order mark ahead of it is ignored (RFC 8259, 8.1).

    Args:
        may_repeat: for payloads, whose form is up to the applications: an object may have a member twice, of which the last
            counts, and any encoding of Unicode is read.

    Raises: ValueError.
    """
    text = _decode(text, any_encoding=may_repeat) if isinstance(text, bytes) else text.removeprefix("\ufeff")
    if len(text) > STRUCTURE_CHARS_MAX:
        _check_structure(text)
    try:
        return (_REPEATING if may_repeat or text.count(":") < 2 else _JSON).decode(text)  # of one member none is there twice
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _decode(data: bytes, *, any_encoding: bool) -> str:
    """Decode the text of a JSON body. Raises: NotUtf8, or another ValueError."""
    encoding = json.detect_encoding(data)
    if not any_encoding and not encoding.startswith("utf-8"):
        raise NotUtf8(f"not in UTF-8, but in {encoding.upper()}: JSON is sent in UTF-8")
    try:
        return data.decode(encoding, "surrogatepass")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"not in UTF-8: byte {error.start} is not valid") from None


def _check_structure(text: str) -> None:
    """Limit the size of JSON text without its long strings, in one pass, before it is parsed. Raises: ValueError."""
    at = structure = 0
    while structure <= STRUCTURE_CHARS_MAX and (quote := text.find('"', at)) >= 0:
        end = scanstring(text, quote + 1, True)[1]
        structure += quote - at + min(end - quote, LONG_TEXT_CHARS)
        at = end
    if structure > STRUCTURE_CHARS_MAX or structure + len(text) - at > STRUCTURE_CHARS_MAX:
        raise ValueError(f"more than {STRUCTURE_CHARS_MAX} characters are outside of long strings")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of an object's members. Raises: DuplicateMember."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateMember(next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1))
    return found


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)
_REPEATING = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def check_members(found: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse unknown members. Raises: BadArgument."""
    if not known.issuperset(found):
        unknown = next(name for name in found if name not in known)
        raise BadArgument(f"unknown member {unknown[:100]!a}: use {', '.join(sorted(known)) or 'none'}")


def media_type(request: Request) -> str:
    """Media type of the body, without parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Split a body into lines; text after the last line end is a line, too."""
    held: list[bytes] = []
    for piece in pieces:
        first, *others = piece.split(b"\n")
        held.append(first)
        for line in others:
            yield b"".join(held)
            held = [line]
    if last := b"".join(held):
        yield last
