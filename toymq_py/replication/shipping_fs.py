"""The file system of a leader: a ``FileSystem`` whose changes also go into a ``Stream``.

Contract: replication.md, section 4, "Order"; ADR 0098. Thread-safe, as the file system below it.

A write, truncate or sync is sent when it is called, so that all disks work at the same time. A change of a name is sent after
it succeeded here and before the call returns, so that a change that fails here never happens elsewhere. A path that does not
fit the grammar of ``paths`` is not sent. When a temporary file is renamed to a shared path, it is sent as one REPLACE with its
content, or as CREATE and TRUNCATE if it is empty (a segment made ahead). Each disk reserves its own space.
"""

import errno
from contextlib import suppress

from toymq_py.replication.operations import (
    REPLACE_BYTES_MAX,
    Create,
    Mkdir,
    Rename,
    Replace,
    Rmdir,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
)
from toymq_py.replication.paths import is_deleted, is_directory, is_file, is_rename, is_topic_directory
from toymq_py.replication.stream import Stream
from toymq_py.storage.fs import File, FileSystem, Stamp


class ShippingFile:
    """An open file of a ``ShippingFileSystem``. ``path`` changes when the file is renamed."""

    __slots__ = ("_file", "_fs", "_shared")

    def __init__(self, fs: "ShippingFileSystem", file: File) -> None:
        self._fs = fs
        self._file = file
        self._shared = fs.shared_file(file.path)

    @property
    def path(self) -> str:
        return self._file.path

    @path.setter
    def path(self, path: str) -> None:
        self._file.path = path
        self._shared = self._fs.shared_file(path)

    def pwrite(self, data: bytes, offset: int) -> int:
        if self._shared is None:
            taken = self._file.pwrite(data, offset)
            self._fs.draft(self._file.path, data[:taken], offset)
            return taken
        stream = self._fs.stream
        seq = stream.begin_write(self._shared, offset, data)
        try:
            return self._file.pwrite(data, offset)
        finally:
            stream.end(seq)

    def pread(self, length: int, offset: int) -> bytes:
        return self._file.pread(length, offset)

    def sync(self) -> None:
        if self._shared is None:
            self._file.sync()
            return
        stream = self._fs.stream
        seq = stream.begin_sync(Sync, self._shared)
        try:
            self._file.sync()
        finally:
            stream.end(seq)

    def truncate(self, length: int) -> None:
        if self._shared is None:
            self._file.truncate(length)
            self._fs.cut_draft(self._file.path, length)
            return
        stream = self._fs.stream
        seq = stream.begin(Truncate, self._shared, length)
        try:
            self._file.truncate(length)
        finally:
            stream.end(seq)

    def allocate(self, offset: int, length: int) -> None:
        self._file.allocate(offset, length)

    def size(self) -> int:
        return self._file.size()

    def hole(self, below: int) -> int | None:
        return self._file.hole(below)

    def inode(self) -> tuple[int, int]:
        return self._file.inode()

    def stamp(self) -> Stamp:
        return self._file.stamp()

    def lock(self) -> bool:
        return self._file.lock()

    def close(self) -> None:
        self._file.close()


