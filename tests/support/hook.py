"""A web server in a thread, which receives the webhooks and alerts of a broker in another process."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.broker_process import TIMEOUT_S


class Hook:
    """The received requests. ``status``: the HTTP status of the server's answers."""

    def __init__(self) -> None:
        self.status = 200
        self.url = ""
        self._posts: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

    def put(self, headers: dict[str, str], body: bytes) -> None:
        self._posts.put((headers, body))

    def next(self) -> tuple[dict[str, str], bytes]:
        """Wait for the next request, and return its headers and body."""
        return self._posts.get(timeout=TIMEOUT_S)


@contextmanager
def hooked() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.put({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(hook.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
