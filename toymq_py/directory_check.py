"""Detect that the data directory, ``LOCK`` or an active segment was removed or replaced under the running broker, or a sealed
segment removed (ADR 0049).

Belongs to the event loop; a sync thread reads the inodes.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import PurePath

from toymq_py.data_directory import DataDirectory
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.segment import Segment
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.broker")

LISTED_MAX = 1000
"""Topics whose directory is listed in one look, for their sealed segments: some 10 ms of a sync thread. Where more topics have
sealed segments, the next look goes on behind them."""


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
        self._listed = 0
        """How many topics with sealed segments were listed in this round."""

    def run(self, done: Callable[[], None]) -> None:
        """Check once. A topic whose active segment is gone is closed for publishing; without a sealed one it is degraded."""
        files: list[tuple[Topic, str, tuple[int, int]]] = []
        for topic in self._topics.values():
            with contextlib.suppress(OSError):
                if (file := topic.committer.active_file()) is not None:
                    files.append((topic, *file))
        sealed = self._sealed()
        changed: list[tuple[Topic, Segment, bool]] = []
        reasons: list[str] = []
        gone: list[tuple[Topic, str, str]] = []

        def job() -> None:
            if (reason := self._directory.lost()) is not None:
                reasons.append(reason)
                return
            for topic, path, inode in files:
                if (reason := not_there(self._fs, path, inode)) is not None:
                    gone.append((topic, path, reason))
            for topic, segments in sealed:
                with contextlib.suppress(OSError):
                    names = set(self._fs.listdir(topic.path))
                    missing = [(segment, PurePath(segment.path).name not in names) for segment in segments]
                    changed.extend((topic, *each) for each in missing if each[1] is not each[0].missing)

        def checked() -> None:
            for reason in reasons:
                self._lost(reason)
            for topic, path, reason in gone:
                if not topic.deleted and topic.log.segments and topic.log.segments[-1].path == path:  # else rolled
                    topic.committer.poison(reason)
            for topic, segment, missing in changed:
                if not topic.deleted and any(each is segment for each in topic.log.segments):  # else it was removed on purpose
                    _note_missing(topic, segment, missing=missing)
            done()

        self._scheduler.offload(job, checked)

    def _sealed(self) -> list[tuple[Topic, list[Segment]]]:
        """Topics to be listed now, with their sealed segments."""
        found = [topic for topic in self._topics.values() if len(topic.log.segments) > 1]
        begin = self._listed if self._listed < len(found) else 0
        self._listed = begin + LISTED_MAX
        return [(topic, topic.log.segments[:-1]) for topic in found[begin : self._listed]]


def _note_missing(topic: Topic, segment: Segment, *, missing: bool) -> None:
    """The file of a sealed segment was removed below the broker, or is back."""
    segment.missing = missing
    what = "was removed below the running broker" if missing else "is back"
    logger.error("topic %s: %s %s: records %d to %d", topic.log.topic, segment.path, what, segment.base_id, segment.next_id - 1)
