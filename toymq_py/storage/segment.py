"""One segment file of a log and its sidecar. Which records are in it is decided in ``scanner``.

Contract: storage.md, "Segments" and "Recovery". Knows nothing of other segments, of commits or of threads.

A ``Segment`` object belongs to the event loop. While a commit runs, the sync thread writes behind ``end`` of the active
segment's file and touches nothing of the object.
"""

import errno
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import checked_json
from toymq_py.storage.fs import File, FileSystem, Stamp, replace_file
from toymq_py.storage.id_ranges import record_range

logger = logging.getLogger("toymq_py.storage")

NO_STAMP: Stamp = (0, 0, 0, 0)
"""The stamp of no file."""
INDEX_INTERVAL_BYTES = 64 * 1024
"""The distance of the sparse index's entries, about: a read at a random id scans so much beyond the wanted record."""
PRODUCERS_MAX = 8_192
"""Most producers of which a topic knows the sequence, those that published last: the sidecar is encoded on the event loop, and
so many take 10 ms."""

BASE_ID_MAX = 2**63 - 1
"""The highest first id of a segment. No log comes so far: a file with a higher number in its name is not a segment, and is left
alone like any unknown file."""
REMOVED_CHARS = 20 + 1 + 20 + len(".removed")
CLOCK_AHEAD_MAX_NS = 24 * 3600 * 1_000_000_000
"""A record that is later than the clock by more than this was made by a clock that was wrong: beyond time zones and what NTP
leaves."""

Producers = dict[bytes, tuple[int, int]]
"""Producers, each with its highest sequence and that record's id."""


def segment_name(base_id: int) -> str:
    """File name of the segment whose first id is ``base_id``."""
    return f"{base_id:020d}.log"


def parse_segment_name(name: str) -> int | None:
    """The first id, or None when the name is not a segment's."""
    stem = name[:-4]
    if not (name.endswith(".log") and len(stem) == 20 and stem.isdigit() and stem.isascii()):
        return None
    return base_id if (base_id := int(stem)) <= BASE_ID_MAX else None


def bases_of(names: Iterable[str]) -> list[int]:
    """First ids in the names of segment files, ascending."""
    return sorted(base_id for name in names if (base_id := parse_segment_name(name)) is not None)


def removed_name(ids: IdRange) -> str:
    """File name of the mark that retention leaves for a removed segment with these ids, when it cannot write the offsets (ADR
    0065)."""
    return f"{ids[0]:020d}-{ids[1]:020d}.removed"


def parse_removed_name(name: str) -> IdRange | None:
    """The ids, or None when the name is not a mark's."""
    first, _, last = name.removesuffix(".removed").partition("-")
    numbers = first.isascii() and last.isascii() and first.isdigit() and last.isdigit()
    if not numbers or len(name) > REMOVED_CHARS or int(last) > BASE_ID_MAX:
        return None
    return (int(first), int(last)) if name == removed_name((int(first), int(last))) else None


UNLESS_UNACKNOWLEDGED = ", unless they were never acknowledged: a power cut can tear the middle out of a batch"
"""The end of the text about damage at the end of a log behind all that was recorded as stored (ADR 0204)."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no valid record although some were there.

    ``first_id`` to ``last_id`` are lost; scanning goes on at ``resume``, where id ``last_id + 1`` begins.
    """

    position: int
    resume: int
    first_id: int
    last_id: int
    unreadable: bool = False
    """Whether the disk refuses to give bytes of the range (EIO): they may be right, and a later start may find them."""

    @property
    def ids(self) -> IdRange:
        return self.first_id, self.last_id

    @property
    def is_surplus(self) -> bool:
        """Whether no id is missing between the records around these bytes: a record exists twice, or bytes were inserted."""
        return self.last_id < self.first_id

    def is_open(self, known_id: int | None) -> bool:
        """Whether the lost records may never have been acknowledged: their ids are not below ``known_id``, below which all
        records were stored. None: all were stored."""
        return known_id is not None and not self.unreadable and known_id <= self.first_id <= self.last_id

    @property
    def outcome(self) -> str:
        """The fate of the records, in words."""
        if self.is_surplus:
            return f"these bytes {'cannot be read' if self.unreadable else 'are no part of the log'}, and no record is lost"
        return record_range(self.first_id, self.last_id, "cannot be read" if self.unreadable else "are lost")


