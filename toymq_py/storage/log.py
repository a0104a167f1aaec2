"""A topic's log as its readers see it: the segments, the committed position, reads that check, the tail in memory.

Contract: storage.md, "Recovery" (last paragraph) and "Segments". Belongs to the event loop. How records get in is the
committer's business, how segments go is retention's.
"""

import errno
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from toymq_py.errors import OutOfRange
from toymq_py.model import IdRange, Records
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets import lost_of
from toymq_py.storage.record import FRAME_OVERHEAD, Columns, Row, Stop, decode_row, scan, to_records
from toymq_py.storage.salvage import find_chains, trusted_end
from toymq_py.storage.segment import Damage, Segment, newest_times
from toymq_py.storage.tail import AHEAD_ROWS, Tail, TailBudget

logger = logging.getLogger("toymq_py.storage")

READ_BYTES = 256 * 1024
"""What one read takes from disk, unless a single record is larger."""
PAGE_BYTES = 4096
HINTS_MAX = 64
HINTS_BACK = 16
"""How many records a reader may have skipped and still go on where it was."""
LOOKS_MAX = 8
"""Parts of segments that reads of single records scan in one go; two milliseconds."""
WRONG_READS_MAX = 3
"""How often in one read a record may fail its check that passes it when it is read once more."""
OPEN_SEALED_MAX = 8
"""Sealed segments of one log that stay open for readers: those that were read last."""


class Places:
    """Where each record stands in the parts of a log that are read at random: between two entries of a segment's sparse index,
    about 64 KiB, whoever wants one record scans them all.

    Bounded: ``FRAMES_MAX`` positions of 4 bytes, the parts that were not used for longest go first.
    """

    __slots__ = ("_frames", "_parts", "looks")

    FRAMES_MAX = 1 << 20

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], array[int]] = {}  # by the segment's first id and the entry, see _of
        self._frames = 0
        self.looks = 0
        """How many parts were scanned so far."""

    def read(self, log: "Log", msg_id: int) -> Row | None:
        """One record; None when it is not where it should be: the disk refuses, or there is damage. Then it is for ``Log.read``
        to look closer. Raises: OSError when the segment cannot be opened."""
        if not log.first_id <= msg_id < log.committed_id:
            return None
        segment = log.segment_of(msg_id)
        entry = bisect_right(segment.index_ids, msg_id) - 1
        if entry < 0 or msg_id >= segment.next_id or segment.damages:
            return None
        log.open(segment)
        assert segment.file is not None
        row = msg_id - segment.index_ids[entry]
        try:
            places = self._of(segment, entry)
            if row + 1 >= len(places):
                return None
            start = places[row]
            return decode_row(segment.file.pread(places[row + 1] - start, segment.index_positions[entry] + start), msg_id)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None

    def _of(self, segment: Segment, entry: int) -> "array[int]":
        """Where frames begin in the part behind an entry, and where the last ends."""
        key = segment.base_id, entry
        places = self._parts.pop(key, None)
        if places is None:
            places = self._look(segment, entry)
            if entry + 1 == len(segment.index_ids) and not segment.sealed:
                return places  # it still grows
            self._frames += len(places)
            while self._frames > self.FRAMES_MAX and self._parts:
                self._frames -= len(self._parts.pop(next(iter(self._parts))))
        self._parts[key] = places  # the newest now
        return places

    def _look(self, segment: Segment, entry: int) -> "array[int]":
        assert segment.file is not None
        self.looks += 1
        last = entry + 1 == len(segment.index_ids)
        start = segment.index_positions[entry]
        end = segment.end if last else segment.index_positions[entry + 1]
        columns = Columns()
        used, _, _ = scan(segment.file.pread(end - start, start), 0, segment.index_ids[entry], columns)
        places = array("I", columns.positions)
        places.append(used)
        return places


