"""The disk work of one batch, and its outcome.

Contract: storage.md, "Append and group commit", "Segments"; ADR 0002. It touches only the active segment's file behind the
committed position; the committer handles the outcome.
"""

import contextlib
import errno
from collections.abc import Callable

from toymq_py.clock import Clock
from toymq_py.disk_errors import NO_SPACE
from toymq_py.storage.active_file import find_change, find_cut
from toymq_py.storage.commit.batch import Batch
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import File, FileSystem, write_all
from toymq_py.storage.segment import Segment, segment_name
from toymq_py.storage.segment_heads import KnownHeads, is_used

PREALLOCATE_BYTES = 1024 * 1024
PREALLOCATE_AFTER_BYTES = 64 * 1024
"""The size from which a file is doubled ahead of its writer, by ``PREALLOCATE_BYTES`` at most. Smaller ones, as of most topics,
take no more than they hold."""
PREALLOCATE_FOR_BYTES = 4096
"""Files are preallocated for smaller batches, below a block. Batches that share one are synced without the file system's
journal, in two thirds of the time. A batch that begins a block makes a journal entry in any case, and a larger one in reserved
space takes 10 to 20 % longer (ADR 0117)."""


class CommitJob:
    """Writes one batch, on a sync thread or on the loop (``CommitPlace``). All that ``run`` needs is bound when it is made: it
    reads nothing that may change.

    The attributes are filled by ``run`` and read on the loop afterwards.
    """

    __slots__ = ("_active", "_batch", "_clock", "_fs", "_heads", "_keep_syncing", "_lost", "_path", "_prepared", "_roll",
                 "_segment_bytes", "_space", "_stamp", "_sync", "allocated", "cut_failed", "done", "error", "homeless", "low",
                 "rolled", "run_s", "sealed", "sync_s")  # fmt: skip

    def __init__(
        self,
        batch: Batch,
        active: Segment | None,
        *,
        fs: FileSystem,
        path: str,
        heads: KnownHeads,
        space: SpaceGuard,
        clock: Clock,
        segment_bytes: int,
        allocated: int,
        prepared: File | None,
        roll: bool,
        sync: bool,
        keep_syncing: bool,
        lost: Callable[[], str | None],
    ) -> None:
        """
        Args:
            active: the newest segment, None when there is none.
            path: of the topic's directory.
            heads: the heads that the broker knows.
            allocated: the position up to which the active file has reserved space; 0 when it is not known.
            prepared: the file that was made ahead for the new segment, if any.
            roll: the batch goes to a new segment.
            sync: the batch is synced before it is committed (``--fsync always``).
            keep_syncing: whether sealed segments are synced (not with ``--fsync never``).
            lost: asked before a new segment whether the data directory was removed or replaced under the broker.
        """
        self._batch = batch
        self._active = active
        self._stamp = None if active is None else active.stamp
        self._fs = fs
        self._path = path
        self._heads = heads
        self._space = space
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._prepared = prepared
        self._sync = sync
        self._keep_syncing = keep_syncing
        self._roll = roll
        self._lost = lost
        self.allocated = allocated
        self.done = False
        """Whether everything was written and synced. Anything else is a failure, also an unforeseen one."""
        self.error: OSError | None = None
        self.low = False
        """Whether nothing was tried, since less than ``--min-free-bytes`` would be free."""
        self.cut_failed = False
        """Whether bytes that were written in part could not be cut off again."""
        self.homeless = False
        """Whether the data directory is not the broker's any more, which is about to end."""
        self.sealed = False
        self.rolled: File | None = None
        """The file of the new segment, which exists whether or not the batch got into it."""
        self.sync_s = 0.0
        self.run_s = 0.0
        """How long the job took, in seconds."""

    @property
    def only_appends(self) -> bool:
        """Whether the job only appends to an open file: no roll, no look at the size, no space to reserve."""
        active = self._active
        if self._roll or active is None or active.file is None or not self.allocated:
            return False
        return not self._reserves(active.end)

    def run(self) -> None:
        """Write and sync the batch, on a sync thread or the loop. Blocks. Disk errors go to ``error`` and are not raised."""
        batch, position, monotonic = self._batch, 0, self._clock.monotonic
        started = monotonic()
        file: File | None = None
        try:
            if batch.size and not self._space.check(batch.size):  # an empty one rolls for retention, which makes room
                self.low = True
                return
            if self._roll or self._active is None:
                file = self._begin_segment()
            else:
                file = self._open_active(self._active)
                position = self._active.end
                self.allocated = self.allocated or file.size()
            self._preallocate(file, position)
            write_all(file, b"".join(batch.pieces), position)
            if self._sync:
                began = monotonic()
                file.sync()
                self.sync_s = monotonic() - began
            self.done = True
        except OSError as error:
            self.error = error
            if file is not None:
                # Full: cut and synced, so that publishing can go on. Otherwise: after a failed sync the cache may show
                # what the disk will never hold. Cut off, it is not read back after a restart and answered DUP.
                try:
                    file.truncate(position)
                    if error.errno in NO_SPACE:
                        file.sync()
                    self.allocated = position
                except OSError:
                    self.cut_failed = True
        finally:
            self.run_s = monotonic() - started
            if file is None and self._prepared is not None:
                self._prepared.close()
                with contextlib.suppress(OSError):
                    self._fs.unlink(self._prepared.path)

    def _begin_segment(self) -> File:
        active = self._active
        lost = self._lost()
        self.homeless = lost is not None
        if lost is None and active is not None and (file := active.file if active.sealed else self._open_active(active)):
            lost = not_there(self._fs, active.path, file.inode())
            if lost is None and not active.damages and not active.sealed:
                lost = find_cut(self._fs, file, active, self._batch.first_id, active.end)
        if lost is not None:
            raise OSError(errno.ESTALE, lost)
        if active is not None and not active.sealed:
            self._seal(active)
            self.sealed = True
        file = self.rolled = self._create_segment()
        self.allocated = file.size()
        return file

    def _open_active(self, active: Segment) -> File:
        """Open the active file. The first commit since the start, and one that finds the file closed, compare it with what the
        broker read or saw there last. Raises: OSError; ESTALE when it is another file or was changed."""
        is_first = not self.allocated or active.file is None
        file = active.open(self._fs, write=True)
        if is_first and (reason := find_change(
            self._fs, file, active, self._heads, self._stamp, self._batch.first_id, active.end
        )):  # fmt: skip
            raise OSError(errno.ESTALE, reason)
        return file

    def _seal(self, segment: Segment) -> None:
        """Cut the preallocated tail and sync: the file ends with its last record, for good. A damaged file is not cut."""
        file = segment.open(self._fs, write=True)
        if not segment.damages:
            file.truncate(segment.end)
        if self._keep_syncing:
            file.sync()

    def _create_segment(self) -> File:
        """Create the new active segment. Its name is on stable storage before its first byte. The first segment makes the
        directory of the topic."""
        fs, path, prepared = self._fs, self._path, self._prepared
        if self._active is None:
            fs.mkdir(path)
            fs.sync_dir(path.rpartition("/")[0])
        name = f"{path}/{segment_name(self._batch.first_id)}"
        if fs.exists(name) and is_used(fs, name):
            fs.rename(name, f"{name}.foreign")  # recovery left it alone, and it is not ours to overwrite
        if prepared is None:
            file = fs.open(name, create=True)
        else:
            file = prepared
            fs.rename(file.path, name)
            file.path = name
        try:
            if prepared is None:
                file.truncate(0)
            fs.sync_dir(path)
        except OSError:
            if prepared is None:
                file.close()
            raise
        return file

    def _reserves(self, position: int) -> bool:
        """Whether space is reserved before the batch is written."""
        size = self._batch.size
        return size < PREALLOCATE_FOR_BYTES and position + size > max(self.allocated, PREALLOCATE_AFTER_BYTES)

    def _preallocate(self, file: File, position: int) -> None:
        """Extend the file ahead of the writer, where that pays."""
        if not self._reserves(position):
            return
        size = self._batch.size
        rest = max(self._segment_bytes - position, size)
        room = min(PREALLOCATE_BYTES, self._space.free_bytes() // 64, position + 2 * size, rest)
        if room < size:
            return
        try:
            file.allocate(position, room)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                self.allocated = position + rest  # not asked again for each batch
            return  # the write itself will tell whether there is space
        self.allocated = position + room
