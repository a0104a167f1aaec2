"""HTTP at any worker: requests for another worker's topics, streams and WebSockets included, with the rights and limits that
hold there."""

import asyncio
import http.client
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.tokens import table, token
from tests.support.worker_processes import Workers, serving, topic_of
from toymq_py.auth.quotas import Quotas
from toymq_py.gateway import neighbours as neighbours_module
from toymq_py.gateway.forwarding import PIPE_BYTES_MAX, Forwarding, Pipe
from toymq_py.gateway.logins import Login
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.request_context import Gateway
from toymq_py.metrics import Metrics
from toymq_py.net.bounded_reads import ReadBuffer
from toymq_py.partitions import Partitioned
from toymq_py.placement import Placement

HERE, THERE = topic_of(0, 2), topic_of(1, 2)
OPEN = ("--http", "127.0.0.1:0")


class Curl:
    """An HTTP client with one connection to a worker."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        assert url.hostname is not None
        self.connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)

    def __enter__(self) -> "Curl":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        self.connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = self.connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with serving(tmp_path_factory.mktemp("workers") / "data", 2, *OPEN) as workers:
        workers.ready(2)
        yield workers


def test_one_connection_reaches_every_topic(workers: Workers) -> None:
    with Curl(workers.http(0)) as curl:
        for topic in (HERE, THERE, HERE, THERE):
            assert curl.ask("POST", f"/v1/topics/{topic}/messages", b"hello")[0] == 201
        for topic in (THERE, HERE):
            assert curl.ask("GET", f"/v1/topics/{topic}")[1]["messages"] == 2
            status, leased = curl.ask("GET", f"/v1/topics/{topic}/messages?consumer=c&max=5")
            assert (status, [message["id"] for message in leased["messages"]]) == (200, [0, 1])
            assert curl.ask("DELETE", f"/v1/topics/{topic}/messages/0?consumer=c") == (204, None)
            assert curl.ask("POST", f"/v1/topics/{topic}/messages/1:nack?consumer=c")[0] == 204
        pieces = (b"x" * 100_000 for _ in range(10))
        assert curl.ask("POST", f"/v1/topics/{THERE}/messages", pieces)[0] == 201, "chunked"
        curl.connection.request("HEAD", f"/v1/topics/{THERE}")
        answer = curl.connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        assert curl.ask("GET", f"/v1/topics/{THERE}/log?from=2")[1]["messages"][0]["payload"] == "x" * 1_000_000
        assert curl.ask("DELETE", f"/v1/topics/{THERE}")[0] == 204


def test_a_refusal_is_that_of_the_other_worker(workers: Workers) -> None:
    with Curl(workers.http(0)) as curl:
        missing = topic_of(1, 2) + ".dlq"
        assert curl.ask("GET", f"/v1/topics/{missing}")[1]["code"] == "NO_SUCH_TOPIC"
        assert curl.ask("POST", f"/v1/topics/{THERE}/messages", b"x", Origin="http://evil.example")[0] == 403
        assert curl.ask("GET", f"/v1/topics/{THERE}", Host="evil.example")[0] == 403


@pytest.mark.parametrize("topic", [HERE, THERE])
def test_http_1_0_needs_no_host(workers: Workers, topic: str) -> None:
    url = urlsplit(workers.http(0))
    with socket.create_connection((url.hostname, url.port), 60) as old:
        old.sendall(f"POST /v1/topics/{topic}/messages HTTP/1.0\r\nContent-Length: 1\r\n\r\nx".encode())
        assert old.recv(100).startswith(b"HTTP/1.1 201 ")


def test_the_header_of_workers_counts_for_nothing_from_a_client(workers: Workers) -> None:
    """A client's copy of the header does not stop its request from being forwarded either."""
    with Curl(workers.http(0)) as curl:
        assert curl.ask("PUT", f"/v1/topics/{THERE}", b"{}", toymq_forwarded="https 10.0.0.1 1 admin")[0] in (200, 201)
        assert "address=10.0.0.1" not in workers.said


