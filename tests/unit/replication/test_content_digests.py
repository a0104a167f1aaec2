"""The digest of a file is computed once, and again when the file was written, has rotted, or may have been written
unnoticed."""

import asyncio
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.world import VirtualClock
from tests.support.fake_clock import EPOCH_NS, NS_PER_S, FakeClock
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.replication.content_digests import (
    AHEAD_S,
    LEFT_ALONE_NS,
    READ_BYTES,
    SETTLED_NS,
    ContentDigests,
    FileEntry,
)
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.manifest import Action, make_plan, scrubbed, take_manifest
from toymq_py.storage.fs import File, RealFileSystem

LOG, NEXT, SETTINGS = "topics/t/00000000000000000001.log", "topics/t/00000000000000000009.log", "topics/t/topic.json"


class ReadsCounted(RealFileSystem):
    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        if not self.is_dir(path):
            self.opened.append(path.rpartition("/")[2])
        return super().open(path, create=create, exclusive=exclusive, write=write)


class Directory:
    """Files whose modification times the tests set."""

    def __init__(self, root: Path) -> None:
        (root / "topics/t").mkdir(parents=True)
        self.root = root
        self.fs = ReadsCounted()
        self.clock = FakeClock()
        self.digests = ContentDigests(self.fs, str(root), self.clock)

    def put(self, path: str, content: bytes, age_s: float = 3600.0) -> None:
        (self.root / path).write_bytes(content)
        at = self.clock.wall_ns() - round(age_s * NS_PER_S)
        os.utime(self.root / path, ns=(at, at))

    def entry(self, path: str) -> FileEntry:
        return self.digests.entry(path, StopFlag())

    @property
    def reads(self) -> list[str]:
        """Return the names of the files that were opened since the last call."""
        opened, self.fs.opened = self.fs.opened, []
        return opened


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_a_file_is_read_once(directory: Directory) -> None:
    directory.put(LOG, b"records" + bytes(100))
    expected = FileEntry(LOG, 7, 107, hashlib.blake2b(b"records", digest_size=16).hexdigest())
    assert directory.digests.known(LOG) is None
    assert [directory.entry(LOG) for _ in range(3)] == [expected] * 3
    assert len(directory.reads) == 1
    assert directory.digests.known(LOG) == expected


@pytest.mark.parametrize("change", ["written", "longer", "another file"])
def test_a_file_that_is_another_is_read_again(directory: Directory, change: str) -> None:
    directory.put(LOG, b"records")
    before = directory.entry(LOG)
    if change == "written":
        directory.put(LOG, b"Records", age_s=3599.0)
    elif change == "longer":
        directory.put(LOG, b"records!")
    else:
        (directory.root / LOG).rename(directory.root / SETTINGS)
        directory.put(LOG, b"Records")
    assert directory.digests.known(LOG) is None
    assert directory.entry(LOG).digest != before.digest


@pytest.mark.parametrize("age_s", [0.0, -3600.0, SETTLED_NS / NS_PER_S])
def test_a_digest_is_not_remembered_of_a_file_that_may_change_without_another_stamp(directory: Directory, age_s: float) -> None:
    """The clocks of file systems tick slowly. After a clock was set back, a file's time may also be in the future."""
    directory.put(LOG, b"records", age_s)
    directory.entry(LOG)
    directory.put(LOG, b"Records", age_s)
    assert directory.entry(LOG).digest == hashlib.blake2b(b"Records", digest_size=16).hexdigest()


def test_a_file_that_is_written_while_it_is_read_is_not_remembered(directory: Directory) -> None:
    directory.put(LOG, bytes(READ_BYTES) + b"records")

    class Writes(StopFlag):
        def check(self) -> None:
            super().check()
            if self.steps == 2:
                directory.put(LOG, b"R" * READ_BYTES + b"records", age_s=3599.0)

    directory.digests.entry(LOG, Writes())
    assert directory.digests.known(LOG) is None


def test_what_has_rotted_is_read_again_when_it_is_known(directory: Directory) -> None:
    """Rot does not change a file's time: the scrub finds it."""
    directory.put(LOG, b"records")
    before = directory.entry(LOG)
    directory.put(LOG, b"recorts")
    assert directory.entry(LOG) == before
    directory.digests.forget([LOG, "topics/t/none.log"])
    assert directory.entry(LOG).digest != before.digest


def test_files_that_are_gone_are_forgotten(directory: Directory) -> None:
    for path in (LOG, NEXT):
        directory.put(path, b"records")
        directory.entry(path)
    directory.digests.keep([NEXT])
    assert directory.digests._known.keys() == {NEXT}
    (directory.root / NEXT).unlink()
    with pytest.raises(FileNotFoundError):
        directory.digests.known(NEXT)


