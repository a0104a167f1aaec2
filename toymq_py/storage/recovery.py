"""From the bytes on disk to a log that can be opened: the nine steps of storage.md, those that concern one topic.

    1  LOCK                                                                   dirlock
    2  list the segments, remove .tmp leftovers, leave other logs' files      _list_segments, identity.survey
    3  sealed segments: trust the sidecar or scan; missing ids are a hole     _open_sealed
    4  active segment: scan                                                   _open_active
    5  zeros or the end: clean                                                segment.scan_segment
    6  an invalid frame: torn tail or hole                                    segment.scan_segment, salvage
    7  the newest keys, the producers, what is not due                        _newest_keys, join_producers, _find_scheduled
    8  offsets, or their previous generation; their ids raise the log's       storage.offsets, recover_log
    9  listen                                                                 the server

Assumes what storage.md assumes: what was not synced may be there whole, in part, out of order at 4 KiB grain, or not at
all; a name that was not synced may be missing; what was synced stays, unless the medium fails.
"""

import logging
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from toymq_py.errors import DamagedData
from toymq_py.model import IdRange
from toymq_py.storage.fs import File, FileSystem, write_all
from toymq_py.storage.identity import Head, Survey, survey
from toymq_py.storage.record import Columns, deliver_at_of, scan
from toymq_py.storage.segment import (
    WINDOW_BYTES,
    Damage,
    Producers,
    Segment,
    join_producers,
    load_sidecar,
    parse_segment_name,
    scan_segment,
)

logger = logging.getLogger("toymq_py.storage")

KeyRun = tuple[int, list[bytes]]
"""First id and the keys of consecutive records, b"" for none."""


@dataclass(slots=True)
class RecoveredLog:
    """A topic's log as it was found and mended."""

    segments: list[Segment] = field(default_factory=list)
    first_id: int = 0
    next_id: int = 0
    lost: list[IdRange] = field(default_factory=list)
    """Ranges that no record stands for: damage, and ids that only the offsets know of."""
    missing: list[IdRange] = field(default_factory=list)
    """Ranges whose whole segment is not there: retention, if every consumer has acked them, otherwise a loss."""
    torn_bytes: int = 0
    keys: list[KeyRun] = field(default_factory=list)
    """The newest keyed records, in log order; not those of producers."""
    producers: Producers = field(default_factory=dict)
    scheduled_ids: "array[int]" = field(default_factory=partial(array, "Q"))
    """Records that are not due, by columns, in log order."""
    deliver_at_ns: "array[int]" = field(default_factory=partial(array, "Q"))
    roll_first: bool = False
    heads: Mapping[int, Head] = field(default_factory=dict)
    """What ``segments.json`` knows of this log."""


def recover_log(
    fs: FileSystem,
    path: str,
    *,
    first_id: int = 0,
    next_id: int = 0,
    dedupe_keys: int = 0,
    now_ns: int = 0,
) -> RecoveredLog:
    """Open, check and mend one topic's directory.

    Args:
        first_id: from the offsets; segments wholly below are removed, ids below are not retained.
        next_id: from the offsets; ids below are never used again, whatever the log says.
        dedupe_keys: how many keys are wanted for the dedupe table.
        now_ns: the wall clock; records with a later deliver_at are not due.

    Raises: OSError when a file cannot be read or mended. DamagedData when two segments hold the same ids: which of them is
        right nobody can tell.
    """
    found = RecoveredLog()
    files = _list_segments(fs, path)
    found.heads = files.heads
    names = _remove_below(fs, path, files.bases, first_id)
    # Retention on a full disk removes what the offsets could not be told about.
    first_id = found.next_id = files.begin(first_id)
    active_keys: list[KeyRun] = []
    for at, base_id in enumerate(names):
        last = at == len(names) - 1
        if base_id > found.next_id:
            found.missing.append((found.next_id, base_id - 1))
        if last:
            segment = _open_active(fs, path, base_id, next_id, found, active_keys)
        else:
            segment = _open_sealed(fs, path, base_id, names[at + 1], found)
        found.segments.append(segment)
        join_producers(found.producers, segment.producers)
        segment.producers = {}
        found.lost.extend((damage.first_id, damage.last_id) for damage in segment.damages)
        found.next_id = segment.next_id
    if found.segments and found.segments[-1].damages and found.next_id > found.segments[-1].base_id:
        found.roll_first = True  # so that a later torn tail never shares a segment with this hole
    next_id = files.end(max(next_id, found.next_id))
    if next_id > found.next_id:
        if found.segments:
            found.lost.append((found.next_id, next_id - 1))
            logger.error("%s: records %d to %d are gone from the end of the log", path, found.next_id, next_id - 1)
            found.roll_first = True
        elif next_id > first_id:
            found.lost.append((first_id, next_id - 1))
            logger.error("%s: records %d to %d are gone with their segments", path, first_id, next_id - 1)
        found.next_id = next_id
    found.first_id = min(first_id, found.next_id)
    found.lost = [(max(a, found.first_id), b) for a, b in found.lost if b >= found.first_id]
    found.missing = [(max(a, found.first_id), b) for a, b in found.missing if b >= found.first_id]
    found.producers = {name: entry for name, entry in found.producers.items() if entry[1] >= found.first_id}
    found.keys = _newest_keys(fs, found.segments, active_keys, dedupe_keys)
    for segment in found.segments:
        if segment.newest_deliver_at_ns > now_ns:
            _find_scheduled(fs, segment, now_ns, found)
    return found


