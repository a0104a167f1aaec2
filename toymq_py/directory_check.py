"""Detect that the data directory, ``LOCK`` or a segment was removed, replaced or written by another program under the running
broker (ADR 0049, ADR 0140).

Belongs to the event loop; a sync thread looks at the files.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping

from toymq_py.data_directory import DataDirectory
from toymq_py.storage.active_file import find_cut, was_overwritten
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import FileSystem, Stamp
from toymq_py.storage.id_ranges import record_range
from toymq_py.storage.segment import Segment
from toymq_py.storage.segment_heads import KnownHeads, head_of, judge, look_again
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.broker")

LISTED_MAX = 1000
SEALED_MAX = 10_000
"""Topics whose directory is listed in one look, and sealed segments in them, about: some 30 ms of a sync thread. Where there
are more, the next look goes on after them."""
IDLE_MAX = 2000
"""Active segments whose files are not open, of topics that nothing is published to or read from, in one look: 14 ms of a
sync thread."""
SEEN_BYTES = 64
"""Bytes from the end of an active file that are compared: where they were cut off and written anew later, they read as
zeros."""
JUDGED_AT_ONCE = 2
"""Changed segments that are scanned at a time: commits wait for the same threads. A reader need not wait for its turn."""


class _ActiveFile:
    """An active segment and the result of the last check of its file. While the broker does not write the file, any change of
    its stamp is another program's. As commits change the file all the time, a change by another program is then detected by
    its first record, length, holes, and the bytes at its end in the last check."""

    __slots__ = ("_end", "_head", "_heads", "_heads_now", "_inode", "_is_whole", "_last", "_next_id", "end_seen", "gone",
                 "path", "reason", "segment", "stamp", "suspect", "topic", "touched")  # fmt: skip

    def __init__(self, topic: Topic, segment: Segment, inode: tuple[int, int]) -> None:
        self.topic = topic
        self.segment = segment
        self.path = segment.path
        self._inode = inode
        self._is_whole = segment.end > 0 and not segment.damages  # a damaged one may count up to behind its file's end
        self._end = segment.end
        self._next_id = segment.next_id
        self._head = topic.committer.known_head(segment.name_id)
        self._heads = topic.log.heads
        self._heads_now: KnownHeads | None = self._heads
        self._last = segment.stamp
        self.end_seen = segment.end_seen
        self.gone = True
        self.stamp: Stamp | None = None
        """The file's stamp; None, too, where the file could not be compared: the next look does."""
        self.reason: str | None = None
        """Why the file is no longer the broker's."""
        self.suspect = False
        """Whether the file has to be judged anew."""
        self.touched = False
        """The same, unless the broker has written the file meanwhile."""

    def look(self, fs: FileSystem) -> None:
        """Look at the file, and at ``segments.json``, on a sync thread."""
        with contextlib.suppress(OSError):
            self._heads_now = look_again(fs, self.topic.path, self._heads)
        with contextlib.suppress(OSError):
            stamp = fs.stamp(self.path)
            self.gone = False
            if stamp[:2] != self._inode:
                self.reason = not_there(fs, self.path, self._inode)
            known, cut = (True, None) if stamp == self._last else self._compare(fs)
            self.stamp = stamp
            if stamp == self._last or (self.reason is None and known and cut is None):
                self.touched = stamp != self._last and self._last is not None
                return
            self.suspect = True
            foreign, _ = judge(fs, self.topic.path, self.segment.name_id, self._heads)
            if self.reason is None and foreign is not None:
                self.reason = f"{self.path} was overwritten below the running broker: it {foreign}"
            self.reason = self.reason or cut
        if self.gone:
            self.reason = not_there(fs, self.path, self._inode)

    def _compare(self, fs: FileSystem) -> tuple[bool, str | None]:
        """Whether the file begins with the known first record, and why its content is not what was committed; None if it is."""
        file = fs.open(self.path, write=False)
        try:
            known = self._head is None or head_of(file) == self._head
            if not self._is_whole:
                return known, None
            cut = find_cut(fs, file, self.segment, self._next_id, self._end)
            at, seen = self.end_seen
            if cut is None and file.pread(len(seen), at - len(seen)) != seen:
                cut = was_overwritten(fs, self.segment, self._next_id, self._end)
            size = min(self._end, SEEN_BYTES)
            self.end_seen = self._end, file.pread(size, self._end - size)
        finally:
            file.close()
        return known, cut

    def note(self) -> None:
        """Note the result of ``look``, on the event loop."""
        topic, segment = self.topic, self.segment
        if topic.deleted or not topic.log.segments or topic.log.segments[-1] is not segment or segment.sealed:  # it rolled
            return
        is_unwritten = segment.is_as_at(self._end)
        if self.reason is not None and self.stamp is not None and self.stamp[:2] != self._inode:
            topic.committer.lose_active(segment, self.reason)
        elif self.reason is not None:
            topic.committer.poison(self.reason)
        segment.missing = self.gone and self.reason is not None
        segment.stamp, segment.end_seen = self.stamp if is_unwritten else None, self.end_seen
        if self.suspect or (self.touched and is_unwritten):
            topic.log.examine(segment)
        topic.committer.heads_seen(self._heads, self._heads_now)