class Log:
    """Committed records of one topic.

    ``committed_id`` is the id after the last committed record: readers never pass it. ``first_id`` is the first retained
    one. ``lost`` are id ranges inside that no record stands for; ``unreadable`` those that the disk refuses to give until
    a restart; ``removed`` those that retention took from behind a segment that has to stay.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        topic: str,
        segments: list[Segment],
        *,
        next_id: int = 0,
        first_id: int = 0,
        lost: Sequence[IdRange] = (),
        tail_budget: TailBudget | None = None,
    ) -> None:
        """
        Args:
            path: the topic's directory.
            segments: in order; the last one is active unless it is ``sealed``.
        """
        self.fs = fs
        self.path = path
        self.topic = topic
        self.segments = segments
        self.committed_id = next_id
        self.first_id = first_id
        self.lost: list[IdRange] = list(lost)
        self.unreadable: list[IdRange] = []
        self.removed: list[IdRange] = []
        self.tail = Tail(tail_budget or TailBudget())
        self.on_lost: Callable[[int, int], None] = lambda first, last: None
        """Called when a read finds records lost, with the id range."""
        self.damaged_reads = 0
        self._places = Places()
        self._opened: dict[int, Segment] = {}  # sealed ones by first id, that which was not read for longest first
        self._hints: dict[int, tuple[Segment, int]] = {}  # id -> where a sequential reader goes on

    # -- numbers

    @property
    def degraded(self) -> bool:
        """Whether some record that should be there is not."""
        return bool(self.lost or self.unreadable)

    @property
    def size_bytes(self) -> int:
        return sum(segment.end for segment in self.segments)

    @property
    def last_ts_ns(self) -> int:
        """Time of the last committed record, 0 for none."""
        return next((segment.newest_ts_ns for segment in reversed(self.segments) if segment.newest_ts_ns), 0)

    def lost_count(self) -> int:
        """Ids in the retained range that no record stands for."""
        return sum(last - first + 1 for first, last in self.lost)

    def messages(self) -> int:
        """Records in the retained range."""
        return sum(last - first + 1 for first, last in self.retained(self.first_id, self.committed_id))

    def retained(self, first: int, limit: int) -> list[IdRange]:
        """What of the ids from ``first`` on and below ``limit`` is retained: neither lost nor removed."""
        first = max(first, self.first_id)
        return lost_of((first, limit - 1), [*self.lost, *self.removed]) if first < limit else []

    def bytes_between(self, first: int, limit: int) -> int:
        """What the committed records from ``first`` on and below ``limit`` take on disk. Exact where both are in the sparse
        index, otherwise as ``Segment.position_of`` says: each end may be off by the 64 KiB between two entries."""
        segments = self.segments
        limit = min(limit, self.committed_id)
        if first >= limit or not segments:
            return 0
        from_at, to_at = self._at(first), self._at(limit - 1)
        size = segments[to_at].position_of(limit) - segments[from_at].position_of(first)
        return size + sum(segment.end for segment in segments[from_at:to_at])

    def is_unreadable(self, msg_id: int) -> bool:
        """Whether the disk refuses to give this record until a restart."""
        return any(first <= msg_id <= last for first, last in self.unreadable)

    # -- reading

    def read(self, from_id: int, max_count: int, max_bytes: int = READ_BYTES) -> tuple[Records | None, int, int]:
        """Records from ``from_id`` on, one stretch of consecutive ids.

        Returns: (run, row of its first record to use, id after what was read). The run is None when the stretch holds no
        readable record: ids up to the returned one are lost or unreadable. At least one record comes where there is
        one, whatever ``max_bytes``.

        Raises: OSError other than EIO when the segment cannot be opened.
        """
        found = self.tail.find(from_id)
        if found is not None:
            run, row = found
            return run, row, min(run.ids[-1] + 1, from_id + max_count)
        gap = self._gap_at(from_id)
        if gap is not None:
            return None, 0, min(gap + 1, self.committed_id)
        count = max_count
        room = self.tail.ahead_bytes() if count < AHEAD_ROWS and from_id in self._hints else 0
        if room:
            count, max_bytes = AHEAD_ROWS, room
        count = min(count, self._next_gap(from_id) - from_id)
        columns = Columns()
        _, start, end, next_id = self._read_frames(from_id, count, max_bytes, columns)
        if start == end:
            return None, 0, next_id
        run = to_records(from_id, columns)
        if room:
            self.tail.keep(run)
        return run, 0, min(next_id, from_id + max_count)

    def read_each(self, ids: Sequence[int], max_bytes: int) -> Records | None:
        """Records of single ids, ascending, from anywhere in the log: as many as fit, one at least.

        Returns: a run of those from the first id on that can be had without ado; None when that one has to be ``read``.

        Raises: OSError when the segment cannot be opened or read.
        """
        rows: list[Row] = []
        looks_max = self._places.looks + LOOKS_MAX
        for msg_id in ids:
            row = self._row_of(msg_id) if self._places.looks < looks_max else None
            if row is None or (rows and max_bytes < len(row[2]) + len(row[3])):
                break
            max_bytes -= len(row[2]) + len(row[3])
            rows.append(row)
        if not rows:
            return None
        ts_ns, keys, payloads, headers, expires_at_ns = zip(*rows, strict=True)
        return Records(
            ids[: len(rows)], ts_ns, keys, payloads,
            headers if any(headers) else None, expires_at_ns if any(expires_at_ns) else None,
        )  # fmt: skip

    def _row_of(self, msg_id: int) -> Row | None:
        found = self.tail.find(msg_id)
        if found is None:
            return self._places.read(self, msg_id)
        run, row = found
        headers = b"" if run.headers is None else run.headers[row]
        expires_at_ns = 0 if run.expires_at_ns is None else run.expires_at_ns[row]
        return run.ts_ns[row], run.keys[row], run.payloads[row], headers, expires_at_ns

    def read_frames(self, from_id: int, max_count: int, max_bytes: int) -> tuple[bytes, int, int]:
        """Committed frames byte for byte, for FETCH.

        Returns: (frames, how many, next id). Lost ids inside the range are skipped and the next id passes them.

        Raises: OutOfRange when ``from_id`` lies below the first or above the next id.
        """
        if not self.first_id <= from_id <= self.committed_id:
            raise OutOfRange(self.first_id, f"is the first id of {self.topic}, {self.committed_id} the next")
        parts: list[bytes] = []
        count = size = 0
        while from_id < self.committed_id and count < max_count and (not parts or size + FRAME_OVERHEAD <= max_bytes):
            gap = self._gap_at(from_id)
            if gap is not None:
                from_id = min(gap + 1, self.committed_id)
                continue
            limit = min(max_count - count, self._next_gap(from_id) - from_id)
            data, start, end, next_id = self._read_frames(from_id, limit, max_bytes - size, whole=not parts)
            if next_id == from_id:
                break
            if start < end:
                parts.append(data[start:end])
                size += end - start
                count += next_id - from_id
            from_id = next_id
        return b"".join(parts), count, from_id

    def id_at_time(self, ts_ns: int) -> int:
        """The first committed record at or after a time; the next id when there is none. A segment counts up to the first
        record behind it: a time that a clock made ten years ahead is not later than what came after it."""
        for segment, newest_ns in zip(self.segments, newest_times(self.segments), strict=True):
            if newest_ns < ts_ns or segment.next_id == segment.base_id:
                continue
            from_id = max(segment.seek_time(ts_ns)[0], self.first_id)
            while from_id < min(segment.next_id, self.committed_id):
                run, row, next_id = self.read(from_id, 4096)
                if run is not None:
                    times = run.ts_ns[row : row + next_id - from_id]
                    at = bisect_left(times, ts_ns)
                    if at < len(times):
                        return from_id + at
                from_id = next_id
        return self.committed_id

    # -- changes by the committer and by retention

    def advance(self, next_id: int) -> None:
        """Records up to ``next_id`` are committed."""
        self.committed_id = next_id

    def forget_below(self, first_id: int) -> None:
        """What is below is not retained any more, and ranges of it are nobody's business. The first id never falls."""
        first_id = self.first_id = max(first_id, self.first_id)
        self.lost = [(max(a, first_id), b) for a, b in self.lost if b >= first_id]
        self.unreadable = [(max(a, first_id), b) for a, b in self.unreadable if b >= first_id]
        self.removed = [(max(a, first_id), b) for a, b in self.removed if b >= first_id]

    def take_out(self, going: Sequence[Segment]) -> None:
        """Retention removes these segments, never the last one; the files are the caller's."""
        gone = {id(segment) for segment in going}
        self.segments[:] = [segment for segment in self.segments if id(segment) not in gone]
        for segment in going:
            segment.close()
            self._opened.pop(segment.base_id, None)
            if segment.next_id > segment.base_id:
                self._enter(self.removed, segment.base_id, segment.next_id - 1)
        self.lost = [part for gap in self.lost for part in lost_of(gap, self.removed)]
        if self.segments:
            self.forget_below(self.segments[0].base_id)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    # -- inside

    def _gap_at(self, msg_id: int) -> int | None:
        """Last id of the lost, unreadable or removed range that holds ``msg_id``."""
        if msg_id < self.first_id:
            return self.first_id - 1
        for ranges in (self.lost, self.unreadable, self.removed):
            at = bisect_right(ranges, (msg_id, 1 << 64)) - 1
            if at >= 0 and ranges[at][1] >= msg_id:
                return ranges[at][1]
        return None

    def _next_gap(self, msg_id: int) -> int:
        """First id of the next such range, at most the committed position."""
        best = self.committed_id
        for ranges in (self.lost, self.unreadable, self.removed):
            at = bisect_left(ranges, (msg_id, 0))
            if at < len(ranges):
                best = min(best, ranges[at][0])
        return best

    def segment_of(self, msg_id: int) -> Segment:
        """The segment whose range holds an id. Assumes that there is one."""
        return self.segments[self._at(msg_id)]

    def _at(self, msg_id: int) -> int:
        return max(bisect_right(self.segments, msg_id, key=lambda segment: segment.base_id) - 1, 0)

    def open(self, segment: Segment) -> None:
        """Its file is there afterwards; of others, only some stay open. Raises: OSError."""
        if segment.sealed:
            opened = self._opened
            opened.pop(segment.base_id, None)
            if len(opened) >= OPEN_SEALED_MAX:
                opened.pop(next(iter(opened))).close()
            opened[segment.base_id] = segment  # the newest now
        segment.open(self.fs)

    def _read_frames(
        self, from_id: int, max_count: int, max_bytes: int, columns: Columns | None = None, *, whole: bool = True
    ) -> tuple[bytes, int, int, int]:
        """Valid frames of one segment from ``from_id`` on, one for each id up to the next.

        Args:
            columns: empty; filled with what is in the frames, payloads too. Without, they are only checked.
            whole: the first record comes even if it is longer than ``max_bytes``.

        Returns: (data, where in it the first frame begins, where the last ends, next id). No frame, and both places are
        the same, when the first record proved damaged: it has been entered as lost, and the next id passes it; or, and the
        next id is ``from_id``, when it is too long and not ``whole``.
        """
        segment = self.segment_of(from_id)
        self.open(segment)
        assert segment.file is not None
        at_id, pos = self._place_of(segment, from_id)
        max_count = min(max_count, segment.next_id - from_id)
        want = max(min(max_bytes, READ_BYTES, max(max_count, 4) * PAGE_BYTES), FRAME_OVERHEAD)
        near_eio = one_record = False  # the disk refused a larger read; what is asked for now is exactly one record
        wrong_reads = 0
        while True:
            want = min(want, segment.end - pos)
            try:
                data = segment.file.pread(want, pos)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                if want > PAGE_BYTES and not one_record:
                    want, near_eio = max(want // 4, PAGE_BYTES), True
                    continue
                alone = one_record and at_id == from_id
                after = from_id + 1 if alone else self._next_known(segment, from_id, pos + want)
                self._pass_over(segment, from_id, after, pos)
                return b"", 0, 0, after
            used, stop = 0, Stop.COUNT
            if at_id < from_id:
                used, at_id, stop = scan(data, 0, at_id, max_count=from_id - at_id)
            if at_id == from_id:
                end, next_id, stop = scan(
                    data, used, from_id, columns, with_payloads=True, max_count=max_count, max_bytes=max_bytes
                )
                if next_id > from_id and (whole or end - used <= max_bytes):
                    if next_id < segment.next_id:
                        self._hint(next_id, segment, pos + end)
                    return data, used, end, next_id
                if next_id > from_id or (not whole and stop is Stop.PARTIAL and len(data) - used >= max_bytes):
                    self._hint(from_id, segment, pos + used)
                    return b"", 0, 0, from_id
            cut = stop is Stop.PARTIAL and len(data) == want < segment.end - pos
            if used and (cut or stop is Stop.END) and pos + used < segment.end:
                pos, one_record = pos + used, False
            elif cut and near_eio:
                one_record = True
                want = max(4 + int.from_bytes(data[:4], "little"), FRAME_OVERHEAD)
            elif cut:
                want = max(want * 4, READ_BYTES)
            else:
                wrong_id, one_record = at_id, False
                at_id, pos = self._pass_damage(segment, at_id, pos + used)
                if at_id > from_id:
                    return b"", 0, 0, at_id
                wrong_reads += at_id == wrong_id
                if wrong_reads > WRONG_READS_MAX:
                    after = self._next_known(segment, from_id, pos + 1)
                    self._pass_over(segment, from_id, after, pos)
                    return b"", 0, 0, after

    def _hint(self, next_id: int, segment: Segment, pos: int) -> None:
        """A reader stopped here, and may go on."""
        if len(self._hints) >= HINTS_MAX:
            self._hints.clear()
        self._hints[next_id] = (segment, pos)

    def _place_of(self, segment: Segment, from_id: int) -> tuple[int, int]:
        """(id, position) of a frame at or shortly before ``from_id``: where a reader stopped, or what the index knows."""
        known = segment.seek_id(from_id)
        whole = not segment.damages and not self.unreadable
        for back in range(HINTS_BACK + 1 if whole else 1):
            hint = self._hints.get(from_id - back)
            if hint is not None and hint[0] is segment:
                del self._hints[from_id - back]
                return (from_id - back, hint[1]) if hint[1] > known[1] else known
        return known

    def _pass_damage(self, segment: Segment, msg_id: int, pos: int) -> tuple[int, int]:
        """A committed record does not check. Read once more, then enter it as lost.

        Returns: id and position of the next record.
        """
        assert segment.file is not None
        try:
            data = segment.file.pread(segment.end - pos, pos)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            after = self._next_known(segment, msg_id, pos + 1)
            self._pass_over(segment, msg_id, after, pos)
            return after, segment.seek_id(after)[1] if after < segment.next_id else segment.end
        _, next_id, _ = scan(data, 0, msg_id, max_count=1)
        if next_id > msg_id:
            return msg_id, pos  # it was the read, not the disk
        end = trusted_end(data, 0, msg_id)
        last_id, resume = segment.next_id - 1, segment.end
        if end is not None and (end < len(data) or (end == len(data) and msg_id == last_id)):
            last_id, resume = msg_id, pos + end
        else:
            # Inside a log that was whole when it was opened, the next record that checks and has a later id will do:
            # its place comes from the index, which no payload can forge.
            for entry_id, entry_pos in zip(segment.index_ids, segment.index_positions, strict=True):
                if entry_id > msg_id and entry_pos > pos and scan(data, entry_pos - pos, entry_id, max_count=1)[1] > entry_id:
                    last_id, resume = entry_id - 1, entry_pos
                    break
            found = self._nearer(data, msg_id, resume - pos, last_id)
            if found is not None:
                last_id, resume = found[0] - 1, pos + found[1]
        segment.add_damage(Damage(pos, resume, msg_id, last_id))
        self._enter(self.lost, msg_id, last_id)
        self.damaged_reads += 1
        logger.error(
            "topic %s: records %d to %d are damaged at byte %d of %s and skipped",
            self.topic, msg_id, last_id, pos, segment.path,
        )  # fmt: skip
        self.on_lost(msg_id, last_id)
        return last_id + 1, resume

    def _nearer(self, data: bytes, msg_id: int, end: int, last_id: int) -> tuple[int, int] | None:
        """(id, offset) of the first chain of valid frames that leads up to a known good place."""
        for chain in find_chains(data[:end], 0, msg_id - 1):
            if chain.last_id <= last_id:
                return chain.first_id, chain.start
        return None

    @staticmethod
    def _next_known(segment: Segment, msg_id: int, pos: int) -> int:
        """The first id behind ``msg_id`` whose place the index knows at or behind ``pos``."""
        places = zip(segment.index_ids, segment.index_positions, strict=True)
        return next((entry_id for entry_id, at in places if entry_id > msg_id and at >= pos), segment.next_id)

    def _pass_over(self, segment: Segment, from_id: int, after: int, pos: int) -> None:
        """The disk gives EIO: that is not damage. Pass over as little as can be told, until restart."""
        self._enter(self.unreadable, from_id, after - 1)
        logger.error(
            "topic %s: records %d to %d cannot be read (EIO near byte %d of %s); passed over until restart",
            self.topic, from_id, after - 1, pos, segment.path,
        )  # fmt: skip

    @staticmethod
    def _enter(ranges: list[IdRange], first: int, last: int) -> None:
        ranges.append((first, last))
        ranges.sort()
        merged = [ranges[0]]
        for a, b in ranges[1:]:
            if a <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], b))
            else:
                merged.append((a, b))
        ranges[:] = merged
