"""The file of the next segment, made ahead of need. Contract: storage.md, "Segments". Belongs to the event loop."""

from collections.abc import Callable

from toymq_py.storage.commit.commit_job import PREALLOCATE_BYTES
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.fs import File, FileSystem

SEGMENT_BYTES_MIN = 2 * 1024 * 1024
"""The size from which segments are made ahead; smaller ones are made when they are needed."""


class NextSegment:
    """The file of the next segment, made ahead under a temporary name until its first id is known."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        space: SpaceGuard,
        run_behind: Callable[[Callable[[], None], Callable[[], None]], None],
    ) -> None:
        """
        Args:
            path: of the topic's directory.
            run_behind: runs a job on a sync thread, then its callback on the loop.
        """
        self._fs = fs
        self._path = path
        self._space = space
        self._run_behind = run_behind
        self._file: File | None = None
        self._preparing = False
        self._count = 0

    def prepare(self, segment_bytes: int) -> None:
        """Make the file on a sync thread, unless it exists or the segment is small."""
        small = segment_bytes < SEGMENT_BYTES_MIN
        if self._preparing or self._file is not None or small or self._space.low:
            return
        fs = self._fs
        self._count += 1  # a name of its own: two of them may be in use at once
        name = f"{self._path}/next-{self._count}.tmp"
        made: list[File] = []

        def job() -> None:
            try:
                file = fs.open(name, create=True, exclusive=True)
                made.append(file)
                room = min(PREALLOCATE_BYTES, self._space.free_bytes() // 64, segment_bytes)
                file.allocate(0, room)
                file.sync()
            except OSError:
                pass  # the roll will make its own

        def done() -> None:
            self._preparing = False
            if made:
                self._file = made[0]

        self._preparing = True
        self._run_behind(job, done)

    def take(self) -> File | None:
        """Hand the prepared file over to the caller; None when there is none."""
        file, self._file = self._file, None
        return file

    def abandon(self) -> str | None:
        """Close the file. Returns: the path of what is left of it, None without a file."""
        file = self.take()
        if file is None:
            return None
        file.close()
        return file.path