class DirectoryCheck:
    """Checks that a broker's files are those that it opened, and that their stamps are those of the last check. A sealed
    segment with a new stamp is examined again, since its current content is what the next start will find."""

    def __init__(
        self,
        fs: FileSystem,
        scheduler: Scheduler,
        directory: DataDirectory,
        topics: Mapping[str, Topic],
        lost: Callable[[str], None],
    ) -> None:
        """``lost``: called with the reason when the directory was removed or replaced."""
        self._fs = fs
        self._scheduler = scheduler
        self._directory = directory
        self._topics = topics
        self._lost = lost
        self._listed = 0
        """How many topics with sealed segments were listed in this round."""
        self._idle = 0
        """How many active segments that are not open were looked at in this round."""
        self._unjudged: dict[int, tuple[Topic, Segment]] = {}
        """Changed segments by identity, the first one first."""
        self._judging = 0

    def run(self, done: Callable[[], None]) -> None:
        """Check once. A topic whose active segment is missing or was replaced is closed for publishing; one that lacks a sealed
        segment is degraded."""
        active = self._active()
        sealed = self._sealed()
        reasons: list[str] = []
        changed: list[tuple[Topic, Segment, Stamp | None, bool]] = []
        """Topic, segment, stamp (None: the file is missing), and whether it has to be judged anew."""

        def job() -> None:
            if (reason := self._directory.lost()) is not None:
                reasons.append(reason)
                return
            for file in active:
                file.look(self._fs)
            for topic, segments in sealed:
                with contextlib.suppress(OSError):
                    names = set(self._fs.listdir(topic.path))
                    for segment, known in segments:
                        with contextlib.suppress(OSError):  # the others are looked at all the same
                            stamp = None
                            if segment.path.rpartition("/")[2] in names:
                                stamp = self._fs.stamp(segment.path)
                            if stamp is None or stamp != known or segment.missing:
                                first = stamp is not None and known is None
                                anew = not first or judge(self._fs, topic.path, segment.name_id, topic.log.heads)[0] is not None
                                changed.append((topic, segment, stamp, anew))

        def checked() -> None:
            for reason in reasons:
                self._lost(reason)
            if not reasons:
                for file in active:
                    file.note()
            for topic, segment, stamp, anew in changed:
                if topic.deleted or segment.sha256 is not None:
                    continue
                if any(each is segment for each in topic.log.segments):  # else it was removed on purpose
                    self._note(topic, segment, stamp, anew=anew)
            self._judge_some()
            done()

        self._scheduler.offload(job, checked)

    def _active(self) -> list[_ActiveFile]:
        """The active segments to check now: all that are open, and some of the others. What these owe ``segments.json`` is
        written."""
        found: list[_ActiveFile] = []
        idle: list[tuple[Topic, Segment, tuple[int, int]]] = []
        for topic in self._topics.values():
            topic.committer.enter_heads()
            segment = topic.committer.active_segment()
            if segment is None or segment.inode is None:
                continue
            if segment.file is None:
                idle.append((topic, segment, segment.inode))
            else:
                found.append(_ActiveFile(topic, segment, segment.inode))
        begin = self._idle if self._idle < len(idle) else 0
        found += [_ActiveFile(*each) for each in idle[begin : begin + IDLE_MAX]]
        self._idle = begin + IDLE_MAX
        return found

    def _sealed(self) -> list[tuple[Topic, list[tuple[Segment, Stamp | None]]]]:
        """The topics to check now, with their sealed segments and the known stamps of the segments."""
        found = [topic for topic in self._topics.values() if len(topic.log.segments) > 1]
        begin = self._listed if self._listed < len(found) else 0
        taken: list[tuple[Topic, list[tuple[Segment, Stamp | None]]]] = []
        count = 0
        for topic in found[begin : begin + LISTED_MAX]:
            if count >= SEALED_MAX:
                break
            present = [each for each in topic.log.segments[:-1] if each.sealed and not each.busy and each.sha256 is None]
            taken.append((topic, [(each, each.stamp) for each in present]))
            count += len(taken[-1][1])
        self._listed = begin + len(taken)
        return taken

    def _note(self, topic: Topic, segment: Segment, stamp: Stamp | None, *, anew: bool) -> None:
        """Note that the file of a sealed segment was removed under the broker, is back, was changed, or is seen for the first
        time."""
        missing = stamp is None
        back = segment.missing and not missing
        if missing is not segment.missing:
            segment.missing = missing
            what = "was removed below the running broker" if missing else "is back"
            logger.error("topic %s: %s %s: %s",
                         topic.log.topic, segment.path, what, record_range(segment.base_id, segment.next_id - 1))  # fmt: skip
        if stamp is not None and (back or stamp != segment.stamp):  # of one that was away, readers may have been refused
            segment.stamp = stamp
            if anew:
                topic.log.examinations.note_change(segment.base_id)
                self._unjudged[id(segment)] = topic, segment

    def _judge_some(self) -> None:
        while self._unjudged and self._judging < JUDGED_AT_ONCE:
            topic, segment = self._unjudged.pop(next(iter(self._unjudged)))
            if not topic.deleted and topic.log.examinations.is_unjudged(segment.base_id):  # else a reader had it judged
                self._judging += 1
                topic.log.examine(segment)
                topic.log.when_examined(self._judged)

    def _judged(self) -> None:
        self._judging -= 1
        self._judge_some()
