"""A disk in memory that loses exactly what a real one may lose. Implements ``toymq_py.storage.fs.FileSystem``.

Owns the model of what a power cut, a dead process, a full or a failing disk leaves behind. Knows nothing of records,
segments or topics. Everything random comes from the ``random.Random`` passed in: same seed and same calls, same result.

    disk = SimDisk(random.Random(seed))          # has the durable directory /data
    ...                                          # the code under test runs on it
    disk = disk.crash()                          # power cut: any legal subset of what was not synced is left
    disk = disk.kill()                           # SIGKILL: the page cache lives on, handles and locks do not

A ``SimDisk`` is the disk as one process sees it. After ``crash`` or ``kill`` the old object and its handles answer
EBADF to everything, so a "dead" broker cannot go on writing; the object returned is what the next process sees, without
faults, with an empty trace.

What is durable
  - File content and size after ``File.sync`` returned. Until then every 4 KiB page is on its own: after a crash it
    holds what was last synced (zeros where there was nothing) or what it held after any of the writes since; with
    ``torn_sectors`` each 512-byte sector of it decides for itself. The size is that after any operation since.
  - A name after ``sync_dir`` of its directory returned (create, rename, unlink, mkdir, rmdir). ``File.sync`` makes no
    name durable. A rename is atomic: all of it happened or nothing.
  - ``ordered_metadata`` (default), as a journaling file system: of one directory's changes a prefix survives, and a
    truncate that was lost takes with it what was written later into the space it had freed. Without it each change
    survives or not on its own.
  - After a *failed* ``File.sync`` the pages are clean in the cache without being on the disk: later syncs do not write
    them, a crash may lose them, reads still see them, until a page is written again. Linux does this.
"""

import errno
import os
import random
import threading

from tests.support.sim_inode import PAGE_BYTES, Inode, Luck, pages
from tests.support.sim_names import Directory, NameTree, Node, inodes, refuse, subtree, walk
from toymq_py.storage.fs import DIRECTORY_MODE, File, FileSystem, Stamp

SEAM_OPS = {name for seam in (File, FileSystem) for name in vars(seam) if not name.startswith("_")}
FAULT_OPS = SEAM_OPS - {"exists", "is_dir", "mode", "owner", "close"}  # those never raise
UNLIMITED_FREE_BYTES = 1 << 40  # what free_bytes says of a disk without a capacity


class Fault:
    """One armed fault. ``fired`` counts how often it struck: a test that enumerates faults stops at the first that
    did not."""

    __slots__ = ("code", "countdown", "fired", "op", "path", "short_bytes", "sticky")

    def __init__(self, op: str, nth: int, code: int, sticky: bool, path: str, short_bytes: int | None) -> None:
        self.op = op
        self.countdown = nth
        self.code = code
        self.sticky = sticky
        self.path = path
        self.short_bytes = short_bytes
        self.fired = 0

    def strikes(self, op: str, path: str) -> bool:
        if op != self.op or self.path not in path:
            return False
        self.countdown -= 1
        if self.countdown == 0 or (self.sticky and self.countdown < 0):
            self.fired += 1
            return True
        return False


