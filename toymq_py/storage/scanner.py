"""The one judge of damage: decides which records a segment holds, and which ids are lost (ADR 0046).

Contract: storage.md, "One judge of damage", and "Recovery", steps 4 to 6. Start, sidecar check, reads, verify, repair, backup,
dump and the reader of directories ask ``scan_segment``; nothing else decides that a record is lost. Its verdict depends only on
the bytes of the file, its name, and the id that follows it.

Linear: every byte is read in windows until the first break; from there on the rest of the file is in memory, once.
"""

import errno
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from toymq_py.storage.damaged_header import frame_bytes
from toymq_py.storage.fs import File, FileSystem
from toymq_py.storage.id_ranges import record_range
from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    Columns,
    Stop,
    parse_attributes,
    scan,
)
from toymq_py.storage.salvage import Salvage
from toymq_py.storage.segment import (
    INDEX_INTERVAL_BYTES,
    UNLESS_UNACKNOWLEDGED,
    Damage,
    Segment,
    join_producers,
    parse_segment_name,
)
from toymq_py.units import counted

WINDOW_BYTES = 1 << 20
"""The size of the windows in which scans read: 8 MiB falls out of the cache (performance.md)."""
PAGE_BYTES = 4096
"""Bytes that are asked for at a time where the disk refuses more; twice as much after each refusal, so that a dead disk is
asked a few hundred times and not once for every page."""

REPORTED_MAX = 16
"""Most places of damage in one segment that the log names one by one."""

Visit = Callable[[int, int, Columns], None]
"""Called with each window: its position, the id of its first record, its columns."""
Progress = Callable[[int], None]
"""Called with the number of bytes that were checked since the last call."""


@dataclass(slots=True)
class ScanResult:
    """The segment that a scan found, and what the file has besides its records."""

    segment: Segment
    torn_bytes: int = 0
    """Bytes behind ``segment.end`` that belong to no valid record and are not zero space."""
    size: int = 0
    """The size of the file, with preallocated space."""
    unreadable_tail: bool = False
    """Whether the disk refuses to give bytes behind ``segment.end``: how many records stand there is not known."""
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    """Parts of the file that the disk refuses to give (EIO), by position."""


def scan_segment(
    fs: FileSystem,
    path: str,
    base_id: int,
    *,
    next_id: int | None = None,
    committed_id: int | None = None,
    end: int | None = None,
    visit: Visit | None = None,
    progress: Progress | None = None,
    foreign_head_bytes: int = 0,
) -> ScanResult:
    """Check every byte of a segment.

    Args:
        next_id: the id after the segment's last record, if known from the name of the next file, or the committed id. Lower ids
            without a record are then lost, and no tail is torn.
        committed_id: otherwise, an id that the segment reached, as the offsets say.
        end: where the last record ends, if this broker has written it.
        foreign_head_bytes: ``Segment.foreign_head_bytes``.

    Raises: OSError when the file cannot be opened.
    """
    segment = Segment(path, base_id, foreign_head_bytes=foreign_head_bytes)
    file = fs.open(path, write=False)
    try:
        segment.stamp = stamp = file.stamp()
        size = stamp[2] if end is None else min(end, stamp[2])
        result = ScanResult(segment, size=size)
        scanning = _SegmentScan(file, result, next_id, committed_id, visit, progress)
        scanning.run()
    finally:
        file.close()
    _end(result, scanning, next_id, end)
    return result


def rescan(
    fs: FileSystem, segment: Segment, next_id: int, *, end: int | None = None, foreign_head_bytes: int | None = None
) -> ScanResult:
    """Scan a segment in which a record failed its check. ``segment`` is only read: ``adopt`` updates it.

    Args:
        next_id: the id after the segment's last record.
        end: where that record ends, when the segment is not sealed.
        foreign_head_bytes: a new value for ``Segment.foreign_head_bytes``; None keeps the segment's.

    Raises: OSError when the file cannot be opened.
    """
    base_id = parse_segment_name(segment.path.rpartition("/")[2])
    found = scan_segment(
        fs, segment.path, segment.base_id if base_id is None else base_id, next_id=next_id, end=end,
        foreign_head_bytes=segment.foreign_head_bytes if foreign_head_bytes is None else foreign_head_bytes,
    )  # fmt: skip
    found.segment.sealed = end is None
    if found.segment.base_id < segment.base_id:
        trim(fs, found.segment, segment.base_id)
    return found


