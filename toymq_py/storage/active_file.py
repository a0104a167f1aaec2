"""Detects that the file of the active segment was replaced, overwritten or truncated under the running broker.

From the start, or from the broker's last look at it, the file has a known stamp until a commit writes it. Behind commits its
size shows a cut only until the next one, which writes at its own position and leaves zeros in between. But then the file has a
hole, and the broker never leaves one.
"""

from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import File, FileSystem, Stamp
from toymq_py.storage.scanner import examine
from toymq_py.storage.segment import Segment
from toymq_py.storage.segment_heads import KnownHeads
from toymq_py.storage.segment_inventory import judge_anew


def find_cut(fs: FileSystem, file: File, segment: Segment, next_id: int, end: int) -> str | None:
    """Why the file does not have what was committed to it: the records below ``next_id``, up to position ``end``; None when it
    has. Assumes a segment without damage. The scanner judges a hole: a copy tool may have turned zeros of a payload into one.
    Blocks.

    Raises: OSError.
    """
    reason = f"{segment.path} was cut below the running broker"
    if file.size() < end:
        return reason
    if segment.is_sparse or (hole := file.hole(end)) is None:
        return None
    if not examine(fs, segment, next_id, end=end).segment.damages:
        segment.is_sparse = True
        return None
    return f"{reason}, or zeroed: its bytes from {hole} on are gone, and were acknowledged"


def was_overwritten(fs: FileSystem, segment: Segment, next_id: int, end: int) -> str | None:
    """As ``find_cut``, for committed bytes that differ from what they were at the last look. Raises: OSError."""
    if not examine(fs, segment, next_id, end=end).segment.damages:
        return None
    return f"{segment.path} was cut or overwritten below the running broker"


def find_change(
    fs: FileSystem, file: File, segment: Segment, known: KnownHeads, stamp: Stamp | None, next_id: int, end: int
) -> str | None:
    """Why the open file is not the one that has the segment's name, or does not have what was committed; None when it is and
    has. A file with the known stamp was not changed; without one, only its name is compared. Blocks. Raises: OSError."""
    reason = not_there(fs, segment.path, file.inode())
    if reason is not None or segment.damages or stamp is None or file.stamp() == stamp:
        return reason
    judged = judge_anew(fs, segment.path.rpartition("/")[0], segment, known, next_id, end=end)
    if isinstance(judged, str):
        return f"{segment.path} was overwritten below the running broker: it {judged}"
    return f"{segment.path} was cut or overwritten below the running broker" if judged.segment.damages else None
