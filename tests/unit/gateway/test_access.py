"""Tokens over HTTP: every operation without a token, with a wrong one, with one without the right, and with one that has it."""

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.http_tokens import bearer, grants, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py.auth.holder import Holder
from toymq_py.auth.quotas import Seat
from toymq_py.auth.tokens import Authority, parse_grants
from toymq_py.errors import StorageFailed, TooManyConnections
from toymq_py.gateway import http_request
from toymq_py.gateway.access import check_grant, check_rights, identify
from toymq_py.gateway.app import DIALECTS, OPERATIONS
from toymq_py.gateway.bodies import SEAT
from toymq_py.gateway.http_request import HttpRequest
from toymq_py.gateway.operations import Operation

GUARDED = [operation for operation in OPERATIONS if operation.needs is not None]


@pytest.fixture
def authority() -> Authority:
    return three_tokens()


@pytest.fixture
async def rig(authority: Authority) -> AsyncIterator[HttpRig]:
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority) as rig:
        yield rig


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_nothing_is_done_without_a_token(rig: HttpRig, operation: Operation) -> None:
    path = operation.path.format(topic="orders.1", id=0, consumer="c", name="w", connection="toymq-1")
    answer = await rig.ask(operation.method, path)
    refused(answer, 401, "AUTH_REQUIRED")
    assert answer.headers["www-authenticate"] == "Bearer"
    for wrong in ("Basic YQ==", "Bearer", "Bearer "):
        refused(await rig.ask(operation.method, path, headers={"authorization": wrong}), 401, "AUTH_REQUIRED")
    refused(await rig.ask(operation.method, path, headers={"authorization": "Bearer guess"}), 401, "AUTH_FAILED")
    if operation.needs != "see":
        refused(await rig.ask(operation.method, path, headers=bearer("outsider")), 403, "FORBIDDEN")
    assert not rig.broker.topics