def examine(
    fs: FileSystem, segment: Segment, next_id: int, *, end: int | None = None, foreign_head_bytes: int | None = None
) -> ScanResult:
    """Rescan a segment, and update its sidecar if it is sealed, so that the next start finds the same."""
    found = rescan(fs, segment, next_id, end=end, foreign_head_bytes=foreign_head_bytes)
    if end is None:
        keep_sidecar(fs, found)
    return found


def adopt(segment: Segment, found: ScanResult, end: int, keyed: int, expiring: int) -> None:
    """Update a segment from a scan that ended at ``end``, when it had ``keyed`` and ``expiring`` records of these kinds.
    Records that were appended since are added."""
    scanned, since = found.segment, bisect_left(segment.index_positions, end)
    less_keyed = keyed - scanned.keyed
    segment.damages = scanned.damages
    segment.start = scanned.start
    segment.stamp = scanned.stamp if segment.is_as_at(end) else None
    segment.foreign_head_bytes = scanned.foreign_head_bytes
    for mine, scans in zip(_index(segment), _index(scanned), strict=True):
        mine[:since] = scans
    for row in range(len(scanned.index_keyed), len(segment.index_keyed)):
        segment.index_keyed[row] -= less_keyed
    segment.keyed -= less_keyed
    segment.expiring -= expiring - scanned.expiring
    if segment.sealed and segment.next_id == scanned.next_id:
        segment.end = scanned.end
    segment.newest_deliver_at_ns = max(segment.newest_deliver_at_ns, scanned.newest_deliver_at_ns)


def _index(segment: Segment) -> "tuple[array[int], ...]":
    return segment.index_ids, segment.index_positions, segment.index_keyed, segment.index_ts_ns


def damage_report(damages: Sequence[Damage], known_id: int | None = None) -> Iterator[str]:
    """Lines for the log of the broker: the first damages one by one, the others counted. ``known_id``: at the end of a log, the
    id below which all records were stored, according to the offsets."""
    for damage in damages[:REPORTED_MAX]:
        where = f"bytes {damage.position} to {damage.resume}"
        if damage.is_surplus:
            yield f"{where}: {damage.outcome}"
            continue
        what = "cannot be read (EIO) until a restart" if damage.unreadable else "are damaged and lost"
        unless = UNLESS_UNACKNOWLEDGED if damage.is_open(known_id) else ""
        yield f"{record_range(damage.first_id, damage.last_id, what)}, {where}{unless}"
    if len(damages) > REPORTED_MAX:
        more = damages[REPORTED_MAX:]
        records = counted(sum(d.last_id - d.first_id + 1 for d in more), "record")
        yield f"and {records} in {counted(len(more), 'more place')}"


def keep_sidecar(fs: FileSystem, found: ScanResult) -> OSError | None:
    """Write what the scan found to the sidecar of a sealed segment, or remove the sidecar. Returns: the error if that
    failed."""
    segment = found.segment
    try:
        if segment.end == found.size and not segment.start and not found.unreadable:
            segment.write_sidecar(fs)
        elif any(not damage.unreadable for damage in segment.damages) and fs.exists(segment.sidecar_path):
            fs.unlink(segment.sidecar_path)
    except OSError as error:
        return error
    return None


