"""The spool: a file with the operations that a follower has received and not applied yet, as frames.

Contract: replication.md, section 6. The stream goes on during a bulk copy; its operations wait here. Nothing is synced, as a
join begins with an empty spool. Written on the event loop; read by one thread at a time.
"""

import contextlib
import errno
from collections.abc import Iterator

from toymq_py.replication.operations import Operation, OperationReader
from toymq_py.storage.fs import File, FileSystem, remove_tree, write_all

DIRECTORY_NAME = "spool"
READ_BYTES = 1 << 20


class Spool:
    """``spool/`` of a data directory. All methods raise OSError."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._directory = f"{root}/{DIRECTORY_NAME}"
        self._file: File | None = None
        self._reader = OperationReader()
        self.end = 0
        """The number of bytes that were put."""
        self._read_to = 0

    def begin(self) -> None:
        """Begin with an empty spool; removes the files that an earlier join left."""
        self.remove()
        self._fs.mkdir(self._directory)
        self._file = self._fs.open(f"{self._directory}/stream", create=True)

    def remove(self) -> None:
        """Close and remove the spool. Idempotent."""
        self.close()
        remove_tree(self._fs, self._directory)

    def close(self) -> None:
        """Close the file; its content stays until the next join."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._reader = OperationReader()
        self.end = self._read_to = 0

    def put(self, frames: bytes) -> None:
        """Append complete frames."""
        write_all(self._opened(), frames, self.end)
        self.end += len(frames)

    def take(self, end: int) -> Iterator[Operation]:
        """The next operations in order, up to the position ``end``, where a frame ends. Each is taken once."""
        while self._read_to < end:
            data = self._opened().pread(min(READ_BYTES, end - self._read_to), self._read_to)
            if not data:
                raise OSError(errno.EIO, "the spool is shorter than what was put", self._directory)
            self._read_to += len(data)
            self._reader.receive(data)
            while (operation := self._reader.next_operation()) is not None:
                yield operation

    def clear(self) -> None:
        """Free the space of the spool, once all operations were taken."""
        with contextlib.suppress(OSError):
            self._opened().truncate(0)
        self.end = self._read_to = 0

    def _opened(self) -> File:
        assert self._file is not None, "the spool was not begun"
        return self._file
