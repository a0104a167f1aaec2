"""Recovery of one topic's log from the bytes on disk: those of the nine steps of storage.md that concern it.

    1  LOCK                                                                   dirlock
    2  list the segments, remove .tmp leftovers, leave other logs' files      _list_segments, segment_heads
       the active one gets a copy of its own where it has hard links (0254)    FileSystem.detach
    3  sealed segments: trust the sidecar or scan; missing ids are a hole     segment_inventory
    4  active segment: scan                                                   segment_inventory, _settle
    5  zeros or the end: clean                                                scanner
    6  an invalid frame: torn tail or hole                                    scanner, salvage
    7  the newest keys, the producers, what is not due                        _newest_keys, join_producers, _find_scheduled
    8  offsets, or their previous generation; their ids raise the log's       storage.offsets, recover_log
    9  listen                                                                 the server

A segment whose sidecar was trusted and whose records do not check is scanned like one without a sidecar.

Assumes what storage.md assumes: what was not synced may be there whole, in part, out of order at 4 KiB grain, or not at
all; a name that was not synced may be missing; what was synced stays, unless the medium fails.
"""

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage.fs import TEMPORARY, FileSystem, write_again
from toymq_py.storage.id_ranges import above, record_range, subtract
from toymq_py.storage.record import FRAME_BYTES_MAX, Columns, Stop, deliver_at_of, scan
from toymq_py.storage.scanner import WINDOW_BYTES, ScanResult, adopt, damage_report, examine, keep_sidecar
from toymq_py.storage.segment import Damage, Producers, Segment, join_producers, parse_segment_name, removed_name, segment_name
from toymq_py.storage.segment_heads import MORE_MAY_BE_GONE, NO_HEADS, KnownHeads, SegmentFiles, list_segment_files
from toymq_py.storage.segment_inventory import InventoryEntry, SegmentStatus, segment_inventory

logger = logging.getLogger("toymq_py.storage")

T = TypeVar("T")
WRONG_READS_MAX = 3
"""How often a record may fail its check although it passes when it is read once more."""

KeyRun = tuple[int, list[bytes]]
"""First id and the keys of consecutive records, b"" for none."""


@dataclass(slots=True)
class RecoveredLog:
    """A topic's log after recovery."""

    segments: list[Segment] = field(default_factory=list)
    first_id: int = 0
    next_id: int = 0
    lost: list[IdRange] = field(default_factory=list)
    """Ranges that no record stands for: damage, ids that only the offsets know of, and missing segments."""
    removed: list[IdRange] = field(default_factory=list)
    """Ranges without a record that retention took, by the word of the offsets."""
    unreadable: list[IdRange] = field(default_factory=list)
    """Ranges that the disk refuses to give: until a restart they are neither delivered nor lost."""
    closed: str | None = None
    """Why nothing may be appended: the end of the log cannot be read."""
    torn_bytes: int = 0
    keys: list[KeyRun] = field(default_factory=list)
    """The newest keyed records, in log order; not those of producers."""
    producers: Producers = field(default_factory=dict)
    scheduled_ids: "array[int]" = field(default_factory=partial(array, "Q"))
    """The ids of records that are not due, by columns, in log order."""
    deliver_at_ns: "array[int]" = field(default_factory=partial(array, "Q"))
    roll_first: bool = False
    known: KnownHeads = NO_HEADS
    incarnation: str | None = None
    """The incarnation of this log in ``segments.json``."""
    problems: list[str] = field(default_factory=list)
    """What is wrong in the directory beside the records: ``segments.json`` is damaged or another topic's, a file is a copy or
    another log's."""