def trim(fs: FileSystem, segment: Segment, first_id: int) -> None:
    """Make a segment begin at a later id, because another segment holds the records before it. Raises: OSError."""
    at_id, pos = segment.seek_id(first_id)
    file = fs.open(segment.path, write=False)
    try:
        segment.start = _position(file, segment, at_id, pos, first_id)
    finally:
        file.close()
    segment.base_id = first_id
    damages = [damage for damage in segment.damages if damage.last_id >= first_id]
    if damages and damages[0].first_id < first_id:
        segment.start = damages[0].position
        damages[0] = Damage(segment.start, damages[0].resume, first_id, damages[0].last_id, damages[0].unreadable)
    segment.damages = damages
    gone = next((row for row, msg_id in enumerate(segment.index_ids) if msg_id >= first_id), len(segment.index_ids))
    for column in (segment.index_ids, segment.index_positions, segment.index_keyed, segment.index_ts_ns):
        del column[:gone]


def _position(file: File, segment: Segment, msg_id: int, pos: int, wanted: int) -> int:
    window = WINDOW_BYTES
    while msg_id < wanted and pos < segment.end:
        used, msg_id, stop = scan(file.pread(min(window, segment.end - pos), pos), 0, msg_id, max_count=wanted - msg_id)
        pos += used
        if not used and stop is not Stop.PARTIAL:
            break
        window = WINDOW_BYTES if used else window * 2
    return pos


def _end(result: ScanResult, scanning: "_SegmentScan", next_id: int | None, end: int | None) -> None:
    """Find where the segment ends. If no valid record follows the last breaks, they are a torn tail, or the rest of the segment
    is lost."""
    segment = result.segment
    while segment.damages and segment.damages[-1].resume >= segment.end:
        damage = segment.damages.pop()
        segment.end, segment.next_id = damage.position, damage.first_id
    result.torn_bytes = max(scanning.written - segment.end, 0)
    result.unreadable_tail = any(stop > segment.end for _, stop in result.unreadable)
    if next_id is None:
        next_id = scanning.reached
    if next_id <= segment.next_id:
        return
    if segment.end < result.size or segment.next_id == segment.base_id or end is not None or scanning.reached:
        # Of a sealed segment that is damage: its tail was synced before the next one was made, and none is without records.
        resume = max(result.size, end or 0, segment.end + 1)
        segment.damages.append(Damage(segment.end, resume, segment.next_id, next_id - 1, result.unreadable_tail))
        segment.end, segment.next_id = resume, next_id
        result.torn_bytes, result.unreadable_tail = 0, False


