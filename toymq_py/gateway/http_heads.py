"""Checks of a request's head beyond those of the parser. Contract: gateway.md; RFC 9112. Knows no connection."""

import re
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import unquote

from starlette.types import Scope

from toymq_py.errors import BadFraming, LineTooLong, RequestError
from toymq_py.gateway.problems import TargetTooLong, UnknownExpectation, UnsupportedVersion
from toymq_py.net.host_names import HTTP_VERSIONS, check_hosts, is_host

HEAD_BYTES_MAX = 64 * 1024
"""Most bytes of the request line and the headers, with a message's own headers among them."""
HEADERS_MAX = 1000
"""Most fields of a head: ten times what a browser and a proxy send. Each costs a call, however short it is."""
TARGET_BYTES_MAX = 12 * 1024
"""Most bytes of path and query. The longest request of the API is a search whose text, key and header are all of four-byte
characters, each byte escaped: 11 KiB."""
EXPECT_BYTES_MAX = 200
OTHER_VERSION = "Invalid HTTP version"
"""The parser's text for a version in the form of RFC 9112, 2.3, a digit, a dot and a digit, that it does not know."""
TRAILER_BYTES_MAX = 8 * 1024
"""Most bytes of the fields after the last chunk of a body, and of chunk extensions. They are parsed and dropped."""
TARGET = re.compile(rb"https?://([^/?#]*)", re.ASCII | re.IGNORECASE)
"""The beginning of a target in absolute form, with the host."""
BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
"""An escape that is not valid (RFC 3986, 2.1). To decode an invalid one takes ten times as long, byte for byte, as a valid
one."""
BLANK = b" \t"
"""Blanks, which are not part of a field's value (RFC 9112, 5.1); the parser removes them only ahead of the value."""
BODY_HEADERS = (b"content-length", b"transfer-encoding")

FORWARDED = b"toymq-forwarded"
"""Header of a request that another worker of this broker passes on: scheme, address and port of the client, and the name of the
token that its login stands for, or ``-``. It counts on a Unix socket alone, which only this broker's processes can reach."""
EVERY_TOKEN = "*"
"""Stands for a token's name where another worker asks for itself, and may see all. No token can have this name."""
INTERNAL = "toymq.internal"
"""Key in the ASGI scope's ``state``: whether another worker of this broker has made the connection."""
LOGIN_OF = "toymq.login_of"
"""Key in the ASGI scope's ``state``: the name of the token, where there is one."""

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Headers, with names in lower case."""


def check_head(method: bytes, version: str, url: bytes, headers: RawHeaders) -> bool:
    """Check a head. Returns: whether the client waits for ``100 Continue`` before it sends the body.

    Raises: UnsupportedVersion, LineTooLong, BadFraming, UnknownExpectation.
    """
    if b"%" in url and (bad := BAD_ESCAPE.search(url)) is not None:
        shown = url[bad.start() : bad.start() + 3]
        raise BadFraming(f"invalid escape {shown!a} in the request target: write %25 for a percent sign")
    if b"#" in url:
        raise BadFraming("a request target has no fragment: write %23 for #")
    if version not in HTTP_VERSIONS:
        raise _unsupported(version)
    size, hosts, codings = len(url), [], []
    expectations: list[bytes] = []
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"expect":
            expectations.append(value)
    if size > HEAD_BYTES_MAX:
        raise head_too_long()
    check_hosts(version, [host.decode("latin-1") for host in hosts])
    if codings and b",".join(codings).strip().lower() != b"chunked":  # of other codings the parser finds only the end
        raise BadFraming("unsupported Transfer-Encoding: send chunked, or Content-Length")
    if codings and version == "1.0":  # RFC 9112, 6.1: a proxy ahead of the broker may frame it differently
        raise BadFraming("Transfer-Encoding needs HTTP/1.1: with HTTP/1.0 send Content-Length")
    if method == b"CONNECT":  # what follows would not be HTTP
        raise BadFraming("CONNECT is not supported: the broker is not a proxy")
    return bool(expectations) and _expects_continue(version, expectations)


def with_host_of_target(url: bytes, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers with the effective ``Host``: the host of a target in absolute form (``GET http://host/path``, as for a
    proxy) overrides the header (RFC 9112, 3.2.2).

    Raises: BadFraming.
    """
    if url.startswith(b"/") or url == b"*":
        return headers
    target = TARGET.match(url)
    if target is None or not target[1] or not is_host(target[1].decode("latin-1")):
        raise BadFraming("invalid request target: send a path, /healthz, or a URL with a host, http://localhost/healthz")
    return [(b"host", target[1]), *(pair for pair in headers if pair[0] != b"host")]


