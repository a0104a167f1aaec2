"""``LOCK``: which process holds the directory, and whether it is still the directory that was locked. ADR 0049."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from toymq_py.errors import DataDirectoryError, DirectoryLocked
from toymq_py.storage import fs as fs_module
from toymq_py.storage.dirlock import DirectoryLock, holder
from toymq_py.storage.fs import RealFileSystem

FS = RealFileSystem()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


def remove_lock(data: Path) -> None:
    (data / "LOCK").unlink()


def replace_lock(data: Path) -> None:
    old = (data / "LOCK").rename(data / "old")
    (data / "LOCK").touch()
    assert old.exists()


def remove(data: Path) -> None:
    shutil.rmtree(data)


def replace(data: Path) -> None:
    data.rename(data.with_name("moved"))
    data.mkdir()


def remove_topics(data: Path) -> None:
    (data / "topics").rmdir()


@pytest.mark.parametrize(
    ("act", "path", "what"),
    [
        (remove_lock, "/LOCK", "removed"),
        (replace_lock, "/LOCK", "replaced"),
        (remove, "", "removed"),
        (replace, "", "replaced"),
        (remove_topics, "/topics", "removed"),
    ],
)
def test_it_says_what_became_of_the_directory(data: Path, act: Callable[[Path], None], path: str, what: str) -> None:
    (data / "topics").mkdir()
    lock = DirectoryLock.take(FS, str(data), 1)
    lock.watch(f"{data}/topics")
    assert lock.lost() is None
    act(data)
    assert lock.lost() == f"{data}{path} was {what} below the running broker"
    lock.release()


def test_a_removed_lock_lets_no_second_broker_in(data: Path) -> None:
    lock = DirectoryLock.take(FS, str(data), 1)
    remove_lock(data)
    with pytest.raises(DirectoryLocked):
        DirectoryLock.take(FS, str(data), 2)
    assert not (data / "LOCK").exists(), "nothing is made where another broker works"
    lock.release()
    DirectoryLock.take(FS, str(data), 3).release()


def test_it_names_the_command_that_has_it(data: Path) -> None:
    lock = DirectoryLock.take(FS, str(data), 4711, "toymq repair")
    with pytest.raises(DirectoryLocked, match="4711, `toymq repair`: try again when that has ended") as raised:
        DirectoryLock.take(FS, str(data), 2)
    assert (raised.value.command, raised.value.address) == ("toymq repair", None)
    lock.release()


def test_the_lock_names_the_pid_that_holds_it(tmp_path: Path) -> None:
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


def test_a_missing_directory_cannot_be_locked(tmp_path: Path) -> None:
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


def test_the_holder_of_a_directory_is_told_and_nothing_is_taken(data: Path) -> None:
    assert holder(FS, str(data)) is None, "there is no LOCK"
    lock = DirectoryLock.take(FS, str(data), 4711, "127.0.0.1:6789")
    found = holder(FS, str(data))
    assert found is not None
    assert (found.pid, found.address, found.command) == (4711, "127.0.0.1:6789", None)
    lock.release()
    assert holder(FS, str(data)) is None, "its pid is in the file still"
    DirectoryLock.take(FS, str(data), 4712).release()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path.mkdir(), "it is a directory, and no file; remove it"),
        (os.mkfifo, "it is no regular file; remove it"),
        (lambda path: path.symlink_to(path.with_name("precious")), "it is a symbolic link; remove it"),
        (lambda path: path.symlink_to(path.with_name("missing")), "it is a symbolic link; remove it"),
    ],
    ids=["directory", "fifo", "link", "dangling"],
)
def test_what_stands_in_its_place_is_named_and_not_written(data: Path, make: Callable[[Path], None], what: str) -> None:
    """Found: where ``LOCK`` was a link, the file behind it was overwritten with a pid; for a directory the error was only "Is a
    directory"."""
    (data / "precious").write_text("a letter")
    make(data / "LOCK")
    with pytest.raises(DataDirectoryError, match=f"^cannot use {data}/LOCK: {what}"):
        DirectoryLock.take(FS, str(data), 1)
    assert (data / "precious").read_text() == "a letter"
    assert not (data / "missing").exists()


def test_a_lock_that_may_not_be_written_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is immutable, for example."""

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith("/LOCK"):
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        return os_open(path, flags, mode)

    os_open = os.open
    monkeypatch.setattr(fs_module.os, "open", refuse)
    with pytest.raises(DataDirectoryError, match=f"^cannot use {data}/LOCK: Operation not permitted$"):
        DirectoryLock.take(FS, str(data), 1)
