"""A session that passes commands on to another worker or group, whose part the test plays."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from tests.support.fake_clock import FakeClock
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.clock import SystemClock
from toymq_py.data_directory import DataDirectory
from toymq_py.errors import Moved, NameBusy
from toymq_py.metrics import Metrics
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.partitions import Partitioned
from toymq_py.placement import Place, PlaceLink, Placement, worker_of
from toymq_py.protocol import Command, ServerConnection
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.gate import Gate
from toymq_py.session.passing import Passing
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import Replies
from toymq_py.session.upstream import Upstream
from toymq_py.storage import partitions_file
from toymq_py.storage.partitions_file import StoredPartitions

WORKERS = "/d/workers"
DONE = b"SUB", b"UNSUB", b"PULL", b"CREATE", b"DELETE", b"PURGE", b"SEEK", b"FORGET", b"REDRIVE"
"""What the one at "here" answers with OK 0."""
HERE, THERE = (next(name for name in "abcdefgh" if worker_of(name, 2) == worker) for worker in (0, 1))


class Groups(Placement):
    """Two groups: a connection to b goes to the test's socket, and one to a is answered as if a had no topics."""

    is_divided, passes_on = True, False
    here: Place = "a"

    def places(self) -> list[Place]:
        return ["a", "b"]

    def place_of(self, topic: str) -> Place:
        return "b" if topic == THERE else "a"

    def connected(
        self, place: Place, received: Callable[[list[bytes]], None], lost: Callable[[], None], *, trusted: bool = False
    ) -> PlaceLink:
        return Upstream(self.sockets[1] if place == "b" else self.sockets[0], asyncio.get_running_loop(), received, lost)


class Rig:
    """A session of worker 0; the test plays worker 1."""

    def __init__(self, socket: Path, placement: Placement | None = None) -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        self.woken = asyncio.Event()
        runnable = Runnable(FairQueue(clock, loop), self._turn)
        self.replies = Replies(Metrics(), runnable, clock)
        self.refused = RefusedSequences(Moved)
        self.unread = False
        self.aborted = asyncio.Event()
        self.written = b""
        self.changes = [0, 0]
        placement = placement or Placement(
            0, ("127.0.0.1:1", "127.0.0.1:2"), (str(socket), str(socket)), changes=self.changes
        )  # fmt: skip
        deliveries = Deliveries(self.replies, runnable, clock, loop.call_later)
        self.disk = SimDisk(Random(1))
        self.threads = SimLoop(FakeClock(), Random(1))
        directory = DataDirectory(self.disk, self.threads, f"{WORKERS}/0")
        self.partitioned = PartitionedTopics(SimDisk(Random(1)), directory, lambda: placement, (), {})
        self.gate = Gate()
        self.passing = Passing(
            placement, self.partitioned, self.replies, deliveries, loop, self.gate, lambda: self.unread, self.aborted.set
        )  # fmt: skip
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.there = asyncio.Event()
        self.greets = True
        self.writers: list[asyncio.StreamWriter] = []
        self.here_heard: list[str] = []
        self.held_here = b"OK 0\n"
        self._clock = clock

    def _turn(self, slice_end: float) -> bool:
        if out := self.replies.take_due(slice_end):
            self.written += b"".join(out)
        self.woken.set()
        return self.replies.due

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a link of the session; the greeting of a link whose client has not sent HELLO is answered at once."""
        self.reader, self.writer = reader, writer
        self.writers.append(writer)
        self.there.clear()
        if self.greets:
            assert await reader.readline() == b"PING\n"
            writer.write(b"PONG\n")
        if self.reader is reader:  # what is read until then is this greeting
            self.there.set()

    def worker_knows(self, worker: int, *wholes: Partitioned) -> None:
        """Set the partitioned topics in the directory of a worker."""
        known = {whole.name: StoredPartitions(whole) for whole in wholes}
        for path in ("/d", WORKERS, f"{WORKERS}/{worker}"):
            self.disk.mkdir(path)
        partitions_file.FILE.write(self.disk, f"{WORKERS}/{worker}", partitions_file.encode(known))
        self.changes[worker] += 2

    def take(self, text: str) -> bool:
        """Let the session take one command, or a run of them. Returns: whether it was passed on."""
        (command,) = commands(text)
        try:
            return self.passing.take(command, self.refused)
        except NameBusy as busy:  # as ``Handler`` does
            over: list[None] = []
            busy.when_done(lambda: over.append(None))
            self.threads.drain()
            assert over
            return self.passing.take(command, self.refused)

    async def hears(self, text: str) -> None:
        """Check what the other worker is sent."""
        await self.there.wait()
        async with asyncio.timeout(10):
            assert (await self.reader.readexactly(len(text))).decode() == text

    def says(self, text: str) -> None:
        self.writer.write(text.encode())

    async def client_reads(self, text: str) -> None:
        async with asyncio.timeout(10):
            while len(self.written) < len(text):
                self.woken.clear()
                await self.woken.wait()
        assert self.written.decode() == text
        self.written = b""


def commands(text: str) -> list[Command]:
    parser = ServerConnection(1 << 20)
    parser.receive_data(text.encode())
    return parser.next_commands(512)


@asynccontextmanager
async def running_rig(path: Path, placement: Placement | None = None) -> AsyncIterator[Rig]:
    rig = Rig(path / "s", placement)
    server = await asyncio.start_unix_server(rig.serve, path / "s")
    try:
        yield rig
    finally:
        rig.passing.close()
        for writer in rig.writers:
            writer.close()
        server.close()


@asynccontextmanager
async def rig_of_groups(path: Path) -> AsyncIterator[Rig]:
    """Yield a session of group a; the test plays the leader of group b."""

    writers: list[asyncio.StreamWriter] = []
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            if line == b"PING\n":
                writer.write(b"PONG\n")
                continue
            heard.append(line.decode())
            if line.startswith(b"HELD"):
                writer.write(rig.held_here)
                continue
            body = b"[]" if line.startswith(b"TOPICS") else b"{}"
            writer.write(b"OK 0\n" if line.startswith(DONE) else b"JSON %d\n%b\n" % (len(body), body))

    here = await asyncio.start_unix_server(answer, path / "here")
    async with running_rig(path, Groups(0, (), (str(path / "here"), str(path / "s")))) as rig:
        rig.here_heard = heard
        yield rig
    here.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()