def _list_segments(fs: FileSystem, path: str) -> Survey:
    """Step 2. Sidecars of segments that are gone go, too; files that are not ours are left alone."""
    if not fs.is_dir(path):
        return Survey([])
    ids, sidecars = set(), set()
    for name in fs.listdir(path):
        base_id = parse_segment_name(name)
        if base_id is not None:
            ids.add(base_id)
        elif (of := parse_segment_name(name[:-4] + ".log")) is not None and name.endswith(".idx"):
            sidecars.add(of)
        elif name.endswith(".tmp"):
            fs.unlink(f"{path}/{name}")
    for base_id in sidecars - ids:  # the broker died between removing a segment and its sidecar
        fs.unlink(f"{path}/{base_id:020d}.idx")
    files = survey(fs, path)
    for base_id, reason in files.foreign.items():
        logger.error("%s/%020d.log %s: it is not served; `toymq repair` puts it aside", path, base_id, reason)
    if files.problem is not None:
        logger.error("%s: %s", path, files.problem)
    return files


def _remove_below(fs: FileSystem, path: str, names: list[int], first_id: int) -> list[int]:
    """What retention or PURGE had decided to remove when the broker died."""
    while len(names) > 1 and names[1] <= first_id:
        for suffix in (".log", ".idx"):
            leftover = f"{path}/{names[0]:020d}{suffix}"
            if fs.exists(leftover):
                fs.unlink(leftover)
        names = names[1:]
    return names


def _open_sealed(fs: FileSystem, path: str, base_id: int, next_base_id: int, found: RecoveredLog) -> Segment:
    """Step 3."""
    name = f"{path}/{base_id:020d}.log"
    segment = load_sidecar(fs, name, base_id, next_base_id)
    if segment is not None:
        return segment
    result = scan_segment(fs, name, base_id)
    segment = result.segment
    segment.sealed = True
    if segment.next_id > next_base_id:
        raise DamagedData(f"{name} holds ids of the segment behind it; run `toymq verify`")
    if segment.next_id < next_base_id and (result.torn_bytes or segment.next_id == base_id):
        # Of a sealed segment that is damage: its tail was synced before the next one was made, and none is without records.
        segment.damages.append(Damage(segment.end, result.size, segment.next_id, next_base_id - 1))
        segment.next_id = next_base_id
    _report(segment)
    if not segment.damages and result.size == segment.end:
        try:
            segment.write_sidecar(fs)
        except OSError as error:
            logger.warning("sidecar of %s not written: %s", name, error)
    return segment


