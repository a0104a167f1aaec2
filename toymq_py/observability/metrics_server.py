"""``--metrics HOST:PORT``: ``GET /metrics`` for a broker without HTTP.

The standard library's WSGI server, a thread a request, as prometheus_client serves its own; the scrape itself runs on the
broker's loop. With ``--http`` the same page is on that listener, and this one is not needed.
"""

import asyncio
import io
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from toymq_py.broker import Broker
from toymq_py.clock import Clock, SystemClock
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.host_names import Hosts
from toymq_py.observability.prometheus import render

REQUESTS_MAX = 8
"""At a time; who comes beyond is hung up on. One scraper asks every few seconds."""
HEAD_TIMEOUT_S = 10.0
"""For the whole head of a request."""
REQUEST_TIMEOUT_S = 10.0
"""For the scrape, and for each write of the answer."""

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

StartResponse = Callable[[str, list[tuple[str, str]]], object]


class _Head(io.RawIOBase):
    """What a connection sends, until one deadline: a byte every few seconds does not keep a seat."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline = clock.monotonic() + HEAD_TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        left_s = self._deadline - self._clock.monotonic()
        if left_s <= 0:
            raise TimeoutError("the head of the request took too long")
        self._connection.settimeout(left_s)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_Handler.timeout)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: "_Requests"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection, self.server.clock))

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is no news."""

    def address_string(self) -> str:
        return str(self.client_address[0])  # the library's asks the name service


class _Requests(ThreadingMixIn, WSGIServer):
    """Requests of connections that are handed to it; it never binds."""

    daemon_threads = True  # a scraper that hangs does not keep the process

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        WSGIServer.__init__(self, ("", 0), _Handler, bind_and_activate=False)
        self.socket.close()  # made and not bound
        self.server_name, self.server_port = "toymq", 0
        self.setup_environ()
        self.room = threading.Semaphore(REQUESTS_MAX)

    def shutdown_request(self, request: Any) -> None:
        """Called once for every request, by whoever ends it."""
        super().shutdown_request(request)
        self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who hangs up or is too slow is no news either; the application has its own errors."""


class MetricsListener:
    """Serves on bound sockets from ``start`` to ``stop``. Belongs to the loop, which must be the broker's."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, listeners: Iterable[socket.socket], hosts: Hosts
    ) -> None:
        self._broker = broker
        self._hosts = hosts
        self._loop = loop
        self._requests = _Requests(SystemClock())
        self._requests.set_app(self._app)
        self._acceptors = [Acceptor(listener, loop, self._take) for listener in listeners]

    def start(self) -> None:
        for acceptor in self._acceptors:
            acceptor.start()

    def stop(self) -> None:
        """Take no more; a scrape that is under way is hung up on when the process ends."""
        for acceptor in self._acceptors:
            acceptor.stop()

    def _take(self, connection: socket.socket) -> None:
        if not self._requests.room.acquire(blocking=False):
            connection.close()
            return
        try:
            self._requests.process_request(connection, connection.getpeername())
        except (OSError, RuntimeError):  # gone again already; no thread to be had
            self._requests.shutdown_request(connection)

    def _app(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        """On the request's thread."""
        if not self._hosts.allow(environ.get("HTTP_HOST", "")):
            return _text(start_response, "403 Forbidden", "call it localhost or by its address, or give it --allowed-host\n")
        if environ["PATH_INFO"] != "/metrics":
            return _text(start_response, "404 Not Found", "only /metrics is here\n")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text(start_response, "405 Method Not Allowed", "use GET\n")
        accept = environ.get("HTTP_ACCEPT", "")
        scrape = asyncio.run_coroutine_threadsafe(render(self._broker, accept=accept), self._loop)
        try:
            body, content_type = scrape.result(REQUEST_TIMEOUT_S)
        except TimeoutError:
            scrape.cancel()
            return _text(start_response, "503 Service Unavailable", "the broker is busy\n")
        start_response("200 OK", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body] if environ["REQUEST_METHOD"] == "GET" else []


def _text(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))])
    return [text.encode()]
