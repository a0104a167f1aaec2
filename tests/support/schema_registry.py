"""A fake schema registry for tests, which can also misbehave."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote


class SchemaRegistry:
    """Answers of a Confluent-compatible registry, by path.

    Attributes:
        url: its address.
        requests: the paths of all requests, in order.
        misbehave: called with the request handler; if it returns True, it has sent the answer itself.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.requests: list[str] = []
        self.misbehave: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False
        self._answers: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, int] = {}
        self._count = 0

    def add(self, subject: str, schema: Any) -> int:
        """Register a version of an Avro schema. Returns: its id."""
        return self.register(subject, {"schema": json.dumps(schema)})  # without a type: Avro's have none

    def add_protobuf(self, subject: str, source: str, *references: tuple[str, str, int]) -> int:
        """Register a version of a Protobuf schema. ``references``: name, subject and version of each import. Returns: its
        id."""
        named = [dict(zip(("name", "subject", "version"), each, strict=True)) for each in references]
        return self.register(subject, {"schemaType": "PROTOBUF", "schema": source, "references": named})

    def register(self, subject: str, answer: dict[str, Any]) -> int:
        self._count += 1
        version = self._versions[subject] = self._versions.get(subject, 0) + 1
        self._answers[f"/schemas/ids/{self._count}"] = answer
        for name in (version, "latest"):
            path = f"/subjects/{quote(subject, safe='')}/versions/{name}"
            self._answers[path] = {"subject": subject, "version": version, "id": self._count, **answer}
        return self._count

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path)
        if self.misbehave(handler):
            return
        found = self._answers.get(handler.path)
        body = json.dumps(found or {"error_code": 40403, "message": "Schema not found"}).encode()
        handler.send_response(200 if found else 404)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.answer(self)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry = SchemaRegistry(server)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
