"""Passes HTTP requests for topics of other workers on to those workers, over Unix sockets, so that clients need not know them.
ADR 0156.

    client ──► this worker ──► Unix socket of the topic's worker: the same request, with a header about its client
           ◄──             ◄── the answer, as it comes

The other worker checks everything itself: host, site, rights. One header, which counts only on a Unix socket, tells it the
scheme, the client's address, and the token that a login stands for. A request from a Unix socket is not passed on again. A
request that was passed on ends with its login, which only this worker knows. A WebSocket is passed on as bytes.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Literal, Protocol, cast

import httptools
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from toymq_py.auth.quotas import Quotas, Seat
from toymq_py.errors import AuthFailed, PlacementUnknown, RequestError, ShuttingDown
from toymq_py.gateway.access import REQUEST, login_of, refused
from toymq_py.gateway.answers import encode_last
from toymq_py.gateway.http_heads import FORWARDED, INTERNAL
from toymq_py.gateway.logins import Login
from toymq_py.gateway.partition_paths import ROUTED
from toymq_py.gateway.problems import problem
from toymq_py.gateway.publish_operations import BATCH, PATH
from toymq_py.gateway.read_ahead import CROWDED
from toymq_py.gateway.request_context import Gateway
from toymq_py.names import is_pattern
from toymq_py.net.bounded_reads import BoundedProtocol, Reads
from toymq_py.partitions import half_made

TURN = "toymq.turn"
"""Key in the ASGI scope's ``state``: the worker from which the request leases messages; it is read twice."""
PIECE_BYTES = 64 * 1024
LOOK_S = 60.0
"""How often logins that have not been ended are checked: their time may be over."""
PIPE_BYTES_MAX = 256 * 1024
"""With so many bytes unread by one side of a WebSocket, no more is read from the other."""
OF_A_HOP = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", FORWARDED))
"""Headers of one connection (RFC 9110, 7.6.1), which this worker has dealt with."""
MADE_HERE = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date", b"x-content-type-options"))
"""Headers of an answer that this worker makes itself."""


def topic_in(path: str) -> str:
    """The topic in a request's path, which begins with ``PATH``."""
    return path[len(PATH) :].partition("/")[0].partition(":")[0]


