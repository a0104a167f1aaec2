"""A leader's broker and its followers, with real directories and sockets; a list stands in for etcd's in-sync set."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.cluster.replica_listener import ReplicaListener, connect
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import TermEnded
from toymq_py.net.certificates import PeerCertificates
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.follower_link import FollowEnd, FollowerLink
from toymq_py.replication.handshake import Follow, ManifestBytes, encode
from toymq_py.replication.leader_links import FollowerLag, LeaderLinks
from toymq_py.replication.link_options import Identity, LinkOptions
from toymq_py.replication.manifest import Manifest, encode_manifest
from toymq_py.replication.paths import is_file
from toymq_py.replication.replica_file import ReplicaFile, ReplicaRecord
from toymq_py.replication.shipping_fs import ShippingFileSystem
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets
from toymq_py.runtime.broker_loop import LoopScheduler
from toymq_py.storage.fs import FileSystem, RealFileSystem

CLUSTER = "6f6e6c79-0000-4000-8000-746573747321"
WITHIN_S = 20.0
"""Nothing here takes longer, on a busy machine either."""


def replica_id(number: int) -> str:
    return f"{number:032x}"


QUICK = LinkOptions(timeout_s=0.7, token="t")
SECOND = replica_id(2)
FOLLOW = encode(Follow(1, CLUSTER, "g0", SECOND, "n2", 0, "t"))
NOTHING = encode(ManifestBytes(encode_manifest(Manifest((), ()))))
"""The manifest of a follower without files."""


class FakeChanges:
    """A fake ``InSyncChanges``: keeps the in-sync set that etcd would keep."""

    def __init__(self, members: set[str]) -> None:
        self.members = members
        self.happened: list[tuple[str, str]] = []
        self.fenced_by: list[int] = []
        self.holds = asyncio.Event()
        """Cleared: etcd does not answer."""
        self.holds.set()
        self.term_ended = False

    async def drop(self, replica: str) -> None:
        await self._change("drop", replica)
        self.members.discard(replica)

    async def add(self, replica: str) -> None:
        await self._change("add", replica)
        self.members.add(replica)

    async def _change(self, what: str, replica: str) -> None:
        await self.holds.wait()
        if self.term_ended:
            raise TermEnded("etcd has another epoch")
        self.happened.append((what, replica))

    def fenced(self, epoch: int) -> None:
        self.fenced_by.append(epoch)


class LeaderRig:
    """A leader with its broker, and a listener for replicas on ``port``."""

    def __init__(
        self, root: Path, *, number: int = 1, epoch: int = 10, members: set[str] | None = None,
        options: LinkOptions | None = None, segment_bytes: int = 1 << 20, certificates: PeerCertificates | None = None,
        host: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        self.root = root
        self.me = Identity(CLUSTER, "g0", replica_id(number), f"n{number}")
        self.epoch = epoch
        self.changes = FakeChanges({self.me.replica} | (members or set()))
        self.options = options or LinkOptions(timeout_s=2.0, token="secret of replicas")
        self.certificates = certificates
        self.host = host
        self.port = 0
        self._segment_bytes = segment_bytes
        self.broker: Broker
        self.links: LeaderLinks
        self.stream: Stream
        self.tickets: Tickets

    @property
    def repl(self) -> str:
        """The address for replicas, as of ``Member``."""
        return f"{self.host}:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["LeaderRig"]:
        loop = asyncio.get_running_loop()
        self.tickets = Tickets()
        self.stream = Stream(self.tickets)
        real = RealFileSystem()
        scheduler = LoopScheduler(loop, self.tickets.run)
        self.broker = Broker(
            BrokerOptions(data_dir=str(self.root), min_free_bytes=0, segment_bytes=self._segment_bytes),
            fs=ShippingFileSystem(real, str(self.root), self.stream), scheduler=scheduler, clock=SystemClock(),
        )  # fmt: skip
        self.broker.open(os.getpid())
        self.links = LeaderLinks(
            me=self.me, epoch=self.epoch, stream=self.stream, tickets=self.tickets,
            digests=ContentDigests(real, str(self.root), SystemClock()),
            clock=SystemClock(), loop=loop, options=self.options, changes=self.changes, offload=scheduler,
            members=self.changes.members,
        )  # fmt: skip
        bound = socket.create_server((self.host, 0))
        bound.setblocking(False)
        self.port = bound.getsockname()[1]
        listener = ReplicaListener([bound], self.certificates, self.links.serve, loop)
        listener.start()
        self.links.start()
        try:
            yield self
        finally:
            self.links.close()
            listener.stop()
            bound.close()
            await until(lambda: not self.links.lags(), "the links end")
            scheduler.close(drop_waiting=False)
            self.broker.close()

    def put(self, topic: str, *payloads: bytes) -> "list[asyncio.Event]":
        """Publish. Returns: an event for each batch of the messages, which is set at its OK."""
        told = []
        for outcome in self.broker.topic_or_new(topic).publisher.publish([b""] * len(payloads), list(payloads)):
            ok = asyncio.Event()
            outcome.commit.add_waiter(ok.set)
            told.append(ok)
        return told

    async def publish(self, topic: str, *payloads: bytes) -> None:
        """Publish, and wait for the OK."""
        async with asyncio.timeout(WITHIN_S):
            for ok in self.put(topic, *payloads):
                await ok.wait()

    def lag(self, number: int) -> FollowerLag | None:
        return next((each for each in self.links.lags() if each.replica == replica_id(number)), None)

    async def joined(self, number: int) -> None:
        """Wait until a follower is in sync."""
        await until(lambda: self._is_in_sync(number), f"n{number} is in sync", lambda: self.links.lags())

    def _is_in_sync(self, number: int) -> bool:
        lag = self.lag(number)
        return lag is not None and lag.state == "in sync"

    async def left(self, number: int) -> None:
        """Wait until a follower has no link and is not in the in-sync set."""
        await until(lambda: self.lag(number) is None and replica_id(number) not in self.links.required(), f"n{number} is gone")


@dataclass
class FollowerRig:
    """A follower's directory, and its link to the leader while it follows."""

    root: Path
    number: int = 2
    cluster: str = CLUSTER
    options: LinkOptions | None = None
    fs: FileSystem | None = None
    certificates: PeerCertificates | None = None

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        fs = self.fs or RealFileSystem()
        self.file = ReplicaFile.load(fs, str(self.root)) or ReplicaFile.create(
            fs, str(self.root), ReplicaRecord(self.cluster, "g0", replica_id(self.number))
        )
        self.scheduler: LoopScheduler | None = None
        self.link: FollowerLink
        self.received = 0
        self.writers: list[asyncio.StreamWriter] = []

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run a job in a thread; see ``Offload``."""
        assert self.scheduler is not None
        self.scheduler.offload(job, done)

    async def follow(self, leader: LeaderRig, epoch: int | None = None, *, lives_on: bool = False) -> FollowEnd:
        """Follow until the link ends. To cancel this is to kill the follower: nothing touches the directory afterwards.
        ``lives_on``: go on in the same process as last time, not in a new one."""
        self.scheduler = LoopScheduler(asyncio.get_running_loop())
        self.link = self.link if lives_on else FollowerLink(
            me=Identity(self.cluster, "g0", self.file.record.replica, f"n{self.number}"), file=self.file,
            fs=self.fs or RealFileSystem(), root=str(self.root), clock=SystemClock(),
            options=self.options or leader.options, offload=self, connect=self._connect,
        )  # fmt: skip
        try:
            return await self.link.follow(leader, leader.epoch if epoch is None else epoch)
        finally:
            self.scheduler.close(drop_waiting=False)

    async def follow_once_or_until_joined(self, leader: LeaderRig) -> FollowEnd | None:
        """Follow until the link ends, or until the follower is in sync; returns None then."""
        async with self.following(leader) as task:
            await until(lambda: task.done() or leader._is_in_sync(self.number), "it joins or is refused")
            return task.result() if task.done() else None

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect(address, self.certificates)
        rig = self

        class Counting:
            async def read(self, n: int) -> bytes:
                data = await reader.read(n)
                rig.received += len(data)
                return data

        self.writers.append(writer)
        return Counting(), writer  # type: ignore[return-value]

    @asynccontextmanager
    async def following(self, leader: LeaderRig) -> AsyncIterator["asyncio.Task[FollowEnd]"]:
        """Follow while the block runs; at its end the link is cut."""
        task = asyncio.ensure_future(self.follow(leader))
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task


async def until(is_so: Callable[[], bool], what: str, shown: Callable[[], object] = lambda: "") -> None:
    """Wait for a condition that should hold soon. Raises: AssertionError when it does not."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WITHIN_S
    while not is_so():
        assert loop.time() < end, f"waited {WITHIN_S} s in vain: {what}; {shown()}"
        await asyncio.sleep(0.005)


def shared_files(root: Path) -> dict[str, bytes]:
    """Return the files that replicas have in common, without space that is only reserved."""
    found = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if is_file(relative):
            content = path.read_bytes()
            found[relative] = content.rstrip(b"\0") if relative.endswith((".log", ".foreign")) else content
    return found


async def assert_same(leader: LeaderRig, follower: FollowerRig) -> None:
    """Wait until the directories of leader and follower are the same."""

    def differing() -> list[str]:
        ours, theirs = shared_files(leader.root), shared_files(follower.root)
        return [path for path in sorted(ours.keys() | theirs.keys()) if ours.get(path) != theirs.get(path)]

    await until(lambda: not differing(), "both directories are the same", differing)


def messages(count: int, size: int = 20, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for _ in range(count)]