@pytest.mark.parametrize("operation", GUARDED, ids=lambda operation: operation.name)
async def test_no_query_is_parsed_of_a_client_without_a_token(
    rig: HttpRig, operation: Operation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by an attack: the audit trail's line parsed the query, 60 KB took 45 ms, and eight clients stalled the broker."""
    caplog.set_level(logging.INFO, "toymq_py.audit")
    parsed: list[bytes] = []
    monkeypatch.setattr(http_request, "QueryParams", lambda raw: parsed.append(raw) or {})
    monkeypatch.setattr("starlette.requests.QueryParams", lambda raw: parsed.append(raw) or {})
    path = operation.path.format(topic="orders.1", id=0, consumer="c", name="w", connection="toymq-1")
    for header in ({}, {"authorization": "Bearer guess"}):
        answer = await rig.ask(operation.method, f"{path}?consumer=c&x", headers=header)
        assert (answer.status_code, parsed) == (401, [])
    assert "consumer=c&x" not in caplog.text
    assert f"action={operation.name}" in caplog.text, "the line is there"


async def test_no_query_is_parsed_where_none_is_taken(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: ``/healthz`` took 30 ms to answer that it takes no parameters."""
    parsed: list[bytes] = []
    monkeypatch.setattr(http_request, "QueryParams", lambda raw: parsed.append(raw) or {})
    monkeypatch.setattr("starlette.requests.QueryParams", lambda raw: parsed.append(raw) or {})
    for path in ("/healthz", "/readyz", "/leader"):
        assert "takes none behind its ?" in refused(await rig.ask("GET", f"{path}?a=b"), 422, "BAD_ARGUMENT")["detail"]
    refused(await rig.ask("POST", "/v1/login?a=b"), 422, "BAD_ARGUMENT")
    assert parsed == []


async def test_the_audit_trail_has_the_query_of_a_known_client(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq_py.audit")
    refused(await rig.ask("GET", "/v1/topics/orders.1/messages?consumer=c", headers=bearer("outsider")), 403, "FORBIDDEN")
    assert "topic=orders.1 consumer=c token=outsider" in caplog.text
    many = "&".join(["consumer=c"] * 40)
    refused(await rig.ask("GET", f"/v1/topics/orders.1/messages?{many}", headers=bearer("outsider")), 403, "FORBIDDEN")
    assert "topic=orders.1 token=outsider" in caplog.text, "a query that is refused is left out"


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        ("/api/groups", {"topic": "orders", "group": "g"}, "tinymqCreateGroup topic=orders group=g"),
        ("/api/queues", {"name": "orders"}, "tinymqCreateQueue topic=orders"),
        ("/api/topics", {"name": "orders"}, "tinymqCreateTopic topic=orders"),
        (
            "/v1/amqp:declare",
            {
                "exchange": [{"name": "a", "type": "topic"}, {"name": "b", "type": "topic"}], "queue": [{"name": "q"}],
                "binding": [{"source": "a", "queue": "q"}, {"source": "a", "exchange": "b"}],
            },
            "declareAmqp exchange=a,b queue=q source=a",
        ),
    ],
)  # fmt: skip
async def test_the_audit_trail_has_what_a_body_names(
    authority: Authority, path: str, body: dict[str, object], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by an attack: the lines of a group's and of AMQP's declarations named no object."""
    caplog.set_level(logging.INFO, "toymq_py.audit")
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority, dialects=tuple(DIALECTS)) as rig:
        for _ in range(2):
            await rig.ask("POST", path, json=body, headers=bearer("operator"))
    said = [record.getMessage() for record in caplog.records]
    assert [each for each in said if each.startswith(f"action={line} token=operator")], said


OPEN = {"health", "leader", "readiness", "login", "logout"}
"""Operations that need no token."""
IN_DIALECTS = [operation for name in DIALECTS for operation in DIALECTS[name]]


@pytest.mark.parametrize("operation", [*OPERATIONS, *IN_DIALECTS], ids=lambda operation: operation.name)
async def test_a_request_without_a_token_learns_nothing_of_what_else_is_wrong_with_it(
    authority: Authority, operation: Operation
) -> None:
    """Found by an attack: a request without a token but with another fault, missing parameters or a reserved name, was answered
    400 or 409."""
    if operation.name in OPEN:
        assert operation.needs is None
        return
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority, dialects=tuple(DIALECTS)) as rig:
        for value in ("orders", "-x", "a b", "ws"):
            path = re.sub(r"{[^}]*}", value.replace(" ", "%20"), operation.path)
            for query in ("", "?no=such&no=such"):
                answer = await rig.ask(operation.method, path + query, content=b"{")
                assert answer.status_code == 401, f"{path}{query}: {answer.text}"


@pytest.mark.parametrize(
    ("name", "needs", "topic", "may"),
    [
        ("billing", "publish", "orders.1", True),
        ("billing", "publish", "orders.1.a", False),
        ("billing", "subscribe", "orders.1.a", True),
        ("billing", "subscribe", "orders.*", True),
        ("billing", "subscribe", "*", False),
        ("billing", "describe", "orders.1", True),
        ("billing", "describe", "other", False),
        ("billing", "admin", "orders.1", False),
        ("billing", "see", "", True),
        ("operator", "admin", "other", True),
        ("operator", "describe", "other", True),
        ("operator", "publish", "other", False),
        ("outsider", "see", "", True),
    ],
)
async def test_who_may_what(authority: Authority, name: str, needs: str, topic: str, may: bool) -> None:
    grant = authority.find(f"{name}-token")
    assert grant is not None
    refusals = []
    try:
        check_grant(grant, needs, topic)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 (which one is the question)
        refusals.append(getattr(error, "code", repr(error)))
    assert refusals == ([] if may else ["FORBIDDEN"])


async def test_everybody_sees_their_own_topics_only(rig: HttpRig) -> None:
    for topic in ("orders.1", "orders.2"):
        path = f"/v1/topics/{topic}/messages"
        assert (await rig.ask("POST", path, content=b"x", headers=bearer("billing"))).status_code == 201
    assert (await rig.ask("PUT", "/v1/topics/other", headers=bearer("operator"))).status_code == 201
    seen = {
        name: [topic["topic"] for topic in (await rig.ask("GET", "/v1/topics", headers=bearer(name))).json()["topics"]]
        for name in ("billing", "operator", "outsider")
    }
    assert seen == {"billing": ["orders.1", "orders.2"], "operator": ["orders.1", "orders.2", "other"], "outsider": []}
    assert rig.gateway is not None
    for name, expected in seen.items():
        grant = rig.gateway.authority and rig.gateway.authority.find(f"{name}-token")
        event = await anext(rig.gateway.snapshots.watch(lambda grant=grant: grant))
        snapshot = json.loads(event.partition(b"data: ")[2])
        assert [topic["topic"] for topic in snapshot["topics"]] == expected, name