class Forwarding:
    """Passes requests of one worker's clients on to the workers that have their topics."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._placement = gateway.broker.placement
        assert gateway.neighbours is not None, "there are other workers"
        self.neighbours = gateway.neighbours
        self._turn = self._placement.worker - 1

    def place(self, scope: Scope) -> int | None:
        """The worker that a request has to be passed on to; None for this one."""
        path: str = scope["path"]
        if not path.startswith(PATH) or scope["state"].get(INTERNAL):
            return None
        topic = topic_in(path)
        if not topic or is_pattern(topic):
            return None
        if topic in self._gateway.broker.partitioned.by_name:
            method = scope.get("method")
            if method == "GET" and path.endswith("/messages"):
                return self._in_turn(scope)
            if method == "POST" and path.endswith(BATCH):
                return None  # divided here: where a plain topic would be is one more worker whose death leaves all unknown
        worker = self._placement.worker_of(topic)
        return None if worker == self._placement.worker else worker

    def _in_turn(self, scope: Scope) -> int | None:
        """The worker for a request that leases messages of a partitioned topic, whose partitions several workers have: they
        take turns."""
        turn: int | None = scope["state"].get(TURN)
        if turn is None:
            self._turn = turn = (self._turn + 1) % len(self._placement.addresses)
            scope["state"][TURN] = turn
        return None if turn == self._placement.worker else turn

    def login(self, scope: Scope) -> Login | None:
        """The login that a request is made with."""
        return login_of(self._gateway, HTTPConnection(scope))

    async def wait_end(self, login: Login) -> None:
        """Wait until a login has ended, and keep it in use meanwhile; for ever if the broker shuts down before."""
        gateway = self._gateway
        assert gateway.logins is not None
        while gateway.logins.use(login) is not None:
            await (gateway.loop.create_future() if gateway.waiting.stopped else gateway.waiting.sleep(LOOK_S))

    def ended(self, scope: Scope, login: Login) -> AuthFailed:
        """Record, and return, the error for a request whose login has ended."""
        error = AuthFailed("this login has ended: log in again", token=login.grant.name)
        refused(self._gateway, HTTPConnection(scope), REQUEST, error, {"topic": topic_in(scope["path"])})
        return error

    def head(self, scope: Scope, login: Login | None, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
        """The head of a request for another worker."""
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        client = scope["client"]
        token = "-" if login is None else login.grant.name
        said = f"{scope['scheme']} {client[0] if client else '-'} {client[1] if client else 0} {token}".encode()
        headers = [pair for pair in scope["headers"] if pair[0] not in OF_A_HOP]
        if not any(name == b"host" for name, _ in headers):  # of HTTP/1.0: 1.1 needs one
            headers.append((b"host", b"localhost"))
        lines = [b"%b: %b\r\n" % pair for pair in (*headers, *extra, (FORWARDED, said))]
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (scope.get("method", "GET").encode(), target, b"".join(lines))

    async def forward(self, worker: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on (ASGI)."""
        lacks = (404, 421) if scope["state"].get(ROUTED) else (421,)
        answer = _Answer(scope["method"] == "HEAD", lacks)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=await self.neighbours.connect(worker), limit=PIECE_BYTES)
        except PlacementUnknown as error:
            await problem(error)(scope, receive, send)
            return
        sized = any(name == b"content-length" for name, _ in scope["headers"])
        chunked = not sized and any(name == b"transfer-encoding" for name, _ in scope["headers"])
        extra = [(b"connection", b"close"), *([(b"transfer-encoding", b"chunked")] if chunked else [])]
        login, ended = self.login(scope), False
        writer.write(self.head(scope, login, extra))

        async def end_with(login: Login) -> None:
            nonlocal ended
            await self.wait_end(login)
            ended = True
            writer.transport.abort()

        try:
            async with asyncio.TaskGroup() as tasks:
                asking = [tasks.create_task(_send_body(receive, writer, chunked=chunked))]
                if login is not None:
                    asking.append(tasks.create_task(end_with(login)))
                with suppress(OSError, httptools.HttpParserError, PlacementUnknown):
                    data = await self.neighbours.answer(worker, reader.read(PIECE_BYTES))
                    while not (answer.whole or answer.lacks_it) and (data := data or await reader.read(PIECE_BYTES)):
                        piece, data = data, b""
                        for message in answer.feed(piece):
                            await send(message)
                for task in asking:
                    task.cancel()
        finally:
            writer.close()
        if login is not None and ended and not answer.started:
            await problem(self.ended(scope, login))(scope, receive, send)
        elif answer.lacks_it:
            await problem(half_made(topic_in(scope["path"])))(scope, receive, send)
        elif not answer.started:
            await problem(self.neighbours.unanswered(worker))(scope, receive, send)


async def _send_body(receive: Receive, writer: asyncio.StreamWriter, *, chunked: bool) -> None:
    """Pass the body on; afterwards tell the worker when the client may be gone."""
    more = True
    try:
        while True:
            message = await receive()
            if message["type"] in ("http.disconnect", CROWDED):
                writer.write_eof()
                return
            body = message.get("body", b"")
            if more and body:
                writer.write(b"%x\r\n%b\r\n" % (len(body), body) if chunked else body)
                await writer.drain()
            if more and not message.get("more_body", False):
                more = False
                writer.write(b"0\r\n\r\n" if chunked else b"")
    except OSError:
        return  # it answers no more, which the reader notices


