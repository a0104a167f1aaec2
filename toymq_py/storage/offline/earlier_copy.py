"""Judges the segments of an earlier backup against their source, so that damage does not replace what is good. ADR 0086."""

from collections.abc import Iterable

from toymq_py.storage import segment_heads
from toymq_py.storage.fs import COPY_BYTES, FileSystem, copy_file, write_all
from toymq_py.storage.id_ranges import subtract
from toymq_py.storage.offline import given_up
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Segment, segment_name
from toymq_py.storage.segment_heads import Head, SegmentFiles


def same_log(fs: FileSystem, path: str, to: str, bases: Iterable[int]) -> bool | None:
    """Whether two directories hold the same log, by the first records of segments that both have; None when they have none. A
    topic that was deleted and made anew is another log."""
    ours, theirs = segment_heads.read_heads(fs, to, bases, {}), segment_heads.read_heads(fs, path, bases, {})
    same = [ours[base_id] == theirs[base_id] for base_id in ours.keys() & theirs.keys()]
    return any(same) if same else None


def lost_segments(
    fs: FileSystem, path: str, to: str, copies: Iterable[int], files: SegmentFiles, structure: OffsetsState, *, same: bool
) -> list[int]:
    """First ids of segments that the source in ``path`` lacks although it did not remove them. What ``repair`` gave up there
    was not removed.

    Args:
        copies: first ids of the earlier backup's segments, in ``to``.
        files: the source's.
        structure: of the source's offsets, ``first_id`` and ``removed`` count.
        same: whether both are known to be the same log; else the heads that the source knows tell it.
    """
    first_id, lost = structure.first_id, []
    repaired = given_up.load(fs, path)
    removed, heads = subtract(structure.removed, repaired.ids), {**repaired.heads, **files.heads}
    every = sorted({*copies, *files.bases, *files.foreign})
    for base_id in sorted({*copies} - {*files.bases, *files.foreign}):
        following = next((other for other in every if other > base_id), None)
        if not subtract([(base_id, base_id)], removed) or (following is not None and following <= first_id):
            continue
        if not same and _head(fs, to, base_id) != heads.get(base_id, ()):
            continue
        if base_id >= first_id or scan_segment(fs, f"{to}/{segment_name(base_id)}", base_id).segment.next_id > first_id:
            lost.append(base_id)
    return lost


def _head(fs: FileSystem, path: str, base_id: int) -> Head | None:
    return segment_heads.read_heads(fs, path, [base_id], {}).get(base_id)


def records_more(fs: FileSystem, file: str, to: str, theirs: Segment) -> int:
    """How many records the copy ``to`` of a segment has beside those of the source; 0 unless it has all of them.

    Args:
        theirs: what a scan of the source's ``file`` found.
    """
    more = _records(scan_segment(fs, to, theirs.base_id).segment) - _records(theirs)
    return more if more > 0 and _holds_all_of(fs, to, file, theirs) else 0


def join(fs: FileSystem, file: str, to: str, theirs: Segment, size: int, temporary: str) -> int:
    """Write the source's segment with the earlier copy's bytes where the source is damaged. A segment grows at its end alone,
    so an older and shorter copy has its records at the same positions.

    Args:
        theirs: what a scan of the source's ``file`` found.
        size: bytes of the source to take.
        temporary: the file to write, synced.

    Returns: how many records it has beside those of the source; with 0 the copy has none, or is of other records, and the file
        is of no use.

    Raises: OSError.
    """
    ours = scan_segment(fs, to, theirs.base_id).segment
    spans = [(damage.position, min(damage.resume, ours.end)) for damage in theirs.damages if damage.position < ours.end]
    if not spans or not _holds_all_of(fs, to, file, theirs, ours.end):
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
    more = _records(scan_segment(fs, temporary, theirs.base_id, next_id=theirs.next_id).segment) - _records(theirs)
    return max(more, 0)


def _records(segment: Segment) -> int:
    lost = sum(damage.last_id + 1 - damage.first_id for damage in segment.damages)
    return segment.next_id - segment.base_id - lost


def _holds_all_of(fs: FileSystem, to: str, file: str, segment: Segment, end: int | None = None) -> bool:
    """Whether the copy has the bytes of all valid records of a segment, those up to ``end``, at the same positions."""
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
