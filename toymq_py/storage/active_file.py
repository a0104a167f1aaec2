"""Detects that the file of the active segment was truncated under the running broker.

Its size shows that only until the next commit, which writes at its own position and leaves zeros in between. But then the file
has a hole, and the broker never leaves one.
"""

from toymq_py.storage.fs import File, FileSystem
from toymq_py.storage.scanner import examine
from toymq_py.storage.segment import Segment


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
