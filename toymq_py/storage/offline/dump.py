"""Reads the records of a topic straight from its segments, in order, damage included. Changes nothing."""

from collections.abc import Iterator
from dataclasses import replace

from toymq_py.storage.fs import FileSystem
from toymq_py.storage.id_ranges import record_range, subtract
from toymq_py.storage.offsets import load
from toymq_py.storage.record import Frame, decode_frame
from toymq_py.storage.segment import Segment
from toymq_py.storage.segment_heads import list_segment_files
from toymq_py.storage.segment_inventory import SegmentStatus, segment_inventory


def dump_topic(fs: FileSystem, path: str) -> Iterator[Frame | str]:
    """Yields: records in order, and a str where records are missing or damaged.

    Raises: OSError.
    """
    files = list_segment_files(fs, path)
    if files.evicted.problem is not None:
        yield files.evicted.problem
    for base_id, reason in files.foreign.items():
        yield f"{base_id:020d}.log {reason}"
    loaded = load(fs, path)
    files, state = replace(files, first_id_known=loaded.first_id_known), loaded.state
    removed = [*state.removed, *files.removed]
    for each in segment_inventory(fs, path, files, state.first_id, state.next_id, sidecars=False):
        segment = each.segment
        if each.missing is not None:
            lost = subtract([each.missing], removed)
            for first, last in sorted([*lost, *subtract([each.missing], lost)]):
                yield record_range(first, last, "are lost" if (first, last) in lost else "were removed by retention")
        if each.status is SegmentStatus.COPY:
            yield f"{segment.path} is {each.status.value}"
        elif segment.is_away:
            yield record_range(segment.base_id, segment.next_id - 1, "are in the bucket of --tier alone")
        elif each.status is SegmentStatus.UNREADABLE:
            yield f"{segment.path} {each.status.value}"
        else:
            yield from _dump(fs, segment)
            if each.scan is not None and each.scan.torn_bytes:
                yield f"byte {segment.end}: {each.scan.torn_bytes} bytes hold no valid record"


def _dump(fs: FileSystem, segment: Segment) -> Iterator[Frame | str]:
    gaps = {damage.position: damage for damage in segment.damages}
    file = fs.open(segment.path, write=False)
    try:
        pos = segment.start
        while pos < segment.end:
            if pos in gaps:
                gap = gaps.pop(pos)  # it may have no bytes
                yield f"byte {pos} to {gap.resume}: {gap.outcome}"
                pos = gap.resume
                continue
            size = 4 + int.from_bytes(file.pread(4, pos), "little")
            yield decode_frame(file.pread(size, pos))
            pos += size
    finally:
        file.close()
