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

The webhooks, a file beside the topics, are those of the start, too. Other files there are not the broker's: they are neither
read nor touched.

The directory of a backup is one of a stopped broker with a mark in it, and is brought up to date in the same order: segments,
offsets, then what retention has removed. No damage replaces what is good (ADR 0086): a segment stays that the source has lost,
or of which it has lost records; so does a topic that is no longer there, until the operator says otherwise.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from toymq_py.disk_errors import LASTING
from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.storage import offsets, segment_heads, topic_settings, webhooks_file
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import COPY_BYTES, FileSystem, copy_file, replace_file
from toymq_py.storage.offline.backup_directory import MARK_NAME, is_empty, make_directory, write_mark
from toymq_py.storage.offline.earlier_copy import join, lost_segments, read_part, records_more, same_log
from toymq_py.storage.offline.verify import TopicReport, check_data_directory, topic_names, verify_topic
from toymq_py.storage.offsets import LoadedOffsets, OffsetsSource, OffsetsState
from toymq_py.storage.scanner import Progress, ScanResult, scan_segment
from toymq_py.storage.segment import Segment, load_sidecar, segment_name
from toymq_py.storage.segment_heads import list_bases

ENDS_BYTES = 4096
"""Of a segment, what is compared at either end to know whether two are the same: every record has its time in nanoseconds."""
HEAD_BYTES = 20
"""Length, id and time of a record: they identify a log."""
ROUNDS_MAX = 100
"""How often a topic, or all of them, is gone through again because segments went meanwhile: each round copies only what the
last one did not, so a second one is rare."""

Mark = tuple[int, bytes]
"""First id and head of the newest segment that has a record. The same mark, the same log: not one that was deleted and made
anew under its name."""


class _Changed(Exception):
    """The topic changed while it was copied."""


@dataclass(slots=True)
class BackupReport:
    """Result of a backup. ``reports`` are those of ``verify`` on the copy."""

    copied: set[str] = field(default_factory=set)
    """Segments, by their paths in the backup."""
    kept: set[str] = field(default_factory=set)
    """Sealed ones that an earlier backup had copied."""
    copied_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Topics that the source does not have, and whose copies stay."""
    reports: list[TopicReport] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether the copy lacks something that it should have: the source lacked it, too, or a disk failed."""
        return bool(self.problems) or any(report.damaged for report in self.reports)


