"""``--metrics HOST:PORT``: serves a few pages over HTTP, for a broker without the gateway and for workers; one request per
connection.

Contract: clients.md, "Operations"; ADR 0078. With ``--http`` the gateway serves the broker's page, too. This server needs no
extra. It reads the request line, ``Host`` and ``Accept``, and no body.
"""

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from toymq_py.auth import audit
from toymq_py.broker import Broker
from toymq_py.errors import BadFraming, Forbidden
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.host_names import HTTP_VERSIONS, AllowedHosts, check_hosts
from toymq_py.net.peer import network_of, peer_address
from toymq_py.observability.prometheus import render

logger = logging.getLogger("toymq_py.server")

WAITING_MAX = 64
"""Most connections whose request has not arrived. One more hangs up on the one that waits longest: a scraper sends its request
at once, so however many connections stay silent, a scrape gets in."""
REQUESTS_MAX = 8
"""Most requests answered at a time: each holds a page. One more hangs up on the client that has been taking its page longest;
when none is taking one, the new connection is closed. One scraper asks every few seconds."""
HEAD_BYTES_MAX = 8 * 1024
HEAD_END = b"\r\n\r\n"
HEAD_TIMEOUT_S = 10.0
"""The time from the connection's beginning to the end of its request's head: a byte every few seconds keeps no place."""
REQUEST_TIMEOUT_S = 10.0
"""The time for the scrape, and again for the client to take the answer."""
TEXT = "text/plain; charset=utf-8"
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""A token of HTTP (RFC 9110, 5.6.2)."""
REQUEST_LINE = re.compile(rf"({TOKEN}) ([!-~]+)(?: HTTP/(\d\.\d))?", re.ASCII)
"""A request line; without a version it is one of HTTP/0.9."""
FIELD_NAME = re.compile(TOKEN, re.ASCII)

Answer = tuple[str, str, bytes]
"""Status, content type and body of an answer."""
Pages = Mapping[str, Callable[[str], Awaitable[Answer]]]
"""Pages by path; each is called with the request's ``Accept``."""


def broker_pages(broker: Broker) -> Pages:
    """The pages of a broker."""

    async def metrics(accept: str) -> Answer:
        body, content_type = await render(broker, accept=accept)
        return "200 OK", content_type, body

    return {"/metrics": metrics}


@dataclass(eq=False, slots=True)
class _Client:
    """One connection. ``hang_up`` closes it."""

    connection: socket.socket
    network: str | None
    """The address or network that has a share, as for ``--address-percent``."""
    hang_up: Callable[[], object]
    head: bytes = b""