def check_begun(method: bytes, url: bytes) -> None:
    """Check the part of a request line that has arrived. ``PRI * HTTP/2.0`` begins an HTTP/2 connection (RFC 9113, 3.4): the
    parser would wait for more, and ``check_head`` never be called.

    Raises: TargetTooLong, UnsupportedVersion.
    """
    if len(url) > TARGET_BYTES_MAX:
        raise TargetTooLong(f"the request target is too long: path and query have at most {TARGET_BYTES_MAX} bytes")
    if url == b"*" and method == b"PRI":
        raise _unsupported("2.0")


def check_count(headers: RawHeaders) -> None:
    """Check that a head may have one more field than the ``headers`` so far. Raises: LineTooLong."""
    if len(headers) >= HEADERS_MAX:
        raise LineTooLong(f"too many headers: a request has at most {HEADERS_MAX}")


def invalid(said: str, version: str) -> RequestError:
    """The error for input that the parser refuses, such as the unknown version ``HTTP/1.2``.

    Args:
        said: the parser's message.
        version: the HTTP version that the parser has read.
    """
    return _unsupported(version) if said == OTHER_VERSION else BadFraming("invalid HTTP request: use HTTP/1.1 (RFC 9112)")


def _unsupported(version: str) -> UnsupportedVersion:
    return UnsupportedVersion(f"HTTP/{version} is not supported: use HTTP/1.1")


def _expects_continue(version: str, expectations: Sequence[bytes]) -> bool:
    """Whether the client waits for ``100 Continue`` (RFC 9110, 10.1.1), which HTTP/1.0 lacks. Raises: UnknownExpectation."""
    if version == "1.0":
        return False
    members = [member.strip() for value in expectations for member in value[:EXPECT_BYTES_MAX].split(b",")]
    for member in members:
        if member and member.lower() != b"100-continue":
            raise UnknownExpectation(f"expectation {member[:100]!a} is not supported: use 100-continue, or no Expect")
    return any(members)


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


class Url(Protocol):
    """A parsed request target."""

    @property
    def path(self) -> bytes | None: ...
    @property
    def query(self) -> bytes | None: ...


def request_scope(
    method: bytes, version: str, url: Url, headers: RawHeaders, scheme: str, client: object, state: dict[str, object]
) -> Scope:
    """The ASGI scope of a request, with a copy of ``state``."""
    if state.get(INTERNAL):
        scheme, client, headers, state = _as_sent(scheme, client, headers, state)
    raw_path = url.path or b"/"  # of http://localhost (RFC 9110, 4.2.3)
    path = raw_path.decode("ascii")
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": version, "server": None,
        "client": client, "scheme": scheme, "root_path": "", "method": method.decode("ascii"),
        "path": unquote(path) if "%" in path else path, "raw_path": raw_path, "query_string": url.query or b"",
        "headers": headers, "state": state.copy(),
    }  # fmt: skip


def _as_sent(
    scheme: str, client: object, headers: RawHeaders, state: dict[str, object]
) -> tuple[str, object, RawHeaders, dict[str, object]]:
    """Replace the values of a request that another worker passed on by those of the client's request to that worker."""
    said = next((value for name, value in headers if name == FORWARDED), b"").decode("latin-1").split(" ")
    if len(said) == 4:
        scheme, host, port, login = said
        client = None if host == "-" else (host, int(port))
        if login != "-":
            state = {**state, LOGIN_OF: login}
    return scheme, client, headers, state


def websocket_scope(scope: Scope) -> Scope:
    """The ASGI scope of a WebSocket, from that of its handshake."""
    return {
        **scope, "type": "websocket", "scheme": "wss" if scope["scheme"] == "https" else "ws",
        "subprotocols": [], "extensions": {"websocket.http.response": {}},
    }  # fmt: skip


def head_bytes(method: bytes, version: str, url: bytes, headers: RawHeaders, *, upgrade: bool) -> bytes:
    """The head of a request, encoded again; without ``Upgrade`` unless ``upgrade``."""
    lines = [b"%b: %b\r\n" % pair for pair in headers if upgrade or pair[0] != b"upgrade"]
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, url, version.encode(), b"".join(lines))


def head_too_long() -> LineTooLong:
    """The error for a head beyond the limit."""
    return LineTooLong(f"request line and headers are too long: at most {HEAD_BYTES_MAX} bytes are accepted")


def trailers_too_long() -> LineTooLong:
    """The error for trailers and chunk extensions beyond the limit."""
    return LineTooLong(f"trailers and chunk extensions are too long: at most {TRAILER_BYTES_MAX} bytes are accepted")