class SimFile:
    """An open file of a ``SimDisk``. Implements ``toymq_py.storage.fs.File``."""

    __slots__ = ("_disk", "_inode", "_lock", "_open", "_write", "path")

    def __init__(self, disk: "SimDisk", inode: Inode, path: str, write: bool) -> None:
        self.path = path
        self._disk, self._lock = disk, disk._lock
        self._inode = inode
        self._write, self._open = write, True

    def pwrite(self, data: bytes, offset: int) -> int:
        with self._lock:
            length = len(data)
            limit = self._enter("pwrite", (offset, length), writing=True)
            if offset < 0:
                refuse(errno.EINVAL, self.path)
            taken = self._disk._grow(self._inode, offset, length, self.path)
            if limit is not None and limit < taken:
                taken = limit
            if not taken:
                return 0
            self._inode.write(offset, bytes(data) if taken == length else bytes(data[:taken]))
            return taken

    def pread(self, length: int, offset: int) -> bytes:
        with self._lock:
            self._enter("pread", (offset, length))
            if offset < 0 or length < 0:
                refuse(errno.EINVAL, self.path)
            return bytes(memoryview(self._inode.data)[offset : offset + length])

    def sync(self) -> None:
        with self._lock:
            try:
                self._enter("sync", ())
            except OSError:
                if self._open and self._disk._alive:
                    self._inode.sync_failed()
                raise
            self._inode.sync()

    def truncate(self, length: int) -> None:
        with self._lock:
            self._enter("truncate", (length,), writing=True, unwritable=errno.EINVAL)
            if length < 0:
                refuse(errno.EINVAL, self.path)
            self._disk._release(self._inode, length)
            self._inode.resize(length)

    def allocate(self, offset: int, length: int) -> None:
        with self._lock:
            self._enter("allocate", (offset, length), writing=True)
            if offset < 0 or length <= 0:
                refuse(errno.EINVAL, self.path)
            self._disk._reserve(self._inode, offset + length, self.path)
            self._inode.resize(max(offset + length, len(self._inode.data)))

    def size(self) -> int:
        with self._lock:
            self._enter("size", ())
            return len(self._inode.data)

    def hole(self, below: int) -> int | None:
        with self._lock:
            return self._inode.hole(below)

    def inode(self) -> tuple[int, int]:
        with self._lock:
            self._enter("inode", ())
            return 0, self._inode.number

    def stamp(self) -> Stamp:
        with self._lock:
            self._enter("stamp", ())
            return self._inode.stamp()

    def lock(self) -> bool:
        with self._lock:
            self._enter("lock", ())
            owner = self._inode.lock_owner
            if owner is not None and owner is not self:
                return False
            self._inode.lock_owner = self
            return True

    def close(self) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
            if not self._disk._alive:
                return
            self._disk._record("close", self.path, ())
            if self._inode.lock_owner is self:
                self._inode.lock_owner = None
            self._inode.handles -= 1
            self._disk._free_if_unused(self._inode)

    def _enter(
        self, op: str, args: tuple[object, ...], *, writing: bool = False, unwritable: int = errno.EBADF
    ) -> int | None:
        """Record the call, then refuse it when the handle or a fault says so. Returns a short write's limit."""
        if not (self._open and self._disk._alive):
            refuse(errno.EBADF, self.path)
        if writing and not self._write:
            refuse(unwritable, self.path)
        return self._disk._record(op, self.path, args)


