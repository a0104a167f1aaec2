"""Detect that the data directory, ``LOCK`` or an active segment was removed or replaced under the running broker (ADR 0049).

Belongs to the event loop; a sync thread reads the inodes.
"""

import contextlib
from collections.abc import Callable, Mapping

from toymq_py.data_directory import DataDirectory
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import FileSystem
from toymq_py.topic import Topic


class DirectoryCheck:
    """Compares the inodes of a broker's files with those that it opened."""

    def __init__(
        self,
        fs: FileSystem,
        scheduler: Scheduler,
        directory: DataDirectory,
        topics: Mapping[str, Topic],
        lost: Callable[[str], None],
    ) -> None:
        """``lost`` is called with the reason when the directory is no longer the broker's."""
        self._fs = fs
        self._scheduler = scheduler
        self._directory = directory
        self._topics = topics
        self._lost = lost

    def run(self, done: Callable[[], None]) -> None:
        """Check once. A topic whose active segment is gone is closed for publishing."""
        files: list[tuple[Topic, str, tuple[int, int]]] = []
        for topic in self._topics.values():
            with contextlib.suppress(OSError):
                if (file := topic.committer.active_file()) is not None:
                    files.append((topic, *file))
        reasons: list[str] = []
        gone: list[tuple[Topic, str, str]] = []

        def job() -> None:
            if (reason := self._directory.lost()) is not None:
                reasons.append(reason)
                return
            for topic, path, inode in files:
                if (reason := not_there(self._fs, path, inode)) is not None:
                    gone.append((topic, path, reason))

        def checked() -> None:
            for reason in reasons:
                self._lost(reason)
            for topic, path, reason in gone:
                if not topic.deleted and topic.log.segments and topic.log.segments[-1].path == path:  # else rolled
                    topic.committer.poison(reason)
            done()

        self._scheduler.offload(job, checked)
