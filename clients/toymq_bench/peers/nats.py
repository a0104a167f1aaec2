"""NATS JetStream with file storage."""

import json
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toymq_bench.errors import WrongReply
from toymq_bench.frames import STAMP_BYTES, Chunk, Consuming, Producing, payload
from toymq_bench.peers.peer import HOST, CountingProducer, Peer, read_until

HELLO = {"verbose": False, "pedantic": False, "protocol": 1, "headers": True, "lang": "raw", "version": "1", "name": "peer"}
FIRST_WITH_SYNC = (2, 10)
"""The version from which on ``sync_interval: always`` is known."""
ACK_WAIT_NS = 30_000_000_000


class Nats(Peer):
    """NATS: producers publish with an inbox for the stream's acks; a push consumer acks explicitly."""

    name = "NATS JetStream"
    program = "nats-server"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        output = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"v(\d+)\.(\d+)", output)
        self._syncs = version is not None and (int(version[1]), int(version[2])) >= FIRST_WITH_SYNC

    @property
    def durability(self) -> str:
        if self._syncs:
            return "fsync before each reply (sync_interval: always)"
        return "WEAK: reply before any fsync, the first one minutes later (this version has no other mode)"

    def command(self) -> Sequence[str]:
        file = self.directory / "nats.conf"
        sync = "sync_interval: always" if self._syncs else ""
        file.write_text(f'host: "{HOST}"\nport: {self.port}\njetstream {{ store_dir: "{self.directory}"\n{sync} }}\n')
        return [self.program, "-c", str(file)]

    def ready(self) -> None:
        self._ask("INFO")

    def create(self, topic: str) -> None:
        self._ask(f"STREAM.CREATE.{topic}", {"name": topic, "subjects": [f"{topic}.x"], "storage": "file", "num_replicas": 1})

    def _hello(self) -> socket.socket:
        connection = self.connect()
        read_until(connection, b"\r\n")
        connection.sendall(b"CONNECT %b\r\nPING\r\n" % json.dumps(HELLO).encode())
        read_until(connection, b"PONG\r\n")
        return connection

    def _ask(self, operation: str, what: dict[str, Any] | None = None) -> None:
        """Send a request to JetStream's API, and check the answer. Raises: WrongReply, OSError."""
        body = json.dumps(what).encode() if what is not None else b""
        with self._hello() as connection:
            connection.sendall(b"SUB inbox 1\r\nPUB $JS.API.%b inbox %d\r\n%b\r\n" % (operation.encode(), len(body), body))
            reply = read_until(connection, b"}\r\n") if operation == "INFO" else read_until(connection, b"\r\n")
            while not reply.endswith(b"}\r\n"):
                reply += read_until(connection, b"\r\n")
        if b'"error"' in reply:
            raise WrongReply(f"{operation} was answered with {reply.decode(errors='replace')!r}")

    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        connection = self._hello()
        connection.sendall(b"SUB inbox.%d 1\r\n" % number)
        frame = b"PUB %b.x inbox.%d %d\r\n%b\r\n" % (topic.encode(), number, size, payload(size, marked=True))
        return connection, CountingProducer(frame, window, b'"seq":', rb'"error"|-ERR')

    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        settings = {
            "durable_name": "c", "deliver_policy": "all", "ack_policy": "explicit", "deliver_subject": "deliver.c",
            "max_ack_pending": max(window, 1), "ack_wait": ACK_WAIT_NS,
        }  # fmt: skip
        connection = self._hello()
        connection.sendall(b"SUB deliver.c 2\r\n")
        self._ask(f"CONSUMER.DURABLE.CREATE.{topic}.c", {"stream_name": topic, "config": settings})
        return [(connection, NatsConsumer(size))]


class NatsConsumer:
    """Acks each message; the acks for one read of the socket go out in one write."""

    def __init__(self, size: int) -> None:
        self._message = re.compile(rb"MSG \S+ 2 (\S+) %d\r\n(.{12}).{%d}\r\n" % (size, size - STAMP_BYTES), re.DOTALL)
        self._unparsed = b""

    def deliveries(self, data: bytes) -> Chunk:
        """Parse received messages and ack them. Raises: WrongReply."""
        data = self._unparsed + data
        answers, stamps, end = [], [], 0
        for found in self._message.finditer(data):
            answers.append(b"PUB %b 4\r\n+ACK\r\n" % found[1])
            stamps.append(found[2])
            end = found.end()
        self._unparsed = data[end:]
        if self._unparsed.startswith(b"-ERR"):
            raise WrongReply(f"a consumer got {self._unparsed[:200].decode(errors='replace')!r}")
        if self._unparsed.startswith(b"PING\r\n"):
            self._unparsed = self._unparsed[6:]
            answers.append(b"PONG\r\n")
        return Chunk(stamps, b"".join(answers))
