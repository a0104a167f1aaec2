"""One file of a topic's log: what is in it, how it is scanned, its sidecar.

Contract: storage.md, "Segments" and "Recovery". Knows nothing of other segments, of commits or of threads.

A ``Segment`` object belongs to the event loop. While a commit runs, the sync thread writes behind ``end`` of the active
segment's file and touches nothing of the object.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import File, FileSystem, replace_file
from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    Columns,
    Stop,
    claimed_extent,
    parse_attributes,
    scan,
)
from toymq_py.storage.salvage import Chain, find_chains, proven_end, trusted_end

WINDOW_BYTES = 1 << 20
"""Scans read in windows of this size: 8 MiB falls out of the cache (performance.md)."""
INDEX_INTERVAL_BYTES = 64 * 1024
"""Distance of the sparse index's entries, about: what a read at a random id scans beyond what it wants."""
PRODUCERS_MAX = 8_192
"""Of so many producers a topic knows the sequence, those that published last: the sidecar is encoded on the event loop, and so
many take 10 ms."""

CLOCK_AHEAD_MAX_NS = 24 * 3600 * 1_000_000_000
"""A record that is later than the clock by more was made by a clock that was wrong: beyond time zones and what NTP leaves."""

Producers = dict[bytes, tuple[int, int]]
"""Producer to its highest sequence and that record's id."""


def segment_name(base_id: int) -> str:
    """File name of the segment whose first id is ``base_id``."""
    return f"{base_id:020d}.log"


