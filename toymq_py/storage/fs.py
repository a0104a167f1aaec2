"""The file system interface: every call that touches the disk goes through a ``FileSystem``.

``RealFileSystem`` is the machine's; the tests' simulated disk implements the same protocol and decides what survives a
power cut. Nothing above this file imports ``os`` for a file operation. All methods raise ``OSError``.

Promises that callers rely on:
  - bytes are durable after ``File.sync`` returned, and not before;
  - a name (create, rename, unlink, mkdir) is durable after ``sync_dir`` of its directory returned, and not before.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""The modes of new files and directories, whatever the umask: only their owner may read messages."""
COPY_BYTES = 1 << 20
TEMPORARY = ".tmp"
"""The end of the name of a file that is written to take another one's place. A start removes those that a crash has left."""
_SEEK_HOLE: int | None = getattr(os, "SEEK_HOLE", None)

Stamp = tuple[int, int, int, int]
"""What shows which file it is, and whether it was written since: device, number, size, and the time of the last write, in
nanoseconds."""


class File(Protocol):
    """An open regular file. Offsets and lengths in bytes."""

    path: str

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write at ``offset``; returns how many bytes were taken, which may be fewer."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to ``length`` bytes; shorter only at the end of the file."""

    def sync(self) -> None:
        """Put data and size on stable storage. Never call it again after it failed: the pages may be gone."""

    def truncate(self, length: int) -> None:
        """Cut or extend (with zeros) to ``length``."""

    def allocate(self, offset: int, length: int) -> None:
        """Reserve space that reads as zeros and extend the size; may be refused (EOPNOTSUPP, ENOSPC)."""

    def size(self) -> int:
        """The present size in bytes."""

    def hole(self, below: int) -> int | None:
        """Where the first hole below a position begins: blocks that were never written, and read as zeros. None for none, and
        where the system does not tell."""

    def inode(self) -> tuple[int, int]:
        """Device and inode number: they identify the file, whatever its names are."""

    def stamp(self) -> Stamp:
        """Which file it is, and its size and time of last write, to notice changes."""

    def lock(self) -> bool:
        """Take the exclusive advisory lock; False when another process holds it. Released by ``close``."""

    def close(self) -> None:
        """Close; idempotent, and never raises."""


