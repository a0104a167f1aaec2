"""A follower's files, and how each operation changes them. Operations are idempotent.

Contract: replication.md, section 4. Blocks. All methods raise ``OSError``. Knows no stream and no thread.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping

from toymq_py.replication.operations import (
    Change,
    Copy,
    Create,
    Mkdir,
    Operation,
    Rename,
    Replace,
    Rmdir,
    Truncate,
    Unlink,
    Write,
)
from toymq_py.replication.paths import is_directory, is_file
from toymq_py.storage import topic_settings
from toymq_py.storage.fs import File, FileSystem, remove_tree, write_again, write_all, write_synced

OPEN_FILES_MAX = 256
NOTHING: Mapping[str, int] = {}


class ReplicaFiles:
    """The data directory of a follower. Keeps the most recently written files open.

    Touched by one thread at a time for each topic; the threads of two topics may run side by side.
    """

    def __init__(self, fs: FileSystem, root: str, unsynced: Iterable[str] = (), open_max: int = OPEN_FILES_MAX) -> None:
        """``root``: the path of the existing data directory. ``unsynced``: paths that were changed before and not synced."""
        self._fs = fs
        self._root = root
        self._open_max = open_max
        self._open: dict[str, File] = {}  # by path in the stream; the one that was opened first, first
        self.unsynced = set(unsynced)
        """The paths of files that were written, and of directories in which names changed, and that were not synced since. A
        path may be one that is gone."""

    def apply(self, change: Change | Copy) -> None:
        """Make a change that the leader has made."""
        fs, path = self._fs, self._full(change.path)
        self._note(change)
        match change:
            case Write(_, shared, offset, data):
                write_all(self._file(shared), bytes(data), offset)
            case Truncate(_, shared, size):
                self._file(shared).truncate(size)
            case Create(_, shared):
                self._file(shared, create=True)
            case Replace(_, shared, data):
                self._replace(shared, bytes(data))
            case Mkdir():
                fs.mkdir(path)
            case Rmdir(_, shared):
                self._forget(shared)
                remove_tree(fs, path)  # the leader's is empty: what is left here was its own, or came with the bulk copy
            case Unlink(_, shared):
                self._forget(shared)
                if shared.endswith(f"/{topic_settings.FILE_NAME}"):  # the mark is this copy's own, from when it led
                    topic_settings.forget(fs, path.rpartition("/")[0])
                with contextlib.suppress(FileNotFoundError):
                    fs.unlink(path)
            case Rename(_, shared, to):
                self._rename(shared, to)
            case Copy(_, shared, offset, data):
                write_all(self._file(shared, create=True), bytes(data), offset)

    def sync(self, path: str) -> None:
        """Put a file's bytes on stable storage. Bytes written meanwhile need another sync."""
        self.unsynced.discard(path)
        self._file(path).sync()

    def sync_dir(self, path: str) -> None:
        """Put a directory's names on stable storage."""
        self.unsynced.discard(path)
        self._fs.sync_dir(self._full(path))

    def redo(self, operations: Iterable[Operation]) -> None:
        """Apply the operations that were spooled during a bulk copy, in order, on top of the copy.

        An operation is skipped when its file is missing: the file was removed or renamed before the copy reached it, and does
        not exist at the end of the spool either. Nothing is synced; call ``sync_all`` next.
        """
        for operation in operations:
            if isinstance(operation, Change):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._redo(operation)
                self.make_room()

    def sync_unsynced(self, step: Callable[[], None] = lambda: None) -> None:
        """Put only the files and directories in ``unsynced`` on stable storage: faster than ``sync_all``, but only valid if
        ``unsynced`` is complete. ``step``: called before each."""
        self.close()
        for path in sorted(self.unsynced, reverse=True):  # files before their directory
            step()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not is_file(path):
                    self._fs.sync_dir(self._full(path))
                    continue
                file = self._fs.open(self._full(path))
                try:
                    file.sync()
                finally:
                    file.close()
        self.unsynced.clear()

    def sync_all(self, step: Callable[[], None] = lambda: None, again: Mapping[str, int] = NOTHING) -> None:
        """Put every shared file and directory on stable storage: the end of a bulk copy.

        Args:
            step: called before each file.
            again: by file, how many bytes at its beginning are in the page cache but perhaps not on the disk: they are
                written again.
        """
        fs = self._fs
        self.close()
        pending = [""]
        while pending:
            directory = pending.pop()
            for name in fs.listdir(self._full(directory)):
                path = f"{directory}/{name}" if directory else name
                if is_file(path):
                    step()
                    file = fs.open(self._full(path))
                    try:
                        write_again(file, 0, again.get(path, 0))
                        file.sync()
                    finally:
                        file.close()
                elif is_directory(path) and fs.is_dir(self._full(path)):
                    pending.append(path)
            fs.sync_dir(self._full(directory))
        self.unsynced.clear()

    def close(self) -> None:
        """Close all files. They open again when needed."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _file(self, path: str, *, create: bool = False) -> File:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._fs.open(self._full(path), create=create)
        return file

    def make_room(self, busy: Iterable[str] = ()) -> None:
        """Close the files that were opened first, beyond the limit, except those in ``busy`` directories. Their unsynced bytes
        stay in the page cache, and a sync of the file opened anew reports write errors."""
        if len(self._open) <= self._open_max:
            return
        kept = set(busy)
        for path in list(self._open):
            if path.rpartition("/")[0] not in kept:
                self._open.pop(path).close()
            if len(self._open) <= self._open_max:
                return

    def _forget(self, path: str) -> None:
        """Close a file, or all files of a directory, whose name is about to change or be removed."""
        for each in [each for each in list(self._open) if each == path or each.startswith(f"{path}/")]:
            self._open.pop(each).close()

    def _replace(self, shared: str, data: bytes) -> None:
        path = self._full(shared)
        temporary = f"{path}.tmp"
        try:
            write_synced(self._fs, temporary, data)
            self._forget(shared)
            self._fs.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)
            raise

    def _rename(self, shared: str, to: str) -> None:
        fs = self._fs
        old, new = self._full(shared), self._full(to)
        self._forget(shared)
        self._forget(to)
        if not fs.exists(old) and fs.exists(new):
            return  # done before
        if not is_file(shared):
            remove_tree(fs, new)
        fs.rename(old, new)

    def _note(self, change: Change | Copy) -> None:
        """Note the paths that have to be synced after a change."""
        path, unsynced = change.path, self.unsynced
        if isinstance(change, (Write, Truncate)):
            unsynced.add(path)
            return
        unsynced.add(_parent(path))
        if isinstance(change, (Create, Copy, Mkdir)):
            unsynced.add(path)
            return
        below = () if is_file(path) else [each for each in list(unsynced) if each.startswith(f"{path}/")]
        moved = [each for each in (path, *below) if each in unsynced]
        unsynced.difference_update(moved)  # it is gone, or, of REPLACE, written to the disk before it gets its name
        if isinstance(change, Rename):  # within its directory
            unsynced.update(change.to + each.removeprefix(path) for each in moved)

    def _redo(self, change: Change) -> None:
        if isinstance(change, Rename) and is_file(change.path):
            old, new = self._full(change.path), self._full(change.to)
            if not self._fs.exists(old) and not self._fs.exists(new):
                self.apply(Create(change.seq, change.to))  # a mark of retention: its content does not count
                return
        self.apply(change)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
