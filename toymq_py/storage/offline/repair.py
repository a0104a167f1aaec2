"""Moves damage to a quarantine, so that a data directory is valid again, with fewer records. For a stopped broker.

Contract: storage.md ("`toymq repair DIR` moves damage to a quarantine folder"); ADR 0027. What counts as a record is what
recovery counts; every one of them stays, under its id. What is lost is entered in the offsets as removed, so that it is a gap
on purpose from now on: the topic is no longer degraded. A segment with a hole becomes one segment for each stretch between its
holes; the file as it was, damaged offsets and damaged settings go to ``quarantine/<n>/<topic>/``: nothing is thrown away.

The order, so that a repair that is killed can be run again:

    1  everything that will change is copied to the quarantine, and synced; another log's files are moved there
    2  ``given-up.json`` and then the offsets say what is lost
    3  the later stretches of a segment get files of their own, the last one first; until 4 their records are there twice, and
       the names of these files tell a second run where such stretches begin
    4  the segment's own file is replaced by its first stretch, or removed
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from toymq_py.consumer_snapshot import ConsumerSnapshot
from toymq_py.disk_errors import is_lasting
from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import checked_json, evicted, offsets, segment_heads, topic_settings
from toymq_py.storage.checked_json import Unreadable
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import TEMPORARY, FileSystem, copy_file, move_file
from toymq_py.storage.id_ranges import subtract, union
from toymq_py.storage.offline import given_up
from toymq_py.storage.offline.beside import BESIDE
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.offsets import OffsetsSource, OffsetsState
from toymq_py.storage.scanner import Progress, scan_segment
from toymq_py.storage.segment import Segment, load_sidecar, segment_name, topic_of
from toymq_py.storage.segment_heads import list_bases
from toymq_py.storage.segment_inventory import SegmentStatus, segment_inventory
from toymq_py.storage.topic_directories import no_directories, topic_names

QUARANTINE = "quarantine"


@dataclass(slots=True)
class TopicRepair:
    """Result of the repair of one topic. ``lost``: ids without a record that were not known to be lost or removed before."""

    topic: str
    lost: list[IdRange] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    """The files in the quarantine, by their names there."""
    forgotten: list[str] = field(default_factory=list)
    """The consumers whose acks could not be read."""
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """The files that cannot be read: they stay as they are, and none of their records is given up."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive records in a file. ``behind_hole``: records before them are lost."""

    start: int
    end: int
    first_id: int
    next_id: int
    behind_hole: bool


@dataclass(slots=True)
class _Damaged:
    """A damaged segment, and the parts of it that stay."""

    path: str
    last: bool
    stretches: list[_Stretch]


def repair(
    fs: FileSystem, data_dir: str, *, pid: int, progress: Progress | None = None
) -> Iterator[TopicRepair]:
    """Repair every topic in which ``verify`` finds damage, and move damaged files beside the topics to the quarantine. Yields:
    the result for each, in turn.

    Args:
        progress: told the bytes that were looked at.

    Raises:
        DirectoryLocked: a broker uses the directory.
        DataDirectoryError: it cannot be locked.
        OSError: a file cannot be written; the other topics are repaired.
    """
    lock = DirectoryLock.take(fs, data_dir, pid, "toymq repair")
    try:
        run = next(n for n in range(1, 1 << 31) if not fs.exists(f"{data_dir}/{QUARANTINE}/{n}"))
        failed: OSError | None = None
        for name in topic_names(fs, data_dir):
            path = f"{data_dir}/topics/{name}"
            try:
                if not verify_topic(fs, path, name, progress).damaged:
                    continue
            except OSError as error:
                if not is_lasting(error):
                    raise
                yield TopicRepair(name, unreadable=[str(error.filename or path)])
                continue
            try:
                done = _TopicRepairer(fs, data_dir, name, run).repair()
            except OSError as error:  # the other topics do not wait for this one
                failed = failed or error
                continue
            yield done
        for name, _ in no_directories(fs, data_dir):
            yield _put_aside(fs, data_dir, f"{data_dir}/topics", name, run, "the topic begins anew when it is used next")
        for file in BESIDE:
            problem = file.problem(fs, data_dir)
            if isinstance(problem, Unreadable):
                yield TopicRepair(file.name, unreadable=[f"{data_dir}/{file.name}"])
            elif problem is not None:
                yield _put_aside(fs, data_dir, data_dir, file.name, run, file.put_aside)
        if failed is not None:
            raise failed
    finally:
        lock.release()


