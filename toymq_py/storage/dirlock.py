"""``LOCK``: one process owns a data directory (storage.md, "Layout")."""

from toymq_py.errors import DataDirectoryError, DirectoryLocked
from toymq_py.storage.fs import File, FileSystem, write_all


class DirectoryLock:
    """The held lock; the kernel drops it when the process dies, however it dies."""

    def __init__(self, file: File) -> None:
        self._file = file

    @classmethod
    def take(cls, fs: FileSystem, data_dir: str, pid: int) -> "DirectoryLock":
        """Lock the directory and write our pid into the file.

        Raises:
            DirectoryLocked: another process holds it; its pid as far as the file says.
            DataDirectoryError: the file cannot be opened or written.
        """
        path = f"{data_dir}/LOCK"
        try:
            file = fs.open(path, create=True)
        except OSError as error:
            raise DataDirectoryError(f"cannot use {data_dir}: {error.strerror or error}") from error
        if not file.lock():
            text = file.pread(32, 0).strip()
            file.close()
            raise DirectoryLocked(data_dir, int(text) if text.isdigit() else None)
        # A full disk must not keep a broker from starting: the lock holds without the pid in the file.
        try:
            file.truncate(0)
            write_all(file, b"%d\n" % pid, 0)
        except OSError:
            pass
        return cls(file)

    def release(self) -> None:
        """Give the directory back. Idempotent."""
        self._file.close()
