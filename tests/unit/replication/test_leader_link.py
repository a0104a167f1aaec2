"""A leader's link to one follower: its turn, its rate, and what ends it."""

import asyncio
import errno
import time
from pathlib import Path

import pytest

from tests.support.link_rig import FOLLOW, NOTHING, SECOND, FollowerRig, LeaderRig, assert_same, messages, until
from toymq_py.replication import leader_link
from toymq_py.replication.acks import Synced, encode_report
from toymq_py.replication.handshake import HandshakeReader, StreamFrom
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.operations import Beat, Copied, Operation, OperationReader, Plan, Sync, SyncDir
from toymq_py.storage.fs import File, RealFile, RealFileSystem


async def test_large_copies_take_turns_and_a_short_absence_does_not_wait(
    leader: LeaderRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_link, "LARGE_COPY_BYTES", 100_000)
    short = FollowerRig(tmp_path / "f4", 4)
    await leader.publish("t", *messages(300, 1000))
    async with short.following(leader):
        await leader.joined(4)
    await leader.left(4)
    first, second = FollowerRig(tmp_path / "f2", 2), FollowerRig(tmp_path / "f3", 3)
    await leader.links._term.turn.acquire()
    async with first.following(leader), second.following(leader):
        await asyncio.sleep(1.0)  # longer than the timeout: WAIT keeps both ends
        assert [lag.state for lag in leader.links.lags()] == ["waiting", "waiting"]
        async with short.following(leader):
            await leader.joined(4)
        leader.links._term.turn.release()
        await leader.joined(2)
        await leader.joined(3)


async def test_the_bulk_copy_keeps_to_its_rate(tmp_path: Path) -> None:
    options = LinkOptions(timeout_s=2.0, resync_bytes_per_s=1_000_000)
    async with LeaderRig(tmp_path / "leader", options=options).serving() as leader:
        await leader.publish("t", *messages(100, 5000))
        began = asyncio.get_running_loop().time()
        async with FollowerRig(tmp_path / "f").following(leader):
            await leader.joined(2)
        assert asyncio.get_running_loop().time() - began > 0.45


class BrokenDisk(RealFileSystem):
    """A disk that fails each write of a segment once ``code`` is set; a sync waits while ``hangs`` is set."""

    def __init__(self) -> None:
        self.code = 0
        self.hangs = False
        self.released = asyncio.Event()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        file = super().open(path, create=create, exclusive=exclusive, write=write)
        assert isinstance(file, RealFile)
        return _BrokenFile(file.fd, path, self) if path.endswith(".log") else file


class _BrokenFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, path: str, disk: BrokenDisk) -> None:
        super().__init__(fd, path)
        self._disk = disk

    def pwrite(self, data: bytes, offset: int) -> int:
        if self._disk.code:
            raise OSError(self._disk.code, "the test breaks it", self.path)
        return super().pwrite(data, offset)

    def sync(self) -> None:
        while self._disk.hangs:
            time.sleep(0.01)
        super().sync()


async def test_a_full_disk_of_a_follower_ends_its_link_and_the_leader_goes_on(leader: LeaderRig, tmp_path: Path) -> None:
    disk = BrokenDisk()
    follower = FollowerRig(tmp_path / "f", fs=disk)
    async with follower.following(leader) as task:
        await leader.joined(2)
        disk.code = errno.ENOSPC
        await leader.publish("t", b"x")
        with pytest.raises(OSError, match="No space left") as error:
            await task
        assert error.value.errno == errno.ENOSPC
    await leader.left(2)
    disk.code = 0
    async with follower.following(leader):
        await leader.joined(2)
        await assert_same(leader, follower)


async def test_a_full_disk_during_the_copy_ends_the_link(leader: LeaderRig, tmp_path: Path) -> None:
    await leader.publish("t", b"x")
    disk = BrokenDisk()
    disk.code = errno.ENOSPC
    with pytest.raises(OSError, match="the test breaks it"):
        await FollowerRig(tmp_path / "f", fs=disk).follow(leader)
    await leader.left(2)
    assert leader.changes.happened == []


