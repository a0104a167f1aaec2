"""What the head of a request must be, beside what the parser checks. Contract: gateway.md; RFC 9112. Knows no connection."""

import re
from collections.abc import Sequence

from toymq_py.errors import BadFraming, LineTooLong
from toymq_py.gateway.problems import UnsupportedVersion

HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers, with a message's own headers among them."""
TRAILER_BYTES_MAX = 8 * 1024
"""Size of the fields behind the last chunk of a body, and of chunk extensions. They are parsed and dropped."""
HTTP_VERSIONS = ("1.0", "1.1")
"""The parser would also accept 0.9 and 2.0 on a request line."""
HOST = re.compile(rb"(\[[\w:.%]+\]|[\w.~!$&'()*+,;=%-]*)(:\d{0,5})?", re.ASCII)
"""RFC 3986, 3.2.2; checks the characters only."""
BODY_HEADERS = (b"content-length", b"transfer-encoding")

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Names are in lower case."""


def check_head(method: bytes, version: str, url: bytes, headers: RawHeaders) -> None:
    """Raises: UnsupportedVersion, LineTooLong, BadFraming."""
    if version not in HTTP_VERSIONS:
        raise UnsupportedVersion(f"HTTP/{version} is not supported: use HTTP/1.1")
    size, hosts, codings = len(url), [], []
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
    if size > HEAD_BYTES_MAX:
        raise head_too_long()
    missing = not hosts and version == "1.1"
    if missing or len(hosts) > 1 or (hosts and not HOST.fullmatch(hosts[0])):  # RFC 9112, 3.2
        raise BadFraming("invalid Host: send one Host header, a name or an address with an optional port")
    if codings and b",".join(codings).strip().lower() != b"chunked":  # of other codings the parser finds only the end
        raise BadFraming("unsupported Transfer-Encoding: send chunked, or Content-Length")
    if codings and version == "1.0":  # RFC 9112, 6.1: a proxy ahead of the broker may frame it differently
        raise BadFraming("Transfer-Encoding needs HTTP/1.1: with HTTP/1.0 send Content-Length")
    if method == b"CONNECT":  # what follows would not be HTTP
        raise BadFraming("CONNECT is not supported: the broker is not a proxy")


def asks_for_websocket(method: bytes, version: str, headers: RawHeaders) -> bool:
    """Whether a request is the handshake of a WebSocket; otherwise its ``Upgrade`` is ignored (RFC 9110, 7.8).

    Raises: BadFraming for a handshake with a body.
    """
    options: list[bytes] = []
    protocol = b""
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.lower().split(b",")]
        elif name == b"upgrade":
            protocol = value.lower()
    if method != b"GET" or version != "1.1" or b"upgrade" not in options or protocol != b"websocket":
        return False
    if any(name in BODY_HEADERS for name, _ in headers):
        raise BadFraming("a WebSocket handshake must not have a body")
    return True


def head_bytes(method: bytes, version: str, url: bytes, headers: RawHeaders, *, upgrade: bool) -> bytes:
    """The head again, as bytes; without ``Upgrade`` unless ``upgrade``."""
    lines = [b"%b: %b\r\n" % pair for pair in headers if upgrade or pair[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), b"".join(lines))


def head_too_long() -> LineTooLong:
    """The error for a head beyond the limit."""
    return LineTooLong(f"request line and headers are too long: at most {HEAD_BYTES_MAX} bytes are accepted")


def trailers_too_long() -> LineTooLong:
    """The error for trailers and chunk extensions beyond the limit."""
    return LineTooLong(f"trailers and chunk extensions are too long: at most {TRAILER_BYTES_MAX} bytes are accepted")
