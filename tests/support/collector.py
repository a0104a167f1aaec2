"""A collector of OpenTelemetry that keeps what it gets: OTLP over HTTP, as brokers and clients send it."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected(NamedTuple):
    """A span that was received: ids as hex digits, ``parent`` "" for none."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent: str


class Collector:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._spans: list[Collected] = []
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for of_resource in request.resource_spans:
                (service,) = (each.value.string_value for each in of_resource.resource.attributes if each.key == "service.name")
                for of_scope in of_resource.scope_spans:
                    for span in of_scope.spans:
                        ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                        self._spans.append(Collected(service, span.name, *ids))

    @property
    def spans(self) -> list[Collected]:
        with self._lock:
            return list(self._spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing to stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