@dataclass(slots=True)
class Segment:
    """State of one segment file. Positions and sizes in bytes; the next frame goes to ``end``."""

    path: str
    base_id: int
    next_id: int = -1
    start: int = 0
    """The position where ``base_id`` begins: records before it stand in another segment, too."""
    end: int = 0
    keyed: int = 0
    """The number of records with a plain key: one that names a producer is not counted."""
    newest_ts_ns: int = 0
    dated_ns: int | None = None
    """The latest time at which the newest record can have been appended, where its own time is not to be believed (ADR
    0050)."""
    newest_deliver_at_ns: int = 0
    expiring: int = 0
    """The number of records that expire."""
    newest_expires_at_ns: int = 0
    """When the last of the records that expire does."""
    producers: Producers = field(default_factory=dict)
    """Set by a scan, from a sidecar, and to write one. At other times only the topic keeps its producers."""
    foreign_head_bytes: int = 0
    """The number of bytes at its beginning that are another place's, which was written over (ADR 0084)."""
    damages: list[Damage] = field(default_factory=list)
    """Damaged ranges. While there are some, the file is never cut: the bytes behind the last record are part of what they were
    judged by, and the next start must come to the same end."""
    index_ids: "array[int]" = field(default_factory=partial(array, "Q"))
    """The sparse index, by columns: 32 bytes an entry, where lists of ints take 160 and scatter them over the heap."""
    index_positions: "array[int]" = field(default_factory=partial(array, "Q"))
    index_keyed: "array[int]" = field(default_factory=partial(array, "Q"))
    """The numbers of keyed records before each entry."""
    index_ts_ns: "array[int]" = field(default_factory=partial(array, "Q"))
    sealed: bool = False
    file: File | None = None
    busy: bool = False
    """Whether a sync thread writes the file, or has to sync it: it stays open."""
    inode: tuple[int, int] | None = None
    """The device and number of the file that recovery read or that was opened: it is opened again only while it is that one."""
    stamp: Stamp | None = None
    """The stamp of the file when the broker looked at it last; None where the broker may have written it since. With another
    stamp it was changed below the broker, and is judged anew (ADR 0140)."""
    is_sparse: bool = False
    """Whether its file has holes that are payloads: a program that saves zeros had copied it."""
    end_seen: tuple[int, bytes] = (0, b"")
    """A position that was committed, and the bytes before it, at the last look at an active file."""
    missing: bool = False
    """Whether the file was removed below the running broker: the open file is read until it is closed."""
    sha256: str | None = None
    """The SHA-256 of a segment that left the disk for the bucket of ``--tier`` (ADR 0166); None for one that is on the disk."""
    cached_path: str | None = None
    """The path of a file that was fetched from the bucket, and is on the disk nevertheless."""

    def __post_init__(self) -> None:
        if self.next_id < 0:
            self.next_id = self.base_id
        if self.file is not None:
            self.inode = self.file.inode()

    @property
    def name_id(self) -> int:
        """The first id in the file's name; the segment may begin at a higher one."""
        base_id = parse_segment_name(self.path.rpartition("/")[2]) if self.start else self.base_id
        return self.base_id if base_id is None else base_id

    @property
    def sidecar_path(self) -> str:
        return self.path[:-4] + ".idx"

    @property
    def age_ts_ns(self) -> int:
        """The time from which the segment's age counts, in nanoseconds."""
        return self.newest_ts_ns if self.dated_ns is None else self.dated_ns

    def is_ahead(self, now_ns: int) -> bool:
        """Whether the segment's newest record is so far ahead of the wall clock that either its time or the clock must be
        wrong."""
        return self.newest_ts_ns > now_ns + CLOCK_AHEAD_MAX_NS

    @property
    def is_away(self) -> bool:
        """Whether the segment was evicted, so that it has to be fetched before a read."""
        return self.sha256 is not None and self.cached_path is None

    @property
    def lacks_records(self) -> bool:
        """Whether records of the segment are lost: it has damage, or it was sealed and has no record at all."""
        return bool(self.damages) or (self.sealed and self.next_id == self.base_id)

    @property
    def has_surplus(self) -> bool:
        """Whether the file has surplus bytes: records that an earlier segment also has, or damage in which no id is missing
        (``Damage.is_surplus``)."""
        return self.start > 0 or any(damage.is_surplus for damage in self.damages)

    @property
    def lost(self) -> int:
        """How many ids of this segment have no record, or none that can be read."""
        return sum(damage.last_id - damage.first_id + 1 for damage in self.damages)

    def ids_of_damage(self, *, unreadable: bool) -> list[IdRange]:
        """The ids of lost records; with ``unreadable``, those of records that the disk refuses to read."""
        return [damage.ids for damage in self.damages if damage.unreadable is unreadable]

    @property
    def unreadable(self) -> bool:
        """Whether the disk refuses to read some of the segment's bytes."""
        return any(damage.unreadable for damage in self.damages)

    @property
    def expires_at_ns(self) -> int | None:
        """When the last record expires; None when one never does, may be unreadable, or an older sidecar does not say."""
        all_do = not self.unreadable and 0 < self.expiring == self.next_id - self.base_id - self.lost
        return self.newest_expires_at_ns if all_do else None

    def add_index_entry(self, msg_id: int, position: int, keyed: int, ts_ns: int) -> None:
        """Add an index entry for a frame, if the last entry is far enough away."""
        if not self.index_positions or position - self.index_positions[-1] >= INDEX_INTERVAL_BYTES:
            self.index_ids.append(msg_id)
            self.index_positions.append(position)
            self.index_keyed.append(keyed)
            self.index_ts_ns.append(ts_ns)

    def seek_id(self, msg_id: int) -> tuple[int, int]:
        """(id, position) of the nearest known frame at or before ``msg_id``."""
        at = bisect_right(self.index_ids, msg_id) - 1
        best = (self.base_id, self.start) if at < 0 else (self.index_ids[at], self.index_positions[at])
        damage = bisect_right(self.damages, msg_id - 1, key=lambda damage: damage.last_id) - 1
        if damage >= 0 and best[0] <= self.damages[damage].last_id:
            best = (self.damages[damage].last_id + 1, self.damages[damage].resume)
        return best

    def whole_until(self, position: int) -> int:
        """The beginning of the next damage at or behind a position, or the end of the segment."""
        at = bisect_left(self.damages, position, key=lambda damage: damage.position)
        at += at < len(self.damages) and self.damages[at].resume == position  # bytes were removed there, none is in the way
        return self.damages[at].position if at < len(self.damages) else self.end

    def position_of(self, msg_id: int) -> int:
        """Position of a record: exact at an entry of the sparse index, interpolated between two. ``end`` behind the last
        record."""
        if msg_id >= self.next_id:
            return self.end
        if msg_id <= self.base_id:  # what is before the first file is lost
            return self.start
        ids, positions = self.index_ids, self.index_positions
        at = bisect_right(ids, msg_id)
        low_id, low = (ids[at - 1], positions[at - 1]) if at else (self.base_id, self.start)
        high_id, high = (ids[at], positions[at]) if at < len(ids) else (self.next_id, self.end)
        return low + (high - low) * (msg_id - low_id) // (high_id - low_id)

    def seek_time(self, ts_ns: int) -> tuple[int, int]:
        """(id, position) of the last known frame before the first one with a time at or after ``ts_ns``."""
        at = max(bisect_right(self.index_ts_ns, ts_ns - 1) - 1, 0)
        return (self.index_ids[at], self.index_positions[at]) if self.index_ids else (self.base_id, self.start)

    def open(self, fs: FileSystem, *, write: bool = False) -> File:
        """Open the file once; a sealed segment for reading only."""
        if self.file is None:
            file = fs.open(self.cached_path or self.path, write=write or not self.sealed)
            inode = file.inode()
            if self.inode is not None and inode != self.inode:
                file.close()
                raise OSError(errno.ESTALE, f"{self.path} was replaced below the running broker")
            self.file, self.inode = file, inode
        return self.file

    def check_unchanged(self) -> None:
        """Check that the open file is as it was at the last look, unless the broker has written it since. Raises: OSError;
        ESTALE when it is not."""
        if self.stamp is not None and self.file is not None and self.file.stamp() != self.stamp:
            raise OSError(errno.ESTALE, f"{self.path} was changed below the running broker")

    def begin_write(self) -> None:
        """Note that a sync thread is about to write the file."""
        self.busy, self.stamp = True, None

    def is_as_at(self, end: int) -> bool:
        """Whether the broker has written nothing since the segment ended at ``end``, so that a stamp from then holds."""
        return self.end == end and not self.busy

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def next_known_id(self, msg_id: int) -> int:
        """The first id after ``msg_id`` whose position the sparse index has."""
        at = bisect_right(self.index_ids, msg_id)
        return self.index_ids[at] if at < len(self.index_ids) else self.next_id

    def sidecar(self) -> bytes:
        """Content of the sidecar for the segment as it is."""
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
        """Write the sidecar. Raises: OSError; then the next start scans the segment instead."""
        replace_file(fs, self.sidecar_path, self.sidecar())

    def drop_sidecar(self, fs: FileSystem) -> None:
        """Remove the sidecar, which is out of date."""
        try:
            if fs.exists(self.sidecar_path):
                fs.unlink(self.sidecar_path)
        except OSError as error:
            logger.warning("%s is out of date and cannot be removed: %s", self.sidecar_path, error)


