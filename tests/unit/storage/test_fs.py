"""The real file system behind the seam, the lock, the free space, the sync threads."""

import errno
import logging
import os
import queue
import random
import re
import stat
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError, DirectoryLocked, DiskLow
from toymq_py.storage import fs as fs_module
from toymq_py.storage.commit.disk_space import SpaceGuard
from toymq_py.storage.commit.sync_threads import SyncThreads
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import RealFile, RealFileSystem, copy_file, replace_file, write_all

FS = RealFileSystem()


def test_a_file_is_written_read_cut_and_reserved(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    file = FS.open(path, create=True)
    write_all(file, b"hello", 3)
    assert file.size() == 8
    assert file.pread(100, 0) == b"\0\0\0hello"
    file.truncate(4)
    file.sync()
    try:
        file.allocate(4, 8192)
        assert file.size() == 8196
        assert file.pread(3, 4) == b"\0\0\0"
    except OSError as error:  # not every file system can
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.size()
    assert FS.file_size(path) in (4, 8196)


def test_an_error_of_a_descriptor_names_its_file(tmp_path: Path) -> None:
    """A directory in a segment's place ended a command with "Is a directory", and nothing else."""
    path = str(tmp_path)
    file = FS.open(path, write=False)
    for operation in (lambda: file.pread(1, 0), lambda: file.pwrite(b"x", 0), lambda: file.truncate(0)):
        with pytest.raises(OSError, match=re.escape(repr(path))):
            operation()
    file.close()
    end, other = os.pipe()
    with pytest.raises(OSError, match=re.escape(repr(path))):
        RealFile(end, path).sync()
    os.close(end)
    os.close(other)


def test_opening(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    with pytest.raises(FileNotFoundError):
        FS.open(path)
    FS.open(path, create=True, exclusive=True).close()
    with pytest.raises(FileExistsError):
        FS.open(path, create=True, exclusive=True)
    file = FS.open(path, write=False)
    with pytest.raises(OSError, match="Bad file"):
        file.pwrite(b"x", 0)
    file.close()


def test_reads_and_writes_that_are_cut_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FS.open(str(tmp_path / "f"), create=True)
    true_pwrite, true_pread = os.pwrite, os.pread
    monkeypatch.setattr(fs_module.os, "pwrite", lambda fd, data, at: true_pwrite(fd, data[:7], at))
    monkeypatch.setattr(fs_module.os, "pread", lambda fd, count, at: true_pread(fd, min(count, 5), at))
    write_all(file, b"0123456789" * 5, 0)
    assert file.pread(50, 0) == b"0123456789" * 5
    assert file.pread(100, 10) == b"0123456789" * 4
    monkeypatch.setattr(fs_module.os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="no more bytes"):
        write_all(file, b"x", 0)
    file.close()


def test_where_the_file_system_cannot_reserve_it_says_so(tmp_path: Path) -> None:
    file = FS.open(str(tmp_path / "f"), create=True)
    with pytest.raises(OSError, match="Invalid"):
        file.allocate(0, 0)
    file.close()


def test_names(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    FS.mkdir(root)
    FS.mkdir(root)
    replace_file(FS, f"{root}/b", b"one")
    replace_file(FS, f"{root}/b", b"two")
    FS.open(f"{root}/a", create=True).close()
    assert FS.listdir(root) == ["a", "b"]
    assert FS.read_file(f"{root}/b") == b"two"
    FS.rename(f"{root}/a", f"{root}/b")
    assert FS.read_file(f"{root}/b") == b""
    assert (FS.exists(f"{root}/a"), FS.is_dir(root), FS.is_dir(f"{root}/b")) == (False, True, False)
    FS.sync_dir(root)
    FS.unlink(f"{root}/b")
    FS.rmdir(root)
    assert not FS.exists(root)
    assert FS.free_bytes(str(tmp_path)) > 0


def test_what_is_private_only_its_owner_may_read_whatever_a_crash_left(tmp_path: Path) -> None:
    leftover = tmp_path / "secrets.tmp"
    leftover.write_bytes(b"a part of them")
    leftover.chmod(0o644)
    for data in (b"one", b"two"):
        replace_file(FS, f"{tmp_path}/secrets", data, private=True)
        assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o600
        assert (tmp_path / "secrets").read_bytes() == data
    assert FS.listdir(str(tmp_path)) == ["secrets"]


def test_the_lock_names_who_holds_it(tmp_path: Path) -> None:
    first = DirectoryLock.take(FS, str(tmp_path), 4711)
    assert (tmp_path / "LOCK").read_bytes() == b"4711\n"
    with pytest.raises(DirectoryLocked, match="in use by process 4711") as caught:
        DirectoryLock.take(FS, str(tmp_path), 1)
    assert caught.value.pid == 4711
    (tmp_path / "LOCK").write_bytes(b"")
    with pytest.raises(DirectoryLocked, match="in use by another process"):
        DirectoryLock.take(FS, str(tmp_path), 1)
    first.release()
    first.release()
    DirectoryLock.take(FS, str(tmp_path), 12).release()
    assert (tmp_path / "LOCK").read_bytes() == b"12\n"


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="cannot use"):
        DirectoryLock.take(FS, str(tmp_path / "missing"), 1)


def test_a_full_disk_does_not_keep_the_lock_from_holding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fs_module.os, "pwrite", full)
    lock = DirectoryLock.take(FS, str(tmp_path), 7)
    with pytest.raises(DirectoryLocked):
        DirectoryLock.take(FS, str(tmp_path), 8)
    lock.release()


class Free:
    """A file system of which only the free space matters."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: str) -> int:
        return self.free


def test_the_reserve_is_refused_and_given_back_at_twice_the_mark(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = Free(250), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    told: list[bool] = []
    guard.on_low = lambda: told.append(True)
    guard.admit()
    assert guard.check(1)
    assert not guard.getting_low()
    disk.free = 150
    assert guard.getting_low()
    clock.advance(0.02)
    assert guard.check(1), "below twice the mark it looks each time from here on"
    disk.free = 99
    assert not guard.check(1)
    guard.refuse()
    guard.refuse()
    assert told == [True]
    assert caplog.text.count("publishing is refused") == 1
    disk.free = 200
    with pytest.raises(DiskLow, match="100 bytes"):
        guard.admit()
    clock.advance(0.2)
    guard.admit()
    assert not guard.low


def test_who_asks_is_told_without_a_publish(caplog: pytest.LogCaptureFixture) -> None:
    """Found in review: after a start on a full disk /readyz said ready until the first publish was refused."""
    disk, clock = Free(99), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    told: list[bool] = []
    guard.on_low = lambda: told.append(True)
    assert guard.is_low()
    assert told == [True]
    with pytest.raises(DiskLow, match="100 bytes"):
        guard.admit()
    disk.free = 199
    clock.advance(0.2)
    assert guard.is_low()
    disk.free = 200
    assert guard.is_low(), "a look holds for a moment"
    clock.advance(0.2)
    assert not guard.is_low()
    assert "publishing resumes" in caplog.text
    guard.admit()


def test_far_from_the_mark_a_look_holds_for_a_moment_and_a_part_of_the_room() -> None:
    disk, clock = Free(1700), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    assert guard.check(1)
    disk.free = 50
    assert guard.check(100), "a sixteenth of the room above the mark"
    assert not guard.check(1), "used up"
    disk.free = 1700
    assert guard.check(1)
    disk.free = 50
    clock.advance(0.019)
    assert guard.check(1)
    clock.advance(0.001)
    assert not guard.check(1)


def test_without_a_mark_nothing_is_refused() -> None:
    guard = SpaceGuard(Free(0), "/data", 0, FakeClock())  # type: ignore[arg-type]
    assert guard.check(1)
    assert not guard.getting_low()
    assert not guard.is_low()


def test_sync_threads_run_jobs_side_by_side_and_survive_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    posted: list[object] = []
    all_posted = threading.Event()
    barrier = threading.Barrier(3)

    def post(call: object) -> None:
        posted.append(call)
        if len(posted) == 5:
            all_posted.set()

    threads = SyncThreads(post, threads_max=3)  # type: ignore[arg-type]
    done: list[int] = []

    def bug() -> None:
        raise MemoryError

    with caplog.at_level(logging.ERROR):
        for n in range(3):
            threads.offload(lambda: barrier.wait(10), lambda n=n: done.append(n))  # type: ignore[misc, arg-type, return-value]
        for n in (3, 4):
            threads.offload(bug, lambda n=n: done.append(n))  # type: ignore[misc]
        assert all_posted.wait(10)
    for call in posted:
        call()  # type: ignore[operator]
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert caplog.text.count("a job on a sync thread failed") == 2
    threads.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sync-")]


def test_a_sync_thread_that_waits_holds_nothing_of_its_last_job() -> None:
    """Sixteen of them held their last batches, some MiB each."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    threads = SyncThreads(posted.put, threads_max=1)  # type: ignore[arg-type]
    gone = threading.Event()

    def job() -> None:
        pass

    weakref.finalize(job, gone.set)
    threads.offload(job, lambda: None)
    del job
    posted.get(timeout=10)()
    assert gone.wait(10)
    threads.close()


def test_copied_bytes_are_durable_and_counted() -> None:
    disk = SimDisk(random.Random(1))
    file = disk.open("/data/a", create=True)
    file.pwrite(b"0123456789", 0)
    seen: list[int] = []
    assert copy_file(disk, "/data/a", "/data/b", start=2, end=5, progress=seen.append) == sum(seen) == 3
    assert copy_file(disk, "/data/a", "/data/c") == 10
    assert copy_file(disk, "/data/a", "/data/c", end=20) == 10, "fewer than asked for: the source is shorter"
    with pytest.raises(FileExistsError):
        copy_file(disk, "/data/a", "/data/c", exclusive=True)
    disk.sync_dir("/data")
    left = disk.crash()
    assert (left.read_file("/data/b"), left.read_file("/data/c")) == (b"234", b"0123456789")
