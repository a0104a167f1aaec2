"""The standby answers of a node that does not lead: it tells clients where the leader is.

Contract: replication.md, section 9; ADR 0179. A follower answers on its client listeners. On TCP: ``ERR NOT_LEADER
<host:port>`` to the first command, delayed for a moment while another leader, perhaps this node, may be elected soon. By HTTP:
307 to the leader for GET and HEAD, 503 with ``Location`` for all other methods; and ``/healthz``, ``/readyz``, ``/leader``
and ``/metrics``. On AMQP: no answer. Between ``stop`` and the start of the broker's service connections wait in the backlog.
Belongs to the event loop.
"""

import asyncio
import json
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from toymq_py.auth import audit
from toymq_py.errors import Forbidden, LineTooLong, NotLeader, RequestError
from toymq_py.metrics import ClusterRows
from toymq_py.net.acceptor import Acceptor
from toymq_py.net.half_close import end_writing
from toymq_py.net.host_names import AllowedHosts
from toymq_py.net.peer import peer_of
from toymq_py.observability.prometheus import render_cluster
from toymq_py.protocol.frames import LINE_BYTES_MAX
from toymq_py.protocol.replies import encode_error
from toymq_py.version import __version__

logger = logging.getLogger("toymq_py.cluster")

CONNECTIONS_MAX = 512
"""Most clients that wait for an answer, or have one and stay. One more is closed at once: a client that asks goes at once."""
SILENT_S = 10.0
"""A connection that asks nothing for so long is closed."""
LINGER_S = 1.0
"""Time to read the answer, before the close that may reset the connection."""
HEAD_BYTES_MAX = 64 * 1024
"""Most bytes of a head, as of the gateway: a request that the leader takes is not too long for its followers."""
HEAD_END = b"\r\n\r\n"
HOLD_S = 1.0
"""The longest that an answer is held back while the leader is in doubt: then a client asks the other nodes."""
HELD_MAX = CONNECTIONS_MAX // 2
"""Most connections that are held at a time. More clients are answered at once: they would keep the others out."""
TLS_LISTENERS = ("--tls-listen", "--https")
HTTP_LISTENERS = ("--http", "--https", "--metrics")
LEADER_LISTENERS = ("--amqp", "--amqps")
"""Listeners that every node binds, and that listen where it leads: elsewhere the system refuses connections. Clients of AMQP,
resolvers and load balancers go on to the next address then; the protocol has no words for where the leader is (ADR 0173)."""


class View(Protocol):
    """What a node knows of itself and its leader, for the standby answers."""

    def leader(self) -> str | None:
        """HOST:PORT of the leader for clients; None while there is none."""

    def leader_epoch(self) -> int:
        """The leader's epoch; 0 while there is none."""

    def leader_is_certain(self) -> bool:
        """Whether this node hears the leader. If not, the leader may be gone."""

    def is_elected(self) -> bool:
        """Whether this node is the leader, and ``Standby.stop`` is next."""

    def leader_http(self, scheme: str) -> str | None:
        """URL of the leader's gateway, without a slash at its end; None while none is known."""

    def describe(self) -> Mapping[str, Any]:
        """The state of the node for ``/healthz``: role, state, epoch, and what it waits for."""

    def rows(self) -> ClusterRows:
        """The metrics of a cluster."""


