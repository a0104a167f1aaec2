"""Copies a data directory whose broker may be running.

Contract: clients.md, "Command lines"; ADR 0026. Takes no lock of the broker's and asks it nothing: what is on the disk has an
order, and a copy that keeps to it is a state that a crash might have left.

    1  Acks are read first, of all topics, before any log. Every ack that the copy knows is then older than the log it has: it
       claims none beyond a log's end, and where an ack means that the message was stored elsewhere (a dead letter, a
       redrive), it is there, too.
    2  Sealed segments never change. The newest one is copied to its last valid record.
    3  A segment goes only after the offsets that say so are on disk. A copy that lists segments and then finds ``first_id`` and
       ``removed`` as they were before, has seen every segment that should be there; otherwise it looks again.
    4  If segments went before they were copied, everything is gone through once more: a message of theirs may have moved to a
       topic that had been copied already.

The broker's files beside the topics (``beside``) are those of the start, too. Other files there are not the broker's: they are
neither read nor touched.

The directory of a backup is one of a stopped broker with a mark in it, and is brought up to date in the same order: segments,
offsets, then what retention has removed. No damage replaces what is good (ADR 0086): a segment stays that the source has lost,
or of which it has lost records; so does a topic that is no longer there, until the operator says otherwise.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from toymq_py.disk_errors import is_lasting
from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.storage import evicted, offsets, segment_heads, topic_settings
from toymq_py.storage.beside_file import BesideFile
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import FileSystem, remove_tree, replace_file
from toymq_py.storage.id_ranges import subtract, union
from toymq_py.storage.offline.backup_directory import MARK_NAME, BackupMark, is_empty, make_directory, read_mark, write_mark
from toymq_py.storage.offline.backup_report import BackupReport
from toymq_py.storage.offline.beside import BESIDE
from toymq_py.storage.offline.earlier_copy import keep_lost, lost_segments, read_part, same_log
from toymq_py.storage.offline.segment_copies import OtherLog, SegmentCopies, SourceChanged
from toymq_py.storage.offline.superseded_copies import SupersededCopies
from toymq_py.storage.offline.verify import check_data_directory, verify_topic
from toymq_py.storage.offsets import LoadedOffsets, OffsetsSource, OffsetsState
from toymq_py.storage.scanner import Progress
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import list_bases
from toymq_py.storage.topic_directories import no_directories, topic_names

HEAD_BYTES = 20
"""The bytes of a record with its length, id and time: they identify a log."""
ROUNDS_MAX = 100
"""How often a topic, or all topics, are gone through again because segments went meanwhile: each round copies only what the
last one did not, so a second one is rare."""

Mark = tuple[int, bytes]
"""The first id and the head of the newest segment that has a record. The same mark, the same log: not one that was deleted and
made anew under its name."""


@dataclass(slots=True)
class _Topic:
    """What a backup knows of one topic."""

    mark: Mark | None
    acks: LoadedOffsets
    structure: OffsetsState
    """The state of which ``first_id`` and ``removed`` count, as they were when the segments were listed."""
    bases: set[int] = field(default_factory=set)
    """The first ids of segments that the backup has or keeps."""
    begin: int = 0
    end: int = 0
    """The ids where the log begins, and that it reaches, by files of another log, too, which the copy does not have."""


def back_up(
    fs: FileSystem,
    data_dir: str,
    to: str,
    *,
    pid: int,
    wall_ns: int,
    prune: bool = False,
    progress: Progress = lambda _bytes: None,
    verifying: Callable[[], Progress] = lambda: lambda _bytes: None,
) -> BackupReport:
    """Bring ``to`` up to date with a data directory, in use or not, and verify it.

    The copy has everything that was acknowledged before the call, and no later ack.

    Args:
        to: missing, empty, or an earlier backup; sealed segments in it that are still valid stay as they are.
        pid: for the LOCK of ``to``.
        wall_ns: the present time, for the mark.
        prune: whether to remove the copies of topics, and of files beside them, that the source does not have.
        progress: told the bytes that were copied or found to be there.
        verifying: called when everything is copied; gives the progress of the bytes that are checked.

    Raises:
        DataDirectoryError: ``data_dir`` is not a data directory, or ``to`` holds something else.
        DirectoryLocked: another process uses ``to``.
        OSError: the disk of ``to`` refuses a call, or that of ``data_dir`` every call; what an earlier backup had is still
            whole then, with or without what is new. A file or topic that cannot be read is a problem of the report instead.
    """
    check_data_directory(fs, data_dir)
    known = fs.is_dir(to) and fs.exists(f"{to}/{MARK_NAME}")
    if not known and not is_empty(fs, to):
        raise DataDirectoryError(f"{to} is neither empty nor an earlier backup: nothing is overwritten")
    make_directory(fs, to)
    lock = DirectoryLock.take(fs, to, pid, "toymq backup")
    try:
        earlier = BackupMark(wall_ns, finished=False)
        with contextlib.suppress(DataDirectoryError):  # none, or a damaged one
            earlier = read_mark(fs, to)
        if (there := topic_names(fs, to)) and not topic_names(fs, data_dir):
            raise DataDirectoryError(
                f"{data_dir} has no topics, the backup has {len(there)}: is the right file system mounted? Nothing was changed"
            )
        write_mark(fs, to, BackupMark(wall_ns, finished=False))
        superseded = SupersededCopies(fs, to, earlier)
        backup = _Backup(fs, data_dir, to, superseded, progress, prune=prune)
        backup.run()
        check = verifying()
        backup.verify(check)
        write_mark(fs, to, BackupMark(wall_ns, True, backup.report.problems))
        return backup.report
    finally:
        lock.release()


class _Backup:
    """One run of ``back_up``."""

    def __init__(
        self, fs: FileSystem, data_dir: str, to: str, superseded: SupersededCopies, progress: Progress, *, prune: bool
    ) -> None:
        self._fs = fs
        self._from = f"{data_dir}/topics"
        self._to = f"{to}/topics"
        self._data_dir = data_dir
        self._target = to
        self._superseded = superseded
        self._prune = prune
        self._topics: dict[str, _Topic] = {}
        self._passed_over: set[str] = set()
        """The topics that cannot be read: the backup keeps what it has of them."""
        self.report = BackupReport()
        self._segments = SegmentCopies(fs, to, self.report, progress)

    def run(self) -> None:
        fs = self._fs
        fs.mkdir(self._to)
        fs.sync_dir(self._target)
        beside = [(file, *file.examine(fs, self._data_dir)) for file in BESIDE]
        for name, text in no_directories(fs, self._data_dir):
            self._passed_over.add(name)
            self.report.problem(text)
        for name in topic_names(fs, self._data_dir):
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._topics[name] = self._look(name)
                except OSError as error:
                    self._pass_over(name, error)
        for _ in range(ROUNDS_MAX):
            if not self._copy_all():
                break
        else:
            raise DataDirectoryError(f"segments of {self._data_dir} go faster than they can be copied: try again")
        for file, data, problem in beside:
            if problem is None:
                self._copy_beside(file, data)
            else:
                self.report.problems.append(f"{file.name}: {problem}: the backup has none that is newer")
        fs.sync_dir(self._target)
        self._remove_what_was_removed()

    def _look(self, name: str) -> _Topic:
        """Read a topic's acks, and the ``Mark`` by which its log is recognised. Raises: FileNotFoundError when the topic was
        deleted."""
        path = f"{self._from}/{name}"
        mark = self._mark(path)
        acks = offsets.load(self._fs, path)
        return _Topic(mark, acks, acks.state)

    def _mark(self, path: str) -> Mark | None:
        for base_id in reversed(_bases(self._fs, path)):
            try:
                head = read_part(self._fs, f"{path}/{segment_name(base_id)}", HEAD_BYTES, 0)
            except OSError as error:  # another one tells the log as well
                if not is_lasting(error):
                    raise
                continue
            if head.strip(b"\0"):
                return base_id, head
        return None

    def _pass_over(self, name: str, error: OSError) -> None:
        """Note that a topic cannot be read, and go on without it. Raises: the error, if it is not about this topic's files."""
        path = f"{self._from}/{name}"
        at = str(error.filename or "")
        if isinstance(error, FileNotFoundError) or not is_lasting(error) or not (at == path or at.startswith(f"{path}/")):
            raise error
        self._segments.pass_over(at, error)
        self._passed_over.add(name)

    # -- copying

    def _copy_all(self) -> bool:
        """Copy all topics. Returns: whether segments went before they were copied."""
        some_went = False
        for name, topic in list(self._topics.items()):
            before = topic.structure
            try:
                is_there = self._copy_topic(name)
            except OSError as error:
                self._pass_over(name, error)
                is_there = False
            if not is_there:
                del self._topics[name]
            elif not _same_segments(before, self._topics[name].structure):
                some_went = True
        return some_went

    def _copy_topic(self, name: str) -> bool:
        """Copy a topic, again when it changes meanwhile. Returns: False when it was deleted, or is passed over."""
        fs, path = self._fs, f"{self._from}/{name}"
        for _ in range(ROUNDS_MAX):
            if not fs.is_dir(path):
                return False
            try:
                self._try_topic(name, path, f"{self._to}/{name}")
            except OtherLog:
                self._superseded.put_aside(name)
                continue
            except (FileNotFoundError, NotADirectoryError, SourceChanged):
                continue
            return True
        self.report.problem(f"topic {name} changes faster than it can be copied, or a name in {path} leads nowhere: try again")
        self._passed_over.add(name)
        return False

    def _try_topic(self, name: str, path: str, to: str) -> None:
        """Copy a topic once. Raises: SourceChanged, OtherLog, FileNotFoundError."""
        fs, topic = self._fs, self._topics[name]
        topic.structure = offsets.load(fs, path).state
        files = segment_heads.list_segment_files(fs, path)
        bases = files.bases
        after = offsets.load(fs, path)
        if not _same_segments(topic.structure, after.state):
            raise SourceChanged
        topic.begin = topic.end = replace(files, first_id_known=after.first_id_known).begin(after.state.first_id)
        topic.structure = replace(topic.structure, removed=(*topic.structure.removed, *files.removed))
        copies = _bases(fs, to)
        same = same_log(fs, path, to, copies, files)
        lost, others = lost_segments(fs, path, to, copies, files, topic.structure, same=same is True)
        if same is False or others:
            raise OtherLog
        if lost:
            keep_lost(fs, to, lost)
            topic.begin = min(topic.begin, lost[0].base_id)
            before = [(topic.begin, after.state.first_id - 1)] if topic.begin < after.state.first_id else []
            there = union([(segment.base_id, segment.next_id - 1) for segment in lost if segment.next_id > segment.base_id])
            removed = union([*topic.structure.removed, *subtract(before, there)])
            topic.structure = replace(topic.structure, removed=tuple(removed))
        fs.mkdir(to)
        fs.sync_dir(self._to)
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{to}/{segment_heads.FILE_NAME}")
        topic.end = max(topic.end, self._segments.copy(path, to, bases, files.evicted.segments, lost, after.state.next_id))
        mark = self._mark(path) if topic.mark is None else self._head_now(path, topic)
        if mark != topic.mark:  # deleted and made anew, or the first record came: its acks are read anew, too
            self._topics[name] = self._look(name)
            raise SourceChanged
        end = max(topic.end, after.state.next_id)
        topic.end = files.end(end) if files.foreign else topic.begin
        gone = [segment.base_id for segment in lost]
        topic.bases = {*bases, *files.foreign, *gone}  # what an earlier backup has in their place is right
        for base_id in gone:
            older = "" if base_id < end else f": the topic ends at {end}, as in an older state of the directory"
            self.report.problem(f"{path}/{segment_name(base_id)} is gone{older}: the backup keeps its copy")
        for base_id, reason in files.foreign.items():
            self.report.problem(f"{path}/{segment_name(base_id)} {reason}: it was not copied")
        if files.problem is not None:
            self.report.problem(f"topic {name}: {files.problem}")
        fs.sync_dir(to)  # a head is no promise of a file that a power cut may take
        if files.heads:  # those of the listing: the topic may have been made anew since
            heads = segment_heads.read_heads(fs, to, _bases(fs, to), files.heads) | {**files.heads}
            segment_heads.store(fs, to, heads, files.incarnation)
        fs.sync_dir(to)  # the offsets must not be there before what they speak of
        self._copy_evicted(name, files, to)
        self._copy_small(name, path, to, files.incarnation)
        fs.sync_dir(to)

    def _copy_evicted(self, name: str, files: segment_heads.SegmentFiles, to: str) -> None:
        """Copy the list of segments that only the bucket of ``--tier`` has, as it was when the segments were listed."""
        away = files.evicted
        if away.problem is not None:
            self.report.problem(f"topic {name}: {away.problem}: the backup has no list of what is in the bucket")
        elif away.segments:
            rows = [(segment, segment.sha256 or "") for segment in away.segments.values()]
            evicted.store(self._fs, to, evicted.encode(name, rows, away.producers))
        else:
            for each in (evicted.FILE_NAME, evicted.OTHER_NAME):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.unlink(f"{to}/{each}")

    def _head_now(self, path: str, topic: _Topic) -> Mark | None:
        """The topic's present ``Mark``, to see whether it still has the same log. A segment that retention or PURGE removed
        counts as unchanged."""
        assert topic.mark is not None
        base_id, head = topic.mark
        try:
            return base_id, read_part(self._fs, f"{path}/{segment_name(base_id)}", len(head), 0)
        except FileNotFoundError:
            return topic.mark if offsets.load(self._fs, path).state.has_removed(base_id) else None

    def _copy_small(self, name: str, path: str, to: str, incarnation: str | None) -> None:
        """Copy offsets and settings: the acks as they were when the backup began, the segments as they are now.
        ``incarnation``: of the log that was copied, if known. Raises: SourceChanged when the topic was made anew since."""
        fs, topic = self._fs, self._topics[name]
        problem = self.report.problem
        current, lost = f"{to}/{offsets.FILE_NAME}", topic.acks.source is OffsetsSource.LOST
        if lost:
            problem(f"topic {name}: both generations of its offsets are damaged: the backup has none that are newer")
        elif topic.acks.problem is not None:
            problem(f"topic {name}: {topic.acks.problem}; used is {topic.acks.source.value}")
        known = topic.acks.source is not OffsetsSource.NEW or topic.structure != OffsetsState() or topic.end > topic.begin
        if known and not (lost and fs.exists(current)):
            state = topic.acks.state
            state = replace(
                state, first_id=topic.begin, next_id=max(state.next_id, topic.end), removed=topic.structure.removed,
                consumers=self._lost_consumers(name, path, to) | state.consumers, generation=None,
            )  # fmt: skip
            data = offsets.encode(state, name)
            if not fs.exists(current) or fs.read_file(current) != data:
                offsets.write(fs, to, data)
        file = f"{to}/{topic_settings.FILE_NAME}"
        try:
            settings = topic_settings.read_bytes(fs, path)
            of = None if settings is None else topic_settings.parse(settings, name).incarnation
            if None not in (of, incarnation) and of != incarnation:
                raise SourceChanged
            if settings is not None:
                replace_file(fs, file, settings)
            else:
                with contextlib.suppress(FileNotFoundError):
                    fs.unlink(file)
        except DamagedData as error:
            problem(f"topic {name}: {topic_settings.FILE_NAME}: {error}: the backup has none that are newer")

    def _lost_consumers(self, name: str, path: str, to: str) -> dict[str, dict[str, Any]]:
        """The consumers in the earlier backup that the source lost with its offsets. After a restore, a consumer that the
        broker does not know might begin at the end of the log."""
        if not self._fs.exists(f"{path}/{offsets.DAMAGED_NAME}"):
            return {}
        earlier, now = offsets.load(self._fs, to).state.consumers, self._topics[name].acks.state.consumers
        kept = {consumer: raw for consumer, raw in earlier.items() if consumer not in now}
        if kept:
            self.report.problem(
                f"topic {name}: its consumers were lost ({offsets.DAMAGED_NAME}): the backup keeps what it has of "
                f"{', '.join(sorted(kept))}; to accept the loss, remove that file"
            )
        return kept

    def _copy_beside(self, file: BesideFile, data: bytes | None) -> None:
        """Write a file beside the topics, also an unchanged one: an earlier backup may have left it readable for every user."""
        fs, copy = self._fs, f"{self._target}/{file.name}"
        if data is None:
            if fs.exists(copy):  # a broker replaces the file and never removes it
                if self._prune:
                    fs.unlink(copy)
                else:
                    self.report.problem(f"{self._data_dir}/{file.name} is gone: the backup keeps its copy (--prune)")
            return
        file.write(fs, self._target, data)

    def _remove_what_was_removed(self) -> None:
        """Remove segments that the source removed, after the offsets that say so are in the copy. Topics that the source does
        not have are removed only on request: a deleted topic looks like a lost directory."""
        fs = self._fs
        for name in fs.listdir(self._to):
            topic = self._topics.get(name)
            path = f"{self._to}/{name}"
            if name in self._passed_over:
                continue
            if topic is None and not self._prune:
                self.report.gone.append(name)
                continue
            if topic is None:
                remove_tree(fs, path)
                continue
            for base_id in set(_bases(fs, path)) - topic.bases:
                for suffix in (".log", ".idx"):
                    with contextlib.suppress(FileNotFoundError):
                        fs.unlink(f"{path}/{base_id:020d}{suffix}")
            fs.sync_dir(path)
        fs.sync_dir(self._to)
        if self._prune:
            self._superseded.remove()
        self.report.superseded = self._superseded.list()

    # -- verifying

    def verify(self, progress: Progress) -> None:
        """Check every byte of the copy. Damage that an earlier backup left is copied again from the source, while that is
        possible."""
        fs = self._fs
        for name in sorted({*self._topics, *self._passed_over}):
            path = f"{self._to}/{name}"
            if not fs.is_dir(path):
                continue
            report = verify_topic(fs, path, name, progress)
            spoilt = {finding.path for finding in report.findings if finding.damage} & self.report.kept
            for to in sorted(spoilt):
                self._segments.mend(f"{self._from}/{name}/{to.rpartition('/')[2]}", to)
            if spoilt:
                fs.sync_dir(path)
                report = verify_topic(fs, path, name)
            self.report.reports.append(report)


def _bases(fs: FileSystem, path: str) -> list[int]:
    if not fs.is_dir(path):
        return []
    return list_bases(fs, path)


def _same_segments(one: OffsetsState, other: OffsetsState) -> bool:
    return (one.first_id, one.removed) == (other.first_id, other.removed)
