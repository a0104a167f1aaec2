"""A blocking AMQP 0-9-1 connection that sends methods and raw bytes, for tests of what no client library sends."""

import socket
import ssl
from contextlib import closing
from typing import Any

from toymq_py.amqp import frames, methods, properties
from toymq_py.amqp.connection import AmqpConnection, Content, Event
from toymq_py.amqp.frames import HEADER, PROTOCOL_HEADER, frame
from toymq_py.amqp.methods import Method

TIMEOUT_S = 60
NOTHING = properties.NOTHING


class AmqpWire:
    """An AMQP connection, which ``login`` opens. Received heartbeats are ignored."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._connection = AmqpConnection(frame_max=131_072, body_bytes_max=1 << 30, channel_max=65_535, expects_header=False)
        self._events: list[Event] = []
        self.knows_cancels = True
        self.knows_blocked = False

    def __enter__(self) -> "AmqpWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket without connection.close. A broker that stops waits a second for the connections that are still
        open."""
        self.socket.close()

    def login(self, user: str = "guest", password: str = "guest", *, vhost: str = "/", heartbeat: int = 0) -> "AmqpWire":
        """Open the connection, up to connection.open-ok, and channel 1."""
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect("connection.start")
        response = f"\0{user}\0{password}".encode()
        self.send(
            0, "connection.start-ok", mechanism="PLAIN", response=response, locale="en_US",
            client_properties={
                "capabilities": {"consumer_cancel_notify": self.knows_cancels, "connection.blocked": self.knows_blocked}
            },
        )  # fmt: skip
        tune = self.expect("connection.tune")
        self.send(0, "connection.tune-ok", channel_max=tune["channel_max"], frame_max=tune["frame_max"], heartbeat=heartbeat)
        self.ask(0, "connection.open", virtual_host=vhost)
        self.open(1)
        return self

    def open(self, channel: int) -> None:
        self.ask(channel, "channel.open")

    def send(self, channel: int, name: str, **values: Any) -> None:
        self.socket.sendall(methods.encode(channel, name, **values))

    def ask(self, channel: int, name: str, **values: Any) -> Method:
        """Send a method and read its ``-ok``."""
        self.send(channel, name, **values)
        return self.expect(f"{name}-ok")

    def publish(
        self, body: bytes, routing_key: str, *, exchange: str = "", channel: int = 1, raw: bytes = NOTHING,
        mandatory: bool = False,
    ) -> None:  # fmt: skip
        method = methods.encode(channel, "basic.publish", exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        head = frame(HEADER, channel, b"\0\x3c\0\0" + len(body).to_bytes(8) + raw)
        self.socket.sendall(method + head + b"".join(frames.body_frames(channel, body, 131_072)))

    def event(self) -> Method | Content:
        """Return the next method, with its content. Raises: ConnectionError at the end of the stream."""
        while True:
            while self._events:
                _, what = self._events.pop(0)
                if isinstance(what, Method | Content):
                    return what
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._connection.received(data)
            with closing(self._connection.events()) as events:  # type: ignore[type-var]
                self._events += events

    def expect(self, name: str) -> Method:
        found = self.event()
        method = found.method if isinstance(found, Content) else found
        assert method.name == name, f"{name} was expected, not {found}"
        return method

    def content(self) -> Content:
        found = self.event()
        assert isinstance(found, Content), found
        return found

    def closed_with(self, name: str = "channel.close") -> tuple[int, str]:
        """Return the code and text with which the broker closes the channel or the connection."""
        method = self.expect(name)
        return method["reply_code"], method["reply_text"]

    def at_end(self) -> bool:
        return self.socket.recv(1) == b""


def declare(wire: AmqpWire, queue: str, **how: Any) -> Any:
    """Declare a durable queue on channel 1. Returns: queue.declare-ok."""
    return wire.ask(1, "queue.declare", queue=queue, **{"durable": True, **how})


def bodies(wire: AmqpWire, count: int) -> list[bytes]:
    """Return the bodies of the next deliveries."""
    return [wire.content().body for _ in range(count)]