def parse_segment_name(name: str) -> int | None:
    """The first id, or None when the name is not a segment's."""
    stem = name[:-4]
    return int(stem) if name.endswith(".log") and len(stem) == 20 and stem.isdigit() and stem.isascii() else None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no valid record although some were there.

    ``first_id`` to ``last_id`` are lost; scanning goes on at ``resume``, where id ``last_id + 1`` begins.
    """

    position: int
    resume: int
    first_id: int
    last_id: int


@dataclass(slots=True)
class Segment:
    """What is known of one segment file. Positions and sizes in bytes, ``end`` is where the next frame goes."""

    path: str
    base_id: int
    next_id: int = -1
    end: int = 0
    keyed: int = 0
    """Records with a plain key: one that names a producer is not counted."""
    newest_ts_ns: int = 0
    dated_ns: int | None = None
    """When the newest record was appended at the latest, where its own time is not to be believed (ADR 0050)."""
    newest_deliver_at_ns: int = 0
    expiring: int = 0
    """Records that expire."""
    newest_expires_at_ns: int = 0
    """When the last of those does."""
    uncounted: bool = False
    """Damage was found after the records were counted: how many of those that are left expire, nobody knows until a scan."""
    producers: Producers = field(default_factory=dict)
    """Filled by a scan, from a sidecar, and for one: the topic knows its producers, a segment does not keep them."""
    damages: list[Damage] = field(default_factory=list)
    """While there are some, the file is never cut: what stands behind the last record is part of what they were judged by, and
    the next start must come to the same end."""
    index_ids: "array[int]" = field(default_factory=partial(array, "Q"))
    """The sparse index, by columns: 32 bytes an entry, where lists of ints take 160 and scatter them over the heap."""
    index_positions: "array[int]" = field(default_factory=partial(array, "Q"))
    index_keyed: "array[int]" = field(default_factory=partial(array, "Q"))
    """Keyed records before the entry."""
    index_ts_ns: "array[int]" = field(default_factory=partial(array, "Q"))
    sealed: bool = False
    file: File | None = None

    def __post_init__(self) -> None:
        if self.next_id < 0:
            self.next_id = self.base_id

    @property
    def sidecar_path(self) -> str:
        return self.path[:-4] + ".idx"

    @property
    def age_ts_ns(self) -> int:
        """What its age counts from."""
        return self.newest_ts_ns if self.dated_ns is None else self.dated_ns

    @property
    def lost(self) -> int:
        """Ids of this segment that no record stands for."""
        return sum(damage.last_id - damage.first_id + 1 for damage in self.damages)

    @property
    def expires_at_ns(self) -> int | None:
        """When the last of all its records expires; None when some never does, an older sidecar does not say, or the count is
        not of the records that are left."""
        all_do = not self.uncounted and 0 < self.expiring == self.next_id - self.base_id - self.lost
        return self.newest_expires_at_ns if all_do else None

    def add_damage(self, damage: Damage) -> None:
        """A read found what was whole when the records were counted."""
        self.damages.append(damage)
        self.damages.sort(key=lambda each: each.position)
        self.uncounted = True

    def add_index_entry(self, msg_id: int, position: int, keyed: int, ts_ns: int) -> None:
        """Enter a frame's place when the last entry is far enough away."""
        if not self.index_positions or position - self.index_positions[-1] >= INDEX_INTERVAL_BYTES:
            self.index_ids.append(msg_id)
            self.index_positions.append(position)
            self.index_keyed.append(keyed)
            self.index_ts_ns.append(ts_ns)

    def seek_id(self, msg_id: int) -> tuple[int, int]:
        """(id, position) of the nearest known frame at or before ``msg_id``."""
        at = bisect_right(self.index_ids, msg_id) - 1
        best = (self.base_id, 0) if at < 0 else (self.index_ids[at], self.index_positions[at])
        for damage in self.damages:
            if best[0] < damage.last_id + 1 <= msg_id:
                best = (damage.last_id + 1, damage.resume)
        return best

    def position_of(self, msg_id: int) -> int:
        """Where a record begins: exact at an entry of the sparse index, between two of them as if all records there were
        equally long. ``end`` for what lies behind the last."""
        if msg_id >= self.next_id:
            return self.end
        ids, positions = self.index_ids, self.index_positions
        at = bisect_right(ids, msg_id)
        low_id, low = (ids[at - 1], positions[at - 1]) if at else (self.base_id, 0)
        high_id, high = (ids[at], positions[at]) if at < len(ids) else (self.next_id, self.end)
        return low + (high - low) * (msg_id - low_id) // (high_id - low_id)

    def seek_time(self, ts_ns: int) -> tuple[int, int]:
        """(id, position) of the nearest known frame before the first one at or after ``ts_ns``."""
        at = max(bisect_right(self.index_ts_ns, ts_ns - 1) - 1, 0)
        return (self.index_ids[at], self.index_positions[at]) if self.index_ids else (self.base_id, 0)

    def open(self, fs: FileSystem, *, write: bool = False) -> File:
        """The file, opened once. A sealed segment is opened for reading only."""
        if self.file is None:
            self.file = fs.open(self.path, write=write or not self.sealed)
        return self.file

    def close(self) -> None:
        """Idempotent."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def sidecar(self) -> bytes:
        """The sidecar's content for the segment as it is."""
        expires = {} if self.expires_at_ns is None else {"expires": [self.expiring, self.newest_expires_at_ns]}
        return checked_json.encode(
            "segment",
            {
                "size": self.end,
                "first_id": self.base_id,
                "next_id": self.next_id,
                "keyed": self.keyed,
                "newest_ts_ns": self.newest_ts_ns,
                "newest_deliver_at_ns": self.newest_deliver_at_ns,
                "producers": {name.decode("latin-1"): seq for name, seq in self.producers.items()},
                "gaps": [[d.position, d.resume, d.first_id, d.last_id] for d in self.damages],
                "index": [
                    column.tolist() for column in (self.index_ids, self.index_positions, self.index_keyed, self.index_ts_ns)
                ],
            } | expires,
        )

    def write_sidecar(self, fs: FileSystem) -> None:
        """Raises: OSError. Nothing depends on it: the next start scans instead."""
        replace_file(fs, self.sidecar_path, self.sidecar())


def newest_times(segments: Sequence[Segment]) -> list[int]:
    """Time of the newest record of each, at most that of the first record behind it: inside a segment times never fall, and
    where they do from one to the next, a clock that was ahead had been set right (ADR 0050)."""
    times = []
    limit: int | None = None
    for segment in reversed(segments):
        newest = segment.newest_ts_ns
        times.append(newest if limit is None else min(newest, limit))
        if segment.index_ts_ns:
            first = segment.index_ts_ns[0]
            limit = first if limit is None else min(first, limit)
    return times[::-1]