def test_a_join_of_copies_that_were_compared_reads_only_what_has_changed(tmp_path: Path) -> None:
    """Found: both nodes read all their files at each join: a triple without its leader stored nothing for two seconds a
    gigabyte."""
    ours, theirs = Directory(tmp_path / "ours"), Directory(tmp_path / "theirs")
    for each in (ours, theirs):
        each.put(LOG, b"sealed records")
        each.put(NEXT, b"the segment that grows", 0.0)
        each.put(SETTINGS, b"{}")
    ours.put(NEXT, b"the segment that grows, and has grown", 0.0)
    for expected in ({LOG[9:], NEXT[9:], SETTINGS[9:]}, {NEXT[9:], SETTINGS[9:]}):
        plan = make_plan(take_manifest(theirs.digests, StopFlag()), ours.digests, StopFlag())
        assert {each.path: each.action for each in plan.files} == {
            LOG: Action.KEEP, NEXT: Action.APPEND, SETTINGS: Action.KEEP,
        }  # fmt: skip
        assert {*ours.reads} == {*theirs.reads} == expected


def test_rot_where_the_scrub_does_not_look_is_found_by_a_join(tmp_path: Path) -> None:
    """Found by an attack: these files were never read again, and an in-sync copy could not lead when it had to."""
    ours, theirs = Directory(tmp_path / "ours"), Directory(tmp_path / "theirs")
    for each in (ours, theirs):
        for path in (LOG, NEXT, SETTINGS):
            each.put(path, b"as it was")
    for _ in range(2):
        plan = make_plan(take_manifest(theirs.digests, StopFlag()), ours.digests, StopFlag())
        assert {each.action for each in plan.files} == {Action.KEEP}
    for path in (LOG, NEXT, SETTINGS):
        theirs.put(path, b"as it rot")  # its stamp is the same
    plan = make_plan(take_manifest(theirs.digests, StopFlag()), ours.digests, StopFlag())
    assert {each.path: each.action for each in plan.files} == {
        LOG: Action.KEEP,  # until the scrub has come to it
        NEXT: Action.COPY, SETTINGS: Action.COPY,
    }  # fmt: skip


def test_the_scrub_has_all_but_the_newest_segment_of_a_topic() -> None:
    base = ["topics/a/00000000000000000001", "topics/a/00000000000000000007", "topics/b/00000000000000000001"]
    files = [f"{each}{ending}" for each in base for ending in (".log", ".idx")] + ["topics/a/offsets.json", "webhooks.json"]
    assert scrubbed(files) == [f"{base[0]}.log", f"{base[0]}.idx"]
    stale = "topics/a/00000000000000000009.idx"
    assert scrubbed([*files, stale]) == scrubbed(files), "a sidecar without its segment makes no segment an older one"


def test_files_are_read_ahead_at_the_rate_but_for_those_that_are_written(directory: Directory) -> None:
    loop = SimEventLoop(random.Random(1))
    clock = VirtualClock(loop)
    digests = ContentDigests(directory.fs, str(directory.root), clock)
    directory.clock.jump_wall((clock.wall_ns() - EPOCH_NS) / NS_PER_S)
    directory.put(LOG, b"r" * 500)
    (unreadable := directory.root / "topics/t/00000000000000000000.log").mkdir()  # and comes first
    os.utime(unreadable, (1e9, 1e9))
    directory.put(NEXT, b"n" * 1000)
    directory.put(SETTINGS, b"{}", age_s=LEFT_ALONE_NS / NS_PER_S - 2 * AHEAD_S)

    class Inline:
        def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
            job()
            loop.call_soon(done)

    async def scenario() -> None:
        reading = asyncio.ensure_future(digests.read_ahead(
            Inline(), lambda: ["topics/t/00000000000000000000.log", LOG, NEXT, SETTINGS, "topics/t/gone.log"], lambda: 100
        ))  # fmt: skip
        began_at = loop.time()
        await asyncio.sleep(AHEAD_S + 1)
        assert directory.reads == [LOG[9:]]
        await asyncio.sleep(5)
        assert directory.reads == [NEXT[9:]], "500 bytes take 5 seconds at this rate"
        while digests.known(SETTINGS) is None:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1)
        assert loop.time() - began_at > 2 * AHEAD_S
        assert directory.reads == [SETTINGS[9:]], "once each"
        reading.cancel()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
