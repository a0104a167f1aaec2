"""HTTP/1.1 as etcd's JSON gateway speaks it: POST a JSON body; read a whole answer, or an endless one line by line.

No memory is allocated for a claimed length: an answer longer than ``ANSWER_BYTES_MAX`` is an error. Every failure is an
``OSError``. A connection that failed, or whose call was cancelled, must be closed: its next answer would belong to the old
call.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import Self

HEAD_BYTES_MAX = 16 * 1024
"""Most bytes of the status line and headers of an answer, and of its trailers; etcd sends 400."""
ANSWER_BYTES_MAX = 1024 * 1024
"""Most bytes of an answer, or of one line of an endless one; the values of a group have a few hundred bytes each."""
PIECE_BYTES = 64 * 1024

_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5]\d\d)(?: [^\r\n]*)?")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,10}")


class HttpError(ConnectionError):
    """The answer is not HTTP, ended early, or is too long."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of an etcd member. ``url``: as the operator wrote it, for errors; ``tls``: whether it is https."""

    host: str
    port: int
    url: str
    tls: bool = False


class HttpConnection:
    """A connection to one member. One request at a time."""

    def __init__(self, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None) -> Self:
        """Connect. Raises: OSError."""
        streams = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls, limit=HEAD_BYTES_MAX)
        return cls(endpoint, *streams)

    @property
    def usable(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def post(self, path: str, body: bytes) -> "Answer":
        """Send a request and read the head of its answer. Raises: OSError."""
        host = f"[{self.endpoint.host}]" if ":" in self.endpoint.host else self.endpoint.host
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {host}:{self.endpoint.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode("ascii") + body)
        await self._writer.drain()
        return await _answer(self._reader)

    def close(self) -> None:
        """Close the connection. A call under way raises an OSError."""
        self._writer.transport.abort()


class Answer:
    """An answer whose head was read. ``kept_alive``: the connection may be used again once the body is read, too."""

    def __init__(self, reader: asyncio.StreamReader, status: int, length: int | None, *, kept_alive: bool) -> None:
        """``length``: that of the body in bytes; None when it comes in chunks."""
        self.status = status
        self.kept_alive = kept_alive
        self._reader = reader
        self._chunked = length is None
        self._left = length or 0  # of the body, or of the chunk
        self._behind_chunk = False
        self._ended = length == 0
        self._lines = bytearray()  # read, and not returned yet
        self._searched = 0  # of it, without a line break

    async def content(self) -> bytes:
        """The rest of the body. Raises: OSError."""
        content = bytearray()
        while piece := await self._piece():
            content += piece
            if len(content) > ANSWER_BYTES_MAX:
                raise HttpError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return bytes(content)

    async def line(self) -> bytes | None:
        """The next line of the body that is not empty; None at its end. A cancelled call loses nothing.

        Raises: OSError.
        """
        while True:
            if (end := self._lines.find(b"\n", self._searched)) >= 0:
                line = bytes(self._lines[:end]).strip()
                del self._lines[: end + 1]
                self._searched = 0
                if line:
                    return line
            else:
                self._searched = len(self._lines)
                if self._searched > ANSWER_BYTES_MAX:
                    raise HttpError(f"a line of more than {ANSWER_BYTES_MAX} bytes")
                if not (piece := await self._piece()):
                    return None
                self._lines += piece

    async def _piece(self) -> bytes:
        """Some bytes of the body; b"" at its end. Counts bytes before the next await, so a cancelled call loses none."""
        if self._behind_chunk:
            if await _line(self._reader):
                raise HttpError("a chunk is longer than its length")
            self._behind_chunk = False
        if self._chunked and self._left == 0 and not self._ended:
            found = _CHUNK.fullmatch(await _line(self._reader))
            if found is None:
                raise HttpError("a chunk without a length")
            self._left = int(found[1], 16)
            if self._left > ANSWER_BYTES_MAX:
                raise HttpError(f"a chunk of {self._left} bytes, more than {ANSWER_BYTES_MAX}")
            self._ended = self._left == 0
            if self._ended:
                await _headers(self._reader)  # trailers
        if self._ended:
            return b""
        piece = await self._reader.read(min(self._left, PIECE_BYTES))
        if not piece:
            raise HttpError("the connection ended within an answer")
        self._left -= len(piece)
        self._behind_chunk = self._chunked and self._left == 0
        self._ended = not self._chunked and self._left == 0
        return piece


async def _answer(reader: asyncio.StreamReader) -> Answer:
    found = _STATUS.fullmatch(await _line(reader))
    if found is None:
        raise HttpError("no HTTP status")
    headers = await _headers(reader)
    kept_alive = headers.get(b"connection", b"").lower() != b"close"
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None:
            raise HttpError("a body of an unknown coding")
        return Answer(reader, int(found[1]), None, kept_alive=kept_alive)
    if length is None or _LENGTH.fullmatch(length) is None:
        raise HttpError("a body without a length")
    if int(length) > ANSWER_BYTES_MAX:
        raise HttpError(f"an answer of {int(length)} bytes, more than {ANSWER_BYTES_MAX}")
    return Answer(reader, int(found[1]), int(length), kept_alive=kept_alive)


async def _headers(reader: asyncio.StreamReader) -> dict[bytes, bytes]:
    """Read headers or trailers up to the empty line after them. Raises: HttpError, also for two lengths of one body."""
    headers: dict[bytes, bytes] = {}
    left = HEAD_BYTES_MAX
    while line := await _line(reader):
        left -= len(line) + len(b"\r\n")
        name, colon, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if left < 0 or not colon:
            raise HttpError("headers that are too long, or none")
        if headers.setdefault(name, value) != value and name in (b"content-length", b"transfer-encoding"):
            raise HttpError("two lengths of one body")
    return headers


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read a line, and return it without its line end. Raises: HttpError."""
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except asyncio.IncompleteReadError:
        raise HttpError("the connection ended within an answer") from None
    except asyncio.LimitOverrunError:
        raise HttpError(f"a line of more than {HEAD_BYTES_MAX} bytes") from None
