"""The follower's stream, from the plan to BYE; a leader that violates the protocol changes nothing."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fake_leader import (
    LOG,
    OWN,
    FakeLeader,
    fake_leader,
    follow,
    follower_with_files,
    frames,
    keep_all,
)
from tests.support.link_rig import FollowerRig, LeaderRig, shared_files
from toymq_py.clock import SystemClock
from toymq_py.replication.acks import Synced
from toymq_py.replication.follower_link import EndReason
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan, encode_plan
from toymq_py.replication.operations import Beat, Bye, Copied, Copy, Create, Mkdir, Plan, Sync, Write
from toymq_py.storage.fs import File, RealFile, RealFileSystem


@pytest.fixture
async def leader() -> AsyncIterator[FakeLeader]:
    async with fake_leader() as fake:
        yield fake


@pytest.fixture
def follower(tmp_path: Path) -> FollowerRig:
    return follower_with_files(tmp_path / "f")


async def test_an_empty_copy_then_operations_and_bye(leader: FakeLeader, follower: FollowerRig) -> None:
    heard: list[object] = []

    async def play(_: object) -> None:
        await leader.copy()
        heard.append(await leader.next_report())
        leader.send(
            Create(1, "topics/t/has-offsets"), Mkdir(2, "topics/u"), Write(3, LOG, 0, b"A"), Sync(4, LOG),
            Beat(5, SystemClock().wall_ns() - 7_000_000_000, 0),
        )
        heard.extend([await leader.next_report(), await leader.next_report()])
        ahead_s = follower.link.clock_offset_s
        heard.append(ahead_s is not None and abs(ahead_s - 7) < 5)
        heard.append(follower.link.state)
        leader.send(Write(6, LOG, 1, b"B"), Sync(7, LOG), Bye(8))
        heard.append(await leader.next_report())

    leader.play = play
    end = await follow(follower, leader)
    assert heard == [Synced(0), Synced(4), Synced(5), True, "following", Synced(7)]
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
    """A byte in the middle of a broker's segment is changed."""
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


class SyncsNoted(RealFileSystem):
    """Records which files are synced."""

    def __init__(self) -> None:
        self.synced: set[str] = set()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        file = super().open(path, create=create, exclusive=exclusive, write=write)
        sync = file.sync

        class Noted(RealFile):
            def sync(_self) -> None:
                sync()
                self.synced.add(path)

        return Noted(file.fd, path)  # type: ignore[attr-defined]

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self.synced.add(path)


async def test_a_copy_is_acknowledged_when_it_is_on_stable_storage(leader: FakeLeader, tmp_path: Path) -> None:
    disk = SyncsNoted()
    follower = FollowerRig(tmp_path / "f", fs=disk)
    missing: list[str] = []

    async def play(_: object) -> None:
        await leader.copy(
            Copy(0, LOG, 0, b"x"), plan=JoinPlan((FilePlan(LOG, Action.COPY),), ("topics", "topics/t"))
        )  # fmt: skip
        await leader.next_report()
        wanted = {f"{follower.root}{path}" for path in ("", "/topics", "/topics/t", f"/{LOG}")}
        missing.extend(sorted(wanted - disk.synced))
        leader.writer.close()

    leader.play = play
    await follow(follower, leader)
    assert missing == []