def topic_of(directory: str) -> str:
    """The topic whose directory this is: the directory has its name."""
    return directory.rpartition("/")[2]


def newest_times(segments: Sequence[Segment], now_ns: int) -> list[int]:
    """The time of the newest record of each segment. A time in the future was written by a clock that was ahead: at most the
    time of the next segment's first record counts. Where times fall between two segments and neither is in the future, the
    later clock was wrong: both times count as they are (ADR 0255), but a limit is no earlier than any time before it. In a
    damaged segment the newest record may be lost: the time of the next segment's first record counts if it is later (ADR
    0064)."""
    times = []
    limit: int | None = None
    latest_before = [0]
    for segment in segments:
        latest = segment.newest_ts_ns
        if segment.is_ahead(now_ns):
            at = bisect_right(segment.index_ts_ns, now_ns + CLOCK_AHEAD_MAX_NS)
            latest = segment.index_ts_ns[at - 1] if at else 0
        latest_before.append(max(latest_before[-1], latest))
    for segment, before in zip(reversed(segments), latest_before[-2::-1], strict=True):
        newest = segment.newest_ts_ns
        if limit is not None and segment.is_ahead(now_ns):
            newest = min(newest, limit)
        elif limit is not None and segment.lacks_records:
            newest = max(newest, limit)
        times.append(newest)
        if segment.index_ts_ns:
            first = max(segment.index_ts_ns[0], before)
            limit = first if limit is None else min(first, limit)
    return times[::-1]


