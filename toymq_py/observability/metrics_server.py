"""``--metrics HOST:PORT``: ``GET /metrics`` for a broker without the gateway, one request a connection.

Contract: clients.md, "Operations"; ADR 0078. With ``--http`` the gateway serves the same page. This server needs no extra; it
reads what a scraper sends, the request line, ``Host`` and ``Accept``, and no body.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping

from toymq_py.broker import Broker
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.host_names import AllowedHosts
from toymq_py.observability.prometheus import render

logger = logging.getLogger("toymq_py.server")

REQUESTS_MAX = 8
"""Served at a time; a connection beyond is closed. One scraper asks every few seconds."""
HEAD_BYTES_MAX = 8 * 1024
HEAD_TIMEOUT_S = 10.0
"""From the connection's beginning to the end of its request's head: a byte every few seconds keeps no place."""
REQUEST_TIMEOUT_S = 10.0
"""For the scrape, and again for the client to take the answer."""
TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves on bound sockets from ``start`` to ``stop``. Belongs to the broker's loop; owns a task for each connection."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, listeners: Iterable[socket.socket], hosts: AllowedHosts
    ) -> None:
        self._broker = broker
        self._loop = loop
        self._hosts = hosts
        self._requests: set[asyncio.Task[None]] = set()
        self._acceptors = [Acceptor(listener, loop, self._accepted) for listener in listeners]

    def start(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()

    def stop(self) -> None:
        """Close the listeners and the connections."""
        for acceptor in self._acceptors:
            acceptor.stop()
        for request in self._requests:
            request.cancel()

    def _accepted(self, connection: socket.socket) -> None:
        if len(self._requests) >= REQUESTS_MAX:
            connection.close()
            return
        request = self._loop.create_task(self._serve(connection))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=HEAD_BYTES_MAX)
        except OSError:  # gone again
            connection.close()
            return
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await self._answer(head)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(answer)
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):  # a scraper that leaves, is too slow, or sends no HTTP
            pass
        except Exception:
            logger.exception("bug in a scrape")
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        request_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        status, content_type, body = await self._page(method, path, headers)
        fields = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return f"HTTP/1.1 {status}\r\n{fields}".encode() + (b"" if method == "HEAD" else body)

    async def _page(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[str, str, bytes]:
        """Status, content type and body."""
        host = headers.get("host", "")
        if not self._hosts.allow(host):
            said = f"Host {host[:100]!a} is not allowed: use localhost, an address, or start the broker with --allowed-host\n"
            return "403 Forbidden", TEXT, said.encode()
        if path != "/metrics":
            return "404 Not Found", TEXT, b"the only page is /metrics\n"
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", TEXT, b"use GET\n"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                body, content_type = await render(self._broker, accept=headers.get("accept", ""))
        except TimeoutError:
            return "503 Service Unavailable", TEXT, b"the broker is busy: scrape again later\n"
        return "200 OK", content_type, body
