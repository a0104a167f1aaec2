"""A follower and a leader that is broken or hostile: the link ends, and the directory is as it was."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.link_rig import FollowerRig, LeaderRig, shared_files, until
from toymq_py.replication.acks import Failed, ReportReader, Synced
from toymq_py.replication.follower_link import EndReason, FollowEnd
from toymq_py.replication.handshake import HandshakeReader, Lead, ManifestBytes, Refused, StreamFrom, Wait, encode
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan, Manifest, decode_manifest, encode_plan
from toymq_py.replication.operations import (
    Beat,
    Bye,
    Copied,
    Copy,
    Create,
    Mkdir,
    Operation,
    Plan,
    Sync,
    Write,
)
from toymq_py.replication.operations import encode as encode_operation

STREAM_ID = "0123456789abcdef"
LOG = "topics/t/00000000000000000001.log"
OWN = {LOG: b"a record that this replica has", "topics/t/topic.json": b"{}"}


def frames(*operations: Operation) -> bytes:
    return b"".join(b"".join(map(bytes, encode_operation(each))) for each in operations)


class FakeLeader:
    """Says what a test tells it to, and reads what the follower says."""

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
        """The next line that is not WAIT."""
        while True:
            message = self._lines.next_message()
            if message is None:
                data = await self.reader.read(65536)
                assert data, "the follower ended the link"
                self._lines.receive(data)
            elif not isinstance(message, Wait):
                return message

    async def lead(self, _: object = None) -> Manifest:
        """Take the follower's link up to its manifest. Returns: that."""
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
        """A join that keeps all, or carries out ``plan``."""
        manifest = await self.begin()
        self.send(Plan(0, encode_plan(plan or keep_all(manifest))))
        assert await self.next_report() == Synced(0)
        self.send(*pieces, Copied(0))

    def send(self, *operations: Operation) -> None:
        self.writer.write(frames(*operations))

    async def next_report(self) -> object:
        """The next report that is not a sign of life."""
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


@pytest.fixture
async def leader() -> AsyncIterator[FakeLeader]:
    fake = FakeLeader()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    yield fake
    server.close()
    await asyncio.sleep(0)


@pytest.fixture
def follower(tmp_path: Path) -> FollowerRig:
    rig = FollowerRig(tmp_path / "f")
    for path, content in OWN.items():
        (rig.root / path).parent.mkdir(parents=True, exist_ok=True)
        (rig.root / path).write_bytes(content)
    return rig


async def follow(follower: FollowerRig, leader: FakeLeader, epoch: int = 7) -> FollowEnd:
    async with asyncio.timeout(15):
        return await follower.follow(leader, epoch)  # type: ignore[arg-type]


async def test_an_empty_copy_then_operations_and_bye(leader: FakeLeader, follower: FollowerRig) -> None:
    heard: list[object] = []

    async def play(_: object) -> None:
        await leader.copy()
        heard.append(await leader.next_report())
        leader.send(
            Create(1, "topics/t/has-offsets"), Mkdir(2, "topics/u"), Write(3, LOG, 0, b"A"), Sync(4, LOG), Beat(5, 123, 0)
        )
        heard.extend([await leader.next_report(), await leader.next_report()])
        heard.append(follower.link.leader_wall_ns)
        heard.append(follower.link.state)
        leader.send(Write(6, LOG, 1, b"B"), Sync(7, LOG), Bye(8))
        heard.append(await leader.next_report())

    leader.play = play
    end = await follow(follower, leader)
    assert heard == [Synced(0), Synced(4), Synced(5), 123, "following", Synced(7)]
    assert end.reason is EndReason.BYE
    assert shared_files(follower.root) == {**OWN, LOG: b"AB" + OWN[LOG][2:], "topics/t/has-offsets": b""}
    assert follower.file.record.promised == 7
    assert not follower.file.record.copying
    assert not (follower.root / "spool").exists()