def load_sidecar(fs: FileSystem, path: str, base_id: int, next_base_id: int) -> Segment | None:
    """Load a sealed segment from its sidecar.

    Returns: None when there is none, or it does not fit the file: its checksum, the file's size or the ids disagree.
    """
    try:
        data = checked_json.read(fs, path[:-4] + ".idx")
        stamp = fs.stamp(path)
    except (DamagedData, OSError):
        return None
    segment = None if data is None else parse_sidecar(data, path, base_id, next_base_id, stamp[2])
    if segment is not None:
        segment.stamp = stamp
    return segment


def parse_sidecar(data: bytes, path: str, base_id: int, next_base_id: int, size: int) -> Segment | None:
    """Load a sealed segment from the content of a sidecar, for a file of that size; as ``load_sidecar``."""
    segment = Segment(path, base_id, sealed=True)
    try:
        found = checked_json.decode("segment", data)
        if found["size"] != size or found["first_id"] != base_id or not base_id <= found["next_id"] <= next_base_id:
            return None
        _fill(segment, found)
    except (DamagedData, AttributeError, KeyError, OverflowError, TypeError, ValueError):
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
    gaps = [checked_json.numbers(gap) for gap in found["gaps"]]
    segment.damages = [Damage(position, resume, first, last) for position, resume, first, last in gaps]
    segment.index_ids, segment.index_positions, segment.index_keyed, segment.index_ts_ns = (
        array("Q", checked_json.numbers(column)) for column in found["index"]
    )


def _makes_sense(segment: Segment) -> bool:
    """Whether the fields of a sidecar fit together. A checksum does not show that: readers follow the positions, and would
    never get past a hole that ends before it begins."""
    at, next_id = 0, segment.base_id
    for damage in segment.damages:
        if not (at <= damage.position <= damage.resume <= segment.end and next_id <= damage.first_id <= damage.last_id):
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


def join_producers(into: Producers, newer: Mapping[bytes, tuple[int, int]]) -> None:
    """Add producers of a later part of the log. Beyond the limit, those that published longest ago are dropped."""
    for name, entry in newer.items():
        known = into.get(name)
        if known is None or entry > known:
            into[name] = entry
    if len(into) > 2 * PRODUCERS_MAX:
        oldest = sorted(into, key=lambda name: into[name][1])[:-PRODUCERS_MAX]
        for name in oldest:
            del into[name]
