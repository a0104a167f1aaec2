"""Read a topic's records straight from its segments, in order, damage included. Changes nothing."""

from collections.abc import Iterator

from toymq_py.storage.fs import FileSystem
from toymq_py.storage.identity import survey
from toymq_py.storage.offsets import load, lost_of
from toymq_py.storage.record import Frame, decode_frame
from toymq_py.storage.segment import scan_segment


def dump_topic(fs: FileSystem, path: str) -> Iterator[Frame | str]:
    """Records in order; a str tells what is missing or damaged, where it stands.

    Raises: OSError.
    """
    files = survey(fs, path)
    for base_id, reason in files.foreign.items():
        yield f"{base_id:020d}.log {reason}"
    removed = load(fs, path).state.removed
    expected: int | None = None
    for base_id in files.bases:
        if expected is not None and base_id > expected:
            lost = lost_of((expected, base_id - 1), removed)
            for first, last in sorted([*lost, *lost_of((expected, base_id - 1), lost)]):
                yield f"records {first} to {last} {'are lost' if (first, last) in lost else 'were removed by retention'}"
        name = f"{path}/{base_id:020d}.log"
        result = scan_segment(fs, name, base_id)
        expected = result.segment.next_id
        gaps = {damage.position: damage for damage in result.segment.damages}
        file = fs.open(name, write=False)
        try:
            pos = 0
            while pos < result.segment.end:
                if pos in gaps:
                    gap = gaps[pos]
                    yield f"byte {pos} to {gap.resume}: records {gap.first_id} to {gap.last_id} are lost"
                    pos = gap.resume
                    continue
                size = 4 + int.from_bytes(file.pread(4, pos), "little")
                yield decode_frame(file.pread(size, pos))
                pos += size
        finally:
            file.close()
        if result.torn_bytes:
            yield f"byte {result.segment.end}: {result.torn_bytes} bytes hold no valid record"
