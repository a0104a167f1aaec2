"""Topics over HTTP, what shows them, and the pages."""

import random
import re
from collections.abc import AsyncIterator

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.app import DIALECTS, OPERATIONS
from toymq_py.gateway.operations import Operation
from toymq_py.gateway.problems import STATUS

DIR = "/data/d"
TOPIC = "/v1/topics/t"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), max_topics=200) as rig:
        yield rig


async def test_a_topic_is_made_confirmed_changed_and_removed(rig: HttpRig) -> None:
    made = await rig.ask("PUT", TOPIC, json={"visibility": 1000})
    assert (made.status_code, made.json()["settings"]) == (201, {"visibility": 1000})
    assert (await rig.ask("PUT", TOPIC, json={"visibility": 1000})).status_code == 200
    assert (await rig.ask("PUT", TOPIC)).status_code == 200, "what is not named is not compared"
    refused(await rig.ask("PUT", TOPIC, json={"visibility": 2000}), 409, "EXISTS")
    changed = await rig.ask("PATCH", TOPIC, json={"visibility": None, "dedupe_keys": "7"})
    assert (changed.status_code, changed.json()["settings"]) == (200, {"dedupe_keys": 7})
    assert (await rig.ask("GET", TOPIC)).json() == rig.broker.topic("t").describe()
    gone = await rig.ask("DELETE", TOPIC)
    assert (gone.status_code, gone.content) == (204, b"")
    for method in ("GET", "DELETE", "PATCH"):
        refused(await rig.ask(method, TOPIC, content=b'{"ttl": 1}' if method == "PATCH" else b""), 404, "NO_SUCH_TOPIC")


async def test_a_purged_topic_is_empty_and_its_ids_go_on(rig: HttpRig) -> None:
    await rig.publish("t", "a", "b")
    answer = await rig.ask("POST", f"{TOPIC}:purge")
    assert (answer.status_code, answer.json()) == (200, {"purged": 2})
    assert (await rig.ask("GET", f"{TOPIC}/log")).json()["messages"] == []
    assert (await rig.ask("POST", f"{TOPIC}/messages", content=b"c")).json()["id"] == 2
    refused(await rig.ask("POST", "/v1/topics/u:purge"), 404, "NO_SUCH_TOPIC")
    refused(await rig.ask("PUT", f"{TOPIC}:purge"), 405, "UNKNOWN_COMMAND")


async def test_a_full_topic_is_429_and_leaves_no_trace(rig: HttpRig) -> None:
    assert (await rig.ask("PUT", TOPIC, json={"backlog_max_messages": 1})).status_code == 201
    await rig.publish("t", "a")
    answer = await rig.ask("POST", f"{TOPIC}/messages", content=b"b")
    refused(answer, 429, "QUEUE_FULL")
    assert answer.headers["retry-after"] == "1"
    assert [m["payload"] for m in (await rig.ask("GET", f"{TOPIC}/log")).json()["messages"]] == ["a"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"no json", 400, "BAD_FRAMING"),
        (b"[]", 400, "BAD_FRAMING"),
        (b'{"colour": 7}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": 0}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": 1.5}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": true}', 422, "BAD_ARGUMENT"),
        (b'{"visibility": "30s"}', 422, "BAD_ARGUMENT"),
        (b" " * 70_000, 413, "PAYLOAD_TOO_LARGE"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_settings_that_make_no_sense(rig: HttpRig, body: bytes, status: int, code: str) -> None:
    refused(await rig.ask("PUT", TOPIC, content=body), status, code)
    assert not rig.broker.topics


async def test_more_topics_than_there_may_be(rig: HttpRig) -> None:
    for n in range(200):
        await rig.publish(f"events.{n}", "x")
    refused(await rig.ask("POST", "/v1/topics/more/messages", content=b"x"), 409, "TOO_MANY_TOPICS")
    listed = (await rig.ask("GET", "/v1/topics")).json()["topics"]
    assert [topic["topic"] for topic in listed] == sorted(f"events.{n}" for n in range(200))
    assert len((await rig.ask("GET", "/v1/topics?pattern=events.*")).json()["topics"]) == 200
    assert [t["topic"] for t in (await rig.ask("GET", "/v1/topics?pattern=events.7")).json()["topics"]] == ["events.7"]
    refused(await rig.ask("GET", "/v1/topics?pattern=ev*nts"), 422, "BAD_NAME")


async def test_parameters_that_are_not_known_are_refused(rig: HttpRig) -> None:
    assert "colour" in refused(await rig.ask("GET", "/v1/topics?colour=red"), 422, "BAD_ARGUMENT")["detail"]
    refused(await rig.ask("GET", "/v1/topics?pattern=a&pattern=b"), 422, "BAD_ARGUMENT")


async def test_paths_and_methods_that_there_are_not(rig: HttpRig) -> None:
    refused(await rig.ask("GET", "/v2/topics"), 404, "UNKNOWN_COMMAND")
    answer = await rig.ask("POST", "/v1/topics")
    refused(answer, 405, "UNKNOWN_COMMAND")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_a_bug_is_said_and_logged(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.broker, "describe", bug)
    refused(await rig.ask("GET", "/v1/topics"), 500, "INTERNAL")
    assert "RuntimeError: a bug" in caplog.text


# -- who may ask


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"user-agent": "Mozilla/5.0"}, False),
        ({"user-agent": "Mozilla/5.0", "origin": "http://localhost"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"host": "evil.example"}, False),
        ({"host": "evil.example:80"}, False),
    ],
)
async def test_pages_of_other_sites_change_nothing(rig: HttpRig, headers: dict[str, str], allowed: bool) -> None:
    answer = await rig.ask("POST", "/v1/topics/t/messages", content=b"x", headers=headers)
    if allowed:
        assert answer.status_code == 201
    else:
        refused(answer, 403, "FORBIDDEN")
        assert not rig.broker.topics


BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "accept": "image/avif,*/*"}
"""What an ``<img>`` of another page sends to an address that is not loopback, without TLS: no Origin, no Sec-Fetch."""
READS = [
    (dialect, operation) for dialect, operations in {"": OPERATIONS, **DIALECTS}.items() for operation in operations
    if operation.method == "GET" and not operation.safe
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "operation"), READS, ids=lambda one: getattr(one, "name", one))
async def test_no_image_of_a_page_takes_a_message(dialect: str, operation: Operation) -> None:
    """Found by a trial: ``<img src="…/consume/orders?auto_ack=true">`` acked, on any page, without a token."""
    async with gateway(DIR, fs=SimDisk(random.Random(1)), dialects=[dialect] if dialect else []) as rig:
        await rig.publish("t", "x")
        path = re.sub(r"\{\w+(:\w+)?\}", "t", operation.path)
        path += "?consumer=c" if any(parameter.name == "consumer" for parameter in operation.parameters) else ""
        agent = {"user-agent": "Mozilla/4.0"}
        no_agent = {"user-agent": ""}
        for headers in (BROWSER, agent, no_agent | {"referer": "http://evil.example/"}, no_agent | {"accept-language": "de"}):
            assert (await rig.ask(operation.method, path, headers=headers)).status_code == 403, headers
        assert rig.broker.topics["t"].consumers == {}
        for headers in (BROWSER | {"x-requested-with": "page"}, BROWSER | {"sec-fetch-site": "same-origin"},
                        BROWSER | {"origin": "http://localhost"}, {"user-agent": "curl/8.5.0"}):  # fmt: skip
            assert (await rig.ask(operation.method, path, headers=headers)).status_code != 403, headers


def test_there_are_reads_that_take() -> None:
    """Or the test above would have none to try."""
    assert {dialect for dialect, _ in READS} == {"", "mq", "tinymq"}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/topics/t:purge"), ("PUT", "/v1/topics/t"), ("DELETE", "/v1/topics/t"), ("POST", "/v1/topics/t/messages"),
     ("GET", "/healthz"), ("POST", "/publish/t"), ("POST", "/t/messages"), ("DELETE", "/t")],
)  # fmt: skip
async def test_a_line_break_at_the_end_makes_another_path(method: str, path: str) -> None:
    """Found by a purge that nobody had asked for."""
    async with gateway(DIR, fs=SimDisk(random.Random(1)), dialects=["tinymq", "mq"]) as rig:
        await rig.publish("t", "x")
        refused(await rig.ask(method, f"{path}%0A", content=b"y"), 404, "UNKNOWN_COMMAND")
        assert [message["payload"] for message in await rig.lease("t", max=2)] == ["x"]


# -- what describes it


async def test_health(rig: HttpRig) -> None:
    health = (await rig.ask("GET", "/healthz")).json()
    assert health["status"] == "ok"
    assert health["uptime_seconds"] >= 0
    assert (await rig.ask("GET", "/readyz")).json() == {"status": "ready", "reasons": []}
    assert (await rig.ask("HEAD", "/readyz")).status_code == 200


async def test_metrics_are_those_of_the_exporter(rig: HttpRig) -> None:
    await rig.publish("t", "x")
    answer = await rig.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "toymq_publish_total 1" in answer.text
    answer = await rig.ask("GET", "/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")


async def test_stats(rig: HttpRig) -> None:
    await rig.publish("t", "x")
    stats = (await rig.ask("GET", "/v1/stats")).json()
    assert (stats["publish_total"], stats["fsync"]) == (1, "always")


async def test_the_document_has_every_operation_and_every_page_stands_alone(rig: HttpRig) -> None:
    document = (await rig.ask("GET", "/openapi.json")).json()
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(operation.method, operation.path) for operation in OPERATIONS}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    for path in ("/", "/docs"):
        page = await rig.ask("GET", path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "://" not in page.text, "nothing comes from elsewhere"
        again = await rig.ask("GET", path, headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        unwanted = await rig.ask("POST", path)
        refused(unwanted, 405, "UNKNOWN_COMMAND")
        assert unwanted.headers["allow"] == "GET, HEAD"


def test_what_an_operation_may_refuse_with_has_a_status() -> None:
    for operation in OPERATIONS:
        assert all(error.code in STATUS for error in operation.errors), operation.name
        assert operation.answers, operation.name