class Standby:
    """Answers on bound, listening sockets from ``start`` to ``stop``, which leaves them open."""

    def __init__(
        self, listeners: Mapping[str, Sequence[socket.socket]], view: View, loop: asyncio.AbstractEventLoop,
        context: Callable[[], ssl.SSLContext | None], hosts: AllowedHosts,
    ) -> None:  # fmt: skip
        """``context``: returns the current TLS context of the TLS listeners, for each new connection."""
        self._listeners = listeners
        self._view = view
        self._loop = loop
        self._context = context
        self._hosts = hosts
        self._acceptors: list[Acceptor] = []
        self._open: set[_Answering] = set()
        self._held: dict[_LineAnswer, int] = {}  # with the epoch whose leader it was not told
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for option, some in self._listeners.items():
            if option == "--replicate" or option in LEADER_LISTENERS:
                continue
            for listener in some:
                acceptor = Acceptor(listener.dup(), self._loop, self._accepted(option))
                acceptor.start()
                self._acceptors.append(acceptor)

    def news(self) -> None:
        """Apply a change of the view: answer clients that were held back if there is another leader, or the leader is certain
        again."""
        if self._view.is_elected():
            return  # whatever connects again would find these answers, and not the broker
        epoch, is_certain = self._view.leader_epoch(), self._view.leader_is_certain()
        for held, before in list(self._held.items()):
            if is_certain or epoch not in (0, before):
                held.let_go()

    def stop(self) -> None:
        """Stop accepting, answer held-back clients, and close open connections. Idempotent."""
        for acceptor in self._acceptors:
            acceptor.stop()  # closes its own descriptor of the socket
        self._acceptors.clear()
        for held in list(self._held):
            held.let_go()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._open):
            if not connection.is_answered:
                connection.abort()

    def _accepted(self, option: str) -> Callable[[socket.socket], None]:
        def accepted(connection: socket.socket) -> None:
            if len(self._open) + len(self._tasks) >= CONNECTIONS_MAX:
                connection.close()
                return
            task = self._loop.create_task(self._serve(option, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accepted

    async def _serve(self, option: str, connection: socket.socket) -> None:
        context = self._context() if option in TLS_LISTENERS else None

        def protocol() -> asyncio.Protocol:
            if option in HTTP_LISTENERS:
                return _HttpAnswer(self._view, self._open, self._hosts, "https" if context is not None else "http")
            return _LineAnswer(self._view, self._open, self._held)

        try:
            await self._loop.connect_accepted_socket(
                protocol, connection, ssl=context, ssl_handshake_timeout=SILENT_S if context is not None else None
            )
        except (OSError, asyncio.CancelledError):
            connection.close()


class _Answering(asyncio.Protocol, ABC):
    """A client's connection, which gets one answer."""

    def __init__(self, view: View, among: set["_Answering"]) -> None:
        self.view = view
        self._among = among
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._among.add(self)
        self.call_later(SILENT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self.is_answered or self._transport is None:
            return
        self._received += data
        answer = self.answer(self._received)
        if answer is not None:
            self.say(answer)

    def say(self, answer: bytes) -> None:
        """Answer, and close the connection a moment later."""
        assert self._transport is not None
        self.is_answered, self._received = True, b""
        if self._transport.is_closing():  # uvloop raises for a write then
            return
        self._transport.write(answer)
        end_writing(self._transport)
        self.call_later(LINGER_S, self._transport.close)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Set a timer in place of the one that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    @abstractmethod
    def answer(self, received: bytes) -> bytes | None:
        """The answer to the received bytes; None while they are incomplete."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _LineAnswer(_Answering):
    """Answers a client of the TCP protocol."""

    def __init__(self, view: View, among: set[_Answering], held: "dict[_LineAnswer, int]") -> None:
        super().__init__(view, among)
        self._held = held

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.pop(self, None)
        super().connection_lost(exc)

    def let_go(self) -> None:
        """Answer a client that was held back."""
        self._held.pop(self, None)
        self.say(encode_error(NotLeader(self.view.leader() or "-")))

    def answer(self, received: bytes) -> bytes | None:
        if self in self._held:
            return None
        if b"\n" in received:
            if self.view.leader_is_certain() or len(self._held) >= HELD_MAX:
                return encode_error(NotLeader(self.view.leader() or "-"))
            self._held[self] = self.view.leader_epoch()
            self.call_later(HOLD_S, self.let_go)
            return None
        if len(received) > LINE_BYTES_MAX:
            return encode_error(LineTooLong(f"a line has at most {LINE_BYTES_MAX} bytes"))
        return None


class _HttpAnswer(_Answering):
    """Answers a client of the HTTP gateway, or a scrape of the metrics."""

    def __init__(self, view: View, among: set[_Answering], hosts: AllowedHosts, scheme: str) -> None:
        super().__init__(view, among)
        self._hosts = hosts
        self._scheme = scheme

    def answer(self, received: bytes) -> bytes | None:
        head, ended, _ = received.partition(HEAD_END)
        if len(head) > HEAD_BYTES_MAX:
            return _encode("431 Request Header Fields Too Large", {}, b"")
        if not ended:
            return None
        request_line, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = request_line.partition(" ")
        target = rest.partition(" ")[0]
        host = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("host:")), "")
        status, headers, body = self._page(method, target, host)
        return _encode(status, headers, b"" if method == "HEAD" else body, length=len(body))

    def _page(self, method: str, target: str, host: str) -> tuple[str, dict[str, str], bytes]:
        """The status, headers and body of the answer to a request."""
        if not self._hosts.allow(host):
            address = None if self._transport is None else peer_of(self._transport)
            audit.record("request", Forbidden.code, token=None, address=address, via="http")
            return _problem("403 Forbidden", Forbidden("Host is not allowed: use localhost or an address"))
        path, asks = target.partition("?")[0], method in ("GET", "HEAD")
        if asks and path in ("/healthz", "/readyz", "/leader"):
            described = {"status": "ok", "version": __version__, **self.view.describe()}
            if path == "/healthz":
                return "200 OK", {"content-type": "application/json"}, _json(described)
            return "503 Service Unavailable", {"content-type": "application/json"}, _json({**described, "status": "unready"})
        if asks and path == "/metrics":
            body, content_type = render_cluster(self.view.rows())
            return "200 OK", {"content-type": content_type}, body
        leader = self.view.leader_http(self._scheme)
        status = "307 Temporary Redirect" if asks and leader is not None else "503 Service Unavailable"
        status, headers, body = _problem(status, NotLeader(self._who_leads(leader)))
        headers["retry-after"] = "1"
        if leader is not None and target.startswith("/") and target.isprintable() and target.isascii():
            headers["location"] = leader + target
        return status, headers, body

    def _who_leads(self, gateway: str | None) -> str:
        """The text that names the leader. ``gateway``: the URL of the leader's gateway."""
        if (leader := self.view.leader()) is None:
            return "this node follows, and no node leads yet: try again"
        where = f"ask its gateway, {gateway}" if gateway is not None else "it has no gateway that is known here"
        return f"this node follows: {leader} leads; {where}"


def _problem(status: str, error: RequestError) -> tuple[str, dict[str, str], bytes]:
    number, _, title = status.partition(" ")
    members = {"type": "about:blank", "title": title, "status": int(number), "detail": str(error), "code": error.code}
    return status, {"content-type": "application/problem+json"}, _json(members)


def _json(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found).encode()


def _encode(status: str, headers: Mapping[str, str], body: bytes, *, length: int | None = None) -> bytes:
    fields = {**headers, "cache-control": "no-store", "content-length": str(len(body) if length is None else length)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}connection: close\r\n\r\n".encode("latin-1") + body
