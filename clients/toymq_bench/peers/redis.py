"""Redis Streams, with the append-only file synced in every turn of the server's loop (``appendfsync always``)."""

import re
import socket
from collections.abc import Sequence

from toymq_bench.errors import WrongReply
from toymq_bench.frames import STAMP_BYTES, Chunk, Consuming, Producing, payload
from toymq_bench.peers.peer import HOST, CountingProducer, Peer, read_until

GROUP, CONSUMER, FIELD = b"g", b"c", b"d"


def command(*words: bytes) -> bytes:
    """Encode a command in RESP, an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class Redis(Peer):
    """Redis: producers use XADD; consumers use XREADGROUP and an XACK for each message."""

    name = "Redis Streams"
    program = "redis-server"

    @property
    def durability(self) -> str:
        return "fsync before each reply (appendfsync always)"

    def command(self) -> Sequence[str]:
        return [
            self.program, "--port", str(self.port), "--bind", HOST, "--dir", str(self.directory), "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        ]  # fmt: skip

    def ready(self) -> None:
        self._ask(b"PING")

    def create(self, topic: str) -> None:
        self._ask(b"XGROUP", b"CREATE", topic.encode(), GROUP, b"$", b"MKSTREAM")

    def _ask(self, *words: bytes) -> None:
        with self.connect() as connection:
            connection.sendall(command(*words))
            if not (reply := read_until(connection, b"\r\n")).startswith(b"+"):
                raise WrongReply(f"{words[0].decode()} was answered with {reply.decode(errors='replace')!r}")

    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        frame = command(b"XADD", topic.encode(), b"*", FIELD, payload(size, marked=True))
        # A reply is an id as a bulk string: "$15", "1526919030474-55".
        return self.connect(), CountingProducer(frame, window, b"$", rb"-[A-Z]")

    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        connection = self.connect()
        consumer = RedisConsumer(topic.encode(), window, size)
        connection.sendall(consumer.read)
        return [(connection, consumer)]


class RedisConsumer:
    """Consumes with one XREADGROUP outstanding; the acks of its messages and the next XREADGROUP go out in one write."""

    def __init__(self, stream: bytes, window: int, size: int) -> None:
        self.read = command(
            b"XREADGROUP", b"GROUP", GROUP, CONSUMER, b"COUNT", b"%d" % window, b"BLOCK", b"300", b"STREAMS", stream, b">"
        )
        self._stream = stream
        self._head = re.compile(rb"(?::1\r\n)*\*1\r\n\*2\r\n\$\d+\r\n%b\r\n\*(\d+)\r\n" % re.escape(stream))
        self._entry = re.compile(
            rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n\$%d\r\n(.{12}).{%d}\r\n" % (size, size - STAMP_BYTES), re.DOTALL
        )
        self._least = size
        self._unparsed = b""

    def deliveries(self, data: bytes) -> Chunk:
        """Parse a reply and ack its messages. Raises: WrongReply when the server sent an error."""
        data = self._unparsed = self._unparsed + data
        if data.startswith(b"-"):
            raise WrongReply(f"a consumer was told {data[:200].decode(errors='replace')!r}")
        if data.endswith(b"*-1\r\n") and len(data) < self._least:
            self._unparsed = b""
            return Chunk((), self.read)  # nothing came while it was blocked
        head = self._head.match(data)
        if head is None or len(data) < head.end() + int(head[1]) * self._least:
            return Chunk((), b"")
        found = self._entry.findall(data, head.end())
        if len(found) < int(head[1]):
            return Chunk((), b"")
        self._unparsed = b""
        ids, stamps = zip(*found, strict=True)
        acks = b"".join([command(b"XACK", self._stream, GROUP, one) for one in ids])
        return Chunk(stamps, acks + self.read)