def test_a_wait_ends_with_the_connection_of_its_client(workers: Workers) -> None:
    url = urlsplit(workers.http(0))
    with Curl(workers.http(0)) as curl:
        curl.ask("PUT", f"/v1/topics/{THERE}", b"{}")
        with socket.create_connection((url.hostname, url.port), 60) as waits:
            waits.sendall(f"GET /v1/topics/{THERE}/messages?consumer=w&wait_s=50 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            waits.shutdown(socket.SHUT_WR)
            assert waits.recv(100).startswith(b"HTTP/1.1 20"), "at once"


async def test_a_websocket_reaches_the_other_worker(workers: Workers) -> None:
    async with connect(f"{workers.http(0).replace('http', 'ws')}/v1/topics/{THERE}/ws") as client:
        async with asyncio.timeout(60):
            await client.send(json.dumps({"op": "publish", "ref": 1, "payload": "y" * 500_000}))
            assert json.loads(await client.recv())["op"] == "published"
            await client.send(json.dumps({"op": "subscribe", "consumer": "ws", "start": "earliest"}))
            assert json.loads(await client.recv())["op"] == "subscribed"
            while (message := json.loads(await client.recv()))["payload"] != "y" * 500_000:
                pass
            await client.send(json.dumps({"op": "ack", "ids": [message["id"]]}))
            assert json.loads(await client.recv())["op"] == "acked"
    with pytest.raises(InvalidStatus):
        await connect(f"{workers.http(0).replace('http', 'ws')}/v1/topics/{THERE}/ws", origin="http://evil.example")  # type: ignore[arg-type]


async def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2, *OPEN) as workers:
        workers.ready(2)
        address = workers.http(0)
        async with connect(f"{address.replace('http', 'ws')}/v1/topics/{THERE}/ws") as client:
            await client.send(json.dumps({"op": "publish", "ref": 1, "payload": "x"}))
            assert json.loads(await client.recv())["op"] == "published"
            os.kill(workers.pids[1], signal.SIGKILL)
            with pytest.raises(ConnectionClosed):
                await client.recv()
        with Curl(address) as curl:
            assert curl.ask("POST", f"/v1/topics/{HERE}/messages", b"x")[0] == 201
            assert curl.ask("POST", f"/v1/topics/{THERE}/messages", b"x")[0] == 201, "it waits for the next process"


