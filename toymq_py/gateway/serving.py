"""The state that all connections of one HTTP server share, and the set of open ones."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate
from typing import Literal, NamedTuple, Protocol

from starlette.types import Scope

from toymq_py.auth.quotas import Quotas, Seat
from toymq_py.clock import Clock
from toymq_py.gateway.answers import COMMON
from toymq_py.gateway.app import Application
from toymq_py.gateway.forwarding import Pipe
from toymq_py.net.fair_queue import FairQueue
from toymq_py.net.open_connections import OpenConnection, Subscribed
from toymq_py.net.roster import Roster


class Connection(Protocol):
    """One open connection, HTTP or WebSocket."""

    transport: asyncio.Transport
    seat: Seat | None

    def shutdown(self) -> None:
        """Close the connection after the answer in progress."""

    def cancel(self) -> None:
        """Cancel a request that the connection runs without a task."""


class _Opened(NamedTuple):
    protocol: Literal["http", "websocket"]
    number: int
    since_ms: int
    subscriptions: Callable[[], Sequence[Subscribed]]


class Serving:
    """The application, limits, connections and tasks of one server. Belongs to the event loop."""

    def __init__(
        self, application: Application, loop: asyncio.AbstractEventLoop, clock: Clock, quotas: Quotas, frame_bytes_max: int
    ) -> None:
        """``frame_bytes_max``: the largest WebSocket message."""
        self.application = application
        self.loop = loop
        self.clock = clock
        self.quotas = quotas
        self.fair_queue = FairQueue(clock, loop, quotas)
        """The queue of connections with input: the bytes of one read may be thousands of chunks, so they are parsed in slices,
        in turn with other connections."""
        self.frame_bytes_max = frame_bytes_max
        self._connections: Roster[Connection, _Opened] = Roster()
        self._last_number = 0
        quotas.open_connections.sources.append(self._open_connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: Callable[[], None] = lambda: None
        self.tick()

    def tick(self) -> None:
        """Set the header ``Date`` of the answers, once a second."""
        self.date = formatdate(self.clock.wall_ns() / 1e9, usegmt=True)
        self.common_headers = b"date: %b\r\n%b" % (self.date.encode(), COMMON)

    def join(
        self, connection: Connection, protocol: Literal["http", "websocket"] = "http",
        subscriptions: Callable[[], Sequence[Subscribed]] = tuple,
    ) -> None:  # fmt: skip
        """Keep a connection until it leaves."""
        self._last_number += 1
        opened = _Opened(protocol, self._last_number, self.clock.wall_ns() // 1_000_000, subscriptions)
        self._connections.join(connection, opened)

    def _open_connections(self) -> Iterator[OpenConnection]:
        for connection, opened in self._connections.walk():
            seat = connection.seat
            token = None if seat is None or seat.token is None else seat.token.name
            yield OpenConnection(
                opened.protocol, opened.number, opened.since_ms, connection.transport, connection.transport.abort, token, None,
                seat, opened.subscriptions,
            )  # fmt: skip

    def pipe(self, scope: Scope, seat: Seat | None) -> Pipe | None:
        """The protocol that passes a WebSocket on to the worker that serves it; None when this worker serves it."""
        forwarding = self.application.forwarding
        worker = forwarding.place(scope) if forwarding is not None else None
        return None if forwarding is None or worker is None else Pipe(forwarding, worker, scope, self, seat)

    def leave(self, connection: Connection) -> None:
        """Forget a lost connection. Idempotent."""
        self._connections.leave(connection)
        self._look()

    def own(self, task: "asyncio.Task[None]") -> None:
        """Keep a task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._look()

    def _look(self) -> None:
        if not (self._connections or self._tasks):
            self._ended()

    def cut(self) -> None:
        """Close all connections now, and cancel their requests."""
        for connection in list(self._connections):
            connection.cancel()
            connection.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def shut_down(self, timeout_s: float) -> int:
        """Close all connections after their current answers. Returns: how many requests were cancelled after ``timeout_s``."""
        for connection in list(self._connections):
            connection.shutdown()
        ended = asyncio.Event()
        self._ended = ended.set
        self._look()
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            late = len(self._connections)
            self.cut()
            await ended.wait()
            return late
        return 0