async def test_a_token_that_is_taken_away_is_refused_at_once(rig: HttpRig, authority: Authority) -> None:
    assert (await rig.ask("GET", "/v1/topics", headers=bearer("billing"))).status_code == 200
    authority.replace(grants("operator"))
    refused(await rig.ask("GET", "/v1/topics", headers=bearer("billing")), 401, "AUTH_FAILED")


@pytest.mark.parametrize("present", [(), ("outsider",)], ids=["gone", "less"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/topics/orders.1/messages", b"x"),
        ("POST", "/v1/topics/orders.1/messages:batch", b'{"payload":"x"}'),
        ("PUT", "/v1/topics/orders.1", b"{}"),
        ("PUT", "/v1/webhooks/late", b'{"topic":"orders.1","url":"http://localhost:1/"}'),
    ],
)
async def test_a_body_that_ends_after_its_token_lost_its_rights_does_nothing(
    rig: HttpRig, authority: Authority, method: str, path: str, body: bytes, present: tuple[str, ...]
) -> None:
    name = "operator" if method == "PUT" else "billing"

    async def late() -> AsyncIterator[bytes]:
        yield body[:1]
        less = [replace(grants("outsider")[0], digest=grants(name)[0].digest)] if present else []
        authority.replace(less)
        yield body[1:]

    answer = await rig.ask(method, path, content=late(), headers=bearer(name) | {"content-type": "application/x-ndjson"})
    refused(answer, *((403, "FORBIDDEN") if present else (401, "AUTH_FAILED")))
    assert not rig.broker.topics


async def test_a_wait_under_a_token_that_is_taken_away_gets_nothing(rig: HttpRig, authority: Authority) -> None:
    path = "/v1/topics/orders.1/messages"
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rig.ask("GET", f"{path}?consumer=c&wait_s=30", headers=bearer("billing")))
        await rig.until_polled("orders.1")
        authority.replace(grants("operator"))
        rig.broker.topic("orders.1").publisher.publish([b""], [b"x"])
    refused(waiting.result(), 401, "AUTH_FAILED")
    authority.replace(grants("billing"))
    await rig.until(lambda: rig.broker.topic("orders.1").next_id)
    answer = await rig.ask("GET", f"{path}?consumer=c", headers=bearer("billing"))
    assert [(m["id"], m["attempt"]) for m in answer.json()["messages"]] == [(0, 1)], "it went back uncounted"


async def test_a_wait_ends_when_its_token_is_taken_away(authority: Authority) -> None:
    """Found: the request was answered 401 only at the end of its wait."""
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority, dialects=["tinymq"]) as rig:
        assert rig.gateway is not None
        rig.broker.topic_or_new("orders.1")
        paths = (
            "/v1/topics/orders.1/messages?consumer=c&wait_s=30", "/consume/orders/1?timeout=30s",
            "/consume/orders/1?timeout=30s&filter_key=a&filter_val=b",
        )  # fmt: skip
        async with asyncio.timeout(15), asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(rig.ask("GET", path, headers=bearer("billing"))) for path in paths]
            await rig.until(lambda: rig.gateway is not None and len(rig.gateway.waiting) == len(paths))
            authority.replace(grants("operator"))
        assert [wait.result().status_code for wait in waits] == [401] * len(paths)


async def test_a_change_of_other_tokens_ends_no_wait(rig: HttpRig, authority: Authority) -> None:
    path = "/v1/topics/orders.1/messages"
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rig.ask("GET", f"{path}?consumer=c&wait_s=30", headers=bearer("billing")))
        await rig.until_polled("orders.1")
        authority.replace(grants("billing"))
        await rig.until_polled("orders.1")
        rig.broker.topic("orders.1").publisher.publish([b""], [b"x"])
    assert [m["id"] for m in waiting.result().json()["messages"]] == [0]