class MetricsServer:
    """Serves on bound sockets from ``start`` to ``stop``. Belongs to the broker's event loop; owns the connections, and a task
    for each request."""

    def __init__(
        self, pages: Pages, loop: asyncio.AbstractEventLoop, listeners: Iterable[socket.socket], hosts: AllowedHosts
    ) -> None:
        self._pages = pages
        self._loop = loop
        self._hosts = hosts
        self._waiting: dict[_Client, asyncio.TimerHandle] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._taking: dict[_Client, None] = {}  # a part of the requests, the longest first
        self._acceptors = [Acceptor(listener, loop, self._accepted) for listener in listeners]

    def start(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()

    def stop(self) -> None:
        """Close the listeners and the connections."""
        for acceptor in self._acceptors:
            acceptor.stop()
        for client in list(self._waiting):
            client.hang_up()
        for request in self._requests:
            request.cancel()

    def _accepted(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        client = _Client(connection, network_of(peer_address(connection)), lambda: None)
        client.hang_up = partial(self._hang_up, client)
        self._waiting[client] = self._loop.call_later(HEAD_TIMEOUT_S, client.hang_up)
        self._loop.add_reader(connection, self._heard, client)
        if len(self._waiting) > WAITING_MAX:
            slowest = _slowest(self._waiting)
            self._heard(slowest)  # what has arrived may not have been read yet
            if slowest in self._waiting:
                slowest.hang_up()

    def _hang_up(self, client: _Client) -> None:
        self._forget(client)
        client.connection.close()

    def _forget(self, client: _Client) -> None:
        """Stop waiting for the request head of a connection."""
        self._waiting.pop(client).cancel()
        self._loop.remove_reader(client.connection)

    def _heard(self, client: _Client) -> None:
        try:
            piece = client.connection.recv(HEAD_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        client.head += piece
        head, ended, _ = client.head.partition(HEAD_END)
        too_long = len(head) > HEAD_BYTES_MAX
        if too_long or ended:
            self._forget(client)
            self._begin(client, None if too_long else head)
        elif not piece:  # it leaves
            client.hang_up()

    def _begin(self, client: _Client, head: bytes | None) -> None:
        """Begin to answer a request. ``head``: None for one that is too long."""
        if len(self._requests) >= REQUESTS_MAX:
            if not self._taking:
                client.connection.close()
                return
            slowest = _slowest(self._taking)
            del self._taking[slowest]
            slowest.hang_up()
        request = self._loop.create_task(self._serve(client, head))
        client.hang_up = request.cancel
        self._requests.add(request)
        request.add_done_callback(partial(self._ended, client))

    def _ended(self, client: _Client, request: asyncio.Task[None]) -> None:
        """Called when a request ends, also one that was cancelled before it began."""
        self._requests.discard(request)
        client.connection.close()

    async def _serve(self, client: _Client, head: bytes | None) -> None:
        try:
            answer = await self._answer(head, client)
            self._taking[client] = None
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._loop.sock_sendall(client.connection, answer)
            client.connection.recv(HEAD_BYTES_MAX)  # with unread bytes a close resets the connection, and the answer is lost
        except OSError:  # a scraper that leaves, or is too slow
            pass
        except Exception:
            logger.exception("bug in a scrape")
        finally:
            self._taking.pop(client, None)

    async def _answer(self, head: bytes | None, client: _Client) -> bytes:
        if head is None:
            return _encode("431 Request Header Fields Too Large", TEXT, b"at most %d bytes are accepted\n" % HEAD_BYTES_MAX)
        try:
            method, target, version, headers = _parse(head.decode("latin-1"))
            host = check_hosts(version, headers.get("host", []))
        except _OtherVersion as error:
            return _encode("505 HTTP Version Not Supported", TEXT, f"{error}\n".encode())
        except BadFraming as error:
            return _encode("400 Bad Request", TEXT, f"{error}\n".encode())
        if not self._hosts.allow(host):
            audit.record("request", Forbidden.code, token=None, address=peer_address(client.connection), via="http")
        accept = headers.get("accept", [""])[-1]
        return _encode(*await self._page(method, target.partition("?")[0], host, accept), head_only=method == "HEAD")

    async def _page(self, method: str, path: str, host: str | None, accept: str) -> Answer:
        if not self._hosts.allow(host):
            said = f"Host {host} is not allowed: use localhost, an address, or start the broker with --allowed-host\n"
            return "403 Forbidden", TEXT, said.encode()
        if (page := self._pages.get(path)) is None:
            there = " and ".join(sorted(self._pages))
            return "404 Not Found", TEXT, f"there is {there}\n".encode()
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", TEXT, b"use GET\n"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await page(accept)
        except TimeoutError:
            return "503 Service Unavailable", TEXT, b"the process is busy: scrape again later\n"


class _OtherVersion(Exception):
    """A request with an unsupported version of HTTP."""


def _parse(head: str) -> tuple[str, str, str, Mapping[str, list[str]]]:
    """Parse a head to method, target, version and headers by lower-case name. Raises: BadFraming, _OtherVersion."""
    request_line, *lines = head.split("\r\n")
    found = REQUEST_LINE.fullmatch(request_line)
    if found is None:
        raise BadFraming("invalid HTTP request: use HTTP/1.1 (RFC 9112)")
    version = found[3] or "0.9"
    if version not in HTTP_VERSIONS:
        raise _OtherVersion(f"HTTP/{version} is not supported: use HTTP/1.1")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not FIELD_NAME.fullmatch(name):
            raise BadFraming(f"invalid header {line[:100]!a}: write Name: value")
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    return found[1], found[2], version, headers


def _encode(status: str, content_type: str, body: bytes, *, head_only: bool = False) -> bytes:
    fields = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return f"HTTP/1.1 {status}\r\n{fields}".encode() + (b"" if head_only else body)


def _slowest(clients: Iterable[_Client]) -> _Client:
    """The longest waiting connection of the network that has the most: a flood from one network closes no other's."""
    of_network = Counter(client.network for client in clients)
    return max(clients, key=lambda client: of_network[client.network])  # the first of several
