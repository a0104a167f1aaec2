"""Bodies of requests, with their limits while they arrive.

Contract: gateway.md (413 "refused while it arrives"). Knows no broker.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # as long as there is JSON in C
from math import isfinite
from typing import Any

from starlette.requests import ClientDisconnect, Request

from toymq_py.auth.quotas import Seat
from toymq_py.errors import BadArgument, BadFraming, PayloadTooLarge
from toymq_py.gateway.problems import UnknownCoding

JSON_BYTES_MAX = 64 * 1024
"""Of what arranges or asks for something: settings, ids. The longest list of ids that makes sense has a few thousand."""
STRUCTURE_CHARS_MAX = JSON_BYTES_MAX
"""Of JSON outside of its long texts: two million empty lists in one line take three seconds of the broker's only thread."""
LONG_TEXT_CHARS = 1024
DISCARD_BYTES_MAX = 1024 * 1024
"""A body that was answered before its end is discarded so far, that no reset eats the answer; then the connection is closed."""
SEAT = "toymq.seat"
"""In the ASGI scope's ``state``: the connection's ``Seat``, which a token makes its own and what is held counts for."""
WHEN_WHOLE = "toymq.when_whole"
"""In the ASGI scope: called when the body is whole, which may be hours behind its head; raises when the rights have gone."""
PLAIN_CODINGS = frozenset({"", "identity", "7bit", "8bit", "binary"})
"""Those that change nothing: none, HTTP's, and those of a part's ``Content-Transfer-Encoding`` (RFC 2045, 6.2)."""


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body. Raises: as ``read_pieces``."""
    pieces = await read_pieces(request, bytes_max)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def seat_of(request: Request) -> Seat | None:
    """Of the request's connection; None where nothing is counted."""
    seat: Seat | None = request.scope.get("state", {}).get(SEAT)
    return seat


async def read_pieces(request: Request, bytes_max: int, line_bytes_max: int | None = None) -> list[bytes]:
    """The whole body, as it arrived: some hundred KiB in each piece; one empty piece when there is nothing.

    Args:
        line_bytes_max: of each line of a body that has lines.

    Raises: PayloadTooLarge, before the first byte where the request says its length, else with the byte that is too much;
        BadArgument for a length that is none; UnknownCoding; ClientDisconnect; QueueFull, when it is too much with what
        others hold; AuthFailed, Forbidden, when the rights went while it arrived.
    """
    check_coding(", ".join(request.headers.getlist("content-encoding")))
    announced = request.headers.get("content-length", "0")
    if not announced.isdigit():
        raise BadArgument("Content-Length is a whole number")
    if len(announced) > 18 or int(announced) > bytes_max:
        raise too_large(bytes_max, last=len(announced) > 18 or int(announced) > DISCARD_BYTES_MAX)
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
    """Bound the lines of a body while it arrives.

    Args:
        begun: size of the line that the piece goes on.

    Returns: size of the line that goes on behind the piece. Raises: PayloadTooLarge.
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
        raise PayloadTooLarge(f"a line has at most {bytes_max} bytes; payload_base64 needs the fewest")
    return rest


def check_coding(codings: str) -> None:
    """Hold that bytes are what they are: nothing is decoded here.

    Args:
        codings: of all fields, between commas.

    Raises: UnknownCoding.
    """
    if codings and not PLAIN_CODINGS.issuperset(coding.strip().lower() for coding in codings.split(",")):
        raise UnknownCoding(f"{codings[:100]} is not decoded here: send the bytes as they are")


def too_large(bytes_max: int, *, last: bool = False) -> PayloadTooLarge:
    """The refusal of a body; ``last`` when nothing more can be asked on this connection, and the answer says so."""
    return PayloadTooLarge(f"at most {bytes_max} bytes are taken here", fatal=last)


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
        found = parse_json(text)
    except ValueError:
        raise BadFraming("the body is no JSON") from None
    if type(found) is not dict:
        raise BadFraming("a JSON object is expected")
    return found


def parse_json(text: str | bytes) -> Any:
    """What JSON says, and nothing that Python takes beside: no NaN, no number that becomes Infinity. Raises: ValueError."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if len(text) > STRUCTURE_CHARS_MAX:
        _check_structure(text)
    try:
        return _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is too deep") from None


def _check_structure(text: str) -> None:
    """Bound what JSON builds beside long texts, in a single walk from text to text. Raises: ValueError."""
    at = structure = 0
    while structure <= STRUCTURE_CHARS_MAX and (quote := text.find('"', at)) >= 0:
        end = scanstring(text, quote + 1, True)[1]
        structure += quote - at + min(end - quote, LONG_TEXT_CHARS)
        at = end
    if structure > STRUCTURE_CHARS_MAX or structure + len(text) - at > STRUCTURE_CHARS_MAX:
        raise ValueError(f"more than {STRUCTURE_CHARS_MAX} characters are not in long texts")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:20]} is no number here")
    return number


_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def check_members(found: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises: BadArgument."""
    if not known.issuperset(found):
        unknown = next(name for name in found if name not in known)
        raise BadArgument(f"{unknown[:100]} is not known here; there are {', '.join(sorted(known))}")


def media_type(request: Request) -> str:
    """Of the body, without parameters, in small letters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends; what follows the last end is one, too, unless it is empty."""
    held: list[bytes] = []
    for piece in pieces:
        first, *others = piece.split(b"\n")
        held.append(first)
        for line in others:
            yield b"".join(held)
            held = [line]
    if last := b"".join(held):
        yield last