def load_sidecar(fs: FileSystem, path: str, base_id: int, next_base_id: int) -> Segment | None:
    """A sealed segment as its sidecar tells it.

    Returns: None when there is none, or it does not fit the file: its checksum, the file's size or the ids disagree.
    """
    segment = Segment(path, base_id, sealed=True)
    try:
        found = checked_json.decode("segment", fs.read_file(segment.sidecar_path))
        size = fs.file_size(path)
        if found["size"] != size or found["first_id"] != base_id or not base_id <= found["next_id"] <= next_base_id:
            return None
        _fill(segment, found)
    except (OSError, DamagedData, AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None
    return segment if _makes_sense(segment) else None


def _fill(segment: Segment, found: dict[str, Any]) -> None:
    segment.end, segment.next_id, segment.keyed, segment.newest_ts_ns, segment.newest_deliver_at_ns = checked_json.numbers(
        [found[name] for name in ("size", "next_id", "keyed", "newest_ts_ns", "newest_deliver_at_ns")]
    )
    segment.expiring, segment.newest_expires_at_ns = checked_json.numbers(found.get("expires", [0, 0]))
    for name, pair in found["producers"].items():
        seq, msg_id = checked_json.numbers(pair)
        segment.producers[name.encode("latin-1")] = seq, msg_id
        if not segment.base_id <= msg_id < segment.next_id:
            raise DamagedData(f"producer {name} in another segment")
    segment.damages = [Damage(*checked_json.numbers(gap)) for gap in found["gaps"]]
    segment.index_ids, segment.index_positions, segment.index_keyed, segment.index_ts_ns = (
        array("Q", checked_json.numbers(column)) for column in found["index"]
    )


def _makes_sense(segment: Segment) -> bool:
    """Whether what a sidecar says fits together: readers follow its positions without looking, and a hole that ends before it
    begins would be walked for ever. A checksum says only that somebody meant it."""
    at, next_id = 0, segment.base_id
    for damage in segment.damages:
        if not (at <= damage.position < damage.resume <= segment.end and next_id <= damage.first_id <= damage.last_id):
            return False
        at, next_id = damage.resume, damage.last_id + 1
    columns = (segment.index_ids, segment.index_positions, segment.index_keyed, segment.index_ts_ns)
    return (
        next_id <= segment.next_id
        and len(set(map(len, columns))) == 1
        and _ascend(segment.index_ids, segment.base_id, segment.next_id)
        and _ascend(segment.index_positions, 0, segment.end)
        and all(keyed <= segment.keyed for keyed in segment.index_keyed)
    )


def _ascend(values: "array[int]", low: int, below: int) -> bool:
    edges = [low - 1, *values, below]
    return all(a < b for a, b in pairwise(edges)) if values else True


@dataclass(slots=True)
class ScanResult:
    """What ``scan_segment`` found beside the segment itself."""

    segment: Segment
    torn_bytes: int = 0
    """Bytes behind ``segment.end`` that belong to no valid record and are not zero space."""
    size: int = 0
    """Size of the file, with preallocated space."""


def scan_segment(
    fs: FileSystem,
    path: str,
    base_id: int,
    *,
    visit: Callable[[int, int, Columns], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ScanResult:
    """Check every byte of a segment (steps 4 to 6 of the recovery).

    Args:
        visit: called per window with the position of the window, the id of its first record and its columns.
        progress: called with the number of bytes that were checked since the last call.

    Raises: OSError when the file cannot be read.
    """
    segment = Segment(path, base_id)
    file = fs.open(path, write=False)
    try:
        result = ScanResult(segment, size=file.size())
        _scan(file, result, visit, progress or (lambda _bytes: None))
    finally:
        file.close()
    return result


def _scan(
    file: File,
    result: ScanResult,
    visit: Callable[[int, int, Columns], None] | None,
    progress: Callable[[int], None],
) -> None:
    _walk(file, result, visit, progress)
    # Breaks with no valid record behind them are no holes: the tail was torn there.
    segment = result.segment
    while segment.damages and segment.damages[-1].resume >= segment.end:
        damage = segment.damages.pop()
        segment.end, segment.next_id = damage.position, damage.first_id
        tail = file.pread(result.size - segment.end, segment.end)
        result.torn_bytes = len(tail.rstrip(b"\0"))


def _walk(
    file: File,
    result: ScanResult,
    visit: Callable[[int, int, Columns], None] | None,
    progress: Callable[[int], None],
) -> None:
    segment, size = result.segment, result.size
    pos, msg_id = 0, segment.base_id
    window = WINDOW_BYTES
    chains: list[Chain] = []
    while pos < size:
        data = file.pread(min(window, size - pos), pos)
        columns = Columns()
        first_id = msg_id
        used, msg_id, stop = scan(data, 0, msg_id, columns)
        _account(segment, columns, pos, first_id)
        if visit is not None:
            visit(pos, first_id, columns)
        progress(used)
        pos += used
        segment.end, segment.next_id = pos, msg_id
        at_end = pos - used + len(data) >= size or not data
        if stop is Stop.END and not at_end:
            continue
        if stop is Stop.PARTIAL and not at_end:
            window = WINDOW_BYTES if used else window * 2
            continue
        window = WINDOW_BYTES
        if stop is Stop.END or (stop is Stop.ZERO and _all_zero(file, pos, size)):
            progress(size - pos)
            return
        resume = _resume(file, pos, size, msg_id, chains)
        if resume is None:
            tail = file.pread(size - pos, pos)
            result.torn_bytes = len(tail.rstrip(b"\0"))
            progress(size - pos)
            return
        segment.damages.append(Damage(pos, resume[0], msg_id, resume[1] - 1))
        progress(resume[0] - pos)
        pos, msg_id = resume


def _account(segment: Segment, columns: Columns, base: int, first_id: int) -> None:
    """Bring the segment's totals and its sparse index up to date with a window's records."""
    if not columns.positions:
        return
    keys, times = columns.plain_keys(), columns.ts_ns
    index_at = segment.index_positions[-1] + INDEX_INTERVAL_BYTES if segment.index_positions else 0
    keyed = segment.keyed
    counted = 0
    while (row := bisect_left(columns.positions, index_at - base, counted)) < len(columns.positions):
        keyed += row - counted - keys[counted:row].count(b"")
        counted = row
        position = base + columns.positions[row]
        segment.add_index_entry(first_id + row, position, keyed, times[row])
        index_at = position + INDEX_INTERVAL_BYTES
    segment.keyed = keyed + len(keys) - counted - keys[counted:].count(b"")
    segment.newest_ts_ns = max(segment.newest_ts_ns, times[-1])
    for block in columns.attributes.values():
        times_of = parse_attributes(block) or {}
        deliver_at_ns, expires_at_ns = (
            int.from_bytes(times_of.get(tag, b""), "little") for tag in (ATTRIBUTE_DELIVER_AT, ATTRIBUTE_EXPIRES_AT)
        )
        segment.newest_deliver_at_ns = max(segment.newest_deliver_at_ns, deliver_at_ns)
        segment.newest_expires_at_ns = max(segment.newest_expires_at_ns, expires_at_ns)
        segment.expiring += expires_at_ns > 0
    if columns.sequences and not segment.damages:
        # Behind a hole a sequence says nothing of the lower ones: those may have been lost with it, unacknowledged. A retry of
        # them has to be stored, and so does one of this record, since the order of a producer is kept (ADR 0013).
        join_producers(
            segment.producers,
            {columns.keys[row]: (sequence, first_id + row) for row, sequence in columns.sequences.items()},
        )


def join_producers(into: Producers, newer: Mapping[bytes, tuple[int, int]]) -> None:
    """Enter what was found further on in the log; of too many, those go that published longest ago."""
    for name, entry in newer.items():
        known = into.get(name)
        if known is None or entry > known:
            into[name] = entry
    if len(into) > 2 * PRODUCERS_MAX:
        oldest = sorted(into, key=lambda name: into[name][1])[:-PRODUCERS_MAX]
        for name in oldest:
            del into[name]


def _all_zero(file: File, pos: int, size: int) -> bool:
    while pos < size:
        data = file.pread(min(WINDOW_BYTES, size - pos), pos)
        if not data:
            return True
        if data.count(0) != len(data):
            return False
        pos += len(data)
    return True


def _resume(file: File, pos: int, size: int, msg_id: int, chains: list[Chain]) -> tuple[int, int] | None:
    """Where scanning goes on behind a break, and with which id; None for a torn tail.

    ``chains`` holds what one search found, so that a segment with many breaks is searched once.
    """
    while chains and chains[0].start < pos:
        del chains[0]
    if chains:
        return chains[0].start, chains[0].first_id
    near = file.pread(min(WINDOW_BYTES, size - pos), pos)
    end = proven_end(near, 0, msg_id)
    if end is None and (claim := claimed_extent(near, 0)) is not None and claim[1] < len(near):
        end = claim[1]  # so that a thousand damaged neighbours do not cost a thousand readings of the rest
    if end is not None and not _all_zero(file, pos + end, size):
        return pos + end, msg_id + 1
    data = file.pread(size - pos, pos)
    end = trusted_end(data, 0, msg_id)
    if end is not None:
        return None if end > len(data) or not data[end:].strip(b"\0") else (pos + end, msg_id + 1)
    found = find_chains(data, 0, msg_id - 1)
    if not found:
        return None
    chains.extend(Chain(pos + c.start, pos + c.end, c.first_id, c.last_id) for c in found)
    return chains[0].start, chains[0].first_id
