"""Judges the segments of an earlier backup against their source, so that damage does not replace what is good. ADR 0086."""

from collections.abc import Iterable, Sequence

from toymq_py.storage import segment_heads
from toymq_py.storage.fs import COPY_BYTES, FileSystem, copy_file, write_all
from toymq_py.storage.id_ranges import subtract, union
from toymq_py.storage.offline import given_up
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Segment, segment_name
from toymq_py.storage.segment_heads import Head, SegmentFiles


def same_log(fs: FileSystem, path: str, to: str, copies: Iterable[int], files: SegmentFiles) -> bool | None:
    """Whether two directories hold the same log, by the first records of segments that both have or have had; None when there
    is no such segment. A topic that was deleted and made anew is another log.

    Args:
        copies: first ids of the earlier backup's segments, in ``to``.
        files: the source's segment files.
    """
    theirs = {**segment_heads.readable_heads(fs, path, {*copies} & {*files.local}, files.heads), **files.heads}
    ours = segment_heads.read_heads(fs, to, {*copies} & theirs.keys(), {})
    same = [head == theirs[base_id] for base_id, head in ours.items()]
    return any(same) if same else None


def lost_segments(
    fs: FileSystem, path: str, to: str, copies: Iterable[int], files: SegmentFiles, structure: OffsetsState, *, same: bool
) -> tuple[list[Segment], bool]:
    """The copies of segments that the source in ``path`` lacks although it did not remove them. Ids that ``repair`` gave up
    count as not removed. Segments that an earlier backup found lost stay lost, whatever the source's offsets say now.

    Args:
        copies: first ids of the earlier backup's segments, in ``to``.
        files: the source's segment files.
        structure: the source's offsets; only ``first_id`` and ``removed`` are used.
        same: whether both are known to be the same log; otherwise the source's known heads decide for each segment.

    Returns: the lost segments of the source's log, ascending; and whether there are copies of another log.
    """
    first_id = structure.first_id
    lost: list[Segment] = []
    others = False
    repaired, known = given_up.load(fs, path), given_up.load(fs, to)
    removed = subtract(structure.removed, union([*repaired.ids, *known.ids]))
    heads = {**repaired.heads, **known.heads, **files.heads}
    every = sorted(copies)  # those of the source say nothing of where a copy ends: it may be of another log
    for base_id in sorted({*copies} - {*files.bases, *files.foreign}):
        following = next((other for other in every if other > base_id), None)
        stays = not subtract([(base_id, base_id)], known.ids)
        if not stays and (not subtract([(base_id, base_id)], removed) or (following is not None and following <= first_id)):
            others |= not same and _is_younger(fs, to, base_id, path, files.local)
            continue
        found = scan_segment(fs, f"{to}/{segment_name(base_id)}", base_id)
        next_id = found.segment.next_id
        if next_id == base_id and not found.torn_bytes:  # it has no record
            continue
        if base_id < first_id and next_id <= first_id and not stays:
            others |= not same and _is_younger(fs, to, base_id, path, files.local)
            continue
        if same or stays or _head(fs, to, base_id) == heads.get(base_id, ()):
            lost.append(found.segment)
        else:
            others = True
    return lost, others


def _is_younger(fs: FileSystem, to: str, base_id: int, path: str, bases: Sequence[int]) -> bool:
    """Whether a copy that ends before the source's segments begin starts with a later record than they do: then it is of
    another log, or the clock was set back."""
    ours = _head(fs, to, base_id)
    first, theirs = min(segment_heads.readable_heads(fs, path, bases, {}).items(), default=(0, None))
    return ours is not None and theirs is not None and base_id < first and ours[0] > theirs[0]


def keep_lost(fs: FileSystem, to: str, lost: Sequence[Segment]) -> None:
    """Note in the backup which of its segments the source has lost. Raises: OSError."""
    ids = [(segment.base_id, max(segment.next_id - 1, segment.base_id)) for segment in lost]
    if subtract(union(ids), given_up.load(fs, to).ids):
        given_up.add(fs, to, ids, segment_heads.read_heads(fs, to, [segment.base_id for segment in lost], {}))


def _head(fs: FileSystem, path: str, base_id: int) -> Head | None:
    return segment_heads.read_heads(fs, path, [base_id], {}).get(base_id)