class SimDisk:
    """The disk as one process sees it; see the module's docstring. Safe to use from several threads.

    ``trace`` lists every call as (op, path, args) in order, failed ones included, unless ``tracing`` is off. Ops
    are the methods of ``File`` and ``FileSystem``; ``exists`` and ``is_dir`` are neither traced nor failed.
    """

    def __init__(
        self, rng: random.Random, *,
        capacity_bytes: int | None = None, ordered_metadata: bool = True, torn_sectors: bool = False,
        root: str = "/data", tracing: bool = True,
    ) -> None:  # fmt: skip
        self.rng = rng
        self.ordered_metadata = ordered_metadata
        self.torn_sectors = torn_sectors
        self.trace: list[tuple[str, str, tuple[object, ...]]] = []
        self._tracing = tracing
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._faults: list[Fault] = []
        self._alive = True
        self._lock = threading.RLock()
        self._tree = NameTree(ordered_metadata)
        above = ""
        for name in filter(None, root.split("/")):
            self.mkdir(f"{above}/{name}")
            self.sync_dir(above)
            above = f"{above}/{name}"
        self.trace.clear()

    # What tests do to the disk

    def fail(self, op: str, nth: int, code: int, *, sticky: bool = False, path: str = "") -> Fault:
        """Fail the ``nth`` call of ``op`` from now on (1 is the next) with the errno ``code``, and with ``sticky`` every later
        one. Only calls whose path contains ``path`` count. A failed call has no effect, except that of ``sync``: see the
        module's docstring."""
        return self._arm(Fault(op, nth, code, sticky, path, None))

    def short_write(self, nth: int, taken_bytes: int, *, sticky: bool = False, path: str = "") -> Fault:
        """Let the ``nth`` ``pwrite`` from now on take no more than ``taken_bytes``."""
        return self._arm(Fault("pwrite", nth, 0, sticky, path, taken_bytes))

    def heal(self) -> None:
        """Disarm every fault."""
        with self._lock:
            self._faults.clear()

    @property
    def capacity_bytes(self) -> int | None:
        """Size of the disk, None for no limit. May be set below what is used: then nothing is free."""
        return self._capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        with self._lock:
            self._capacity_bytes = capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Blocks taken by file content; names cost nothing."""
        return self._used_bytes

    def snapshot(self) -> dict[str, bytes]:
        """Every path with the content that readers see; directories end in "/" and are empty."""
        with self._lock:
            return dict(walk(self._tree.root, ""))

    def crash(self, rng: random.Random | None = None) -> "SimDisk":
        """Cut the power: this object is dead, the one returned holds a legal subset of what was not synced."""
        with self._lock:
            after = self.peek_crash(rng or self.rng)
            self._alive = False
            return after

    def peek_crash(self, rng: random.Random) -> "SimDisk":
        """Return what a power cut could leave, without cutting the power, so that many outcomes of one moment can be looked
        at."""
        with self._lock:
            self._check_alive("/")
            after = self._successor(rng)
            after._tree = self._tree.after_crash(Luck(rng), self.torn_sectors)
            after._used_bytes = sum(pages(inode.space_end) * PAGE_BYTES for inode in inodes(after._tree.root))
            return after

    def kill(self) -> "SimDisk":
        """Kill the process: this object and its handles are dead, locks are free, all that was written is there."""
        with self._lock:
            self._check_alive("/")
            after = self._successor(self.rng)
            after._tree = self._tree
            for inode in inodes(after._tree.root):
                inode.handles = 0
                inode.lock_owner = None
                after._used_bytes += pages(inode.space_end) * PAGE_BYTES
            self._alive = False
            return after

    def beside(self) -> "SimDisk":
        """The disk as another process sees it at the same time."""
        with self._lock:
            self._check_alive("/")
            other = self._successor(self.rng)
            other._tree = self._tree
            return other

    def end(self) -> None:
        """Kill this process, but not those of ``beside``: this object and its handles are dead, its locks are free."""
        with self._lock:
            self._alive = False
            for inode in inodes(self._tree.root):
                if inode.lock_owner is not None and inode.lock_owner._disk is self:
                    inode.lock_owner = None

    # FileSystem

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        with self._lock:
            self._enter("open", path, (create, exclusive, write))
            directory, name = self._tree.parent(path)
            node = directory.names.get(name) if name else directory
            if node is None:
                if not create:
                    refuse(errno.ENOENT, path)
                node = Inode()
                self._tree.change(node, None, (directory, name))
            elif create and exclusive:
                refuse(errno.EEXIST, path)
            elif isinstance(node, Directory):
                refuse(errno.EISDIR, path)  # also for reading: a handle on a directory has no use in the seam
            node.handles += 1
            return SimFile(self, node, path, write)

    def mkdir(self, path: str) -> None:
        with self._lock:
            self._enter("mkdir", path, ())
            directory, name = self._tree.parent(path)
            if name and name not in directory.names:
                self._tree.change(Directory(), None, (directory, name))

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            self._enter("listdir", path, ())
            return sorted(self._tree.directory(path).names)

    def exists(self, path: str) -> bool:
        with self._lock:
            self._check_alive(path)
            return self._tree.find(path) is not None

    def is_dir(self, path: str) -> bool:
        with self._lock:
            self._check_alive(path)
            return isinstance(self._tree.find(path), Directory)

    def mode(self, path: str) -> int:
        return DIRECTORY_MODE

    def owner(self, path: str) -> int:
        return os.geteuid()

    def file_size(self, path: str) -> int:
        with self._lock:
            self._enter("file_size", path, ())
            node = self._tree.existing(path)
            return len(node.data) if isinstance(node, Inode) else PAGE_BYTES

    def inode(self, path: str) -> tuple[int, int]:
        with self._lock:
            self._enter("inode", path, ())
            return 0, self._tree.existing(path).number

    def stamp(self, path: str) -> Stamp:
        with self._lock:
            self._enter("stamp", path, ())
            node = self._tree.existing(path)
            return node.stamp() if isinstance(node, Inode) else (0, node.number, PAGE_BYTES, 0)

    def read_file(self, path: str) -> bytes:
        with self._lock:
            self._enter("read_file", path, ())
            node = self._tree.existing(path)
            if isinstance(node, Directory):
                refuse(errno.EISDIR, path)
            return bytes(node.data)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._enter("rename", old, (new,))
            old_directory, old_name = self._tree.parent(old)
            new_directory, new_name = self._tree.parent(new)
            node = old_directory.names.get(old_name)
            replaced = new_directory.names.get(new_name)
            if node is None:
                refuse(errno.ENOENT, old)
            if node is replaced:
                return
            if isinstance(replaced, Directory) and old_directory in subtree(replaced):
                refuse(errno.ENOTEMPTY, new)
            if isinstance(node, Directory):
                if new_directory in subtree(node):
                    refuse(errno.EINVAL, new)
                if isinstance(replaced, Inode):
                    refuse(errno.ENOTDIR, new)
                if replaced is not None and replaced.names:
                    refuse(errno.ENOTEMPTY, new)
            elif isinstance(replaced, Directory):
                refuse(errno.EISDIR, new)
            self._tree.change(node, (old_directory, old_name), (new_directory, new_name))
            self._unlinked(replaced)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._enter("unlink", path, ())
            directory, name = self._tree.parent(path)
            node = directory.names.get(name) if name else directory
            if node is None:
                refuse(errno.ENOENT, path)
            if isinstance(node, Directory):
                refuse(errno.EISDIR, path)
            self._tree.change(node, (directory, name), None)
            self._unlinked(node)

    def rmdir(self, path: str) -> None:
        with self._lock:
            self._enter("rmdir", path, ())
            directory, name = self._tree.parent(path)
            node = self._tree.directory(path)
            if node.names:
                refuse(errno.ENOTEMPTY, path)
            if not name:
                refuse(errno.EBUSY, path)
            self._tree.change(node, (directory, name), None)

    def sync_dir(self, path: str) -> None:
        with self._lock:
            self._enter("sync_dir", path, ())
            self._tree.sync(self._tree.directory(path))

    def detach(self, path: str) -> bool:
        return False  # no file of this disk has two names

    def free_bytes(self, path: str) -> int:
        with self._lock:
            self._enter("free_bytes", path, ())
            self._tree.existing(path)
            if self._capacity_bytes is None:
                return UNLIMITED_FREE_BYTES
            return max(0, self._capacity_bytes - self._used_bytes)

    # Faults and the trace

    def _arm(self, fault: Fault) -> Fault:
        if fault.op not in FAULT_OPS or fault.countdown < 1:
            raise ValueError(f"no such fault: call {fault.countdown} of {fault.op!r}")
        with self._lock:
            self._faults.append(fault)
            return fault

    def _check_alive(self, path: str) -> None:
        if not self._alive:
            refuse(errno.EBADF, path)

    def _enter(self, op: str, path: str, args: tuple[object, ...]) -> None:
        self._check_alive(path)
        self._record(op, path, args)

    def _record(self, op: str, path: str, args: tuple[object, ...]) -> int | None:
        if self._tracing:
            self.trace.append((op, path, args))
        if not self._faults:
            return None
        struck = [fault for fault in self._faults if fault.strikes(op, path)]  # every fault counts every call
        for fault in struck:
            if fault.short_bytes is None:
                refuse(fault.code, path)
        return min((fault.short_bytes for fault in struck if fault.short_bytes is not None), default=None)

    # Space: whole pages, those of preallocation included; holes count as if they were written

    def _grow(self, inode: Inode, offset: int, length: int, path: str) -> int:
        """Take blocks for a write. Returns how many bytes of it fit; raises ENOSPC when none does."""
        end = offset + length
        if not length or end <= inode.space_end:
            return length
        held = pages(inode.space_end)
        more = pages(end) - held
        if self._capacity_bytes is not None and more * PAGE_BYTES > self._capacity_bytes - self._used_bytes:
            more = max(0, self._capacity_bytes - self._used_bytes) // PAGE_BYTES
            end = min(end, (held + more) * PAGE_BYTES)
            if end <= offset:
                refuse(errno.ENOSPC, path)
        self._used_bytes += more * PAGE_BYTES
        inode.space_end = end
        return end - offset

    def _reserve(self, inode: Inode, end: int, path: str) -> None:
        """Take blocks up to ``end``, all or none."""
        if end > inode.space_end:
            more = (pages(end) - pages(inode.space_end)) * PAGE_BYTES
            if self._capacity_bytes is not None and more > max(0, self._capacity_bytes - self._used_bytes):
                refuse(errno.ENOSPC, path)
            self._used_bytes += more
            inode.space_end = end

    def _release(self, inode: Inode, end: int) -> None:
        if end < inode.space_end:
            self._used_bytes -= (pages(inode.space_end) - pages(end)) * PAGE_BYTES
            inode.space_end = end

    def _unlinked(self, node: Node | None) -> None:
        if isinstance(node, Inode):
            node.linked = False
            self._free_if_unused(node)

    def _free_if_unused(self, inode: Inode) -> None:
        if not inode.linked and not inode.handles:
            self._release(inode, 0)

    def _successor(self, rng: random.Random) -> "SimDisk":
        return SimDisk(
            rng, capacity_bytes=self._capacity_bytes, ordered_metadata=self.ordered_metadata, torn_sectors=self.torn_sectors,
            root="", tracing=self._tracing,
        )  # fmt: skip