async def test_tokens_and_logins_hold_at_the_other_worker(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    boss = table("boss", 'admin = true\npublish = [">"]\nsubscribe = [">"]')
    tokens.write_text(boss + table("reader", 'subscribe = ["none"]'))
    tokens.chmod(0o600)
    with serving(tmp_path / "data", 2, *OPEN, "--auth-file", str(tokens)) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            assert wire.ask(f"HELLO 1 auth={token('boss')}\n".encode()).startswith(b"HELLO")
            assert wire.ask(f"PUB {THERE} - 1\nx\n".encode()) == b"OK 0", "over the wire, too"
            assert wire.ask(b"CLUSTER\n").startswith(b"JSON")
            address = json.loads(wire.line())["workers"][0][1].removesuffix("/")
        with Curl(address) as curl:
            path = f"/v1/topics/{THERE}"
            assert curl.ask("GET", path)[0] == 401
            assert curl.ask("GET", path, Authorization=f"Bearer {token('reader')}")[0] == 403
            assert curl.ask("GET", path, Authorization=f"Bearer {token('boss')}")[0] == 200
            curl.connection.request("POST", "/v1/login", json.dumps({"token": token("boss")}))
            answer = curl.connection.getresponse()
            answer.read()
            cookie = answer.headers["set-cookie"].partition(";")[0]
            assert curl.ask("GET", path, Cookie=cookie)[0] == 200, "a login at one worker"
            assert curl.ask("POST", f"{path}/messages", b"x", Cookie=cookie, X_Requested_With="me")[0] == 201
            assert curl.ask("GET", path, Cookie=cookie[:-3] + "xyz")[0] == 401
            assert curl.ask("GET", path, toymq_forwarded="http 127.0.0.1 1 boss")[0] == 401, "a client claims a name"
            url = urlsplit(address)
            boss_token = f"Bearer {token('boss')}"
            leased = curl.ask("GET", f"{path}/messages?consumer=w&max=10", Authorization=boss_token)[1]
            assert len(leased["messages"]) == 2, "all: the next one waits"
            streams = []
            for what in ("stream", "messages?consumer=w&wait_s=50"):
                stream = socket.create_connection((url.hostname, url.port), 20)
                streams.append(stream)
                stream.sendall(f"GET {path}/{what} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
            assert streams[0].recv(100).startswith(b"HTTP/1.1 200")
            async with connect(
                f"{address.replace('http', 'ws')}{path}/ws", additional_headers={"Cookie": cookie}
            ) as client:
                assert curl.ask("DELETE", "/v1/login", Cookie=cookie, X_Requested_With="me")[0] == 204
                async with asyncio.timeout(20):
                    with pytest.raises(ConnectionClosed):
                        await client.recv()
            assert streams[1].recv(100).startswith(b"HTTP/1.1 401")
            while streams[0].recv(65536):
                pass
            for stream in streams:
                stream.close()
            assert curl.ask("GET", path, Cookie=cookie)[0] == 401
            assert curl.ask("DELETE", path, Authorization=boss_token)[0] == 204
        assert workers.stop() == 0
        workers.join()
        assert f"action=deleteTopic topic={THERE} token=boss address=127.0.0.1 via=http result=OK" in workers.said


async def test_a_worker_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a trial: the kernel accepts connections for a worker that is not up. A request got no answer as long as the
    worker was down, and its successor executed it after the client had gone."""
    monkeypatch.setattr(neighbours_module, "REACH_S", 0.02)
    paths = str(tmp_path / "0"), str(tmp_path / "1")
    forward = forwarding_to(*paths)
    received: list[bytes] = []
    ended, asked_again = asyncio.Event(), asyncio.Event()

    async def only_healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await reader.readuntil(b"\r\n\r\n")).partition(b" HTTP")[0])
        if received[-1] == b"GET /healthz":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            if len(received) > 2:
                asked_again.set()
        else:
            await reader.read()
            ended.set()
        writer.close()
        await writer.wait_closed()

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(paths[1])
        silent.listen()
        assert await post(forward) == (503, "PLACEMENT_UNKNOWN")
        silent.setblocking(False)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(9999).startswith(b"GET /healthz "), "nothing else was sent"
    monkeypatch.setattr(neighbours_module, "REACH_S", 1.0)  # within it a busy machine comes to its answer
    monkeypatch.setattr(neighbours_module, "FRESH_S", 0.0)
    os.unlink(paths[1])  # noqa: PTH108 (one system call)
    async with await asyncio.start_unix_server(only_healthy, paths[1]) as server:
        asked, again = asyncio.ensure_future(post(forward)), asyncio.ensure_future(asked_again.wait())
        await asyncio.wait({asked, again}, return_when=asyncio.FIRST_COMPLETED)
        assert not asked.done(), "one that is up may take its time"
        server.close()
        os.unlink(paths[1])  # noqa: PTH108 (one system call)
        assert await asked == (503, "SHUTTING_DOWN")
        await ended.wait()
    assert received[1] == b"POST /v1/topics/t/messages"


def forwarding_to(*paths: str) -> Forwarding:
    placement = Placement(0, ("a", "b"), (), paths)
    broker = SimpleNamespace(placement=placement, partitioned=SimpleNamespace(by_name={}), metrics=Metrics())
    gateway = SimpleNamespace(broker=broker, logins=None, neighbours=Neighbours(placement))
    return Forwarding(cast("Gateway", gateway))


async def post(forward: Forwarding) -> tuple[int, str]:
    """Return status and code of a publish that is for worker 1."""
    scope = {
        "type": "http", "method": "POST", "path": "/v1/topics/t/messages", "raw_path": b"/v1/topics/t/messages",
        "query_string": b"", "headers": [(b"content-length", b"1")], "scheme": "http", "client": None, "state": {},
    }  # fmt: skip
    received: asyncio.Queue[Any] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": b"x", "more_body": False})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await forward.forward(1, scope, received.get, send)
    return sent[0]["status"], json.loads(sent[1]["body"])["code"]


def test_a_batch_for_a_partitioned_topic_is_divided_by_the_worker_that_is_asked(tmp_path: Path) -> None:
    """Found: the worker that a plain topic of this name would have divided the batch, and its death left the outcome of all
    messages unknown."""
    forward = forwarding_to(str(tmp_path / "0"), str(tmp_path / "1"))
    forward._gateway.broker.partitioned.by_name[THERE] = Partitioned(THERE, 4)
    scope = {"path": f"/v1/topics/{THERE}/messages:batch", "method": "POST", "state": {}}
    assert forward.place(scope) is None
    assert forward.place(scope | {"method": "GET", "path": f"/v1/topics/{THERE}"}) == 1
    forward._gateway.broker.partitioned.by_name.clear()
    assert forward.place(scope) == 1


class Room:
    """A server with one connection: a WebSocket for worker 1."""

    def __init__(self, forward: Forwarding) -> None:
        self.loop = asyncio.get_running_loop()
        self.quotas = cast("Quotas", SimpleNamespace(read_buffer=ReadBuffer()))
        self.connections: list[Pipe] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.left = asyncio.Event()
        scope = {"type": "http", "path": "/v1/topics/t/ws", "raw_path": b"/v1/topics/t/ws", "query_string": b"", "headers": [],
                 "scheme": "ws", "client": None}  # fmt: skip
        self.pipe = Pipe(forward, 1, scope, self, None)

    def join(self, connection: Pipe, protocol: str, /) -> None:
        self.connections.append(connection)

    def leave(self, connection: Pipe, /) -> None:
        self.connections.remove(connection)
        self.left.set()

    def own(self, task: "asyncio.Task[None]") -> None:
        self.tasks.append(task)

    async def is_empty(self) -> bool:
        await self.left.wait()
        await asyncio.wait(self.tasks)
        return not self.connections


@asynccontextmanager
async def waiting_websocket(
    path: Path, monkeypatch: pytest.MonkeyPatch, login: Login | None = None, *, answered: bool = False
) -> AsyncIterator[tuple[Room, asyncio.StreamReader, asyncio.StreamWriter, socket.socket]]:
    """Yield a WebSocket for a worker that does not answer: its room, its client, and the worker's socket. ``answered``: the
    worker answered a moment ago."""
    forward = forwarding_to(str(path / "0"), str(path / "1"))
    if answered:
        forward.neighbours._answered[1] = asyncio.get_running_loop().time()
    monkeypatch.setattr(forward, "login", lambda scope: login)
    client, server = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as worker:
        worker.bind(str(path / "1"))
        worker.listen()
        worker.setblocking(False)
        room = Room(forward)
        await room.loop.create_connection(lambda: room.pipe, sock=server)
        room.pipe.data_received(b"the handshake of the client")
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            async with asyncio.timeout(20):
                yield room, reader, writer, worker
        finally:
            writer.close()
            room.pipe.transport.abort()
            await room.is_empty()


async def test_a_websocket_of_a_worker_that_does_not_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the WebSocket's client waited for ever."""
    monkeypatch.setattr(neighbours_module, "REACH_S", 0.02)
    async with waiting_websocket(tmp_path, monkeypatch) as (room, reader, _, worker):
        assert code_of(await reader.read()) == (503, "PLACEMENT_UNKNOWN")
        assert await room.is_empty()
        connection, _ = worker.accept()
        with connection:
            assert connection.recv(9999).startswith(b"GET /healthz "), "nothing else was sent"


async def test_a_websocket_of_a_worker_that_hangs_behind_its_last_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours_module, "REACH_S", 0.02)
    monkeypatch.setattr(neighbours_module, "FRESH_S", 0.1)
    async with waiting_websocket(tmp_path, monkeypatch, answered=True) as (_, reader, _, worker):
        assert code_of(await reader.read()) == (503, "PLACEMENT_UNKNOWN")
        connection, _ = worker.accept()
        with connection:
            assert connection.recv(9999).startswith(b"GET /v1/topics/t/ws "), "it was not asked first"


async def test_what_a_websocket_sends_before_its_worker_is_reached_is_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: all that the client sent was kept in memory, as long as the worker was down."""
    async with waiting_websocket(tmp_path, monkeypatch) as (room, reader, writer, worker):
        sent = b"x" * 8 * 1024 * 1024
        writer.write(sent)
        while room.pipe.transport.is_reading():  # noqa: ASYNC110 (a transport has no event for it)
            await asyncio.sleep(0)
        assert writer.transport.get_write_buffer_size() > len(sent) - 4 * PIPE_BYTES_MAX
        received = bytearray()

        async def serve(from_pipe: asyncio.StreamReader, to_pipe: asyncio.StreamWriter) -> None:
            head = await from_pipe.readuntil(b"\r\n\r\n")
            to_pipe.write(b"HTTP/1.1 200 OK\r\n\r\n")
            if not head.startswith(b"GET /healthz "):
                received.extend(await from_pipe.readexactly(len(sent)))
            to_pipe.close()
            await to_pipe.wait_closed()

        async with await asyncio.start_unix_server(serve, sock=worker):
            assert await reader.read() == b"HTTP/1.1 200 OK\r\n\r\n"
        assert received == sent, "in order, and whole"


@pytest.mark.parametrize(("ends", "says"), [
    ("client", b""), ("server", (503, "SHUTTING_DOWN")), ("login", (401, "AUTH_FAILED")),
])  # fmt: skip
async def test_a_websocket_whose_worker_is_not_reached_ends_with(
    ends: str, says: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over = asyncio.Event()
    monkeypatch.setattr(Forwarding, "wait_end", lambda self, login: over.wait())
    login = cast("Login", SimpleNamespace(grant=SimpleNamespace(name="ann"))) if ends == "login" else None
    async with waiting_websocket(tmp_path, monkeypatch, login) as (room, reader, writer, _):
        if ends == "client":
            writer.close()
        elif ends == "server":
            room.pipe.shutdown()
        else:
            over.set()
        if ends != "client":
            assert code_of(await reader.read()) == says
        assert await room.is_empty(), "and nothing of it is left"
    trail = ["action=request topic=t token=ann address=- via=websocket result=AUTH_FAILED"] if ends == "login" else []
    assert [record.getMessage() for record in caplog.records if record.name == "toymq_py.audit"] == trail


def code_of(answer: bytes) -> tuple[int, str]:
    """Return status and code of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]
