"""The scrub finds rot in sealed segments, reports each damage once, and notices when a segment is intact again."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.link_rig import CLUSTER, replica_id
from tests.support.node_rig import NodeRig, Running, simulate
from tests.support.sealed_segments import directory_with_segments, flip_bit
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.errors import LocalError
from toymq_py.replication import scrub as scrub_module
from toymq_py.replication.disk_calls import StopFlag, Stopped
from toymq_py.replication.replica_file import ReplicaFile, ReplicaRecord
from toymq_py.replication.scrub import Scrub
from toymq_py.storage.fs import RealFileSystem

INTERVAL_S = 3600.0


class Inline:
    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        job()
        asyncio.get_running_loop().call_soon(done)


@pytest.fixture(autouse=True)
def _no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub_module, "BYTES_PER_S", 1 << 60)


@pytest.fixture
async def segments(tmp_path: Path) -> list[str]:
    return await directory_with_segments(tmp_path)


def scrub_of(root: Path) -> Scrub:
    fs = RealFileSystem()
    file = ReplicaFile.load(fs, str(root)) or ReplicaFile.create(fs, str(root), ReplicaRecord(CLUSTER, "g0", replica_id(1)))
    return Scrub(fs, str(root), Inline(), file, INTERVAL_S)


def simulated(scenario: Callable[[SimEventLoop], Awaitable[None]]) -> None:
    loop = SimEventLoop(random.Random(1))
    try:
        loop.run_until_complete(scenario(loop))
    finally:
        loop.close()


@asynccontextmanager
async def running(scrub: Scrub) -> "AsyncIterator[asyncio.Task[str]]":
    task = asyncio.ensure_future(scrub.until_new_damage())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_damage_is_found_told_once_and_over_when_the_segment_is_whole(tmp_path: Path, segments: list[str]) -> None:
    good = (tmp_path / segments[1]).read_bytes()
    flip_bit(tmp_path, segments[1])

    async def scenario(loop: SimEventLoop) -> None:
        scrub = scrub_of(tmp_path)
        assert await scrub.until_new_damage() == segments[1]
        assert list(scrub.found) == [segments[1]]
        scrub.note(segments[1])
        again = scrub_of(tmp_path)
        async with running(again) as task:  # another process: the note is in replica.json
            await asyncio.sleep(3 * INTERVAL_S)
            assert not task.done(), "another copy was asked before"
            assert list(again.found) == [segments[1]]
            (tmp_path / segments[1]).write_bytes(good)
            await asyncio.sleep(2 * INTERVAL_S)
            assert again.found == {}
            flip_bit(tmp_path, segments[1])
            await asyncio.sleep(2 * INTERVAL_S)
            assert task.done(), "it rots anew"

    simulated(scenario)


def test_whole_segments_and_the_active_one_are_no_damage(tmp_path: Path, segments: list[str]) -> None:
    flip_bit(tmp_path, segments[-1], 100)  # the end of the log is written to: recovery judges it

    async def scenario(loop: SimEventLoop) -> None:
        scrub = scrub_of(tmp_path)
        async with running(scrub) as task:
            await asyncio.sleep(3 * INTERVAL_S)
            assert not task.done()
        assert scrub.found == {}
        assert scrub.read_bytes >= sum((tmp_path / each).stat().st_size for each in segments[:-1])

    simulated(scenario)


def test_the_last_record_of_a_sealed_segment_is_checked_too(tmp_path: Path, segments: list[str]) -> None:
    flip_bit(tmp_path, segments[0], len((tmp_path / segments[0]).read_bytes().rstrip(b"\0")) - 8)

    async def scenario(loop: SimEventLoop) -> None:
        assert await scrub_of(tmp_path).until_new_damage() == segments[0]

    simulated(scenario)


def test_what_is_removed_meanwhile_is_no_damage(tmp_path: Path, segments: list[str]) -> None:
    flip_bit(tmp_path, segments[0])

    async def scenario(loop: SimEventLoop) -> None:
        scrub = scrub_of(tmp_path)
        scrub.note(await scrub.until_new_damage())
        shutil.rmtree(tmp_path / "topics")
        async with running(scrub) as task:
            await asyncio.sleep(2 * INTERVAL_S)
            assert not task.done()
        assert scrub.found == {}
        loaded = ReplicaFile.load(RealFileSystem(), str(tmp_path))
        assert loaded is not None
        assert loaded.record.damaged == ()

    simulated(scenario)


def test_a_job_that_waits_for_its_pace_ends_at_once_when_it_is_not_wanted(
    tmp_path: Path, segments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a failover waited for the scrub, which takes seconds for a segment at this pace."""
    monkeypatch.setattr(scrub_module, "BYTES_PER_S", 1)
    slept: list[float] = []
    stop = StopFlag()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        stop.is_set = len(slept) == 3

    monkeypatch.setattr(scrub_module.time, "sleep", sleep)
    scrub = scrub_of(tmp_path)
    with pytest.raises(Stopped):
        next(scrub._parts("jobs", stop))
    assert slept == [scrub_module.STEP_S] * 3


class FakeScrub:
    """A scrub that finds damage when the test says so."""

    def __init__(self) -> None:
        self.damage: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.noted: list[str] = []
        self.found: dict[str, int] = {}

    async def until_new_damage(self) -> str:
        path = await asyncio.shield(self.damage)
        self.damage = asyncio.get_running_loop().create_future()
        return path

    def note(self, path: str) -> None:
        self.noted.append(path)


def started(rig: NodeRig, name: str) -> tuple[Running, FakeScrub]:
    running, scrub = rig.start(name), FakeScrub()
    running.node.scrub = scrub  # type: ignore[assignment]
    return running, scrub


def test_a_follower_whose_copy_rots_joins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, _ = started(rig, "n1")
        await rig.led_by(n1)
        n2, scrub = started(rig, "n2")
        await rig.led_by(n1, in_sync=2)
        await rig.until(lambda: n2.node.state == "FOLLOWING", "n2 follows")
        await asyncio.sleep(1)
        assert len(n2.link.followed) == 1
        scrub.damage.set_result("topics/jobs/00000000000000000000.log")
        await rig.until(lambda: len(n2.link.followed) == 2, "it joins anew")
        assert scrub.noted == ["topics/jobs/00000000000000000000.log"]
        await rig.led_by(n1, in_sync=2)

    simulate(scenario, tmp_path, monkeypatch)


def test_a_leader_whose_copy_rots_hands_over_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: NodeRig) -> None:
        n1, scrub = started(rig, "n1")
        await rig.led_by(n1)
        scrub.damage.set_result("topics/jobs/00000000000000000000.log")
        await asyncio.sleep(5)
        assert n1.node.state == "LEADING", "no other copy has it"
        assert scrub.noted == [], "so the next round says it again"
        n2, _ = started(rig, "n2")
        await rig.led_by(n1, in_sync=2)
        await asyncio.sleep(61)
        scrub.damage.set_result("topics/jobs/00000000000000000000.log")
        await rig.led_by(n2)
        await rig.until(n1.task.done, "n1 has left")
        assert n1.task.result() is True, "it comes back, as a follower"
        assert scrub.noted == ["topics/jobs/00000000000000000000.log"]
        assert not isinstance(n1.ended_by, LocalError)

    simulate(scenario, tmp_path, monkeypatch)
