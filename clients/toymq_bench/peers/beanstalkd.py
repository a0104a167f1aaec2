"""beanstalkd with its binlog synced after every job."""

import re
import socket
from collections.abc import Sequence

from toymq_bench.errors import WrongReply
from toymq_bench.frames import STAMP_BYTES, Chunk, Consuming, Producing, payload
from toymq_bench.peers.peer import HOST, CountingProducer, Peer, read_until

RESERVERS = 16
"""Connections that reserve: one that waits in ``reserve`` takes no further command."""
TIME_TO_RUN_S = 600


class Beanstalkd(Peer):
    """beanstalkd: producers use put, consumers reserve and delete one job at a time on each connection."""

    name = "beanstalkd"
    program = "beanstalkd"

    @property
    def durability(self) -> str:
        return "fsync before each reply (-f 0)"

    def command(self) -> Sequence[str]:
        return [self.program, "-l", HOST, "-p", str(self.port), "-b", str(self.directory), "-f", "0"]

    def ready(self) -> None:
        with self.connect() as connection:
            connection.sendall(b"list-tube-used\r\n")
            read_until(connection, b"USING default\r\n")

    def create(self, topic: str) -> None:
        """Do nothing: the server is new, and its default tube exists."""

    def producer(self, topic: str, number: int, window: int, size: int) -> tuple[socket.socket, Producing]:
        frame = b"put 0 0 %d %d\r\n%b\r\n" % (TIME_TO_RUN_S, size, payload(size, marked=True))
        return self.connect(), CountingProducer(frame, window, b"INSERTED", rb"BURIED|[A-Z]_[A-Z]|DRAINING")

    def consumers(self, topic: str, window: int, size: int) -> list[tuple[socket.socket, Consuming]]:
        found: list[tuple[socket.socket, Consuming]] = []
        for _ in range(RESERVERS):
            connection = self.connect()
            connection.sendall(b"reserve\r\n")
            found.append((connection, BeanstalkdConsumer(size)))
        return found


class BeanstalkdConsumer:
    """Consumes jobs; each delete and the next reserve go out in one write."""

    def __init__(self, size: int) -> None:
        self._job = re.compile(
            rb"(?:DELETED\r\n)?RESERVED (\d+) %d\r\n(.{12}).{%d}\r\n" % (size, size - STAMP_BYTES), re.DOTALL
        )
        self._size = size
        self._unparsed = b""

    def deliveries(self, data: bytes) -> Chunk:
        """Parse reserved jobs and answer each with delete and reserve. Raises: WrongReply."""
        data = self._unparsed + data
        job = self._job.match(data)
        if job is None:
            if len(data) > self._size + 100 or b"NOT_FOUND" in data or b"TIMED_OUT" in data:
                raise WrongReply(f"a consumer was told {data[:200].decode(errors='replace')!r}")
            self._unparsed = data
            return Chunk((), b"")
        self._unparsed = data[job.end() :]
        return Chunk((job[2],), b"delete %b\r\nreserve\r\n" % job[1])
