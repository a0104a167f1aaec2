"""The command lines' client of the HTTP gateway: refusals, and answers of other servers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from toymq.http_gateway import GatewayFailed, HttpGateway, choose, named_in, told_by
from toymq.url import parse_url
from toymq_py.errors import ConfigError, Forbidden, Moved, RequestError


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    """Run a server with one answer. Yields: its URL, and the requests: the line, the token, the body."""
    asked: list[tuple[str, str | None, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            asked.append((self.requestline, self.headers.get("authorization"), self.rfile.read(length)))
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()
        thread.join()


def test_json_goes_in_and_out_with_the_token() -> None:
    with answering(200, b'{"a": 1}') as (url, asked):
        assert HttpGateway(url, "t").ask("PUT", "/v1/x", {"b": 2}) == {"a": 1}
        assert HttpGateway(url, None).ask("GET", "/v1/x") == {"a": 1}
    assert asked == [("PUT /v1/x HTTP/1.1", "Bearer t", b'{"b": 2}'), ("GET /v1/x HTTP/1.1", None, b"")]
    with answering(204, b"") as (url, _):
        assert HttpGateway(url, None).ask("GET", "/v1/x") is None


def test_a_refusal_has_its_code_and_its_class() -> None:
    for code, kind in (("FORBIDDEN", Forbidden), ("NO_SUCH_WEBHOOK", RequestError)):
        with answering(403, json.dumps({"code": code, "detail": "why"}).encode()) as (url, _):
            with pytest.raises(RequestError, match=r"^why$") as caught:
                HttpGateway(url, None).ask("GET", "/")
            assert (type(caught.value), caught.value.code) == (kind, code)


@pytest.mark.parametrize(("status", "body"), [(404, b"nothing here"), (500, b"{"), (200, b"<html>"), (403, b"[]")])
def test_what_is_no_gateway_is_said(status: int, body: bytes) -> None:
    with answering(status, body) as (url, _), pytest.raises(GatewayFailed, match="gateway"):
        HttpGateway(url, None).ask("GET", "/")


def test_a_redirect_is_not_followed_for_it_would_get_the_token() -> None:
    with answering(200, b"{}") as (other, asked), answering(307, b"", location=other) as (url, _):
        with pytest.raises(GatewayFailed, match="answers 307"):
            HttpGateway(url, "t").ask("GET", "/")
        assert asked == []


def test_nothing_there_and_no_url() -> None:
    with pytest.raises(GatewayFailed, match=r"cannot ask http://127.0.0.1:1: .*refused"):
        HttpGateway("http://127.0.0.1:1", None).ask("GET", "/")
    with pytest.raises(ConfigError, match=r"^invalid --http-url 'here': write http://host:port$"):
        HttpGateway("here", None)


@pytest.mark.parametrize(
    ("gateways", "url", "chosen"),
    [
        (["http://127.0.0.1:8080/"], "toymq://127.0.0.1", "http://127.0.0.1:8080/"),
        (["http://0.0.0.0:8080/"], "toymq://mq.example.com", "http://mq.example.com:8080/"),
        (["http://[::]:8080/"], "toymq://[fd00::1]", "http://[fd00::1]:8080/"),
        (["https://0.0.0.0:8443/", "http://0.0.0.0:8080/"], "toymqs://mq.example.com", "https://mq.example.com:8443/"),
        (["http://127.0.0.1:8080/"], "toymqs://localhost", "http://127.0.0.1:8080/"),
        (["http://127.0.0.1:8080/"], "unix:/tmp/s", "http://127.0.0.1:8080/"),
    ],
)
def test_it_is_reached_where_the_broker_is(gateways: list[str], url: str, chosen: str) -> None:
    assert choose(gateways, parse_url(url), "alerts are reached over HTTP") == chosen


@pytest.mark.parametrize(
    ("gateways", "url", "says"),
    [
        ([], "toymq://a", "this broker has no gateway: start it with --http 127.0.0.1:7800"),
        (None, "toymq://a", "does not tell where its gateway listens: name it with --http-url"),
        (["http://0.0.0.0:8080/"], "toymqs://mq.example.com", "has no TLS: start it with --https, or name"),
    ],
)
def test_without_one_the_remedy_is_said(gateways: list[str] | None, url: str, says: str) -> None:
    """A token that the client sends over TLS is not sent to a gateway without TLS."""
    with pytest.raises(ConfigError, match=f"^alerts are reached over HTTP, and .*{says}"):
        choose(gateways, parse_url(url), "alerts are reached over HTTP")


def test_a_moved_names_the_gateway_to_ask() -> None:
    both = Moved("h:1 toymqs://h:2 http://h:3/ https://h:4/ (group b) has the topic http://x/")
    assert named_in(both, "http://here:1") == "http://h:3/"
    assert named_in(both, "https://here:1") == "https://h:4/"
    assert named_in(Moved("h:1 https://h:4/ (group b) has the topic t"), "http://here:1") == "https://h:4/"
    assert named_in(Moved("h:1 http://h:3/ (group b) has the topic t"), "https://here:1") is None, "the token is a secret"
    assert named_in(Moved("h:1 (worker 1) has the topic t"), "http://here:1") is None


def test_one_process_tells_the_gateways_of_all_workers_and_its_own() -> None:
    """Found: the addresses came from STATS, which needs every worker and group, so `toymqctl connections` failed while one was
    down."""
    workers = {"worker": 1, "workers": [["h:1", "toymqs://h:3", "http://h:5", "https://h:7"], ["h:2", "http://h:6"]]}
    assert told_by(workers) == ["https://h:7", "http://h:5"], "those of worker 0, those with TLS first"
    assert told_by(workers, 1) == ["http://h:6"]
    assert told_by({"worker": 0, "workers": [["h:1"]]}) == []
    assert told_by({"worker": 0, "workers": [], "gateways": ["http://h:5"]}) == ["http://h:5"]
    assert told_by({"group": "a", "groups": {}}) is None
    assert told_by({}) is None, "an older broker"