def _open_active(
    fs: FileSystem, path: str, base_id: int, synced_id: int, found: RecoveredLog, keys: list[KeyRun]
) -> Segment:
    """Steps 4 to 6. ``synced_id``: records below were on stable storage when the offsets were written."""
    name = f"{path}/{base_id:020d}.log"

    def visit(_position: int, first_id: int, columns: Columns) -> None:
        plain = columns.plain_keys()
        if any(plain):
            keys.append((first_id, plain))

    result = scan_segment(fs, name, base_id, visit=visit)
    segment = result.segment
    _report(segment)
    if result.torn_bytes:
        found.torn_bytes = result.torn_bytes
        logger.warning("%s: %s a torn tail of %d bytes behind record %d (never acknowledged)",
                       name, "left" if segment.damages else "cut", result.torn_bytes, segment.next_id - 1)  # fmt: skip
    # What a killed process had written but not synced reads as well as the rest, and from now on counts as committed: a
    # retry of its key would be answered DUP. So it is synced first, and so are the names. It is written again before: pages
    # whose sync failed are clean in the cache and not on the disk, and a second sync would not write them.
    file = fs.open(name)
    try:
        if result.torn_bytes and not segment.damages:  # else the bytes are evidence, see Segment.damages
            file.truncate(segment.end)
        if synced_id < segment.next_id:
            _write_again(file, segment.seek_id(synced_id)[1] if synced_id > base_id else 0, segment.end)
        file.sync()
    finally:
        file.close()
    fs.sync_dir(path)
    return segment


def _write_again(file: File, start: int, end: int) -> None:
    while start < end:
        data = file.pread(min(WINDOW_BYTES, end - start), start)
        if not data:
            return
        write_all(file, data, start)
        start += len(data)


def _report(segment: Segment) -> None:
    for damage in segment.damages:
        logger.error("%s: damage at byte %d, records %d to %d are lost",
                     segment.path, damage.position, damage.first_id, damage.last_id)  # fmt: skip


def _newest_keys(
    fs: FileSystem, segments: list[Segment], active_keys: list[KeyRun], wanted: int
) -> list[KeyRun]:
    """Step 7. Reads no more of the sealed segments than holds the wanted keys."""
    if not segments:
        return []
    runs = active_keys
    have = segments[-1].keyed
    for segment in reversed(segments[:-1]):
        if have >= wanted:
            break
        if segment.keyed:
            runs = _keys_of(fs, segment, wanted - have) + runs
            have += segment.keyed
    return runs


def _keys_of(fs: FileSystem, segment: Segment, wanted: int) -> list[KeyRun]:
    """Key runs from the end of a sealed segment that hold at least ``wanted`` keys, or all."""
    msg_id, pos = segment.base_id, 0
    for at in range(len(segment.index_ids) - 1, -1, -1):
        if segment.keyed - segment.index_keyed[at] >= wanted:
            msg_id, pos = segment.index_ids[at], segment.index_positions[at]
            break
    return [(first_id, columns.plain_keys()) for first_id, columns in _walk(fs, segment, msg_id, pos)]


def _find_scheduled(fs: FileSystem, segment: Segment, now_ns: int, found: RecoveredLog) -> None:
    """Step 7. Reads segments whose newest deliver_at lies ahead, and no others."""
    for first_id, columns in _walk(fs, segment, segment.base_id, 0):
        for row, block in columns.attributes.items():
            at_ns = deliver_at_of(block)
            if at_ns is not None and at_ns > now_ns and first_id + row >= found.first_id:
                found.scheduled_ids.append(first_id + row)
                found.deliver_at_ns.append(at_ns)


def _walk(fs: FileSystem, segment: Segment, msg_id: int, pos: int) -> Iterator[tuple[int, Columns]]:
    """Windows of a segment's records from a frame on: the first id of each, and its columns."""
    resumes: dict[int, tuple[int, int]] = {d.position: (d.resume, d.last_id + 1) for d in segment.damages}
    file = fs.open(segment.path, write=False)
    window = WINDOW_BYTES
    try:
        while pos < segment.end:
            if pos in resumes:
                pos, msg_id = resumes[pos]
                continue
            columns = Columns()
            used, next_id, _ = scan(file.pread(min(window, segment.end - pos), pos), 0, msg_id, columns)
            if used:
                yield msg_id, columns
                pos += used
                msg_id = next_id
                window = WINDOW_BYTES
            elif window < segment.end - pos:
                window *= 4
            else:
                break  # damaged since it was sealed: reads will find and report it
    finally:
        file.close()