@dataclass(slots=True)
class _Topic:
    """State of one topic's backup."""

    mark: Mark | None
    acks: LoadedOffsets
    structure: OffsetsState
    """Of which ``first_id`` and ``removed`` count: those that held when the segments were listed."""
    bases: set[int] = field(default_factory=set)
    """Segments that the backup has or keeps."""
    begin: int = 0
    end: int = 0
    """The ids where the log begins, and that it reaches, by another log's files, too: the copy does not have those."""


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

    Everything that was acknowledged before the call is in it, and no ack that is younger.

    Args:
        to: missing, empty, or an earlier backup; of that, sealed segments that are still right stay as they are.
        pid: for the LOCK of ``to``.
        wall_ns: the present time, for the mark.
        prune: whether to remove the copies of topics, and of webhooks, that the source does not have.
        progress: told the bytes that were copied or found to be there.
        verifying: called when everything is copied; gives the progress of the bytes that are checked.

    Raises:
        DataDirectoryError: ``data_dir`` is not a data directory, or ``to`` holds something else.
        DirectoryLocked: another process uses ``to``.
        OSError: a disk refuses; what an earlier backup had is still whole then, with or without what is new.
    """
    check_data_directory(fs, data_dir)
    known = fs.is_dir(to) and fs.exists(f"{to}/{MARK_NAME}")
    if not known and not is_empty(fs, to):
        raise DataDirectoryError(f"{to} is neither empty nor an earlier backup: nothing is overwritten")
    make_directory(fs, to)
    lock = DirectoryLock.take(fs, to, pid, "toymq backup")
    try:
        write_mark(fs, to, began_ns=wall_ns, finished=False)
        backup = _Backup(fs, data_dir, to, progress, prune=prune)
        backup.run()
        check = verifying()
        backup.verify(check)
        write_mark(fs, to, began_ns=wall_ns, finished=True)
        return backup.report
    finally:
        lock.release()


class _Backup:
    """One backup."""

    def __init__(self, fs: FileSystem, data_dir: str, to: str, progress: Progress, *, prune: bool) -> None:
        self._fs = fs
        self._from = f"{data_dir}/topics"
        self._to = f"{to}/topics"
        self._data_dir = data_dir
        self._target = to
        self._progress = progress
        self._prune = prune
        self._topics: dict[str, _Topic] = {}
        self.report = BackupReport()

    def run(self) -> None:
        fs = self._fs
        fs.mkdir(self._to)
        fs.sync_dir(self._target)
        webhooks = webhooks_file.read(fs, self._data_dir)
        for name in topic_names(fs, self._data_dir):
            with contextlib.suppress(FileNotFoundError):
                self._topics[name] = self._look(name)
        for _ in range(ROUNDS_MAX):
            if not self._copy_all():
                break
        else:
            raise DataDirectoryError(f"segments of {self._data_dir} go faster than they can be copied: try again")
        self._copy_webhooks(webhooks)
        self._remove_what_was_removed()

    def _look(self, name: str) -> _Topic:
        """Read the mark and the acks of a topic. Raises: FileNotFoundError when the topic was deleted."""
        path = f"{self._from}/{name}"
        mark = self._mark(path)
        acks = offsets.load(self._fs, path)
        return _Topic(mark, acks, acks.state)

    def _mark(self, path: str) -> Mark | None:
        for base_id in reversed(_bases(self._fs, path)):
            with contextlib.suppress(FileNotFoundError):
                head = read_part(self._fs, f"{path}/{segment_name(base_id)}", HEAD_BYTES, 0)
                if head.strip(b"\0"):
                    return base_id, head
        return None

    # -- copying

    def _copy_all(self) -> bool:
        """Copy all topics. Returns: whether segments went before they were copied."""
        some_went = False
        for name, topic in list(self._topics.items()):
            before = topic.structure
            if not self._copy_topic(name):
                del self._topics[name]
            elif not _same_segments(before, self._topics[name].structure):
                some_went = True
        return some_went

    def _copy_topic(self, name: str) -> bool:
        """Copy a topic, again when it changes meanwhile. Returns: False when it was deleted."""
        fs, path = self._fs, f"{self._from}/{name}"
        for _ in range(ROUNDS_MAX):
            if not fs.is_dir(path):
                return False
            try:
                self._try_topic(name, path, f"{self._to}/{name}")
            except (FileNotFoundError, NotADirectoryError, _Changed):
                continue
            return True
        raise DataDirectoryError(f"topic {name} changes faster than it can be copied: try again")

    def _try_topic(self, name: str, path: str, to: str) -> None:
        """Copy a topic once. Raises: _Changed, FileNotFoundError."""
        fs, topic = self._fs, self._topics[name]
        topic.structure = offsets.load(fs, path).state
        files = segment_heads.list_segment_files(fs, path)
        bases = files.bases
        after = offsets.load(fs, path)
        if not _same_segments(topic.structure, after.state):
            raise _Changed
        topic.begin = topic.end = replace(files, first_id_known=after.first_id_known).begin(after.state.first_id)
        topic.structure = replace(topic.structure, removed=(*topic.structure.removed, *files.removed))
        copies = _bases(fs, to)
        same = same_log(fs, path, to, {*copies} & {*bases})
        if same is False:
            _remove_files(fs, to)
            copies = []
        lost = lost_segments(fs, path, to, copies, files, topic.structure, same=same is True)
        if lost:
            topic.begin = max(after.state.first_id, min(topic.begin, lost[0]))
        fs.mkdir(to)
        fs.sync_dir(self._to)
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{to}/{segment_heads.FILE_NAME}")
        for base_id, following in zip_longest(bases, bases[1:]):
            file = f"{path}/{segment_name(base_id)}"
            try:
                if following is None:
                    copied_id = self._copy_newest(file, f"{to}/{segment_name(base_id)}", base_id, after.state.next_id)
                    topic.end = max(topic.end, copied_id)
                else:
                    self._copy_sealed(file, f"{to}/{segment_name(base_id)}", base_id, following)
            except OSError as error:
                if isinstance(error, FileNotFoundError | NotADirectoryError) or not _refuses(fs, file):
                    raise
                read_part(fs, f"{self._target}/{MARK_NAME}", 1, 0)  # a machine that can read nothing has no backup
                self._not_copied(file, f"cannot be read: {error.strerror or error}")
        mark = self._mark(path) if topic.mark is None else self._head_now(path, topic)
        if mark != topic.mark:  # deleted and made anew, or the first record came: its acks are read anew, too
            self._topics[name] = self._look(name)
            raise _Changed
        topic.end = files.end(max(topic.end, after.state.next_id)) if files.foreign else topic.begin
        topic.bases = {*bases, *files.foreign, *lost}  # what an earlier backup has in their place is right
        for base_id in lost:
            self._problem(f"{path}/{segment_name(base_id)} is gone: the backup keeps its copy")
        for base_id, reason in files.foreign.items():
            self._not_copied(f"{path}/{segment_name(base_id)}", reason)
        fs.sync_dir(to)  # a head is no promise of a file that a power cut may take
        if files.heads:  # those of the listing: the topic may have been made anew since
            segment_heads.store(fs, to, segment_heads.read_heads(fs, to, lost, {}) | {**files.heads})
        fs.sync_dir(to)  # the offsets must not be there before what they speak of
        self._copy_small(name, path, to)
        fs.sync_dir(to)

    def _not_copied(self, file: str, reason: str) -> None:
        self._problem(f"{file} {reason}: it was not copied")

    def _problem(self, text: str) -> None:
        if text not in self.report.problems:
            self.report.problems.append(text)

    def _head_now(self, path: str, topic: _Topic) -> Mark | None:
        """The mark as it is now. A segment that retention or PURGE took counts as unchanged."""
        assert topic.mark is not None
        base_id, head = topic.mark
        try:
            return base_id, read_part(self._fs, f"{path}/{segment_name(base_id)}", len(head), 0)
        except FileNotFoundError:
            now = offsets.load(self._fs, path).state
            gone = base_id < now.first_id or any(first <= base_id <= last for first, last in now.removed)
            return topic.mark if gone else None

    def _copy_sealed(self, file: str, to: str, base_id: int, following: int) -> None:
        fs = self._fs
        size = fs.file_size(file)
        same = fs.exists(to) and fs.file_size(to) == size and _ends(fs, to, size) == _ends(fs, file, size)
        better = joined = False
        if not same and fs.exists(to):
            found = scan_segment(fs, file, base_id, next_id=following)
            better = self._keeps(file, to, found, following)
            joined = not better and self._joins(file, to, found.segment, size)
        if joined:
            better = True
        elif same or better:
            if to not in self.report.copied | self.report.kept:
                self.report.kept.add(to)
                self._progress(size)
        else:
            self._copy(file, to, size)
        segment = load_sidecar(fs, file, base_id, following)  # a cache: it is written behind, and may not be there yet
        if better or segment is None or (same and segment.damages):  # the copy may be without the damage that the sidecar tells
            return
        data, copy = fs.read_file(segment.sidecar_path), to[:-4] + ".idx"
        if not fs.exists(copy) or fs.read_file(copy) != data:
            replace_file(fs, copy, data)

    def _keeps(self, file: str, to: str, found: ScanResult, next_id: int) -> bool:
        """Whether to keep the copy of a segment, since it holds all records of the source's file, and more.

        Args:
            found: the scan of the source's file.
            next_id: the id that it should reach at least.
        """
        theirs = found.segment
        if not theirs.damages and theirs.end >= self._fs.file_size(to):
            return False
        more = records_more(self._fs, file, to, theirs)
        if more and (theirs.damages or theirs.next_id < next_id):  # else they may never have been acknowledged
            self._problem(f"{file} is damaged: the backup keeps its copy, which has {more} records more")
        return more > 0

    def _joins(self, file: str, to: str, theirs: Segment, size: int) -> bool:
        """Put the source's segment in the place of its copy, with the copy's records where the source is damaged. Returns:
        whether there were some."""
        if not theirs.damages:
            return False
        temporary = to + ".tmp"
        try:
            more = join(self._fs, file, to, theirs, size, temporary)
            if more:
                self._fs.rename(temporary, to)
                self.report.copied.add(to)
                self.report.copied_bytes += size
                self._problem(f"{file} is damaged: the backup keeps {more} records that it had")
            return more > 0
        finally:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)

    def _copy_newest(self, file: str, to: str, base_id: int, next_id: int) -> int:
        """Copy the newest segment up to its last valid record. Bytes behind it were not acknowledged, and may be incomplete.
        Returns: the id behind."""
        fs = self._fs
        found = _settled(fs, file, base_id)
        if fs.exists(to) and self._keeps(file, to, found, next_id):
            self.report.kept.add(to)
            return scan_segment(fs, to, base_id).segment.next_id
        # With damage in it, what is behind the last record is part of what that was judged by.
        size = found.size if found.segment.damages else found.segment.end
        if fs.exists(to) and self._joins(file, to, found.segment, size):
            return scan_segment(fs, to, base_id).segment.next_id
        self._copy(file, to, size)
        copied = scan_segment(fs, to, base_id).segment
        if (copied.next_id, copied.damages) != (found.segment.next_id, found.segment.damages) and not copied.damages:
            raise _Changed  # it was cut meanwhile
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(to[:-4] + ".idx")
        return found.segment.next_id

    def _copy(self, file: str, to: str, size: int) -> None:
        """Replace ``to`` by ``size`` bytes of a file, once they are all on the disk."""
        fs, temporary = self._fs, to + ".tmp"
        try:
            if copy_file(fs, file, temporary, end=size, progress=self._progress) < size:
                raise _Changed  # retention on a full disk takes the bytes first
            fs.rename(temporary, to)
        except OSError:
            with contextlib.suppress(OSError):
                fs.unlink(temporary)
            raise
        self.report.kept.discard(to)
        self.report.copied.add(to)
        self.report.copied_bytes += size

    def _copy_small(self, name: str, path: str, to: str) -> None:
        """Copy offsets and settings: the acks as they were when the backup began, the segments as they are now."""
        fs, topic = self._fs, self._topics[name]
        current, lost = f"{to}/{offsets.FILE_NAME}", topic.acks.source is OffsetsSource.LOST
        if lost:
            self._problem(f"topic {name}: both generations of its offsets are damaged: the backup has none that are newer")
        known = topic.acks.source is not OffsetsSource.NEW or topic.structure != OffsetsState() or topic.end > topic.begin
        if known and not (lost and fs.exists(current)):
            state = topic.acks.state
            next_id = max(state.next_id, topic.end)
            data = offsets.encode(replace(state, first_id=topic.begin, next_id=next_id, removed=topic.structure.removed), name)
            if not fs.exists(current) or fs.read_file(current) != data:
                offsets.write(fs, to, data)
        file = f"{to}/{topic_settings.FILE_NAME}"
        try:
            data = fs.read_file(f"{path}/{topic_settings.FILE_NAME}")
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(file)
        else:
            replace_file(fs, file, data)

    def _copy_webhooks(self, data: bytes | None) -> None:
        """Write the webhooks, also unchanged ones: an earlier backup may have left the file readable for every user."""
        fs = self._fs
        copy = f"{self._target}/{webhooks_file.FILE_NAME}"
        if data is None:
            if fs.exists(copy):  # a broker replaces the file and never removes it
                if self._prune:
                    fs.unlink(copy)
                else:
                    self._problem(f"{self._data_dir}/{webhooks_file.FILE_NAME} is gone: the backup keeps its copy (--prune)")
        else:
            try:
                webhooks_file.decode(data)
            except DamagedData as error:
                self.report.problems.append(f"{webhooks_file.FILE_NAME}: {error}: the backup has none that is newer")
            else:
                webhooks_file.write(fs, self._target, data)
        fs.sync_dir(self._target)

    def _remove_what_was_removed(self) -> None:
        """Remove segments that the source removed, after the offsets that say so are in the copy. Topics that it does not have,
        on request: what a DELETE leaves looks like a directory that was lost."""
        fs = self._fs
        for name in fs.listdir(self._to):
            topic = self._topics.get(name)
            path = f"{self._to}/{name}"
            if topic is None and not self._prune:
                self.report.gone.append(name)
                continue
            if topic is None:
                _remove_files(fs, path)
                fs.rmdir(path)
                continue
            for base_id in set(_bases(fs, path)) - topic.bases:
                for suffix in (".log", ".idx"):
                    with contextlib.suppress(FileNotFoundError):
                        fs.unlink(f"{path}/{base_id:020d}{suffix}")
            fs.sync_dir(path)
        fs.sync_dir(self._to)

    # -- verifying

    def verify(self, progress: Progress) -> None:
        """Check every byte of the copy. Damage that an earlier backup left is copied again from the source, while that is
        possible."""
        fs = self._fs
        for name in self._topics:
            path = f"{self._to}/{name}"
            report = verify_topic(fs, path, name, progress)
            spoilt = {finding.path for finding in report.findings if finding.damage} & self.report.kept
            for to in sorted(spoilt):
                file = f"{self._from}/{name}/{to.rpartition('/')[2]}"
                base_id = int(to[-24:-4])
                with contextlib.suppress(FileNotFoundError, _Changed):
                    if not self._keeps(file, to, scan_segment(fs, file, base_id), base_id):
                        self._copy(file, to, fs.file_size(file))
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


def _settled(fs: FileSystem, path: str, base_id: int) -> ScanResult:
    """Scan a segment that may be written meanwhile: a page that was read too early looks like damage, but only once."""
    found = scan_segment(fs, path, base_id)
    while found.segment.damages:
        again = scan_segment(fs, path, base_id)
        if all(damage in found.segment.damages for damage in again.segment.damages):
            return again
        found = again
    return found


def _ends(fs: FileSystem, path: str, size: int) -> tuple[bytes, bytes]:
    return read_part(fs, path, ENDS_BYTES, 0), read_part(fs, path, ENDS_BYTES, max(size - ENDS_BYTES, 0))


def _refuses(fs: FileSystem, path: str) -> bool:
    """Whether a file is there and the disk refuses some of it."""
    try:
        for position in range(0, fs.file_size(path), COPY_BYTES):
            read_part(fs, path, COPY_BYTES, position)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno in LASTING
    return False


def _remove_files(fs: FileSystem, path: str) -> None:
    """Remove the files that a backup has written to a directory."""
    if fs.is_dir(path):
        for name in fs.listdir(path):
            fs.unlink(f"{path}/{name}")
        fs.sync_dir(path)
