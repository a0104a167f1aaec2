"""Parts of a segment object, of 4 MiB: what a read in the middle fetches in place of all of it. ADR 0182.

The index beside the object says where records begin. A part goes from one entry to another, and is what it should be when its
records are valid, have the ids between both, and end where the other entry stands.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from toymq_py.storage.fs import File, FileSystem, write_all
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Segment, parse_sidecar
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.keys import Place, index_key, segment_key

PART_BYTES = 4 << 20
PARTED_MIN_BYTES = 3 * PART_BYTES
"""A smaller segment is fetched whole."""


class Part(NamedTuple):
    first_id: int
    next_id: int
    start: int
    end: int


class PartIndex:
    """Where the parts of a segment begin."""

    __slots__ = ("_end", "_ids", "_next_id", "_positions")

    def __init__(self, ids: "array[int]", positions: "array[int]", next_id: int, end: int) -> None:
        self._ids = ids
        self._positions = positions
        self._next_id = next_id
        self._end = end

    def part_of(self, msg_id: int) -> Part:
        """The part that has a record. Assumes that the segment has it."""
        number = self._positions[bisect_right(self._ids, msg_id) - 1] // PART_BYTES
        first = bisect_left(self._positions, number * PART_BYTES)
        last = bisect_left(self._positions, (number + 1) * PART_BYTES)
        is_last = last == len(self._ids)
        next_id, end = (self._next_id, self._end) if is_last else (self._ids[last], self._positions[last])
        return Part(self._ids[first], next_id, self._positions[first], end)


def load_index(bucket: Bucket, place: Place, segment: Segment) -> PartIndex | None:
    """The index of a segment; None when the bucket has none that fits it. Raises: BucketError."""
    data = bucket.get(index_key(place, segment.base_id))
    found = None if data is None else parse_sidecar(data, segment.path, segment.base_id, segment.next_id, segment.end)
    if found is None or found.damages or found.next_id != segment.next_id or not found.index_ids:
        return None
    if (found.index_ids[0], found.index_positions[0]) != (segment.base_id, 0):
        return None
    return PartIndex(found.index_ids, found.index_positions, segment.next_id, segment.end)


def fetch_part(fs: FileSystem, bucket: Bucket, place: Place, segment: Segment, part: Part, path: str) -> Segment | None:
    """Fetch a part into a file, which is a segment of its own.

    Returns: None when the object, or the part, is not what the index says: then the whole object says why. Raises: BucketError,
    OSError.
    """
    data = bucket.get_range(segment_key(place, segment.base_id), part.start, part.end - part.start)
    if data is None or len(data) != part.end - part.start:
        return None
    write_cached(fs, path, data)
    found = scan_segment(fs, path, part.first_id, next_id=part.next_id).segment
    if found.damages or (found.start, found.end, found.next_id) != (0, len(data), part.next_id):
        fs.unlink(path)
        return None
    found.sealed, found.sha256, found.cached_path = True, segment.sha256, path
    return found


def write_cached(fs: FileSystem, path: str, data: bytes) -> None:
    """Make a file, which need not outlive the process. Raises: OSError."""
    file: File = fs.open(path, create=True, exclusive=True)
    try:
        write_all(file, data, 0)
    finally:
        file.close()
