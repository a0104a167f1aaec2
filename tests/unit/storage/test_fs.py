"""The real file system behind the seam."""

import errno
import os
import random
import re
import stat
from pathlib import Path

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.disk_errors import LASTING
from toymq_py.storage import fs as fs_module
from toymq_py.storage.fs import RealFile, RealFileSystem, copy_file, replace_file, write_all

FS = RealFileSystem()


def test_a_file_with_other_names_gets_a_copy_of_its_own(tmp_path: Path) -> None:
    path, other = tmp_path / "f", tmp_path / "other"
    path.write_bytes(b"hello")
    assert not FS.detach(str(path))
    os.link(path, other)
    assert FS.detach(str(path))
    path.write_bytes(b"changed")
    assert other.read_bytes() == b"hello"
    assert sorted(tmp_path.iterdir()) == [path, other]
    assert not FS.detach(str(path))


def test_what_is_no_file_in_the_place_of_one_is_left_for_those_who_read_it(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "nowhere").symlink_to("gone")
    assert not any(FS.detach(str(tmp_path / name)) for name in ("directory", "nowhere", "missing"))


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
    """Found: a directory in a segment's place ended a command with "Is a directory" and no name."""
    path = str(tmp_path)
    file = FS.open(path, write=False)
    for operation in (lambda: file.pread(1, 0), lambda: file.pwrite(b"x", 0), lambda: file.truncate(0)):
        with pytest.raises(OSError, match=re.escape(repr(path))):
            operation()
    file.close()
    before = len(list(Path("/dev/fd").iterdir()))
    with pytest.raises(IsADirectoryError, match=re.escape(repr(path))):
        FS.read_file(path)
    assert len(list(Path("/dev/fd").iterdir())) == before, "its descriptor is closed"
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


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Found: a FIFO with a segment's name made `verify` and the start of the broker wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    for write in (False, True):
        with pytest.raises(OSError, match="not a regular file") as caught:
            FS.open(str(tmp_path / "pipe"), write=write)
        assert caught.value.errno in LASTING
    with pytest.raises(OSError, match="not a regular file"):
        FS.read_file(str(tmp_path / "pipe"))


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


def test_a_stamp_tells_a_file_that_was_written_or_replaced(tmp_path: Path) -> None:
    fs, path = RealFileSystem(), str(tmp_path / "file")
    Path(path).write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    file = fs.open(path, write=False)
    before = file.stamp()
    assert before == fs.stamp(path)
    Path(path).write_bytes(b"two")  # the same size, in the same file
    assert file.stamp() == fs.stamp(path) != before
    os.utime(path, ns=(1, 1))
    assert fs.stamp(path) == before, "its time says so, and nothing else"
    (tmp_path / "other").write_bytes(b"one")
    os.utime(tmp_path / "other", ns=(1, 1))
    (tmp_path / "other").rename(path)
    assert file.stamp() == before != fs.stamp(path), "another file has the name"
    file.close()


def test_nothing_is_created_through_a_symbolic_link(tmp_path: Path) -> None:
    fs, link = RealFileSystem(), tmp_path / "link"
    (tmp_path / "precious").write_text("a letter")
    for target in ("precious", "missing"):
        link.symlink_to(tmp_path / target)
        with pytest.raises(OSError, match="symbolic links"):
            fs.open(str(link), create=True)
        link.unlink()
    link.symlink_to(tmp_path / "precious")
    assert fs.read_file(str(link)) == b"a letter", "reading is another thing"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "precious"]


def test_the_sync_of_a_file_that_was_closed_is_an_error_of_the_file(tmp_path: Path) -> None:
    """Found by topics with small segments and --fsync interval: a segment that was sealed, and so closed, between a sync's
    schedule and its run raised ValueError, and its topic took no publishes until a restart."""
    file = FS.open(str(tmp_path / "f"), create=True)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        file.sync()
    assert raised.value.errno == errno.EBADF