async def test_no_wait_of_a_dialect_outlives_its_token(authority: Authority) -> None:
    fs = SimDisk(random.Random(1))
    async with gateway("/data/d", fs=fs, authority=authority, dialects=["tinymq"]) as rig:
        async with asyncio.TaskGroup() as tasks:
            path = "/consume/orders/1?timeout=30s&auto_ack=true"
            waiting = tasks.create_task(rig.ask("GET", path, headers=bearer("billing")))
            await rig.until_polled("orders.1")
            authority.replace(grants("operator"))
            rig.broker.topic("orders.1").publisher.publish([b""], [b"x"])
        assert waiting.result().status_code == 401
        assert waiting.result().text == "this token or login was revoked or has expired: log in again\n"
        counts = rig.broker.topics["orders.1"].consumers["tinymq"].counts(1)
        assert (counts.ready, counts.inflight) == (1, 0), "it went back"


@pytest.mark.parametrize(("path", "line"), [
    ("/v1/topics/orders.1/stream?from=earliest", "action=stream topic=orders.1"), ("/v1/events", "action=events"),
    ("/stream/orders.1", "action=tinymqStream topic=orders.1"),
])  # fmt: skip
async def test_a_stream_ends_with_its_token_and_is_in_the_audit_trail(
    authority: Authority, caplog: pytest.LogCaptureFixture, path: str, line: str
) -> None:
    """Found: the end of a stream had no line, but that of a session, a WebSocket and a poll had one."""
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority, dialects=["tinymq"]) as rig:
        published = await rig.ask("POST", "/v1/topics/orders.1/messages", content=b"x", headers=bearer("billing"))
        assert published.status_code == 201
        caplog.clear()
        async with asyncio.TaskGroup() as tasks:
            stream = tasks.create_task(rig.ask("GET", path, headers=bearer("billing")))
            await rig.until(lambda: rig.gateway is not None and len(rig.gateway.waiting) == 1)
            authority.replace(grants("operator"))
            rig.broker.topic("orders.1").publisher.publish([b""], [b"y"])
        assert "data: " in stream.result().text
        assert [record.getMessage() for record in caplog.records if record.name == "toymq_py.audit"] == [
            f"{line} token=billing address=127.0.0.1 via=http result=AUTH_FAILED"
        ]


async def test_a_webhook_pushes_what_its_token_may_read(rig: HttpRig, authority: Authority) -> None:
    """Found by a trial: an administrator without ``subscribe`` had payloads pushed that it may not read."""
    assert rig.gateway is not None
    rig.gateway.sender.private = True
    definition = {"topic": "orders.>", "url": "http://127.0.0.1:1/"}
    refused(await rig.ask("PUT", "/v1/webhooks/w", json=definition, headers=bearer("operator")), 403, "FORBIDDEN")
    assert rig.gateway.webhooks.defined == {}
    rights = f'name = "reader"\nadmin = true\nsubscribe = ["orders.>"]\nsha256 = "{sha256(b"reader-token").hexdigest()}"\n'
    authority.replace(parse_grants(f"[[token]]\n{rights}", "auth.toml"))
    for topic, status in (("orders.*", 201), ("orders.1", 200), (">", 403), ("*", 403), ("other", 403)):
        answer = await rig.ask("PUT", "/v1/webhooks/w", json=definition | {"topic": topic}, headers=bearer("reader"))
        assert answer.status_code == status, topic


async def test_a_webhook_of_a_dialect_pushes_what_its_token_may_read(authority: Authority) -> None:
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority, dialects=["tinymq"]) as rig:
        answer = await rig.ask("POST", "/webhook/orders.1", json={"url": "http://1.1.1.1/"}, headers=bearer("operator"))
        assert (answer.status_code, "may not subscribe" in answer.text) == (403, True)
        assert rig.gateway is not None
        assert (rig.gateway.webhooks.defined, rig.broker.topics) == ({}, {})