def recover_log(
    fs: FileSystem,
    path: str,
    *,
    first_id: int = 0,
    next_id: int = 0,
    removed: Sequence[IdRange] = (),
    first_id_known: bool | None = False,
    dedupe_keys: int = 0,
    now_ns: int = 0,
) -> RecoveredLog:
    """Open, check and mend the log of one topic.

    Args:
        first_id: from the offsets; segments wholly below are removed, ids below are not retained.
        next_id: from the offsets; ids below are never used again, whatever the log says.
        removed: from the offsets; ids in these ranges that have no record were removed on purpose.
        first_id_known: whether ``first_id`` is where the log begins, whatever files there are; see
            ``LoadedOffsets.first_id_known``.
        dedupe_keys: how many keys are wanted for the dedupe table.
        now_ns: the wall clock; records with a later deliver_at are not due.

    Raises: OSError when the directory cannot be read or mended. DamagedData when what is in the bucket is not known: its
    records would be taken for lost.
    """
    found = RecoveredLog()
    active_keys: list[KeyRun] = []
    missing: list[IdRange] = []

    def visit(_position: int, first: int, columns: Columns) -> None:
        plain = columns.plain_keys()
        if any(plain):
            active_keys.append((first, plain))

    files = _list_segments(fs, path, first_id_known)
    if files.local and fs.detach(newest_path := f"{path}/{segment_name(files.local[-1])}"):
        logger.warning("%s had other names, hard links: it is a copy now, what is written into it is not theirs", newest_path)
    removed = _take_marks(fs, path, files.removed, first_id, removed)
    if files.evicted.problem is not None:
        raise DamagedData(files.evicted.problem)
    found.known, found.incarnation = files.known, files.incarnation
    join_producers(found.producers, files.evicted.producers)
    found.problems = [f"{path}/{base_id:020d}.log {reason}" for base_id, reason in files.foreign.items()]
    if files.problem is not None:
        found.problems.append(f"{path}: {files.problem}")
    newest: InventoryEntry | None = None
    parts = segment_inventory(fs, path, files, first_id, next_id, sidecars=True, visit=visit)
    first_id = found.next_id = files.begin(first_id)
    for each in parts:
        segment = each.segment
        if each.status is SegmentStatus.BELOW:
            _remove(fs, segment)
            continue
        if each.status is SegmentStatus.COPY:
            logger.error("%s is a copy: segments before it hold its records; it is left alone and not used", segment.path)
            found.problems.append(f"{segment.path} is {each.status.value}")
            continue
        if segment.start:
            logger.error("%s %s", segment.path, each.twice_text)
        newest = each
        if each.missing is not None:
            missing.append(each.missing)
        if each.status is SegmentStatus.UNREADABLE:
            logger.error("%s cannot be opened, its records are passed over until a restart: %s", segment.path, each.error)
        elif each.scan is not None and segment.sealed:
            _keep_scanned(fs, each.scan)
        found.segments.append(segment)
        join_producers(found.producers, segment.producers)
        segment.producers = {}
    if newest is not None:
        _settle(fs, path, newest, next_id, found)
        found.next_id = newest.segment.next_id
    newest_read = newest is not None and newest.following is None and newest.segment.start == 0
    found.keys = _newest_keys(fs, found.segments, active_keys if newest_read else None, dedupe_keys)
    for segment in found.segments:
        if segment.newest_deliver_at_ns > now_ns and segment.sha256 is None:  # else the clock was set back
            _find_scheduled(fs, segment, now_ns, max(first_id, 0), found)
    next_id = files.end(max(next_id, found.next_id))
    if next_id > found.next_id:
        if next_id > first_id:
            gone = (found.next_id if found.segments else first_id, next_id - 1)
            missing.append(gone)
            logger.error("%s: %s; %s", path, record_range(*gone, "are gone from the end of the log"), MORE_MAY_BE_GONE)
        found.roll_first = bool(found.segments)
        found.next_id = next_id
    found.first_id = min(first_id, found.next_id)
    _sum_up(found, missing, removed)
    return found


def _sum_up(found: RecoveredLog, missing: list[IdRange], removed: Sequence[IdRange]) -> None:
    """Set the lost, removed and unreadable ids of the log, from its first id on."""
    gaps = sorted([*missing, *(gap for segment in found.segments for gap in segment.ids_of_damage(unreadable=False))])
    gaps = above(gaps, found.first_id)
    found.lost = subtract(gaps, removed)
    found.removed = subtract(gaps, found.lost)
    found.unreadable = above([gap for s in found.segments for gap in s.ids_of_damage(unreadable=True)], found.first_id)
    found.producers = {name: entry for name, entry in found.producers.items() if entry[1] >= found.first_id}


