"""A follower of a leader that violates the protocol, is silent, or is left: its directory does not change."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fake_leader import (
    LOG,
    OWN,
    STREAM_ID,
    FakeLeader,
    fake_leader,
    follow,
    follower_with_files,
    keep_all,
)
from tests.support.link_rig import FollowerRig, shared_files, until
from toymq_py.errors import DataDirectoryError
from toymq_py.replication.follower_link import EndReason, FollowEnd
from toymq_py.replication.handshake import Lead, Refused, StreamFrom, encode
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan, encode_plan
from toymq_py.replication.operations import Beat, Copy, Create, Plan, Sync, Write
from toymq_py.storage.fs import File, RealFile, RealFileSystem


@pytest.fixture
async def leader() -> AsyncIterator[FakeLeader]:
    async with fake_leader() as fake:
        fake.options = LinkOptions(timeout_s=60.0)  # on a busy machine it may say nothing for a while
        yield fake


@pytest.fixture
def follower(tmp_path: Path) -> FollowerRig:
    return follower_with_files(tmp_path / "f")


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


async def test_a_leader_that_says_nothing_is_left(leader: FakeLeader, follower: FollowerRig) -> None:
    leader.options = LinkOptions(timeout_s=0.5)

    async def play(_: object) -> None:
        await leader.begin()

    leader.play = play
    end = await follow(follower, leader)
    assert "has said nothing" in end.detail


async def test_a_follower_that_is_cancelled_leaves_its_directory_alone(leader: FakeLeader, follower: FollowerRig) -> None:
    """The next leader's process may open the directory at once."""
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


async def test_no_copy_begins_in_an_empty_mount_point(
    leader: FakeLeader, follower: FollowerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the mount point was filled with copies, and after the next mount the older copy counted as in sync. A node may
    never have led."""

    async def play(_: object) -> None:
        await leader.lead()
        leader.writer.close()

    leader.play = play
    topics, inode = follower.root / "topics", RealFileSystem.inode
    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "inode", lambda fs, path: (int(path == str(topics)), inode(fs, path)[1]))
        assert (await follow(follower, leader)).reason is EndReason.LOST
    topics.rename(follower.root / "away")
    topics.mkdir()
    leader.epoch = 8
    before = sorted(follower.root.rglob("*"))
    with pytest.raises(DataDirectoryError, match="topics is empty, and was a file system of its own before: mount it"):
        await follow(follower, leader, epoch=8)
    assert (follower.file.record.promised, sorted(follower.root.rglob("*"))) == (7, before)
    topics.rmdir()
    (follower.root / "away").rename(topics)
    assert (await follow(follower, leader, epoch=8)).reason is EndReason.LOST
    assert follower.file.record.promised == 8


@pytest.mark.parametrize(
    ("name", "says"), [("workers.json", "toymq workers"), ("topics.restoring/t", "run `toymq restore` again")]
)  # fmt: skip
async def test_nor_in_a_directory_that_cannot_be_served(
    leader: FakeLeader, follower: FollowerRig, name: str, says: str
) -> None:  # fmt: skip
    """Found: such a node was elected, and its broker did not start."""
    (follower.root / "topics").rename(follower.root / "away")
    (follower.root / name).parent.mkdir(exist_ok=True)
    (follower.root / name).write_bytes(b"")
    with pytest.raises(DataDirectoryError, match=says):
        await follow(follower, leader)


class Calls(RealFileSystem):
    """Records which files are opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        if not path.endswith((".tmp", "/spool/0")):
            self.opened.append("/".join(path.split("/")[-2:]))
        return super().open(path, create=create, exclusive=exclusive, write=write)

    @property
    def of_topics(self) -> set[str]:
        opened, self.opened = self.opened, []
        return {path for path in opened if path.startswith("t/")}


@pytest.mark.parametrize("fails", [False, True], ids=["as ever", "behind a sync that failed"])
async def test_a_join_after_a_link_that_was_whole_opens_what_was_written_since(
    leader: FakeLeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Found: a join read all files of the copy, and synced each of them, which takes longer the larger the disk is. ADR
    0276."""
    follower = follower_with_files(tmp_path / "f")
    follower.fs = calls = Calls()

    def make_old() -> None:
        for path in OWN:
            os.utime(follower.root / path, (1e9, 1e9))

    make_old()
    new = LOG.replace("1.log", "9.log")

    async def play(_: object) -> None:
        await leader.copy()
        await leader.next_report()
        if leader.epoch == 7:
            leader.send(Create(1, new), Write(2, new, 0, b"A"), Sync(3, new))
            await leader.next_report()
            leader.send(Write(4, new, 1, b"B"), Beat(5, 0, 0))
            await leader.next_report()
            if fails:
                monkeypatch.setattr(RealFile, "sync", refuse)
                leader.send(Sync(6, new))
                await leader.next_report()
        leader.writer.close()

    def refuse(file: RealFile) -> None:
        raise OSError(errno.EIO, "the disk", file.path)

    leader.play = play
    with suppress(OSError):
        await follow(follower, leader)
    monkeypatch.undo()
    assert calls.of_topics == {path.removeprefix("topics/") for path in (*OWN, new)}
    make_old()  # the first join of a process writes again what may be in the cache alone
    leader.epoch = 8
    async with asyncio.timeout(15):
        await follower.follow(leader, 8, lives_on=True)  # type: ignore[arg-type]
    expected = {new.removeprefix("topics/"), "t/topic.json"}  # it is small, and not scrubbed
    assert calls.of_topics == ({path.removeprefix("topics/") for path in OWN} | expected if fails else expected)
    assert not follower.file.record.copying
