"""RabbitMQ: a quorum queue on one node, with publisher confirms. The load generator writes AMQP 0-9-1 frames itself."""

import os
import re
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from toymq_bench.errors import WrongReply
from toymq_bench.frames import BLOCK, STAMP_BYTES, Chunk, Consuming, Producing, Template, payload
from toymq_bench.peers.peer import HOST, READ_BYTES, Peer, free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the script on PATH, which needs root or its own user."""
NODE = "toymq-bench@localhost"
FRAME_BYTES_MAX = 131_072
END = b"\xce"
METHOD, HEADER, BODY = 1, 2, 3
ACK_FRAME = struct.Struct(">BHIHHQBB")
"""A confirm: type, channel, length, class, method, delivery tag, multiple, end."""


def frame(kind: int, channel: int, content: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(content)) + content + END


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short(text: bytes) -> bytes:
    return struct.pack(">B", len(text)) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


class Channel:
    """An AMQP connection with one open channel, for the set-up before the load."""

    def __init__(self, connection: socket.socket) -> None:
        """Log in and open the channel. Raises: WrongReply, OSError."""
        self.socket = connection
        self._unparsed = b""
        connection.sendall(b"AMQP\0\0\x09\x01")
        self._wait(10, 10)
        connection.sendall(method(0, 10, 11, long(b"") + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US")))
        self._wait(10, 30)
        tune = struct.pack(">HIH", 2047, FRAME_BYTES_MAX, 0)
        connection.sendall(method(0, 10, 31, tune) + method(0, 10, 40, short(b"/") + b"\0\0"))
        self._wait(10, 41)
        self.call(20, 10, b"\0")

    def call(self, class_id: int, method_id: int, arguments: bytes) -> None:
        """Call an AMQP method and wait for its answer, the method with the next number. Raises: WrongReply, OSError."""
        self.socket.sendall(method(1, class_id, method_id, arguments))
        self._wait(class_id, method_id + 1)

    def _wait(self, class_id: int, method_id: int) -> None:
        while True:
            while len(self._unparsed) < 7 or len(self._unparsed) < (end := struct.unpack_from(">I", self._unparsed, 3)[0] + 8):
                more = self.socket.recv(READ_BYTES)
                if not more:
                    raise WrongReply("RabbitMQ closed the connection")
                self._unparsed += more
            one, self._unparsed = self._unparsed[:end], self._unparsed[end:]
            if one[0] != METHOD:
                continue
            found = struct.unpack_from(">HH", one, 7)
            if found == (class_id, method_id):
                return
            if found in ((10, 50), (20, 40)):
                raise WrongReply(f"RabbitMQ closed: {one[11:].decode(errors='replace')!r}")


class AmqpPeer(Peer):
    """A server that speaks AMQP: basic.publish with confirms; basic.deliver, and an ack for each message."""

    def ready(self) -> None:
        with self.connect() as connection:
            Channel(connection)

    def create(self, topic: str) -> None:
        quorum = short(b"x-queue-type") + b"S" + long(b"quorum")
        with self.connect() as connection:
            Channel(connection).call(50, 10, b"\0\0" + short(topic.encode()) + b"\x02" + long(quorum))

    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        channel = Channel(self.connect())
        channel.call(85, 10, b"\0")
        return channel.socket, RabbitProducer(topic.encode(), window, size)

    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        channel = Channel(self.connect())
        channel.call(60, 10, struct.pack(">IHB", 0, window, 0))
        channel.call(60, 20, b"\0\0" + short(topic.encode()) + short(b"c") + b"\0" + long(b""))
        return [(channel.socket, RabbitConsumer(size))]


class RabbitMQ(AmqpPeer):
    """Debian's RabbitMQ server, as a single new node."""

    name = "RabbitMQ"
    program = str(SERVER)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._epmd_port = free_port()

    @property
    def durability(self) -> str:
        return "fsync before each confirm (quorum queue of one node, group commit)"

    def command(self) -> Sequence[str]:
        (self.directory / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{self.port}\n")
        (self.directory / "plugins").write_text("[].\n")
        return [self.program]

    def environment(self) -> Mapping[str, str]:
        at = str(self.directory)
        return {
            "HOME": at, "RABBITMQ_NODENAME": NODE, "RABBITMQ_MNESIA_BASE": f"{at}/mnesia", "RABBITMQ_LOG_BASE": f"{at}/log.d",
            "RABBITMQ_CONFIG_FILE": f"{at}/rabbitmq.conf", "RABBITMQ_ENABLED_PLUGINS_FILE": f"{at}/plugins",
            "RABBITMQ_PID_FILE": f"{at}/pid", "RABBITMQ_GENERATED_CONFIG_DIR": f"{at}/generated",
            "RABBITMQ_CONF_ENV_FILE": os.devnull, "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": HOST, "ERL_EPMD_RELAXED_COMMAND_CHECK": "true",
        }  # fmt: skip

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        # Erlang's name server is a daemon: it outlives the broker.
        subprocess.run(["epmd", "-port", str(self._epmd_port), "-kill"], capture_output=True, check=False)


class RabbitProducer:
    """Publishes persistent messages; a confirm counts for one message or, with ``multiple``, for all up to it."""

    def __init__(self, queue: bytes, window: int, size: int) -> None:
        properties = struct.pack(">HHQHB", 60, 0, size, 0x1000, 2)  # delivery mode 2: persistent
        one = method(1, 60, 40, b"\0\0" + short(b"") + short(queue) + b"\0") + frame(HEADER, 1, properties)
        self.template = Template([one + frame(BODY, 1, payload(size, marked=True))] * min(window, BLOCK))
        self._unparsed = b""
        self._lowest = 1
        self._above: set[int] = set()
        """Tags confirmed one by one above the lowest unconfirmed."""

    def replies(self, data: bytes) -> int:
        """Count the messages that the received frames confirm. Raises: WrongReply unless each frame is a confirm."""
        data = self._unparsed + data
        whole = len(data) // ACK_FRAME.size * ACK_FRAME.size
        self._unparsed = data[whole:]
        count = 0
        for _, _, _, class_id, method_id, tag, multiple, _ in ACK_FRAME.iter_unpack(data[:whole]):
            if (class_id, method_id) != (60, 80):
                raise WrongReply(f"a publish was answered with: {data[:200].decode(errors='replace')!r}")
            if multiple:
                singly = {one for one in self._above if one <= tag}
                count += tag + 1 - self._lowest - len(singly)
                self._above -= singly
                self._lowest = tag + 1
            else:
                count += 1
                self._above.add(tag)
            while self._lowest in self._above:
                self._above.remove(self._lowest)
                self._lowest += 1
        return count


class RabbitConsumer:
    """Finds deliveries by the constant parts of their method, header and body frames."""

    def __init__(self, size: int) -> None:
        body = re.escape(struct.pack(">BHI", BODY, 1, size)) + rb"(.{12}).{%d}" % (size - STAMP_BYTES) + END
        # 60, 60 is basic.deliver, "c" the consumer's tag; then the delivery tag.
        self._delivery = re.compile(rb"\x01\x00\x01....\x00\x3c\x00\x3c\x01c(.{8}).*?" + body, re.DOTALL)
        self._unparsed = b""

    def deliveries(self, data: bytes) -> Chunk:
        """Find the deliveries in the received bytes and ack each. Raises: WrongReply when the broker closed the channel or
        connection."""
        data = self._unparsed + data
        answers, stamps, end = [], [], 0
        while (found := self._delivery.match(data, end)) is not None:
            answers.append(method(1, 60, 80, found[1] + b"\0"))
            stamps.append(found[2])
            end = found.end()
        self._unparsed = data[end:]
        if self._unparsed[7:11] in (b"\x00\x14\x00\x28", b"\x00\x0a\x00\x32"):
            raise WrongReply(f"a consumer got {self._unparsed[:200].decode(errors='replace')!r}")
        return Chunk(stamps, b"".join(answers))