class _Answer:
    """Parses a worker's answer into ASGI messages."""

    def __init__(self, head_only: bool, lacks: tuple[int, ...]) -> None:
        """``lacks``: the statuses by which a worker says that it does not know a partitioned topic, though others do."""
        self.started = self.whole = self.lacks_it = False
        self._head_only = head_only
        self._lacks = lacks
        self._headers: list[tuple[bytes, bytes]] = []
        self._messages: list[dict[str, Any]] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Parse bytes of the answer. Raises: HttpParserError."""
        self._parser.feed_data(data)
        messages, self._messages = self._messages, []
        return messages

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in MADE_HERE:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        if status in self._lacks:
            self.lacks_it = True
            return
        self.started = True
        self._messages.append({"type": "http.response.start", "status": status, "headers": self._headers})
        if self._head_only:
            self._end()

    def on_body(self, body: bytes) -> None:
        if self.started:
            self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if self.started and not self.whole:
            self._end()

    def _end(self) -> None:
        self.whole = True
        self._messages.append({"type": "http.response.body", "body": b"", "more_body": False})


class _Half(BoundedProtocol):
    """One side of a pipe: forwards what it receives to the other side, as fast as that is read."""

    def __init__(self, buffer: Reads) -> None:
        self.buffer = buffer
        self.other: _Half
        self.transport: asyncio.Transport
        self.connected = False
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.connected = True
        self.transport.set_write_buffer_limits(PIPE_BYTES_MAX)
        self.resume_writing()
        for data in self.waiting:
            self.transport.write(data)
        self.waiting = []

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def write(self, data: bytes) -> None:
        if not self.connected:
            self.waiting.append(data)
            self.pause_writing()
        elif not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.connected:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.connected and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.other.end()

    def end(self) -> None:
        """Close this side once the bytes already written are sent."""
        if self.connected:
            self.transport.close()


class Room(Protocol):
    """What a pipe needs of its server."""

    loop: asyncio.AbstractEventLoop
    quotas: Quotas

    def join(self, connection: "Pipe", protocol: Literal["websocket"], /) -> None: ...
    def leave(self, connection: "Pipe", /) -> None: ...
    def own(self, task: "asyncio.Task[None]") -> None: ...


class Pipe(_Half):
    """The client's side of a WebSocket that another worker serves. A ``Connection`` of its server, which replaces the protocol
    that read the handshake; bytes that came after the handshake are passed to it first. Until the worker is reached, the
    client is read only to notice its end, and no longer once it sends data."""

    def __init__(self, forwarding: Forwarding, worker: int, scope: Scope, room: "Room", seat: Seat | None) -> None:
        """``room`` keeps the pipe while it is open; ``seat`` is the connection's share of the limits."""
        super().__init__(room.quotas.read_buffer)
        self._far = _Half(self.buffer)
        self._far.other, self.other = self, self._far
        self._forwarding, self._worker, self._room = forwarding, worker, room
        self._scope: Scope = {**scope, "type": "websocket"}
        self._login = forwarding.login(scope)
        self._head = forwarding.head(scope, self._login, ((b"connection", b"Upgrade"), (b"upgrade", b"websocket")))
        self._answered = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.seat = seat

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._room.join(self, "websocket")
        self._begin(self._connect())
        if self._login is not None:
            self._begin(self._end_with(self._login))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of the pipe, such as reaching the worker."""
        task = self._room.loop.create_task(work)
        self._tasks.append(task)
        self._room.own(task)

    async def _end_with(self, login: Login) -> None:
        await self._forwarding.wait_end(login)
        self._end(self._forwarding.ended(self._scope, login))  # also while the client does not read

    async def _connect(self) -> None:
        try:
            connection = await self._forwarding.neighbours.connect(self._worker)
            await self._room.loop.create_unix_connection(lambda: self._far, sock=connection)
            await self._forwarding.neighbours.answer(self._worker, self._answered.wait())
        except PlacementUnknown as error:
            self._end(error)
        except OSError:
            self.end()

    def data_received(self, data: bytes) -> None:
        if self._head:
            self._far.waiting.append(self._head)
            self._head = b""
        else:
            super().data_received(data)

    def write(self, data: bytes) -> None:
        self._answered.set()
        super().write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for task in self._tasks:
            task.cancel()
        if self.seat is not None:
            self.seat.leave()
        self._room.leave(self)

    def shutdown(self) -> None:
        """Close the connection because this worker stops: the client connects again, to a worker that stays."""
        self._end(ShuttingDown("the broker is shutting down: try again later"))

    def cancel(self) -> None:
        self.end()

    def end(self) -> None:
        self._end(PlacementUnknown(f"worker {self._worker} ended before it answered: try again"))

    def _end(self, error: RequestError) -> None:
        """Close both sides, and send ``error`` first if the handshake is unanswered."""
        if not (self._answered.is_set() or self.transport.is_closing()):
            refusal = problem(error)
            self.transport.write(encode_last(refusal.status_code, refusal.raw_headers, bytes(refusal.body)))
        self._far.end()
        super().end()
