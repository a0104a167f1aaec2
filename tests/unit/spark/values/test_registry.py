"""The client of schema registries, with one that answers well, badly, or not at all."""

import base64
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.schema_registry import SchemaRegistry, schema_registry
from toymq_spark.errors import OptionError, RegistryFailed
from toymq_spark.values import registry
from toymq_spark.values.registry import Reference, Registry, Schema, Subject, subject_of

STRING = Schema("AVRO", '"string"')


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


def client(server: SchemaRegistry) -> Registry:
    return Registry(server.url, sleep=lambda seconds: None)


def test_urls() -> None:
    assert subject_of("https://r:8/subjects/orders-value/versions/latest") == Subject("https://r:8", "orders-value", "latest")
    assert subject_of("http://r/api/subjects/a%20b/versions/3/") == Subject("http://r/api", "a%20b", "3")
    for url in ("http://r:8081", "http://r/subjects/a", "http://r/subjects/a/versions/new", "http://r/subjects//versions/1"):
        with pytest.raises(OptionError, match=r"option valueSchema: invalid URL .*: write https://REGISTRY/subjects/NAME"):
            subject_of(url)


def test_a_user_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(OptionError, match="a user has no place in it") as found:
        subject_of("http://ann:s3cret@r/subjects/a/versions/1")
    assert "s3cret" not in str(found.value)


def test_schemas_are_asked_for_once(server: SchemaRegistry) -> None:
    schema_id = server.add("orders-value", "string")
    found = client(server)
    assert found.version(Subject(server.url, "orders-value", "latest"), "AVRO") == (schema_id, STRING)
    assert [found.schema(schema_id) for _ in range(3)] == [STRING] * 3
    assert [found.schema(77) for _ in range(3)] == [None] * 3, "also that there is none"
    assert server.requests[1:] == [f"/schemas/ids/{schema_id}", "/schemas/ids/77"]
    with pytest.raises(OptionError, match="has no version 5 of a subject orders-value"):
        found.version(Subject(server.url, "orders-value", "5"), "AVRO")
    with pytest.raises(OptionError, match="orders-value is AVRO, and valueFormat=protobuf"):
        found.version(Subject(server.url, "orders-value", "1"), "PROTOBUF")
    assert pickle.loads(pickle.dumps(found)).schema(schema_id) == STRING


def test_references_are_other_subjects(server: SchemaRegistry) -> None:
    server.add_protobuf("a/b c", "one")
    schema_id = server.add_protobuf("s", "two", ("x.proto", "a/b c", 1))
    reference = Reference("x.proto", "a/b c", 1)
    found = client(server).schema(schema_id)
    assert found == Schema("PROTOBUF", "two", (reference,))
    assert client(server).referenced(reference) == Schema("PROTOBUF", "one")
    assert client(server).referenced(Reference("x.proto", "a/b c", 2)) is None
    assert server.requests[1:] == ["/subjects/a%2Fb%20c/versions/1", "/subjects/a%2Fb%20c/versions/2"]


def test_a_redirect_is_not_followed(server: SchemaRegistry) -> None:
    def elsewhere(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(302)
        handler.send_header("Location", f"{server.url}/schemas/ids/2")
        handler.end_headers()
        return True

    server.misbehave = elsewhere
    with pytest.raises(RegistryFailed, match="HTTP 302"):
        client(server).schema(1)
    assert server.requests == ["/schemas/ids/1"]


def test_what_is_kept_is_bounded(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEMAS_MAX", 3)
    found = client(server)
    for schema_id in (1, 2, 3, 1, 4, 1, 2):
        found.schema(schema_id)
    assert server.requests == [f"/schemas/ids/{n}" for n in (1, 2, 3, 4, 2)], "2 was used last long ago"


def test_a_registry_that_is_away_for_a_moment_is_asked_again(server: SchemaRegistry) -> None:
    schema_id = server.add("s", "string")
    left = [503, 429]

    def busy(handler: BaseHTTPRequestHandler) -> bool:
        if left:
            handler.send_error(left.pop())
            return True
        return False

    server.misbehave = busy
    assert client(server).schema(schema_id) == STRING


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[]", "the answer is not a JSON object: is it a schema registry?"),
        (b"<html>", "the answer is not a JSON object"),
        (b"[" * 100_000, "the answer is not a JSON object"),
        (b'{"schema": 5}', "it has no schema"),
        (b'{"schema": "", "schemaType": 5}', "its schemaType or references are none"),
        (b'{"schema": "", "references": {}}', "its schemaType or references are none"),
        (b'{"schema": "", "references": [{"name": "a", "subject": "b"}]}', "a reference has no name, subject or version"),
        (b'{"schema": "", "references": [{"name": "a", "subject": "b", "version": -1}]}', "a reference has no name"),
        (b'{"schema": "' + b"x" * registry.ANSWER_BYTES_MAX + b'"}', "the answer has more than 1048576 bytes"),
    ],
)
def test_an_answer_that_is_none(server: SchemaRegistry, body: bytes, says: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)
        return True

    server.misbehave = answer
    with pytest.raises(RegistryFailed, match=says):
        client(server).schema(1)


def test_an_error_is_no_missing_schema(server: SchemaRegistry) -> None:
    """A row is bad if the registry does not know its schema, not if the registry fails."""
    server.misbehave = lambda handler: handler.send_error(401) is None
    with pytest.raises(RegistryFailed, match=r"/schemas/ids/1: HTTP 401: valueSchema.credentials.file has to name a user"):
        client(server).schema(1)
    assert len(server.requests) == 1, "asking again does not help"
    server.misbehave = lambda handler: handler.send_error(500) is None
    with pytest.raises(RegistryFailed, match="HTTP 500"):
        client(server).schema(1)
    assert len(server.requests) == 1 + registry.ATTEMPTS


def test_a_registry_with_a_login(server: SchemaRegistry, tmp_path: Path) -> None:
    schema_id = server.add("s", "string")
    expected = f"Basic {base64.b64encode(b'ann:s3cret').decode()}"
    server.misbehave = lambda handler: handler.headers["Authorization"] != expected and handler.send_error(401) is None
    credentials = tmp_path / "credentials"
    found = Registry(server.url, str(credentials), sleep=lambda seconds: None)
    with pytest.raises(OptionError, match=r"option valueSchema.credentials.file: cannot read"):
        found.schema(schema_id)
    credentials.write_text("ann:old\n")
    with pytest.raises(RegistryFailed, match="HTTP 401") as refused:
        found.schema(schema_id)
    assert "old" not in str(refused.value)
    credentials.write_text("ann:s3cret\n")
    assert pickle.loads(pickle.dumps(found)).schema(schema_id) == STRING


def test_an_answer_that_drips_in_has_an_end(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ANSWER_S", 0.05)
    monkeypatch.setattr(registry, "ATTEMPTS", 1)

    def drip(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
        except OSError:
            return True

    server.misbehave = drip
    with pytest.raises(RegistryFailed, match=r"no whole answer within 0.05 s"):
        client(server).schema(1)


def test_a_registry_that_is_not_there() -> None:
    with schema_registry() as gone:
        pass
    with pytest.raises(RegistryFailed, match="refused"):
        client(gone).schema(1)