def _take_marks(
    fs: FileSystem, path: str, marks: Sequence[IdRange], first_id: int, removed: Sequence[IdRange]
) -> Sequence[IdRange]:
    """The removed ranges, from the offsets and from mark files (ADR 0065). Mark files whose ranges the offsets have by now are
    unlinked."""
    for ids in marks:
        if not subtract(above([ids], first_id), removed):
            fs.unlink(f"{path}/{removed_name(ids)}")
    return [*removed, *marks]


def _list_segments(fs: FileSystem, path: str, first_id_known: bool | None) -> SegmentFiles:
    """Step 2: list the segments. Sidecars without a segment are removed; unknown files are left alone."""
    if not fs.is_dir(path):
        return SegmentFiles([])
    ids, sidecars = set(), set()
    for name in fs.listdir(path):
        base_id = parse_segment_name(name)
        if base_id is not None:
            ids.add(base_id)
        elif (of := parse_segment_name(name[:-4] + ".log")) is not None and name.endswith(".idx"):
            sidecars.add(of)
        elif name.endswith(TEMPORARY) and not fs.is_dir(f"{path}/{name}"):
            fs.unlink(f"{path}/{name}")
    for base_id in sidecars - ids:  # the broker died between removing a segment and its sidecar
        fs.unlink(f"{path}/{base_id:020d}.idx")
    files = list_segment_files(fs, path, first_id_known)
    for base_id, reason in files.foreign.items():
        logger.error("%s/%020d.log %s: it is not served; `toymq repair` puts it aside", path, base_id, reason)
    if files.problem is not None:
        logger.error("%s: %s", path, files.problem)
    return files


def _remove(fs: FileSystem, segment: Segment) -> None:
    """Remove a segment that retention or PURGE had decided to remove when the broker died."""
    for leftover in (segment.path, segment.sidecar_path):
        if fs.exists(leftover):
            fs.unlink(leftover)


def _keep_scanned(fs: FileSystem, scanned: ScanResult) -> None:
    """Log the damage of a segment that was scanned because it had no fitting sidecar, and write its sidecar (step 3)."""
    _report(scanned.segment)
    error = keep_sidecar(fs, scanned)
    if error is not None:
        logger.warning("sidecar of %s not written: %s", scanned.segment.path, error)


def _settle(fs: FileSystem, path: str, newest: InventoryEntry, next_id: int, found: RecoveredLog) -> None:
    """Steps 4 to 6 for the last segment: cut its torn tail, and sync what counts from now on.

    ``next_id``: records below were on stable storage when the offsets were written.
    """
    segment, result = newest.segment, newest.scan
    if segment.stamp is not None and not segment.sealed:
        segment.inode = segment.stamp[:2]
    if newest.status is SegmentStatus.UNREADABLE or (result is not None and result.unreadable_tail):
        found.closed = f"the end of the log, {segment.path}, cannot be read: {newest.error or 'EIO'}"
        if next_id > segment.next_id:
            size = max(segment.end + 1, 0 if result is None else result.size)
            segment.damages.append(Damage(segment.end, size, segment.next_id, next_id - 1, unreadable=True))
            segment.end, segment.next_id = size, next_id
        return
    if result is None:
        return
    if newest.following is None:
        _report(segment, next_id)
    if segment.damages and segment.next_id > segment.base_id:
        found.roll_first = True  # so that a later torn tail never shares a segment with this hole
    if result.torn_bytes and newest.following is None:
        found.torn_bytes = result.torn_bytes
        logger.warning("%s: %s a torn tail of %d bytes behind record %d (never acknowledged, or damaged)", segment.path,
                       "left" if segment.damages else "cut", result.torn_bytes, segment.next_id - 1)  # fmt: skip
    # What a killed process had written but not synced reads as well as the rest, and from now on counts as committed: a
    # retry of its key would be answered DUP. So it is synced first, and so are the names. It is written again before: pages
    # whose sync failed are clean in the cache and not on the disk, and a second sync would not write them.
    file = fs.open(segment.path)
    try:
        if found.torn_bytes and not segment.damages:  # else the bytes are evidence, see Segment.damages
            file.truncate(segment.end)
        if next_id < segment.next_id:
            write_again(file, segment.seek_id(next_id)[1] if next_id > segment.base_id else segment.start, segment.end)
        file.sync()
        segment.stamp = file.stamp()
    finally:
        file.close()
    fs.sync_dir(path)