def records_more(fs: FileSystem, file: str, to: str, theirs: Segment) -> int:
    """How many more records the copy ``to`` of a segment has than the source; 0 unless it has all of the source's.

    Args:
        theirs: the segment that a scan of the source's ``file`` found.
    """
    more = record_count(scan_segment(fs, to, theirs.base_id).segment) - record_count(theirs)
    return more if more > 0 and holds_all_of(fs, to, file, theirs) else 0


def common_bytes(fs: FileSystem, file: str, theirs: Segment, to: str, ours: Segment) -> int | None:
    """How many bytes of the source's segment the copy of an earlier one holds: a repair makes files of the parts of a damaged
    segment. None: the copy has other records for the same ids.

    Args:
        theirs: the segment that a scan of the source's ``file`` found.
        ours: the segment that a scan of the copy ``to`` found; its ids reach into those of ``theirs``.
    """
    at = _position(fs, to, ours, theirs.base_id)
    length = 0 if at is None else min(ours.end - at, theirs.end)
    if at is None or any(d.resume > at for d in ours.damages) or any(d.position < length for d in theirs.damages):
        return None
    for start in range(0, length, COPY_BYTES):
        size = min(COPY_BYTES, length - start)
        if read_part(fs, to, size, at + start) != read_part(fs, file, size, start):
            return None
    return length


def _position(fs: FileSystem, path: str, segment: Segment, msg_id: int) -> int | None:
    """Where the record of an id begins in a segment's file, None when it is not there."""
    at_id, at = segment.seek_id(msg_id)
    resumes = {damage.position: (damage.last_id + 1, damage.resume) for damage in segment.damages}
    while at_id < msg_id and at < segment.end:
        if at in resumes:
            at_id, at = resumes.pop(at)  # it may have no bytes
        else:
            at_id, at = at_id + 1, at + 4 + int.from_bytes(read_part(fs, path, 4, at), "little")
    return at if at_id == msg_id and at < segment.end else None


def join(fs: FileSystem, file: str, to: str, theirs: Segment, size: int, temporary: str) -> int:
    """Write the source's segment with the earlier copy's bytes where the source is damaged. A segment grows at its end alone,
    so an older and shorter copy has its records at the same positions.

    Args:
        theirs: the segment that a scan of the source's ``file`` found.
        size: bytes of the source to take.
        temporary: the file to write, synced.

    Returns: how many records the file has that the source lacks; with 0 the copy adds none, or has other records, and the file
    is of no use.

    Raises: OSError.
    """
    ours = scan_segment(fs, to, theirs.base_id).segment
    spans = [(damage.position, min(damage.resume, ours.end)) for damage in theirs.damages if damage.position < ours.end]
    if not spans or not holds_all_of(fs, to, file, theirs, ours.end):
        return 0
    if copy_file(fs, file, temporary, end=size) < size:
        return 0  # it was cut meanwhile
    joined = fs.open(temporary, write=True)
    try:
        for begin, end in spans:
            for at in range(begin, end, COPY_BYTES):
                write_all(joined, read_part(fs, to, min(COPY_BYTES, end - at), at), at)
        joined.sync()
    finally:
        joined.close()
    more = record_count(scan_segment(fs, temporary, theirs.base_id, next_id=theirs.next_id).segment) - record_count(theirs)
    return max(more, 0)


def record_count(segment: Segment) -> int:
    lost = sum(damage.last_id + 1 - damage.first_id for damage in segment.damages)
    return segment.next_id - segment.base_id - lost


def holds_all_of(fs: FileSystem, to: str, file: str, segment: Segment, end: int | None = None) -> bool:
    """Whether a file has the bytes of all valid records of a segment, those up to ``end``, at the same positions.

    Args:
        segment: the segment that a scan of ``file`` found.
    """
    at = 0
    for position, resume in [*((damage.position, damage.resume) for damage in segment.damages), (segment.end, 0)]:
        stop = position if end is None else min(position, end)
        for start in range(at, stop, COPY_BYTES):
            length = min(COPY_BYTES, stop - start)
            if read_part(fs, to, length, start) != read_part(fs, file, length, start):
                return False
        at = resume
    return True


def read_part(fs: FileSystem, path: str, length: int, offset: int) -> bytes:
    """Up to ``length`` bytes of a file. Raises: OSError."""
    file = fs.open(path, write=False)
    try:
        return file.pread(length, offset)
    finally:
        file.close()
