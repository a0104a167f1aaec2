"""The segments of a topic's directory in the order of their names, each with its status. Changes nothing.

Contract: storage.md, "Recovery", steps 2 to 6, and "One judge of damage"; ADR 0046 and ADR 0047. Start, verify, repair, dump
and the reader of directories go through the same parts, so that they see the same log:

  - a segment wholly below the first retained id is obsolete;
  - a segment whose ids earlier segments hold, too, is a copy and does not count; if it reaches further, only the ids beyond
    them count;
  - a segment that cannot be opened does no other harm: its ids, up to the next segment's, are unreadable, and not lost;
  - ids between the end of a segment and the name of the next one are missing: removed, if the offsets say so, otherwise lost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from toymq_py.disk_errors import LASTING
from toymq_py.records import IdRange
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.scanner import Progress, ScanResult, Visit, examine, scan_segment, trim
from toymq_py.storage.segment import Damage, Segment, load_sidecar, parse_segment_name, segment_name
from toymq_py.storage.segment_heads import KnownHeads, SegmentFiles, judge


class SegmentStatus(Enum):
    """What a segment file is to the log."""

    PART = "a part of the log"
    BELOW = "below the first retained id: retention had decided to remove it"
    COPY = "a copy of what segments before it hold"
    UNREADABLE = "cannot be opened"


@dataclass(slots=True)
class InventoryEntry:
    """One segment file, with its ``SegmentStatus``: a part of the log, below the first retained id, a copy of what earlier
    files hold, or unreadable."""

    segment: Segment
    status: SegmentStatus
    following: int | None
    """The first id in the name of the next file; None for the newest."""
    scan: ScanResult | None = None
    """The result of the scan; None when the sidecar was trusted, the file cannot be opened, or the segment was evicted."""
    missing: IdRange | None = None
    """The ids before it that have no file."""
    error: OSError | None = None

    @property
    def twice_text(self) -> str:
        """A sentence for a report about a segment whose first records earlier segments hold, too."""
        first_id = self.segment.base_id
        return f"begins with records that segments before it hold, too: what is before {first_id} is not used"


def segment_inventory(
    fs: FileSystem,
    path: str,
    files: SegmentFiles,
    first_id: int,
    next_id: int,
    *,
    sidecars: bool,
    visit: Visit | None = None,
    progress: Progress | None = None,
) -> Iterator[InventoryEntry]:
    """Go through the segment files in the order of their names.

    Args:
        files: those of this log; files of other logs count as nothing, and the segments in their place are missing.
        first_id: from the offsets.
        next_id: from the offsets: the log has reached this id.
        sidecars: whether to trust fitting sidecars; otherwise every byte is checked.
        visit: sees the records of the newest file.

    Raises: OSError for a temporary shortage (no descriptor left).
    """
    have: int | None = None
    begin, bases = files.begin(first_id), files.bases
    for at, base_id in enumerate(bases):
        following = bases[at + 1] if at + 1 < len(bases) else None
        reached = next((name for name in files.foreign if following is not None and base_id < name < following), next_id)
        if (away := files.evicted.segments.get(base_id)) is not None:
            found = InventoryEntry(away, SegmentStatus.PART, following)
        else:
            found = _look(
                fs, f"{path}/{segment_name(base_id)}", base_id, following, reached, sidecars, visit, progress,
                files.foreign_heads.get(base_id, 0),
            )  # fmt: skip
        segment = found.segment
        if following is not None and following <= first_id and segment.next_id <= first_id:
            found.status = SegmentStatus.BELOW
        elif have is not None and base_id < have:
            if segment.next_id <= have:
                found.status = SegmentStatus.COPY
            else:
                trim(fs, segment, have)
        elif base_id > (begin if have is None else have):
            found.missing = begin if have is None else have, base_id - 1
        if found.status in (SegmentStatus.PART, SegmentStatus.UNREADABLE):
            have = segment.next_id
        yield found


def judge_anew(
    fs: FileSystem, path: str, segment: Segment, known: KnownHeads, next_id: int, *, end: int | None = None
) -> ScanResult | str:
    """Check every byte of a segment in use, as the next start would.

    Args:
        path: of the topic's directory.
        known: the heads that the broker knows.
        next_id, end: see ``examine``.

    Returns: the scan, or why the file is another log's. Raises: OSError when the file cannot be opened.
    """
    base_id = parse_segment_name(segment.path.rpartition("/")[2])
    reason, hit = (None, 0) if base_id is None else judge(fs, path, base_id, known)
    return reason if reason is not None else examine(fs, segment, next_id, end=end, foreign_head_bytes=hit)


def _look(
    fs: FileSystem,
    name: str,
    base_id: int,
    following: int | None,
    committed_id: int,
    sidecars: bool,
    visit: Visit | None,
    progress: Progress | None,
    foreign_head_bytes: int,
) -> InventoryEntry:
    if sidecars and following is not None and not foreign_head_bytes:
        segment = load_sidecar(fs, name, base_id, following)
        if segment is not None and not segment.damages:  # those may be of another copy's bytes, whose sidecar came here
            return _openable(fs, segment, following)
    try:
        result = scan_segment(
            fs, name, base_id, next_id=following, committed_id=committed_id,
            visit=visit if following is None else None, progress=progress, foreign_head_bytes=foreign_head_bytes,
        )  # fmt: skip
    except OSError as error:
        if error.errno not in LASTING:
            raise
        segment = _unreadable(fs, name, base_id, following)
        return InventoryEntry(segment, SegmentStatus.UNREADABLE, following, error=error)
    result.segment.sealed = following is not None
    return InventoryEntry(result.segment, SegmentStatus.PART, following, result)


def _openable(fs: FileSystem, segment: Segment, following: int) -> InventoryEntry:
    try:
        fs.open(segment.path, write=False).close()
    except OSError as error:
        if error.errno not in LASTING:
            raise
        segment.damages = [Damage(0, segment.end, segment.base_id, segment.next_id - 1, unreadable=True)]
        return InventoryEntry(segment, SegmentStatus.UNREADABLE, following, error=error)
    return InventoryEntry(segment, SegmentStatus.PART, following)


def _unreadable(fs: FileSystem, name: str, base_id: int, following: int | None) -> Segment:
    try:
        end = max(fs.file_size(name), 1)
    except OSError:
        end = 1
    segment = Segment(name, base_id, next_id=base_id, end=end, sealed=True)
    if following is not None:
        segment.damages = [Damage(0, end, base_id, following - 1, unreadable=True)]
        segment.next_id = following
    return segment