async def test_metrics_name_only_what_a_token_sees(rig: HttpRig) -> None:
    """Metrics of hidden topics are added up without names, so that a sum stays right."""
    for topic in ("orders.1", "secret-plan"):
        assert (await rig.ask("PUT", f"/v1/topics/{topic}", headers=bearer("operator"))).status_code == 201
    expected: dict[str, set[str]] = {"operator": {"orders.1", "secret-plan"}, "billing": {"orders.1"}, "outsider": set()}
    for name, named in expected.items():
        text = (await rig.ask("GET", "/metrics", headers=bearer(name))).text
        assert {topic for topic in ("orders.1", "secret-plan") if topic in text} == named, name
        assert ('toymq_topic_messages{topic="(others)"}' in text) == (len(named) < 2), name


async def test_a_probe_learns_no_names(rig: HttpRig) -> None:
    assert (await rig.ask("PUT", "/v1/topics/secret-plan", headers=bearer("operator"))).status_code == 201
    rig.broker.unopened["secret-plan"] = StorageFailed("it cannot be read")
    answer = await rig.ask("GET", "/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["1 topic is degraded or failed"])


async def test_pages_and_probes_need_no_token(rig: HttpRig) -> None:
    for path in ("/", "/docs", "/openapi.json", "/healthz", "/leader", "/readyz"):
        assert (await rig.ask("GET", path)).status_code == 200, path


BODY = b'{"queue": "secretplan", "message": "x"}'
OF_DIALECTS = [(dialect, operation) for dialect, operations in DIALECTS.items() for operation in operations]


@pytest.mark.parametrize(("dialect", "operation"), OF_DIALECTS, ids=lambda one: getattr(one, "name", one))
async def test_no_old_path_leads_past_the_tokens(authority: Authority, dialect: str, operation: Operation) -> None:
    """Without a token no path of a dialect creates or shows a topic, whatever queue name is in it."""
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority, dialects=[dialect]) as rig:
        assert (await rig.ask("PUT", "/v1/topics/secretplan", headers=bearer("operator"))).status_code == 201
        path = re.sub(r"\{\w+(:\w+)?\}", "secretplan", operation.path)
        for headers in ({}, {"authorization": "Bearer guess"}, bearer("outsider")):
            answer = await rig.ask(operation.method, path, headers=headers, content=BODY)
            if operation.needs is not None and headers != bearer("outsider"):
                assert answer.status_code in (400, 401), "a name that is none is refused first"
            assert path != operation.path or "secretplan" not in answer.text
        assert set(rig.broker.topics) == {"secretplan"}
        topic = rig.broker.topics["secretplan"]
        assert (topic.log.committed_id, topic.consumers) == (0, {}), "nothing was done"


async def test_a_connection_is_its_tokens_before_its_first_request_costs_anything(rig: HttpRig) -> None:
    """Found: the first request of each new connection ran in the share of its address, and so before other requests from
    there."""
    assert rig.gateway is not None
    quotas = rig.broker.quotas

    def first_request(headers: dict[str, str]) -> tuple[Seat, HttpRequest]:
        seat = quotas.enter("192.0.2.1")
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        return seat, HttpRequest({"type": "http", "headers": raw, "scheme": "http", "state": {SEAT: seat}})

    for headers in ({}, {"authorization": "Bearer guess"}, {"authorization": "Basic YQ=="}):
        seat, request = first_request(headers)
        assert (identify(rig.gateway, request), seat.holder.name) == (False, seat.address.name)
    seat, request = first_request(bearer("billing"))
    assert (identify(rig.gateway, request), seat.holder.name) == (True, "billing")
    assert identify(rig.gateway, request) is False, "it is known"


async def test_a_token_with_too_many_connections_is_refused_and_counted_once(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rig.gateway is not None
    quotas, reached = rig.broker.quotas, rig.broker.metrics.limits_reached
    monkeypatch.setattr(Holder, "share", lambda self, limit: 1 if self.name == "billing" else limit)
    quotas.enter("192.0.2.1").identify("billing", admin=False)
    headers = [(name.encode(), value.encode()) for name, value in bearer("billing").items()]
    scope = {"type": "http", "headers": headers, "scheme": "http", "state": {SEAT: quotas.enter("192.0.2.1")}}
    request = HttpRequest(scope)
    assert identify(rig.gateway, request) is False
    with pytest.raises(TooManyConnections, match="token billing"):
        check_rights(rig.gateway, request, "see")
    assert reached["token_connections"] == 1