class ShippingFileSystem:
    """The file system of a leader's broker."""

    def __init__(self, fs: FileSystem, root: str, stream: Stream) -> None:
        """``root``: the path of the data directory."""
        self._fs = fs
        self._root = root
        self._prefix = f"{root}/"
        self.stream = stream
        self._drafts: dict[str, bytearray] = {}
        """The bytes written into temporary files, by path, until these get a name of the layout or are removed."""

    # -- which files are shared

    def _relative(self, path: str) -> str | None:
        """A path relative to the data directory; None for one outside."""
        if path.startswith(self._prefix):
            return path[len(self._prefix) :]
        return "" if path == self._root else None

    def shared_file(self, path: str) -> str | None:
        """The path of a file in the stream; None for a file of which each replica has its own."""
        relative = self._relative(path)
        return relative if relative is not None and is_file(relative) else None

    def draft(self, path: str, data: bytes, offset: int) -> None:
        """Keep bytes written to a temporary file, which may be renamed to a shared one. Bytes of other files that are not
        shared are ignored."""
        draft = self._drafts.get(path)
        if draft is not None:
            draft.extend(bytes(max(0, offset - len(draft))))
            draft[offset : offset + len(data)] = data

    def cut_draft(self, path: str, length: int) -> None:
        """Note that a file that is not shared was truncated or extended to ``length`` bytes."""
        if length == 0 and path.endswith(".tmp"):
            self._drafts[path] = bytearray()
        elif path in self._drafts:
            self._drafts[path] = self._drafts[path][:length].ljust(length, b"\0")

    # -- changes

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        file = self._fs.open(path, create=create, exclusive=exclusive, write=write)
        if not (write or create) or self._relative(path) is None:
            return file
        if create and (shared := self.shared_file(path)) is not None:
            self.stream.put(Create, shared)
        elif create and path.endswith(".tmp") and not file.size():
            self._drafts[path] = bytearray()
        return ShippingFile(self, file)

    def mkdir(self, path: str) -> None:
        self._fs.mkdir(path)
        relative = self._relative(path)
        if relative is not None and (relative == "topics" or is_topic_directory(relative)):
            self.stream.put(Mkdir, relative)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory. Raises: OSError; EPERM for a shared one if the stream has no operation for that."""
        source, target = self._relative(old), self._relative(new)
        if source is None or target is None or not (_is_shared(source) or _is_shared(target)):
            self._fs.rename(old, new)
        elif is_rename(source, target):
            self._fs.rename(old, new)
            self._renamed(source, target, new)
        elif is_file(target) and not _is_shared(source):
            self._replace(old, new, target)
        elif is_file(source) and not _is_shared(target) and self._fs.is_dir(old):
            self._fs.rename(old, new)  # a directory in the place of a file is on this disk alone
        else:
            raise OSError(errno.EPERM, f"replicas have no operation to rename it to {new}", old)

    def unlink(self, path: str) -> None:
        self._fs.unlink(path)
        self._drafts.pop(path, None)
        shared = self.shared_file(path)
        if shared is not None:
            self.stream.put(Unlink, shared)

    def rmdir(self, path: str) -> None:
        """Remove a directory. Raises: OSError; EPERM for a shared one: a topic's has to be renamed first."""
        relative = self._relative(path)
        deleted = relative is not None and is_deleted(relative)
        if relative is not None and is_directory(relative) and not deleted:
            raise OSError(errno.EPERM, "replicas have no operation to remove a topic that has its name", path)
        self._fs.rmdir(path)
        if deleted:
            self.stream.put(Rmdir, relative)

    def sync_dir(self, path: str) -> None:
        relative = self._relative(path)
        if relative is None or not is_directory(relative):
            self._fs.sync_dir(path)
            return
        seq = self.stream.begin_sync(SyncDir, relative)
        try:
            self._fs.sync_dir(path)
        finally:
            self.stream.end(seq)

    def _renamed(self, source: str, target: str, path: str) -> None:
        """Send a rename that has happened to the followers.

        While a follower copies, the whole file is sent under its new name: the copy may have the file from before or after
        the rename, or may have missed it between the two names. Not so a ``.removed`` file, whose content does not matter.
        """
        if not is_file(source):
            topic = f"{self._prefix}{source}/"
            for draft in [draft for draft in self._drafts if draft.startswith(topic)]:
                self._drafts.pop(draft, None)
        if not is_file(source) or target.endswith(".removed"):
            self.stream.put(Rename, source, target)
        elif not self.stream.put_rename(source, target):
            data = None
            with suppress(OSError):  # what cannot be read here need not be the same there
                data = self._fs.read_file(path)
            if data is None or len(data) > REPLACE_BYTES_MAX:
                self.stream.put(Rename, source, target)
                return
            self.stream.put(Replace, target, data)
            self.stream.put(Unlink, source)

    def _replace(self, old: str, new: str, target: str) -> None:
        """Rename a file that is not shared to a shared path, and send its content to the followers."""
        draft = self._drafts.get(old)
        data = self._fs.read_file(old) if draft is None else bytes(draft)
        if len(data) > REPLACE_BYTES_MAX:
            raise OSError(errno.EFBIG, f"{len(data)} bytes exceed the {REPLACE_BYTES_MAX} that replicas replace at once", new)
        self._fs.rename(old, new)
        self._drafts.pop(old, None)
        if data:
            self.stream.put(Replace, target, data)
        else:
            self.stream.put(Create, target)
            self.stream.put(Truncate, target, 0)

    # -- the rest changes nothing that replicas have

    def detach(self, path: str) -> bool:
        return self._fs.detach(path)

    def listdir(self, path: str) -> list[str]:
        return self._fs.listdir(path)

    def exists(self, path: str) -> bool:
        return self._fs.exists(path)

    def is_dir(self, path: str) -> bool:
        return self._fs.is_dir(path)

    def mode(self, path: str) -> int:
        return self._fs.mode(path)

    def owner(self, path: str) -> int:
        return self._fs.owner(path)

    def file_size(self, path: str) -> int:
        return self._fs.file_size(path)

    def inode(self, path: str) -> tuple[int, int]:
        return self._fs.inode(path)

    def stamp(self, path: str) -> Stamp:
        return self._fs.stamp(path)

    def read_file(self, path: str) -> bytes:
        return self._fs.read_file(path)

    def free_bytes(self, path: str) -> int:
        return self._fs.free_bytes(path)


def _is_shared(relative: str) -> bool:
    return is_file(relative) or is_directory(relative)