async def test_operations_of_the_time_of_the_copy_are_redone_upon_it(leader: FakeLeader, follower: FollowerRig) -> None:
    new = "topics/t/00000000000000000009.log"
    heard: list[object] = []

    async def play(_: object) -> None:
        manifest = await leader.begin(after=40)
        plan = JoinPlan((*keep_all(manifest).files, FilePlan(new, Action.COPY)), manifest.directories)
        leader.send(Write(41, new, 0, b"spooled first"), Plan(0, encode_plan(plan)))
        assert await leader.next_report() == Synced(0)
        assert follower.file.record.copying
        leader.send(Copy(0, new, 0, b"copied.......and more"), Sync(42, new), Beat(43, 1, 1), Copied(43), Sync(44, new))
        leader.send(Beat(45, 2, 2))
        heard.extend([await leader.next_report() for _ in range(3)])

    leader.play = play
    assert (await follow(follower, leader)).reason is EndReason.LOST, "the fake leader waits for ever and sends no BEAT"
    assert heard == [Synced(43), Synced(44), Synced(45)]
    assert shared_files(follower.root) == {**OWN, new: b"spooled firstand more"}


async def test_what_is_damaged_in_a_copied_segment_is_reported(
    leader: FakeLeader, follower: FollowerRig, tmp_path: Path
) -> None:
    """A whole segment of a broker with one byte changed in its middle."""
    async with LeaderRig(tmp_path / "other").serving() as other:
        for _ in range(4):
            await other.publish("t", *[b"x" * 50] * 10)
    content = bytearray(next((tmp_path / "other").glob("topics/t/*.log")).read_bytes())
    content[len(content) // 2] ^= 1
    (follower.root / LOG).unlink()
    damage = bytearray()

    async def play(_: object) -> None:
        manifest = await leader.begin()
        plan = JoinPlan((*keep_all(manifest).files, FilePlan(LOG, Action.COPY)), manifest.directories)
        leader.send(Plan(0, encode_plan(plan)))
        assert await leader.next_report() == Synced(0)
        leader.send(Copy(0, LOG, 0, bytes(content)), Copied(0))
        while b"D" not in damage:
            damage.extend(await leader.reader.read(65536))

    leader.play = play
    await follow(follower, leader)
    assert LOG.encode() in damage


REFUSALS = {
    "garbage": b"\xff\xfe\n",
    "a line without end": b"x" * 3000,
    "a manifest": b"MANIFEST 3\n{}",
    "another epoch": encode(Lead(8, STREAM_ID)),
    "a stream id with a path": b"LEAD 7 ../../../../../x\n",
    "a stream without a leader": encode(StreamFrom(0)),
}


@pytest.mark.parametrize("said", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_leader_that_begins_in_another_way_is_left(leader: FakeLeader, follower: FollowerRig, said: bytes) -> None:
    async def play(_: object) -> None:
        leader.writer.write(said)

    leader.play = play
    assert (await follow(follower, leader)).reason is EndReason.LOST
    assert shared_files(follower.root) == OWN
    assert follower.file.record.promised == 0, "nothing was promised to a leader that is none"


async def test_answers_are_told_with_their_code(leader: FakeLeader, follower: FollowerRig) -> None:
    for code, reason in (("BAD_VERSION", EndReason.REFUSED), ("NOT_LEADER", EndReason.REFUSED), ("FENCED", EndReason.FENCED)):

        async def play(_: object, code: str = code) -> None:
            leader.writer.write(encode(Refused(code, "text")))

        leader.play = play
        assert await follow(follower, leader) == FollowEnd(reason, f"{code} text", code)


async def test_a_leader_of_an_older_epoch_is_fenced(leader: FakeLeader, follower: FollowerRig) -> None:
    follower.file.change(promised=9)
    assert (await follow(follower, leader, epoch=9)).reason is EndReason.FENCED


async def test_the_epoch_is_promised_before_the_manifest(leader: FakeLeader, follower: FollowerRig) -> None:
    promised: list[int] = []

    async def play(_: object) -> None:
        await leader.lead()
        promised.append(follower.file.record.promised)
        leader.writer.close()

    leader.play = play
    assert (await follow(follower, leader)).reason is EndReason.LOST
    assert promised == [7]


def planned(*files: FilePlan, directories: tuple[str, ...] = ("topics", "topics/t")) -> bytes:
    return frames(Plan(0, encode_plan(JoinPlan(files, directories))))


KEEP_ALL = tuple(FilePlan(path, Action.KEEP) for path in OWN)
HOSTILE = {
    "no plan": frames(Copied(0)),
    "COPY before the plan": frames(Copy(0, LOG, 0, b"x")),
    "a plan that leaves a file out": planned(KEEP_ALL[0]),
    "a plan of a file that is not here": planned(*KEEP_ALL, FilePlan("topics/t/has-offsets", Action.KEEP)),
    "a plan that cuts content": planned(FilePlan(LOG, Action.APPEND, 3), KEEP_ALL[1]),
    "a plan without a file's directory": planned(*KEEP_ALL, directories=("topics",)),
    "a plan that is not JSON": frames(Plan(0, b"[[[[")),
    "a plan of paths elsewhere": frames(Plan(0, b'{"files":[["../x","copy",0]],"directories":[]}')),
    "a plan of directories elsewhere": frames(Plan(0, b'{"files":[],"directories":["topics/../.."]}')),
    "two plans": planned(*KEEP_ALL) + planned(*KEEP_ALL),
    "COPY of a file that is kept": planned(*KEEP_ALL) + frames(Copy(0, LOG, 0, b"x")),
    "COPIED of another number": planned(*KEEP_ALL) + frames(Copied(3)),
    "an operation that is missing": frames(Beat(2, 0, 0)),
    "an operation twice": frames(Beat(1, 0, 0), Beat(1, 0, 0)),
    "a broken checksum": frames(Beat(1, 0, 0))[:-1] + b"!",
    "an endless frame": struct.pack("<IB", 2**32 - 1, 1),
    "an unknown operation": struct.pack("<IB", 100, 99),
    "an end": b"",
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_leader_that_breaks_the_protocol_changes_nothing(
    leader: FakeLeader, follower: FollowerRig, said: bytes
) -> None:
    async def play(_: object) -> None:
        await leader.begin()
        for at in range(0, len(said), 7):
            leader.writer.write(said[at : at + 7])
            await asyncio.sleep(0)
        if not said:
            leader.writer.close()

    leader.play = play
    end = await follow(follower, leader)
    assert end.reason is EndReason.LOST
    assert "has said nothing" not in end.detail, "it was found out, not waited for"
    assert shared_files(follower.root) == OWN
    assert not (follower.root / "spool").exists()


async def test_a_leader_that_says_nothing_is_left(leader: FakeLeader, follower: FollowerRig) -> None:
    async def play(_: object) -> None:
        await leader.begin()

    leader.play = play
    end = await follow(follower, leader)
    assert "has said nothing" in end.detail


async def test_a_follower_that_is_cancelled_leaves_its_directory_alone(leader: FakeLeader, follower: FollowerRig) -> None:
    """Whoever leads next opens it at once."""
    paths = [f"topics/t/{number:020d}.log" for number in range(2, 300)]

    async def play(_: object) -> None:
        manifest = await leader.begin()
        plan = JoinPlan((*keep_all(manifest).files, *(FilePlan(path, Action.COPY) for path in paths)), manifest.directories)
        leader.send(Plan(0, encode_plan(plan)))
        await leader.next_report()
        for path in paths:
            leader.send(Copy(0, path, 0, b"x" * 5000))
            await leader.writer.drain()
            await asyncio.sleep(0)

    leader.play = play
    task = asyncio.ensure_future(follower.follow(leader))  # type: ignore[arg-type]
    await until(lambda: (follower.root / paths[5]).exists(), "the copy is under way")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = shared_files(follower.root)
    await asyncio.sleep(0.05)
    assert shared_files(follower.root) == before
    assert follower.file.record.copying
