"""A fake leader of a replication group, which sends what a test tells it to, and a follower that has files already."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.link_rig import FollowerRig
from toymq_py.replication.acks import Failed, ReportReader, Synced
from toymq_py.replication.follower_link import FollowEnd
from toymq_py.replication.handshake import HandshakeReader, Lead, ManifestBytes, StreamFrom, Wait, encode
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan, Manifest, decode_manifest, encode_plan
from toymq_py.replication.operations import Copied, Operation, Plan
from toymq_py.replication.operations import encode as encode_operation

STREAM_ID = "0123456789abcdef"
LOG = "topics/t/00000000000000000001.log"
OWN = {LOG: b"a record that this replica has", "topics/t/topic.json": b"{}"}


def frames(*operations: Operation) -> bytes:
    return b"".join(b"".join(map(bytes, encode_operation(each))) for each in operations)


class FakeLeader:
    """Sends what a test tells it to, and reads what the follower sends."""

    epoch = 7

    def __init__(self) -> None:
        self.port = 0
        self.play: Callable[[FakeLeader], Awaitable[None]] = self.lead
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.options = LinkOptions(timeout_s=1.0)
        self._lines = HandshakeReader()
        self._reports = ReportReader()

    @property
    def repl(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        try:
            await self.play(self)
            while await reader.read(65536):
                pass
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def next_line(self) -> object:
        """Return the follower's next line that is not WAIT."""
        while True:
            message = self._lines.next_message()
            if message is None:
                data = await self.reader.read(65536)
                assert data, "the follower ended the link"
                self._lines.receive(data)
            elif not isinstance(message, Wait):
                return message

    async def lead(self, _: object = None) -> Manifest:
        """Accept the follower's link, up to its manifest, and return the manifest."""
        await self.next_line()
        self._lines.manifest_allowed = True
        self.writer.write(encode(Wait()) + encode(Lead(self.epoch, STREAM_ID)))
        message = await self.next_line()
        assert isinstance(message, ManifestBytes)
        return decode_manifest(message.data)

    async def begin(self, after: int = 0) -> Manifest:
        manifest = await self.lead()
        self._reports.receive(self._lines.take_rest())
        self.writer.write(encode(StreamFrom(after)))
        return manifest

    async def copy(self, *pieces: Operation, plan: JoinPlan | None = None) -> None:
        """Let the follower join: it keeps all its files, or carries out ``plan``."""
        manifest = await self.begin()
        self.send(Plan(0, encode_plan(plan or keep_all(manifest))))
        assert await self.next_report() == Synced(0)
        self.send(*pieces, Copied(0))

    def send(self, *operations: Operation) -> None:
        self.writer.write(frames(*operations))

    async def next_report(self) -> object:
        """Return the follower's next report that is not a sign of life."""
        while True:
            report = self._reports.next_report()
            if report is None:
                data = await self.reader.read(65536)
                assert data, "the follower ended the link"
                self._reports.receive(data)
            elif isinstance(report, Synced | Failed):
                return report


def keep_all(manifest: Manifest) -> JoinPlan:
    return JoinPlan(tuple(FilePlan(each.path, Action.KEEP) for each in manifest.files), manifest.directories)


@asynccontextmanager
async def fake_leader() -> AsyncIterator[FakeLeader]:
    """Yield a fake leader that listens."""
    fake = FakeLeader()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()


def follower_with_files(root: Path) -> FollowerRig:
    """Return a follower that has the files ``OWN``."""
    rig = FollowerRig(root)
    for path, content in OWN.items():
        (rig.root / path).parent.mkdir(parents=True, exist_ok=True)
        (rig.root / path).write_bytes(content)
    return rig


async def follow(follower: FollowerRig, leader: FakeLeader, epoch: int = 7) -> FollowEnd:
    """Let the follower follow the leader until the link ends."""
    async with asyncio.timeout(15):
        return await follower.follow(leader, epoch)  # type: ignore[arg-type]
