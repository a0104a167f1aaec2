"""Parts of a segment object, 4 MiB each: a read in the middle fetches a part instead of the whole object. ADR 0182.

The seal beside the object tells where the parts begin, and the SHA-256 of each. ADR 0192.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence

from toymq_py.errors import DamagedData
from toymq_py.storage.fs import File, FileSystem, write_all
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import Segment
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.keys import Place, seal_key, segment_key
from toymq_py.tier.objects import Part, Seal, Span

PART_BYTES = 4 << 20
PARTED_MIN_BYTES = 3 * PART_BYTES
"""A smaller segment is fetched whole."""


def cut(segment: Segment, data: bytes) -> list[Part]:
    """Divide a sealed segment into parts; [] for a small one, or one that was sealed with damage.

    Args:
        segment: the segment as its sidecar describes it.
        data: the content of its file.
    """
    ids, positions = segment.index_ids, segment.index_positions
    if len(data) < PARTED_MIN_BYTES or segment.damages or not ids or (ids[0], positions[0]) != (segment.base_id, 0):
        return []
    rows = {position // PART_BYTES: row for row, position in reversed([*enumerate(positions)])}
    begins = [(ids[row], positions[row]) for row in sorted(rows.values())]
    view, ends = memoryview(data), [*(start for _, start in begins[1:]), len(data)]
    sums = (hashlib.sha256(view[start:end]).hexdigest() for (_, start), end in zip(begins, ends, strict=True))
    return [Part(msg_id, start, sha256) for (msg_id, start), sha256 in zip(begins, sums, strict=True)]


def load_parts(bucket: Bucket, place: Place, segment: Segment) -> list[Span]:
    """The parts of an evicted segment from its seal, if the seal's SHA-256 is the one that the disk recorded. [] for a small
    segment, for another seal, or for one from before 2026-11-29. Raises: BucketError."""
    try:
        seal = Seal.decode(bucket.get(seal_key(place, segment.base_id)) or b"", place, segment.base_id)
    except DamagedData:
        return []
    is_right = (seal.sha256, seal.next_id, seal.size) == (segment.sha256, segment.next_id, segment.end)
    return [*seal.spans()] if is_right else []


def part_of(parts: Sequence[Span], msg_id: int) -> Span:
    """The part that has a record. Assumes that the segment has it."""
    return parts[bisect_right(parts, msg_id, key=lambda part: part.first_id) - 1]


def fetch_part(fs: FileSystem, bucket: Bucket, place: Place, segment: Segment, part: Span, path: str) -> Segment | None:
    """Fetch a part into a file, which is a segment of its own.

    Returns: None when the part does not fit the seal; then fetch the whole object to find the damage. Raises: BucketError,
    OSError.
    """
    data = bucket.get_range(segment_key(place, segment.base_id), part.start, part.end - part.start)
    if data is None or hashlib.sha256(data).hexdigest() != part.sha256:
        return None
    write_cached(fs, path, data)
    found = scan_segment(fs, path, part.first_id, next_id=part.next_id).segment
    if found.damages or (found.start, found.end, found.next_id) != (0, len(data), part.next_id):
        fs.unlink(path)
        return None
    found.sealed, found.sha256, found.cached_path = True, segment.sha256, path
    return found


def write_cached(fs: FileSystem, path: str, data: bytes) -> None:
    """Write a cache file, without a sync, as it need not outlive the process. Raises: OSError."""
    file: File = fs.open(path, create=True, exclusive=True)
    try:
        write_all(file, data, 0)
    finally:
        file.close()
