"""One request of a webhook: an HTTP/1.1 POST to an address that was checked. Of the answer only the status is read.

Contract: gateway.md; ADR 0078. Each request has a connection of its own: a certificate that was checked for one host is never
used for another behind the same address. No redirect, no cookie, no proxy.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from toymq_py.config.webhooks import Target

STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: [^\r\n]*)?\r?\n")
LINE_BYTES_MAX = 8 * 1024
"""Most bytes of a status line, or of a header of an interim answer (1xx); as common proxies."""
INTERIM_BYTES_MAX = 64 * 1024
"""Most bytes of all interim answers before the status; a server that sends them for ever would keep the broker busy until the
timeout."""
UNQUOTED = "!$%&'()*+,/:;=?@[]~"
"""Characters of a URL that are sent as they are, beside letters and digits (RFC 3986, 3.3 and 3.4)."""


def client_context() -> ssl.SSLContext:
    """Make a client's TLS context with the operating system's CA certificates (``SSL_CERT_FILE`` names others). Blocks."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def post(target: Target, address: str, headers: Mapping[str, str], body: bytes, tls: ssl.SSLContext | None) -> int:
    """Send a request and return the status of its answer.

    Args:
        address: IP address to connect to.
        tls: None without TLS; else the certificate must be for ``target.host``, whatever the address.

    Raises: OSError when there is no connection, TLS fails, or the answer is not HTTP.

    There is no time limit; a cancellation closes the connection.
    """
    name = None if tls is None else target.host
    reader, writer = await asyncio.open_connection(address, target.port, limit=LINE_BYTES_MAX, ssl=tls, server_hostname=name)
    try:
        writer.write(_head(target, headers, len(body)) + body)  # not awaited: a server may answer before it has read the body
        return await _status(reader, target.host)
    finally:
        writer.transport.abort()  # a close would wait for a server that does not read


def _head(target: Target, headers: Mapping[str, str], size: int) -> bytes:
    """The head of the request. Assumes values without line breaks."""
    parts = urlsplit(target.url)
    path = quote(parts.path or "/", UNQUOTED) + (f"?{quote(parts.query, UNQUOTED)}" if parts.query else "")
    host = f"[{target.host}]" if ":" in target.host else target.host
    if target.port != (443 if target.scheme == "https" else 80):
        host += f":{target.port}"
    fields = {"host": host, **headers, "content-length": str(size), "connection": "close"}
    lines = (f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", "")
    return "\r\n".join(lines).encode("ascii")


async def _status(reader: asyncio.StreamReader, host: str) -> int:
    """The status of the answer; interim ones (1xx) are skipped."""
    left = INTERIM_BYTES_MAX
    try:
        while found := STATUS_LINE.fullmatch(line := await reader.readline()):
            if (status := int(found[1])) >= 200:
                return status
            left -= len(line)
            while (line := await reader.readline()).rstrip() and left > 0:  # headers of an interim answer
                left -= len(line)
            if left <= 0:
                raise ConnectionError(f"{host} sent more than {INTERIM_BYTES_MAX} bytes of interim answers (1xx), and no other")
    except ValueError:
        raise ConnectionError(f"{host} sent a line of more than {LINE_BYTES_MAX} bytes instead of an HTTP status") from None
    raise ConnectionError(f"{host} closed the connection without an HTTP status, or does not speak HTTP/1.1")