class _SegmentScan:
    """One scan of one segment file."""

    def __init__(
        self,
        file: File,
        result: ScanResult,
        next_id: int | None,
        committed_id: int | None,
        visit: Visit | None,
        progress: Progress | None,
    ) -> None:
        self._file = file
        self._result = result
        self._segment = result.segment
        self._next_id = next_id
        self._committed_id = committed_id
        self._visit = visit or (lambda _position, _first_id, _columns: None)
        self._progress = progress or (lambda _bytes: None)
        self.written = 0
        """The position where the zeros begin that end the file, when there was a break."""
        self.reached = 0
        """The id that the log reached; see ``Salvage.reached``."""
        self._last = 0, 0
        """The beginning and the end of the last valid frame."""

    def run(self) -> None:
        pos = self._by_windows()
        if pos is not None:
            self._past_damage(pos)

    def _by_windows(self) -> int | None:
        """Scan in windows up to the first break. Returns: its position, None without a break."""
        size, pos, msg_id = self._result.size, 0, self._segment.base_id
        window = WINDOW_BYTES
        while pos < size:
            data = self._pread(min(window, size - pos), pos)
            used, msg_id, stop = self._walk(data, pos, msg_id)
            pos += used
            at_end = pos - used + len(data) >= size or not data
            if stop is Stop.PARTIAL and not at_end and not used:
                needed = frame_bytes(data)
                if needed is None or needed <= window:
                    return pos
                window = needed
                continue
            window = WINDOW_BYTES
            if stop is Stop.PARTIAL and not at_end:
                continue
            if stop is Stop.END and not at_end:
                continue
            if stop is Stop.END or (stop is Stop.ZERO and self._all_zero(pos)):
                self._progress(size - pos)
                return None
            return pos
        return None

    def _past_damage(self, base: int) -> None:
        """Scan the rest of the file from the first break on."""
        result, segment = self._result, self._segment
        data = self._pread(result.size - base, base)
        salvage = Salvage(data, self._next_id, committed_id=self._committed_id, origin=base,
                          after_ns=segment.newest_ts_ns, last_frame=self._last_frame)  # fmt: skip
        pos, msg_id = 0, segment.next_id
        while pos < salvage.written and (chain := salvage.resume(pos, msg_id)) is not None:
            self._lose(base + pos, base + chain.start, msg_id, chain.first_id - 1)
            self._progress(chain.start - pos)
            pos, msg_id = chain.start, chain.first_id
            segment.end, segment.next_id = base + pos, msg_id
            while pos < chain.end:
                window = max(WINDOW_BYTES, 4 + int.from_bytes(data[pos : pos + 4], "little"))
                used, msg_id, _ = self._walk(data[pos : min(pos + window, chain.end)], base + pos, msg_id)
                pos += used
        self.written, self.reached = base + salvage.written, salvage.reached
        self._progress(len(data) - pos)

    def _walk(self, data: bytes, base: int, msg_id: int) -> tuple[int, int, Stop]:
        """Account for the valid frames at the beginning of ``data``, which starts at ``base`` in the file. Returns: their
        bytes, the next id, and why the walk stopped."""
        columns = Columns()
        end, next_id, stop = scan(data, 0, msg_id, columns)
        if columns.positions:
            self._last = base + columns.positions[-1], base + end
        _account(self._segment, columns, base, msg_id)
        self._visit(base, msg_id, columns)
        self._progress(end)
        self._segment.end, self._segment.next_id = base + end, next_id
        return end, next_id, stop

    def _last_frame(self) -> bytes:
        start, end = self._last
        return self._pread(end - start, start)

    def _lose(self, position: int, resume: int, first_id: int, last_id: int) -> None:
        unreadable = any(start < resume and stop > position for start, stop in self._result.unreadable)
        damages = self._segment.damages
        if damages and damages[-1].resume == position and damages[-1].unreadable == unreadable:
            damages[-1] = replace(damages[-1], resume=resume, last_id=last_id)
        else:
            damages.append(Damage(position, resume, first_id, last_id, unreadable))

    def _all_zero(self, pos: int) -> bool:
        while pos < self._result.size:
            data = self._pread(min(WINDOW_BYTES, self._result.size - pos), pos)
            if data.count(0) != len(data):
                return False
            pos += len(data)
        return not self._result.unreadable

    def _pread(self, length: int, pos: int) -> bytes:
        """Read bytes of the file, with zeros where the disk refuses to read."""
        try:
            data = self._file.pread(length, pos)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return self._pread_around(length, pos)
        if len(data) < length:  # it was cut meanwhile
            self._result.size = pos + len(data)
        hidden = min(self._segment.foreign_head_bytes - pos, len(data))
        return bytes(hidden) + data[hidden:] if hidden > 0 else data

    def _pread_around(self, length: int, start: int) -> bytes:
        parts: list[bytes] = []
        pos, end, step = start, start + length, PAGE_BYTES
        while pos < end:
            size = min(step - pos % PAGE_BYTES, end - pos)
            try:
                parts.append(self._file.pread(size, pos))
                step = PAGE_BYTES
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                parts.append(bytes(size))
                self._refused(pos, pos + size)
                step = min(2 * step, WINDOW_BYTES)
            pos += size
        return b"".join(parts)

    def _refused(self, start: int, stop: int) -> None:
        spans = self._result.unreadable
        if (start, stop) not in spans:
            spans.append((start, stop))


def _account(segment: Segment, columns: Columns, base: int, first_id: int) -> None:
    """Update totals and sparse index of the segment with the records of a window."""
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
