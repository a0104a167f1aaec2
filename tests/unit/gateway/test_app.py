"""What holds for every route, of whichever dialect."""

import asyncio
import random
import re
from itertools import product
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from tests.support.http_rig import HttpRig, gateway
from tests.support.in_process import TIMEOUT_S
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.app import DIALECTS, OPERATIONS, Application, Endpoint
from toymq_py.gateway.http_request import HttpRequest
from toymq_py.net.host_names import AllowedHosts

DIR = "/data/d"
CROSS_SITE = {"user-agent": "Mozilla/5.0", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
SILENT = {"user-agent": "Mozilla/5.0", "accept": "image/avif,*/*"}
"""An ``<img>`` to an address that is not loopback, without TLS."""
PAGES = {"cross-site": CROSS_SITE, "silent": SILENT}
ALL = {operation.path: operation for operation in (*OPERATIONS, *(each for found in DIALECTS.values() for each in found))
       if operation.method == "GET"}  # fmt: skip


def application(rig: HttpRig) -> Application:
    assert rig.gateway is not None
    return Application(rig.gateway, hosts=AllowedHosts(), dialects=list(DIALECTS))


def paths_of(app: Application) -> set[str]:
    return {route.path for route in app._router.routes if isinstance(route, Route | WebSocketRoute)}  # type: ignore[attr-defined]


async def look(app: Application, method: str, path: str, headers: dict[str, str]) -> int:
    """Request a path until all of the answer has come, or its first bytes: an answer may be endless. Returns: its status."""
    begun = asyncio.Event()
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)
        if message["type"] == "http.response.body":
            begun.set()

    where, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "scheme": "http", "path": where, "raw_path": where.encode(), "root_path": "",
        "query_string": query.encode(), "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()], "state": {},
    }  # fmt: skip
    async with asyncio.timeout(TIMEOUT_S):
        await app(scope, receive, send)  # type: ignore[arg-type]
    status: int = said[0]["status"]
    return status


def state_of(rig: HttpRig) -> object:
    """Return all state that a GET might change."""
    return [
        (name, topic.log.committed_id, topic.settings,
         [(consumer, state.counts(topic.log.committed_id)) for consumer, state in topic.consumers.items()])
        for name, topic in rig.broker.topics.items()
    ]  # fmt: skip


def path_to(template: str, topic: str) -> str:
    """Return a route's path for a topic, with the required query."""
    path = re.sub(r"\{\w+(:\w+)?\}", topic, template)
    query = [f"{each.name}={topic}" for each in (ALL[template].parameters if template in ALL else ())
             if each.where == "query" and each.required]  # fmt: skip
    return "?".join((path, *(("&".join(query),) if query else ())))


async def test_no_get_of_a_page_makes_or_takes_anything() -> None:
    """Found by a trial: ``<img src="…/stream/evil">`` created a topic, with a directory and settings. Every route is tried, new
    ones included."""
    fs = SimDisk(random.Random(1))
    async with gateway(DIR, fs=fs, dialects=list(DIALECTS)) as rig:
        await rig.publish("there", "x")
        async with asyncio.timeout(TIMEOUT_S):
            while f"{DIR}/topics/there/segments.json" not in fs.snapshot():  # noqa: ASYNC110 (written behind the answer)
                await asyncio.sleep(0)
        app = application(rig)
        templates = paths_of(app)
        assert ALL.keys() <= templates, "each of them has a route"
        before, disk = state_of(rig), fs.snapshot()
        for template in sorted(templates):
            for topic in ("there", "absent"):
                for (kind, headers), method in product(PAGES.items(), ("GET", "HEAD")):
                    await look(app, method, path_to(template, topic), headers)
                    assert state_of(rig) == before, f"{method} {path_to(template, topic)} of a page ({kind})"
        assert fs.snapshot() == disk


BRIEF = {
    ("POST", "/v1/topics/t/messages"), ("POST", "/v1/topics/a:b/messages"), ("GET", "/v1/topics/t/messages"),
    ("GET", "/v1/topics/a:b/messages"),
    ("DELETE", "/v1/topics/t/messages/7"), ("POST", "/v1/topics/t/messages:ack"), ("POST", "/v1/topics/t/messages/7:nack"),
    ("POST", "/v1/topics/t/messages/7:extend"), ("GET", "/v1/topics/t"),
}  # fmt: skip
OTHERS = {
    "/", "/v1/topics", "/v1/topics/t", "/v1/topics/t/messages/", "/v1/topics/t/u/messages", "/v1/topics/t/messages:batch", "/q",
    "/q/messages", "/consume/a/b", "/ack/a/b/7", "/v1/topics/t/messages\n", "/none/of/these/at/all", "",
}  # fmt: skip


async def test_the_way_without_a_task_leads_where_the_router_leads(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way without a task checks only the routes that may match, and must find the router's."""
    asked: list[tuple[Endpoint, dict[str, Any]]] = []

    async def respond(self: Endpoint, request: HttpRequest) -> Response:
        asked.append((self, request.path_params))
        return Response()

    async def nothing(*_: object) -> None:
        """Ignore what is sent."""

    monkeypatch.setattr(Endpoint, "respond", respond)
    app = application(rig)
    brief = set()
    for method, path in product(("GET", "POST", "PUT", "DELETE"), OTHERS | {path for _, path in BRIEF}):
        scope = {"type": "http", "method": method, "path": path, "scheme": "http", "headers": [], "query_string": b""}
        coroutine = app.answer_of(HttpRequest(dict(scope)))
        if coroutine is not None:
            brief.add((method, path))
            await coroutine
            await app(scope, nothing, nothing)  # type: ignore[arg-type]  # asks for nothing
            assert asked[-1] == asked[-2]
    assert brief == BRIEF