def _put_aside(fs: FileSystem, data_dir: str, directory: str, name: str, run: int, note: str) -> TopicRepair:
    """Move a file beside the topics, or in the place of one, to the quarantine: with a wrong checksum, any part of it may be
    wrong."""
    path, grave = data_dir, f"{data_dir}/{QUARANTINE}/{run}"
    for part in (QUARANTINE, str(run)):
        fs.mkdir(f"{path}/{part}")
        fs.sync_dir(path)
        path = f"{path}/{part}"
    move_file(fs, f"{directory}/{name}", f"{grave}/{name}")
    fs.sync_dir(grave)
    fs.sync_dir(directory)
    return TopicRepair(name, quarantined=[name], notes=[note])


class _TopicRepairer:
    """Repairs one topic."""

    def __init__(self, fs: FileSystem, data_dir: str, topic: str, run: int) -> None:
        self._fs = fs
        self._path = f"{data_dir}/topics/{topic}"
        self._data_dir = data_dir
        self._names = [QUARANTINE, str(run), topic]
        self._grave = f"{data_dir}/{'/'.join(self._names)}"
        self._done = TopicRepair(topic)
        self._copies: list[str] = []
        self._unread: list[int] = []
        """The first ids of segments that stay, since the disk refuses some of them."""

    def repair(self) -> TopicRepair:
        fs = self._fs
        if self._has_unreadable():
            return self._done
        state, stored, first_id_known = self._readable_offsets()
        files = segment_heads.list_segment_files(fs, self._path, first_id_known)
        state = replace(state, removed=tuple(union([*state.removed, *files.removed])))
        damaged, present, end = self._look(state, files)
        next_id = files.end(max(end, state.next_id))
        lost = list(_gaps(state, present, next_id))
        self._done.lost = lost
        if lost or not stored:
            for segment in damaged:
                self._bury(segment.path)
            self._bury_offsets()
            if not stored:
                offsets.note_lost(fs, self._path)
            if lost:
                given_up.add(fs, self._path, lost, files.heads)
            # From now on the offsets know where the log begins: where it did without them, or its first ids would be missing.
            first_id = max(state.first_id, present[0][0])
            known = replace(
                state, first_id=first_id, next_id=next_id, removed=tuple(union([*state.removed, *lost])),
                incarnation=files.incarnation or state.incarnation,
                generation=None if state.generation is None else state.generation + 1,
            )  # fmt: skip
            offsets.write(fs, self._path, offsets.encode(known, topic_of(self._path)))
        self._settings()  # before what they are judged by goes
        self._put_aside(files, divides=bool(damaged or self._copies))
        for segment in damaged:
            self._divide(segment)
        if next_id > end or (damaged and damaged[-1].last):
            self._begin_anew(next_id)
        self._drop_caches()
        heads = {base_id: files.heads[base_id] for base_id in self._unread if base_id in files.heads}
        if (damaged or self._copies) and len(heads) == len(self._unread):  # else one would look like another log's
            heads = segment_heads.read_heads(fs, self._path, list_bases(fs, self._path), heads)
            segment_heads.store(fs, self._path, heads, files.incarnation)
        fs.sync_dir(self._path)
        return self._done

    # -- looking

    def _has_unreadable(self) -> bool:
        """Whether the disk refuses to read a file that a repair would write anew. Then the topic is not repaired: later the
        file may be readable, and have the consumers."""
        for name in (
            offsets.FILE_NAME, offsets.PREVIOUS_NAME, segment_heads.FILE_NAME, evicted.FILE_NAME, evicted.OTHER_NAME
        ):  # fmt: skip
            try:
                checked_json.read(self._fs, f"{self._path}/{name}")
            except Unreadable:
                self._done.unreadable.append(f"{self._path}/{name}")
            except DamagedData:
                continue
        return bool(self._done.unreadable)

    def _readable_offsets(self) -> tuple[OffsetsState, bool, bool | None]:
        """The offsets that can be trusted; whether the file has the same content; and whether they know the first id of the
        log."""
        loaded = offsets.load(self._fs, self._path)
        state = loaded.state
        for name, raw in list(state.consumers.items()):
            try:
                ConsumerSnapshot.from_json(raw)
            except DamagedData:
                self._done.forgotten.append(name)
        if self._done.forgotten:
            kept = {name: raw for name, raw in state.consumers.items() if name not in self._done.forgotten}
            state = replace(state, consumers=kept)
        if loaded.source is OffsetsSource.LOST:
            self._done.notes.append("both generations of the offsets are damaged: its consumers are forgotten")
        elif loaded.problem is not None:
            self._done.notes.append(f"{loaded.problem}; taken is {loaded.source.value}")
        return state, loaded.problem is None and not self._done.forgotten, loaded.first_id_known

    def _look(self, state: OffsetsState, files: segment_heads.SegmentFiles) -> tuple[list[_Damaged], list[IdRange], int]:
        """Find damaged segments, the id ranges with records, and the end of the log. The first range is empty and marks the
        beginning of the log: ids that retention removed before it are not lost."""
        damaged: list[_Damaged] = []
        end = state.first_id
        begin = files.begin(end)
        present: list[IdRange] = [(begin, begin - 1)] if files.foreign or (files.bases and begin < files.bases[0]) else []
        for each in segment_inventory(self._fs, self._path, files, state.first_id, state.next_id, sidecars=False):
            segment, result = each.segment, each.scan
            if each.status is SegmentStatus.BELOW:
                continue  # the next start will remove it
            if segment.is_away:
                present.append((segment.base_id, segment.next_id - 1))
                end = max(end, segment.next_id)
                continue
            if each.status is SegmentStatus.COPY:
                self._copies.append(segment.path)
                continue
            if not present:
                present.append((segment.base_id, segment.base_id - 1))
            end = max(end, segment.next_id)
            if result is None or segment.unreadable or result.unreadable_tail:
                self._done.unreadable.append(segment.path)
                self._unread.append(segment.base_id)
                next_id = segment.next_id
                if each.following is None:  # how far it goes is not known
                    end = next_id = files.end(max(end, state.next_id))
                present.append((segment.base_id, next_id - 1))
                continue
            stretches = list(_stretches(segment))
            behind = each.following is not None or files.end(max(end, state.next_id)) > segment.next_id
            # A file will stand behind it, perhaps of a later id than now: zeros are no damage only as long as no id is missing.
            broken = behind and (segment.end < result.size or not stretches)
            if segment.damages or segment.start or broken:
                damaged.append(_Damaged(segment.path, each.following is None, stretches))
            present += [(stretch.first_id, stretch.next_id - 1) for stretch in stretches]
        return damaged, present or [(end, end - 1)], end

    # -- changing

    def _bury(self, file: str) -> None:
        """Copy a segment to the quarantine."""
        self._dig()
        name = file.rpartition("/")[2]
        if name in self._done.quarantined:
            return
        copy_file(self._fs, file, f"{self._grave}/{name}")
        self._fs.sync_dir(self._grave)
        self._done.quarantined.append(name)

    def _move(self, file: str) -> None:
        """Move whatever is in the place of a file to the quarantine, of any size, without opening it."""
        self._dig()
        name = file.rpartition("/")[2]
        move_file(self._fs, file, f"{self._grave}/{name}")
        self._fs.sync_dir(self._grave)
        self._fs.sync_dir(self._path)
        self._done.quarantined.append(name)

    def _dig(self) -> None:
        fs, path = self._fs, self._data_dir
        for name in self._names:
            fs.mkdir(f"{path}/{name}")
            fs.sync_dir(path)
            path = f"{path}/{name}"

    def _put_aside(self, files: segment_heads.SegmentFiles, *, divides: bool) -> None:
        """Move files of other logs, and copies, to the quarantine. Before a segment is divided ``segments.json`` goes, too:
        until it is written anew, no part may look like another log's file."""
        fs = self._fs
        for path in [*(f"{self._path}/{segment_name(base_id)}" for base_id in files.foreign), *self._copies]:
            self._bury(path)
            fs.unlink(path)
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path[:-4] + ".idx")
        if files.evicted.problem is not None:
            what = "what was in the bucket alone is given up here: `toymq restore` has it"
            self._done.notes.append(f"{files.evicted.problem}: {what}")
            for name in (evicted.FILE_NAME, evicted.OTHER_NAME):
                if fs.exists(f"{self._path}/{name}"):
                    self._move(f"{self._path}/{name}")
        heads = f"{self._path}/{segment_heads.FILE_NAME}"
        if files.problem is not None:
            self._move(heads)
        elif fs.exists(heads) and divides:
            fs.unlink(heads)
        fs.sync_dir(self._path)

    def _bury_offsets(self) -> None:
        for name in (offsets.FILE_NAME, offsets.PREVIOUS_NAME):
            file = f"{self._path}/{name}"
            try:
                state = offsets.read(self._fs, file) or OffsetsState()
                for raw in state.consumers.values():
                    ConsumerSnapshot.from_json(raw)
            except DamagedData:
                self._move(file)

    def _divide(self, segment: _Damaged) -> None:
        fs = self._fs
        self._bury(segment.path)
        own = None
        for stretch in reversed(segment.stretches):
            to = f"{self._path}/{segment_name(stretch.first_id)}"
            temporary = to + TEMPORARY
            copy_file(fs, segment.path, temporary, start=stretch.start, end=stretch.end)
            if to == segment.path:
                own = temporary
                continue
            fs.rename(temporary, to)
            fs.sync_dir(self._path)
            self._seal(to, stretch)
        if own is not None:
            fs.rename(own, segment.path)
        else:
            fs.unlink(segment.path)
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(segment.path[:-4] + ".idx")
        fs.sync_dir(self._path)

    def _seal(self, path: str, stretch: _Stretch) -> None:
        """Write the sidecar of a repaired segment. Behind a hole no producer sequence is kept: lower ones may be lost
        unacknowledged, and a retry of them must be stored (ADR 0013)."""
        segment = scan_segment(self._fs, path, stretch.first_id).segment
        if stretch.behind_hole:
            segment.producers = {}
        segment.write_sidecar(self._fs)

    def _begin_anew(self, next_id: int) -> None:
        """Create an empty segment, so that new records share no file with a divided one, and no id is used twice."""
        path = f"{self._path}/{segment_name(next_id)}"
        if not self._fs.exists(path):
            file = self._fs.open(path, create=True)
            try:
                file.sync()
            finally:
                file.close()

    def _drop_caches(self) -> None:
        fs, bases = self._fs, list_bases(self._fs, self._path)
        for at, base_id in enumerate(bases):
            path = f"{self._path}/{segment_name(base_id)}"
            sidecar = path[:-4] + ".idx"
            following = bases[at + 1] if at + 1 < len(bases) else None
            if fs.exists(sidecar) and (following is None or load_sidecar(fs, path, base_id, following) is None):
                fs.unlink(sidecar)

    def _settings(self) -> None:
        file = f"{self._path}/{topic_settings.FILE_NAME}"
        try:
            topic_settings.read(self._fs, self._path)
        except Unreadable:
            self._done.unreadable.append(file)
        except DamagedData as error:
            topic_settings.forget(self._fs, self._path)
            if topic_settings.FILE_NAME in self._fs.listdir(self._path):
                self._move(file)
            self._done.notes.append(f"{topic_settings.FILE_NAME}: {error}: it has the broker's defaults")


def _stretches(segment: Segment) -> Iterator[_Stretch]:
    """Yields: the valid parts of a segment."""
    start, first_id, behind = segment.start, segment.base_id, False
    ends = [(d.position, d.first_id, d.resume, d.last_id + 1) for d in segment.damages]
    for end, next_id, resume, resume_id in [*ends, (segment.end, segment.next_id, 0, 0)]:
        if end > start:
            yield _Stretch(start, end, first_id, next_id, behind)
        start, first_id, behind = resume, resume_id, True


def _gaps(state: OffsetsState, present: list[IdRange], end: int) -> Iterator[IdRange]:
    """Yields: ids that have no record and were not removed."""
    expected = present[0][0]
    for first, last in [*present, (max(end, state.next_id), 0)]:
        if first > expected:
            yield from subtract([(expected, first - 1)], state.removed)
        expected = max(expected, last + 1)