class FileSystem(Protocol):
    """Names, files and free space. Paths are strings below the data directory."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        """Open a file; ``create`` makes a missing one, for its owner alone, and follows no symbolic link (ELOOP): the broker
        must not write what it leads to; ``exclusive`` fails with EEXIST if it is there."""

    def mkdir(self, path: str) -> None:
        """Make one directory, for its owner alone; no error when it is there."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def mode(self, path: str) -> int:
        """The permissions of a file or directory, with setuid, setgid and sticky bit."""

    def owner(self, path: str) -> int:
        """The uid of the user that a file or directory belongs to."""

    def file_size(self, path: str) -> int: ...

    def inode(self, path: str) -> tuple[int, int]:
        """Device and inode number of the file or directory that is at the path now."""

    def stamp(self, path: str) -> Stamp:
        """The ``Stamp`` of the file that is at the path now, to notice changes."""

    def read_file(self, path: str) -> bytes:
        """The whole of a small file (offsets, settings, sidecars)."""

    def rename(self, old: str, new: str) -> None:
        """Rename atomically within one file system, in place of an existing ``new``."""

    def unlink(self, path: str) -> None: ...

    def detach(self, path: str) -> bool:
        """Put a synced copy in the place of a file that has other names, too: hard links, as `cp -al` makes them. Writes under
        one name are not seen under the others then. Returns: whether there were any."""

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Put the names in this directory on stable storage."""

    def free_bytes(self, path: str) -> int:
        """Space that an unprivileged process may still use on the file system of ``path``."""


def named(error: OSError, path: str) -> OSError:
    """Add the path to an error of a descriptor, which does not name it."""
    error.filename = path
    return error


if sys.platform == "darwin":

    def _sync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    def _allocate(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

else:
    _sync = os.fdatasync  # flushes the size too where reading the data needs it

    # Not os.posix_fallocate: where the file system cannot preallocate, glibc writes every block by hand.
    _libc = ctypes.CDLL(None, use_errno=True)
    _fallocate = _libc.fallocate
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)

    def _allocate(fd: int, offset: int, length: int) -> None:
        if _fallocate(fd, 0, offset, length) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))



class RealFile:
    """A file descriptor. Closed at most once."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def pwrite(self, data: bytes, offset: int) -> int:
        try:
            return os.pwrite(self.fd, data, offset)
        except OSError as error:
            raise named(error, self.path) from None

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self.fd, length, offset)
            if len(data) == length or not data:
                return data
            parts = [data]  # a signal or a file system may cut a read short before the end of the file
            got = len(data)
            while got < length:
                data = os.pread(self.fd, length - got, offset + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as error:
            raise named(error, self.path) from None

    def sync(self) -> None:
        if self.fd < 0:  # the system call's wrapper would raise ValueError
            raise named(OSError(errno.EBADF, os.strerror(errno.EBADF)), self.path)
        try:
            _sync(self.fd)
        except OSError as error:
            raise named(error, self.path) from None

    def allocate(self, offset: int, length: int) -> None:
        try:
            _allocate(self.fd, offset, length)
        except OSError as error:
            raise named(error, self.path) from None

    def truncate(self, length: int) -> None:
        try:
            os.ftruncate(self.fd, length)
        except OSError as error:
            raise named(error, self.path) from None

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def hole(self, below: int) -> int | None:
        if _SEEK_HOLE is None or not below:
            return None
        try:
            at = os.lseek(self.fd, 0, _SEEK_HOLE)  # reads and writes name their places
        except OSError:
            return None
        return at if at < below else None

    def inode(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def stamp(self) -> Stamp:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def _open_regular(path: str, flags: int) -> int:
    """Open a file or directory. Raises: OSError; ENXIO for a pipe, which would block until another process opens it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, FILE_MODE)  # no effect on a file
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise OSError(errno.ENXIO, "not a regular file", path)
    return descriptor


def _found(path: str) -> os.stat_result | None:
    """The status of a path; None if it does not exist. Raises: OSError when the system cannot say."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return None


class RealFileSystem:
    """The machine's file system. Without ``pathlib``: a start asks for a dozen names of each topic, and a Path costs as much
    again as the call."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_NOFOLLOW
        if exclusive:
            flags |= os.O_EXCL
        return RealFile(_open_regular(path, flags), path)

    def mkdir(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return _found(path) is not None

    def is_dir(self, path: str) -> bool:
        found = _found(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def mode(self, path: str) -> int:
        return stat.S_IMODE(os.stat(path).st_mode)

    def owner(self, path: str) -> int:
        return os.stat(path).st_uid

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def inode(self, path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def stamp(self, path: str) -> Stamp:
        found = os.stat(path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def read_file(self, path: str) -> bytes:
        descriptor = _open_regular(path, os.O_CLOEXEC | os.O_RDONLY)
        try:
            with open(descriptor, "rb", closefd=False) as file:  # refuses a directory
                return file.read()
        except OSError as error:
            raise named(error, path) from None
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def detach(self, path: str) -> bool:
        try:
            found = os.stat(path)
        except OSError:  # whoever reads it will tell
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_nlink < 2:
            return False
        copy_file(self, path, f"{path}.tmp")
        self.rename(f"{path}.tmp", path)
        self.sync_dir(path.rpartition("/")[0])
        return True

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise named(error, path) from None
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize


def write_all(file: File, data: bytes, offset: int) -> None:
    """Write every byte, going on after short writes.

    Raises: OSError, also when the file takes nothing at all (EIO: a disk that accepts 0 bytes for ever).
    """
    taken = file.pwrite(data, offset)
    while taken < len(data):
        more = file.pwrite(data[taken:], offset + taken)
        if more <= 0:
            raise OSError(errno.EIO, "the file takes no more bytes", file.path)
        taken += more


AGAIN_BYTES = 1 << 20


def write_again(file: File, start: int, end: int) -> None:
    """Read a part of a file and write it again, so that the next sync puts it on the disk: pages whose sync failed are marked
    clean in the page cache, and are not on the disk. Raises: OSError."""
    while start < end:
        data = file.pread(min(AGAIN_BYTES, end - start), start)
        if not data:
            return
        write_all(file, data, start)
        start += len(data)


def write_synced(fs: FileSystem, path: str, data: bytes, *, exclusive: bool = False) -> None:
    """Make ``data`` the content of a file, synced; its name is not. ``exclusive``: the file must not exist before.

    Raises: OSError; then the content is incomplete.
    """
    file = fs.open(path, create=True, exclusive=exclusive)
    try:
        if not exclusive:
            file.truncate(0)
        write_all(file, data, 0)
        file.sync()
    finally:
        file.close()


def copy_file(
    fs: FileSystem, source_path: str, path: str, *,
    start: int = 0, end: int | None = None, progress: Callable[[int], None] = lambda _bytes: None, exclusive: bool = False,
) -> int:  # fmt: skip
    """Copy bytes of a file to another file, synced.

    Args:
        start, end: which bytes of the source; by default all.
        progress: told the bytes of each step.
        exclusive: the copy must not exist before; otherwise it is overwritten.

    Returns: how many bytes were copied: fewer than asked for when the source ends before ``end``.

    Raises: OSError; then the copy is incomplete.
    """
    position = start
    source = fs.open(source_path, write=False)
    try:
        target = fs.open(path, create=True, exclusive=exclusive)
        try:
            if not exclusive:
                target.truncate(0)
            while end is None or position < end:
                data = source.pread(COPY_BYTES if end is None else min(COPY_BYTES, end - position), position)
                if not data:
                    break
                write_all(target, data, position - start)
                position += len(data)
                progress(len(data))
            target.sync()
        finally:
            target.close()
    finally:
        source.close()
    return position - start


@contextlib.contextmanager
def _replacing(fs: FileSystem, path: str) -> Iterator[str]:
    """The path of a temporary file for the new content of ``path``, which its writer syncs. It replaces the old file at the
    end. After a failure no temporary file is left."""
    temporary = path + TEMPORARY
    try:
        yield temporary
        fs.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise
    fs.sync_dir(path.rpartition("/")[0])


def move_file(fs: FileSystem, path: str, to: str) -> None:
    """Rename a file, or copy it if its new place is on another file system, as ``topics`` may be. A crash leaves it whole at
    one of the places, or at both. Anything but a regular file is not moved to another file system.

    Raises: OSError; then it is where it was.
    """
    try:
        fs.rename(path, to)
    except OSError as error:
        if error.errno != errno.EXDEV or fs.is_dir(path):
            raise
    else:
        return
    with _replacing(fs, to) as temporary:
        copy_file(fs, path, temporary)
    fs.unlink(path)


def read_if_there(fs: FileSystem, path: str) -> bytes | None:
    """A small file's bytes; None when there is no file. Blocks. Raises: OSError."""
    try:
        return fs.read_file(path)
    except FileNotFoundError:
        return None


def replace_file(fs: FileSystem, path: str, data: bytes, *, private: bool = False) -> None:
    """Put ``data`` at ``path`` so that a crash leaves the old content or the new, never a mixture: temp file, sync, rename,
    sync of the directory. When it fails, no temp file stays. ``private``: only the owner may read it, even if an old temp file
    was open to others."""
    if private:  # to open it would not change its mode
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(path + TEMPORARY)
    with _replacing(fs, path) as temporary:
        write_synced(fs, temporary, data, exclusive=private)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory, if it is there, and all that is in it. After a failure, the call can be repeated for the rest.

    Raises: OSError.
    """
    if not fs.is_dir(path):
        return
    for name in fs.listdir(path):
        if fs.is_dir(f"{path}/{name}"):
            remove_tree(fs, f"{path}/{name}")
        else:
            fs.unlink(f"{path}/{name}")
    fs.rmdir(path)