async def test_a_follower_that_hangs_is_dropped_before_the_publish_is_answered(leader: LeaderRig, tmp_path: Path) -> None:
    disk = BrokenDisk()
    follower = FollowerRig(tmp_path / "f", fs=disk)
    async with follower.following(leader):
        await leader.joined(2)
        await leader.publish("t", b"x")
        disk.hangs = True
        [told] = leader.put("t", b"y")
        await asyncio.sleep(0.2)
        assert not told.is_set()
        await asyncio.wait_for(told.wait(), 10)
        assert leader.changes.happened[-1] == ("drop", SECOND)
        disk.hangs = False
    await leader.left(2)


async def test_a_publish_waits_as_long_as_etcd_does_not_say_that_the_follower_is_dropped(
    leader: LeaderRig, tmp_path: Path
) -> None:
    follower = FollowerRig(tmp_path / "f")
    async with follower.following(leader):
        await leader.joined(2)
        leader.changes.holds.clear()
    [told] = leader.put("t", b"y")
    await asyncio.sleep(0.3)
    assert not told.is_set()
    assert SECOND in leader.links.required()
    leader.changes.holds.set()
    await asyncio.wait_for(told.wait(), 10)


async def test_nothing_is_settled_when_the_term_has_ended(leader: LeaderRig, tmp_path: Path) -> None:
    async with FollowerRig(tmp_path / "f").following(leader):
        await leader.joined(2)
        leader.changes.term_ended = True
    [told] = leader.put("t", b"y")
    await until(lambda: not leader.links.lags(), "the link is gone")
    await asyncio.sleep(0.05)
    assert not told.is_set()
    assert SECOND in leader.links.required()


async def test_a_follower_that_is_too_far_behind_is_dropped(tmp_path: Path) -> None:
    options = LinkOptions(timeout_s=30, buffer_bytes=1 << 20)
    async with LeaderRig(tmp_path / "leader", options=options).serving() as leader:
        await leader.publish("t", b"x")
        _, writer = await asyncio.open_connection("127.0.0.1", leader.port)
        writer.write(FOLLOW + NOTHING)
        await until(lambda: (lag := leader.lag(2)) is not None and lag.state == "copying", "it has sent its manifest")
        for seed in range(100):
            await leader.publish("t", *messages(100, 1000, seed))
        await leader.left(2)
        writer.close()




async def test_a_follower_is_not_added_before_it_has_synced_all_up_to_the_moment_it_became_required(leader: LeaderRig) -> None:
    """Messages that got OK just before must be on its disk; otherwise it could be elected without them (ADR 0097, 1)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
    writer.write(FOLLOW + NOTHING)
    lines, operations = HandshakeReader(), OperationReader()
    while not isinstance(lines.next_message(), StreamFrom):
        lines.receive(await reader.read(4096))
    operations.receive(lines.take_rest())

    async def next_of(*kinds: type[Operation]) -> Operation:
        while not isinstance(operation := operations.next_operation(), kinds):
            if operation is None:
                operations.receive(await reader.read(4096))
        return operation

    await next_of(Plan)
    writer.write(encode_report(Synced(0)))
    copied = await next_of(Copied)
    await leader.publish("t", b"told without this follower")
    synced = [await next_of(Sync, SyncDir)]
    writer.write(encode_report(Synced(copied.seq)))
    await until(lambda: SECOND in leader.links.required(), "it is required")
    await asyncio.sleep(0.1)
    assert SECOND not in leader.changes.members
    while not leader.changes.members >= {SECOND}:
        writer.write(encode_report(Synced(synced[-1].seq)))
        synced.append(await next_of(Sync, SyncDir, Beat))
    assert synced[-2].seq >= synced[0].seq
    writer.close()
