"""A request line as it was sent, and the empty lines ahead of it. Contract: RFC 9112, 2.2 and 3. Knows no connection."""

from toymq_py.errors import BadFraming
from toymq_py.gateway.http_heads import TARGET_BYTES_MAX

BLANK_BYTES_MAX = 64
"""Most bytes of empty lines before a request: some clients send one after a body, and a server ignores it (RFC 9112, 2.2)."""
KEPT_BYTES_MAX = TARGET_BYTES_MAX + 1024
"""Most bytes to keep of a head that comes in pieces: a request line has no more, but for a piece."""


class RequestLine:
    """The bytes in which a request begins. The parser reports method, target and version, and passes over further spaces
    between them, which a proxy may read in another way."""

    __slots__ = ("_at_start", "_blank_bytes", "_bytes", "has_begun")

    def __init__(self) -> None:
        self.has_begun = False
        """Whether the parser has found the beginning of a request, and not its end."""
        self._bytes = b""
        self._at_start = False
        self._blank_bytes = 0

    def feed(self, data: bytes, *, in_head: bool) -> bytes:
        """Take bytes of a connection. Returns: them without empty lines ahead of a request. Raises: BadFraming for too many."""
        if not self.has_begun:
            size = len(data)
            data = data.lstrip(b"\r\n")
            self._blank_bytes += size - len(data)
            if self._blank_bytes > BLANK_BYTES_MAX:
                raise BadFraming(f"more than {BLANK_BYTES_MAX} bytes of empty lines before a request")
            self._bytes, self._at_start = data, True
        elif not in_head:  # the next request may begin behind the body
            self._bytes, self._at_start = data, False
        elif len(self._bytes) < KEPT_BYTES_MAX:
            self._bytes += data
        return data

    def begin(self) -> None:
        """Note that the parser has found the beginning of a request."""
        self.has_begun = True
        self._blank_bytes = 0

    def end(self) -> None:
        """Note that the request is whole."""
        self.has_begun = False

    def check(self, method: bytes, url: bytes, version: str) -> None:
        """Check that a single space separates what the parser has read of the line. Raises: BadFraming."""
        line = b"%b %b HTTP/%b\r\n" % (method, url, version.encode())
        is_there = self._bytes.startswith(line) if self._at_start else line in self._bytes
        self._at_start = False  # the next one may begin in the same piece
        if not is_there:
            raise BadFraming("invalid request line: a single space separates method, target and version (RFC 9112, 3)")
