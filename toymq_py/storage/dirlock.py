"""``LOCK``: one process owns a data directory (storage.md, "Layout"; ADR 0049)."""

import errno
from contextlib import suppress

from toymq_py.errors import DataDirectoryError, DirectoryLocked
from toymq_py.storage.checked_json import NO_FILE
from toymq_py.storage.fs import File, FileSystem, write_all

TEXT_BYTES_MAX = 512
"""Most bytes of ``LOCK``: a pid, and a line with an address, or with a command."""
COMMAND = "toymq "
"""The beginning of a command, and of no address."""


class DirectoryLock:
    """A held lock on a data directory. The kernel releases it when the process dies.

    The directory is locked, too, where the system can: whoever removes ``LOCK`` must not let a second broker in.
    """

    def __init__(self, fs: FileSystem, data_dir: str, file: File, directory: File | None) -> None:
        """Raises: OSError."""
        self._fs = fs
        self._file = file
        self._directory = directory
        self._watched = {data_dir: fs.inode(data_dir), f"{data_dir}/LOCK": file.inode()}

    @classmethod
    def take(cls, fs: FileSystem, data_dir: str, pid: int, says: str | None = None) -> "DirectoryLock":
        """Lock the directory, and write this process's pid into the file, with the address at which clients reach it, or the
        command that the process runs: `toymq <name>`.

        Raises:
            DirectoryLocked: another process holds it; with its pid, address or command as far as the file has them.
            DataDirectoryError: the file cannot be opened or written.
        """
        path = f"{data_dir}/LOCK"
        directory = _lock_directory(fs, data_dir)
        try:
            file = fs.open(path, create=True)
        except OSError as error:
            _close(directory)
            raise _unusable(path, error) from error
        if not file.lock():
            text = file.pread(TEXT_BYTES_MAX, 0)
            file.close()
            _close(directory)
            raise _locked(data_dir, text)
        # A full disk must not keep a broker from starting: the lock holds without the pid in the file.
        with suppress(OSError):
            file.truncate(0)
            write_all(file, b"%d\n" % pid + (f"{says}\n".encode() if says is not None else b""), 0)
        try:
            return cls(fs, data_dir, file, directory)
        except OSError as error:
            file.close()
            _close(directory)
            raise _unusable(path, error) from error

    def watch(self, path: str) -> None:
        """Let ``lost`` check this directory, too. Raises: OSError."""
        self._watched[path] = self._fs.inode(path)

    def lost(self) -> str | None:
        """What was removed or replaced since the lock was taken, in words; None for nothing, or when the disk does not answer.
        Thread-safe."""
        for path, inode in self._watched.items():
            reason = not_there(self._fs, path, inode)
            if reason is not None:
                return reason
        return None

    def release(self) -> None:
        """Release the lock. Idempotent."""
        self._file.close()
        _close(self._directory)


def holder(fs: FileSystem, data_dir: str) -> DirectoryLocked | None:
    """The process that has the directory open; None without one, or where that cannot be known. The lock is taken for a moment,
    so a broker that starts just then is refused."""
    try:
        file = fs.open(f"{data_dir}/LOCK", write=False)
    except OSError:
        return None
    try:
        return None if file.lock() else _locked(data_dir, file.pread(TEXT_BYTES_MAX, 0))
    except OSError:
        return None
    finally:
        file.close()


def not_there(fs: FileSystem, path: str, inode: tuple[int, int]) -> str | None:
    """Why a file or directory is missing under the running broker; None when it exists, or the disk does not answer."""
    try:
        return None if fs.inode(path) == inode else f"{path} was replaced below the running broker"
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
        return f"{path} was removed below the running broker" if gone else None


def _lock_directory(fs: FileSystem, data_dir: str) -> File | None:
    """Lock the directory itself. Returns: None where directories cannot be locked. Raises: DirectoryLocked."""
    try:
        directory = fs.open(data_dir, write=False)
    except OSError:
        return None
    try:
        if directory.lock():
            return directory
    except OSError:
        directory.close()
        return None
    directory.close()
    text = b""
    with suppress(OSError):
        file = fs.open(f"{data_dir}/LOCK", write=False)
        try:
            text = file.pread(TEXT_BYTES_MAX, 0)
        finally:
            file.close()
    raise _locked(data_dir, text)


def _locked(data_dir: str, text: bytes) -> DirectoryLocked:
    """The error for a directory in use, from the text of its ``LOCK``."""
    pid, _, line = text.strip().partition(b"\n")
    says = line.decode(errors="replace") or None
    command = says if says is not None and says.startswith(COMMAND) else None
    return DirectoryLocked(data_dir, int(pid) if pid.isdigit() else None, None if command else says, command)


def _unusable(path: str, error: OSError) -> DataDirectoryError:
    """The error for a ``LOCK`` that cannot be opened or written."""
    if error.errno not in NO_FILE:
        return DataDirectoryError(f"cannot use {path}: {error.strerror or error}")
    what = "it is a symbolic link" if error.errno == errno.ELOOP else NO_FILE[error.errno]
    return DataDirectoryError(f"cannot use {path}: {what}; remove it, `toymq` makes it anew")


def _close(file: File | None) -> None:
    if file is not None:
        file.close()
