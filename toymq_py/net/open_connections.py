"""The open connections of all listeners: list them, and close one, for an operator.

Contract: gateway.md. Nothing is counted for this while messages pass: bytes are asked of the kernel when a list is made.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol

from toymq_py.net.peer import described_peer, socket_address

SUBSCRIPTIONS_MAX = 100
"""Most subscriptions that are shown of one connection, which may have a thousand; all are counted."""
CHANNELS_MAX = 100
"""Most channels that are shown of one AMQP connection."""
NAME_CHARS_MAX = 100
"""Most characters that are shown of the name that a client gave itself."""
_BYTES = struct.Struct("=QQ")
_BYTES_AT = 120
"""The offset of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in Linux's ``struct tcp_info`` (since 4.1)."""


class Subscribed(Protocol):
    """A subscription of a connection, to a topic or a pattern."""

    @property
    def name(self) -> str: ...
    @property
    def consumer_name(self) -> str: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def inflight(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def active_in(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, eq=False)
class OpenConnection:
    """One open connection, as it is when it is listed.

    Attributes:
        token: name of the client's token.
        name: the client's name in its handshake.
        seat: identifies the connection.
        close: ends the connection now. Its leases go back, as if the client had disconnected.
    """

    protocol: Literal["toymq", "amqp", "http", "websocket"]
    number: int
    since_ms: int
    transport: asyncio.Transport
    close: Callable[[], None]
    token: str | None = None
    name: str | None = None
    seat: object = None
    subscriptions: Callable[[], Sequence[Subscribed]] = tuple
    channels: Callable[[], Sequence[dict[str, Any]]] | None = None
    """Returns the first channels as JSON objects, for AMQP."""
    lacks: Callable[[], Sequence[str]] = tuple
    """Returns the workers or groups that are away, whose messages its subscriptions lack."""

    @property
    def connection_id(self) -> str:
        """An id that is unique while the broker runs. For the protocol toymq its number is the ``session`` number in the
        log."""
        return f"{self.protocol}-{self.number}"

    def describe(self) -> dict[str, Any]:
        """The members of the JSON object (docs/http.md, "Connections")."""
        transport, subscriptions = self.transport, self.subscriptions()
        received, sent = bytes_passed(transport)
        found = {
            "connection": self.connection_id,
            "protocol": self.protocol,
            "address": None if socket_address(transport) is None else described_peer(transport),
            "tls": transport.get_extra_info("sslcontext") is not None,
            "token": self.token,
            "name": None if self.name is None else self.name[:NAME_CHARS_MAX],
            "since_ms": self.since_ms,
            "received_bytes": received,
            "sent_bytes": sent,
            "unsent_bytes": transport.get_write_buffer_size(),
            "inflight": sum(each.inflight for each in subscriptions),
            "subscriptions_total": len(subscriptions),
            "subscriptions": [
                {"topic": each.name, "consumer": each.consumer_name, "mode": each.mode, "inflight": each.inflight,
                 "window": each.window,
                 "active_in": list(each.active_in[:SUBSCRIPTIONS_MAX]) if each.mode == "single" else None}
                for each in subscriptions[:SUBSCRIPTIONS_MAX]
            ],
            "lacks": self.lacks(),
        }  # fmt: skip
        return found if self.channels is None else found | {"channels": self.channels()}


class OpenConnections:
    """Lists and closes the connections of every listener. Belongs to the loop."""

    def __init__(self) -> None:
        self.sources: list[Callable[[], Iterable[OpenConnection]]] = []
        """A source for each server, which adds its own."""

    def __iter__(self) -> Iterator[OpenConnection]:
        return (each for each in self.with_closing() if not each.transport.is_closing())

    def with_closing(self) -> Iterator[OpenConnection]:
        """The connections, including those that the broker has closed and that have not taken their last bytes yet."""
        return chain.from_iterable(source() for source in self.sources)

    def find(self, connection_id: str) -> OpenConnection | None:
        """The connection with this id; None when it is not open."""
        return next((each for each in self if each.connection_id == connection_id), None)


def bytes_passed(transport: asyncio.BaseTransport) -> tuple[int | None, int | None]:
    """The bytes that arrived, and those that the other end has acknowledged, both with the overhead of TLS. None where the
    kernel does not say (``tcp_info``)."""
    info = tcp_info(transport, _BYTES_AT + _BYTES.size)
    if info is None:
        return None, None
    sent, received = _BYTES.unpack_from(info, _BYTES_AT)
    return received, sent


def tcp_info(transport: asyncio.BaseTransport, size: int) -> bytes | None:
    """The first bytes of ``struct tcp_info``. None where the kernel does not say: at a Unix socket, outside Linux, where it is
    too old, and when the connection is gone."""
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux" or connection.family == socket.AF_UNIX:
        return None
    try:
        info: bytes = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return None
    return info if len(info) == size else None
