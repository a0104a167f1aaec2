"""The HTTP gateway on a real broker in the test's own event loop: its ASGI application alone, or with its listener."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.in_process import TIMEOUT_S, InProcess, serving
from toymq_py.auth.tokens import Authority
from toymq_py.clock import SystemClock
from toymq_py.gateway import HttpServer
from toymq_py.gateway.app import Application
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.webhook_pusher import WebhookPusher
from toymq_py.net.certificates import Certificates
from toymq_py.net.host_names import AllowedHosts
from toymq_py.server import Server
from toymq_py.storage.fs import FileSystem

BASE = "http://localhost"
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For a client without TLS: it would read the authorities of the machine, for 30 ms."""
JSON_LINES = {"content-type": "application/x-ndjson"}


class HttpRig:
    """A gateway under test. ``client`` sends requests to it; ``served`` is the broker behind it."""

    def __init__(self, served: InProcess, client: httpx.AsyncClient, gateway: Gateway | None, port: int = 0) -> None:
        """``gateway``: the gateway of an application alone; ``port``: the port of a listener."""
        self.served = served
        self.broker = served.broker
        self.client = client
        self.gateway = gateway
        self.port = port
        self.tls_port = 0
        self.webhooks: WebhookPusher | None = None
        self.authority: Authority | None = None
        self.stop: Callable[[], None] = lambda: None
        """Begins the listener's shutdown."""

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.client.request(method, path, **more)

    async def publish(self, topic: str, *payloads: str) -> None:
        for payload in payloads:
            assert (await self.ask("POST", f"/v1/topics/{topic}/messages", content=payload)).status_code == 201

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the event loop run until a condition holds."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 (it has no event, and takes a few passes)
                await asyncio.sleep(0)

    async def until_polled(self, topic: str) -> None:
        """Wait until a consumer of the topic exists: then a request polls there."""
        await self.until(lambda: topic in self.broker.topics and self.broker.topics[topic].consumers)

    async def lease(self, topic: str, consumer: str = "c", **query: Any) -> list[dict[str, Any]]:
        """Poll for messages, and return the answer's; [] for status 204."""
        answer = await self.ask("GET", f"/v1/topics/{topic}/messages", params={"consumer": consumer, **query})
        if answer.status_code == 204:
            return []
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that a response is a problem document with this code. Returns: its members."""
    assert answer.status_code == status, f"{status} {code} was expected: {answer.status_code} {answer.text}"
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["detail"], "the text says why"
    return problem


def lines(*messages: dict[str, Any] | str) -> bytes:
    """Encode messages as JSON lines; a text is taken as it is."""
    return "".join((m if isinstance(m, str) else json.dumps(m)) + "\n" for m in messages).encode()


@asynccontextmanager
async def gateway(
    data_dir: Path | str,
    *,
    fs: FileSystem | None = None,
    authority: Authority | None = None,
    dialects: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[HttpRig]:
    """Yield the gateway's application without a socket."""
    async with serving(data_dir, fs=fs, **options) as served:
        core = Gateway(served.broker, SystemClock(), asyncio.get_running_loop(), authority=authority)
        transport = httpx.ASGITransport(Application(core, hosts=AllowedHosts(), dialects=dialects))
        async with httpx.AsyncClient(transport=transport, base_url=BASE, verify=NO_AUTHORITIES, timeout=TIMEOUT_S) as client:
            yield HttpRig(served, client, core)
        core.waiting.stop()


@asynccontextmanager
async def listening(
    data_dir: Path | str,
    *,
    fs: FileSystem | None = None,
    authority: Authority | None = None,
    certificates: Certificates | None = None,
    dialects: Sequence[str] = (),
    private_webhooks: bool = False,
    local: bool = True,
    allowed_hosts: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[HttpRig]:
    """Yield the whole gateway, on a free port, and with ``certificates`` also on another port with TLS."""
    loop = asyncio.get_running_loop()
    both: dict[str, Any] = {"authority": authority, "certificates": certificates}
    async with serving(data_dir, fs=fs, **both, **options) as served, asyncio.TaskGroup() as tasks:
        started = asyncio.Event()
        clock = SystemClock()
        server = HttpServer(
            served.broker,
            clock,
            loop,
            local=local,
            allowed_hosts=allowed_hosts,
            started=started.set,
            private_webhooks=private_webhooks,
            dialects=dialects,
            **both,
        )
        listeners = Server.bind("127.0.0.1", 0)
        tls_listeners = Server.bind("127.0.0.1", 0) if certificates is not None else []
        port = listeners[0].getsockname()[1]
        running = tasks.create_task(server.run(listeners, tls_listeners))
        await started.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=NO_AUTHORITIES, timeout=TIMEOUT_S) as client:
            rig = HttpRig(served, client, None, port)
            rig.tls_port = tls_listeners[0].getsockname()[1] if tls_listeners else 0
            rig.stop = server.stop
            rig.webhooks = server.webhooks
            rig.authority = authority
            try:
                yield rig
            finally:
                server.stop()
        await running


def ids(messages: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the id and the attempt of each message in an answer."""
    return [(message["id"], message["attempt"]) for message in messages]
