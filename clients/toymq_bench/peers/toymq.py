"""toymq as a peer; its messages have no keys, since those of the other brokers have none."""

import socket
import sys
from collections.abc import Sequence

from toymq.broker_process import serve_command
from toymq_bench.frames import Consuming, Producing
from toymq_bench.peers.peer import HOST, Peer, read_until
from toymq_bench.toymq_wire import ToymqConsumer, ToymqProducer


class Toymq(Peer):
    """The installed ``toymq`` with its defaults."""

    name = "toymq"
    program = "toymq"

    @classmethod
    def installed(cls) -> str | None:
        return sys.executable

    @property
    def durability(self) -> str:
        return "fdatasync before each reply (group commit)"

    def command(self) -> Sequence[str]:
        return serve_command(self.directory / "data", f"{HOST}:{self.port}")

    def ready(self) -> None:
        with self.connect() as connection:
            connection.sendall(b"PING\n")
            read_until(connection, b"PONG\n")

    def create(self, topic: str) -> None:
        """Do nothing: the first PUB or SUB creates the topic."""

    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        return self.connect(), ToymqProducer(topic, number, window, size, keyed=False)

    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        connection = self.connect()
        connection.sendall(ToymqConsumer.subscribe(topic, "c", window))
        return [(connection, ToymqConsumer(topic, "c", size, keyed=False, single=True))]
