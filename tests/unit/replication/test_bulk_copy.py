"""The pieces of live files make the same files at the follower; the rate is kept; disk errors are reported."""

import asyncio
import random
from dataclasses import replace

import pytest

from tests.support.sim_disk import SimDisk
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.replication import bulk_copy
from toymq_py.replication.bulk_copy import Pace, pieces_of, take_batch
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.manifest import Action, FilePlan
from toymq_py.replication.operations import Copy, Mkdir
from toymq_py.replication.replica_files import ReplicaFiles

ROOT = "/data/d"
LOG, IDX = "topics/t/00000000000000000001.log", "topics/t/00000000000000000001.idx"


def new_disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.mkdir(ROOT)
    files = ReplicaFiles(disk, ROOT)
    for path in ("topics", "topics/t"):
        files.apply(Mkdir(0, path))
    return disk


def disk_with(path: str, content: bytes) -> SimDisk:
    disk = new_disk()
    file = disk.open(f"{ROOT}/{path}", create=True)
    file.truncate(len(content))
    file.pwrite(content, 0)
    return disk


def copied(disk: SimDisk, plan: FilePlan, before: bytes | None = None) -> tuple[bytes | None, list[Copy]]:
    """Return the file at the follower after its copy, and the pieces."""
    pieces = [replace(piece, data=bytes(piece.data)) for piece in pieces_of(disk, ROOT, [plan], StopFlag())]
    follower = new_disk() if before is None else disk_with(plan.path, before)
    files = ReplicaFiles(follower, ROOT)
    for piece in pieces:
        files.apply(piece)
    path = f"{ROOT}/{plan.path}"
    return (follower.read_file(path) if follower.exists(path) else None), pieces


CONTENTS = [
    b"", b"x", b"x" * 100, b"x" * 31 + bytes(1), b"x" * 32 + bytes(1), b"x" * 10 + bytes(200), bytes(100),
    bytes(40) + b"x" + bytes(40),
    b"x" * 20 + bytes(50) + b"y" * 20, b"x" * 33 + bytes(31) + b"y",
]  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("path", [LOG, IDX])
def test_the_copy_of_a_file_has_its_bytes_and_its_length(content: bytes, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_copy, "PIECE_BYTES", 32)
    found, pieces = copied(disk_with(path, content), FilePlan(path, Action.COPY))
    assert found == content
    assert all(len(piece.data) <= 32 for piece in pieces)


@pytest.mark.parametrize("content", CONTENTS)
def test_a_tail_has_the_bytes_behind_the_prefix(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_copy, "PIECE_BYTES", 32)
    for size in range(len(content) + 1):
        assert copied(disk_with(LOG, content), FilePlan(LOG, Action.APPEND, size), content[:size])[0] == content


def test_reserved_space_is_not_sent() -> None:
    _, pieces = copied(disk_with(LOG, b"x" * 10 + bytes(5 << 20)), FilePlan(LOG, Action.COPY))
    assert [(piece.offset, piece.data) for piece in pieces] == [(0, b"x" * 10), (10 + (5 << 20) - 1, b"\0")]


def test_a_file_that_has_vanished_has_no_pieces() -> None:
    assert copied(new_disk(), FilePlan(LOG, Action.COPY)) == (None, [])


def test_a_file_that_grows_is_copied_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_copy, "PIECE_BYTES", 32)
    disk = disk_with(LOG, b"x" * 64)
    pieces = pieces_of(disk, ROOT, [FilePlan(LOG, Action.COPY)], StopFlag())
    next(pieces)
    disk.open(f"{ROOT}/{LOG}").pwrite(b"y" * 500, 64)
    assert [piece.offset for piece in pieces] == [32]


def test_a_file_that_is_cut_meanwhile_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_copy, "PIECE_BYTES", 32)
    disk = disk_with(LOG, b"x" * 100)
    pieces = pieces_of(disk, ROOT, [FilePlan(LOG, Action.COPY)], StopFlag())
    next(pieces)
    disk.open(f"{ROOT}/{LOG}").truncate(40)
    assert [(piece.offset, piece.data) for piece in pieces] == [(32, b"x" * 8)]


def test_pages_that_the_disk_refuses_are_zeros_and_named(caplog: pytest.LogCaptureFixture) -> None:
    content = bytes(range(1, 200)) * 100
    disk = disk_with(LOG, content)
    disk.fail("pread", 1, 5)
    disk.fail("pread", 3, 5)
    found, _ = copied(disk, FilePlan(LOG, Action.COPY))
    assert found is not None
    assert found[:4096] == content[:4096]
    assert found[4096:8192] == bytes(4096)
    assert found[8192:] == content[8192:]
    assert "refuses 1 pages" in caplog.text


def test_small_pieces_go_together_and_large_ones_alone() -> None:
    pieces = iter([Copy(0, LOG, 0, b"x")] * 600 + [Copy(0, LOG, 0, b"x" * (1 << 20))] * 5)
    assert [len(take_batch(pieces)) for _ in range(5)] == [256, 256, 92, 1, 0]


def test_a_copy_that_is_late_catches_up() -> None:
    """Found: each piece waited its whole time after the one before was sent: a copy at 50 MB/s reached 20."""
    loop = SimEventLoop(random.Random(1))
    pace = Pace(1000)

    async def run() -> float:
        began = loop.time()
        for _ in range(20):
            await pace.wait_for(100)
            await asyncio.sleep(0.08)  # it is read and sent
        return loop.time() - began

    try:
        took = loop.run_until_complete(run())
    finally:
        loop.close()
    assert took == pytest.approx(2.08)


def test_the_rate_holds_over_all_copies_and_saves_nothing_up() -> None:
    loop = SimEventLoop(random.Random(1))
    pace = Pace(1000)

    async def run() -> list[float]:
        at = [loop.time()]
        await asyncio.gather(pace.wait_for(500), pace.wait_for(500))
        at.append(loop.time())
        await asyncio.sleep(10)
        await pace.wait_for(1000)
        at.append(loop.time())
        return at

    try:
        began, first, second = loop.run_until_complete(run())
    finally:
        loop.close()
    assert first - began == pytest.approx(1.0)
    assert second - first == pytest.approx(11.0)