def _report(segment: Segment, known_id: int | None = None) -> None:
    for line in damage_report(segment.damages, known_id):
        logger.error("%s: %s", segment.path, line)


def _newest_keys(
    fs: FileSystem, segments: list[Segment], active_keys: list[KeyRun] | None, wanted: int
) -> list[KeyRun]:
    """Find the newest keys (step 7). Reads only as much of the sealed segments as holds the wanted keys. ``active_keys``: those
    of the newest segment, if they were seen already."""
    runs = active_keys or []
    have = segments[-1].keyed if segments and active_keys is not None else 0
    for segment in reversed(segments if active_keys is None else segments[:-1]):
        if have >= wanted:
            break
        if segment.keyed and segment.sha256 is None:  # what may be wanted stays on the disk, unless more is wanted now
            runs = _keys_of(fs, segment, wanted - have) + runs
            have += segment.keyed
    return runs


def _keys_of(fs: FileSystem, segment: Segment, wanted: int) -> list[KeyRun]:
    """The runs of keys at the end of a sealed segment: as many as hold ``wanted`` keys, or all."""

    def place() -> tuple[int, int]:
        for at in range(len(segment.index_ids) - 1, -1, -1):
            if segment.keyed - segment.index_keyed[at] >= wanted:
                return segment.index_ids[at], segment.index_positions[at]
        return segment.base_id, segment.start

    return _read_out(fs, segment, lambda: [(first, columns.plain_keys()) for first, columns in _walk(fs, segment, *place())])


def _find_scheduled(fs: FileSystem, segment: Segment, now_ns: int, first_id: int, found: RecoveredLog) -> None:
    """Find scheduled messages (step 7). Reads only segments whose newest deliver_at lies ahead."""

    def look() -> list[tuple[int, int]]:
        return [
            (first + row, at_ns)
            for first, columns in _walk(fs, segment, segment.base_id, segment.start)
            for row, block in columns.attributes.items()
            if (at_ns := deliver_at_of(block)) is not None and at_ns > now_ns and first + row >= first_id
        ]

    for msg_id, at_ns in _read_out(fs, segment, look):
        found.scheduled_ids.append(msg_id)
        found.deliver_at_ns.append(at_ns)


class _Broken(Exception):
    """A record is not where the sidecar says it is."""


def _read_out(fs: FileSystem, segment: Segment, collect: Callable[[], list[T]]) -> list[T]:
    """The result of ``collect`` for a segment; if the sidecar is not right any more, after a scan of every byte."""
    for _ in range(WRONG_READS_MAX):
        try:
            return collect()
        except _Broken:
            adopt(segment, examine(fs, segment, segment.next_id), segment.end, segment.keyed, segment.expiring)
            _report(segment)
    logger.error("%s gives other bytes at each read", segment.path)
    return []


def _walk(fs: FileSystem, segment: Segment, msg_id: int, pos: int) -> Iterator[tuple[int, Columns]]:
    """Windows of a segment's records from a frame on: the first id and the columns of each. Raises: _Broken."""
    resumes: dict[int, tuple[int, int]] = {d.position: (d.resume, d.last_id + 1) for d in segment.damages}
    if pos in resumes and resumes[pos][0] >= segment.end:
        return  # nothing of it can be read, not even opened perhaps
    file = fs.open(segment.path, write=False)
    window = WINDOW_BYTES
    try:
        while pos < segment.end:
            if pos in resumes:
                pos, msg_id = resumes.pop(pos)  # it may have no bytes
                continue
            columns = Columns()
            try:
                data = file.pread(min(window, segment.whole_until(pos) - pos), pos)
            except OSError as error:
                raise _Broken from error
            used, next_id, stop = scan(data, 0, msg_id, columns)
            if used:
                yield msg_id, columns
                pos += used
                msg_id = next_id
                window = WINDOW_BYTES
            elif stop is Stop.PARTIAL and len(data) == window and window <= FRAME_BYTES_MAX:
                window *= 4
            else:
                raise _Broken
    finally:
        file.close()
