"""A topic's log for its readers: segments, committed position, checked reads, tail in memory.

Contract: storage.md, "Recovery" (last paragraph) and "Segments". Belongs to the event loop. The committer appends records, and
retention removes segments.
"""

import errno
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from toymq_py.callbacks import call_all, run_now
from toymq_py.disk_errors import LASTING, BeingExamined, BeingFetched
from toymq_py.errors import OutOfRange
from toymq_py.records import IdRange, Records
from toymq_py.storage.damaged_header import frame_bytes
from toymq_py.storage.examinations import Examinations
from toymq_py.storage.frame_positions import FramePositions
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.id_ranges import above, last_of_range, record_range, subtract, union
from toymq_py.storage.open_files import OpenFiles
from toymq_py.storage.reader_hints import ReaderHints
from toymq_py.storage.record import FRAME_OVERHEAD, Columns, Row, Stop, scan, to_records
from toymq_py.storage.scanner import ScanResult, adopt, damage_report
from toymq_py.storage.segment import NO_STAMP, Damage, Segment
from toymq_py.storage.segment_heads import NO_HEADS
from toymq_py.storage.segment_inventory import judge_anew
from toymq_py.storage.tail_cache import AHEAD_ROWS, TailBudget, TailCache
from toymq_py.storage.time_search import id_at_time

logger = logging.getLogger("toymq_py.storage")

READ_BYTES = 256 * 1024
"""Bytes that one read takes from disk, unless a single record is larger."""
PAGE_BYTES = 4096
SCANS_MAX = 8
"""Most parts of segments that one ``read_each`` scans; two milliseconds."""
CHANGED = "it was changed below the running broker"


class Log:
    """Committed records of one topic, for its readers. ``heads`` belongs to ``HeadsWriter``.

    ``committed_id`` is the id after the last committed record: readers never pass it. ``first_id`` is the first retained one.
    ``lost`` are id ranges that have no record any more; ``unreadable`` those that the disk refuses to give until a restart;
    ``removed`` those that retention took from behind a segment that has to stay.
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
        removed: Sequence[IdRange] = (),
        unreadable: Sequence[IdRange] = (),
        problems: Sequence[str] = (),
        tail_budget: TailBudget | None = None,
        files: OpenFiles | None = None,
    ) -> None:
        """
        Args:
            path: the topic's directory.
            segments: in order; the last one is active unless it is ``sealed``.
            problems: ``RecoveredLog.problems``.
        """
        self.fs = fs
        self.path = path
        self.topic = topic
        self.segments = segments
        self.heads = NO_HEADS
        self.committed_id = next_id
        self.first_id = first_id
        self.lost: list[IdRange] = list(lost)
        self.removed: list[IdRange] = list(removed)
        self.unreadable: list[IdRange] = list(unreadable)
        self._problems = list(problems)
        self.files = files or OpenFiles()
        self.tail = TailCache(tail_budget or TailBudget())
        self.on_lost: Callable[[int, int], None] = lambda first, last: None
        """Called with the first and last id when a read finds records lost."""
        self.on_replaced: Callable[[Segment, str], None] = lambda segment, reason: None
        """Called when a read finds another file under the name of the active one, which is not open."""
        self.run_behind: Callable[[Callable[[], None], Callable[[], None]], None] = run_now
        """Runs a job that may take seconds, and then, on the loop, the function behind it; by default both at once."""
        self.examinations = Examinations()
        self._positions = FramePositions()
        self._hints = ReaderHints()

    # -- numbers

    @property
    def degraded(self) -> bool:
        """Whether the log has what ``toymq verify`` calls damage: lost or unreadable records, or files with surplus bytes."""
        return bool(self.lost or self.unreadable or self._problems) or any(s.missing or s.has_surplus for s in self.segments)

    @property
    def problems(self) -> list[str]:
        """Problems of the log, apart from records that are known to be lost or unreadable."""
        return [*self._problems, *(f"{s.path} has bytes that are no part of the log" for s in self.segments if s.has_surplus)]

    @property
    def size_bytes(self) -> int:
        return sum(segment.end for segment in self.segments)

    @property
    def last_ts_ns(self) -> int:
        """Time of the last committed record, 0 for none."""
        return next((segment.newest_ts_ns for segment in reversed(self.segments) if segment.newest_ts_ns), 0)

    def lost_count(self) -> int:
        """How many retained ids have no record, now or after a restart: an open file can still be read when it was removed."""
        missing = [(s.base_id, s.next_id - 1) for s in self.segments if s.missing and s.next_id > s.base_id]
        lost = union([*self.lost, *subtract(above(missing, self.first_id), self.removed)])
        return sum(last - first + 1 for first, last in lost)

    def messages(self) -> int:
        """How many records are retained."""
        return sum(last - first + 1 for first, last in self.retained(self.first_id, self.committed_id))

    def retained(self, first: int, limit: int) -> list[IdRange]:
        """The retained ids from ``first`` on and below ``limit``: neither lost nor removed."""
        first = max(first, self.first_id)
        return subtract([(first, limit - 1)], [*self.lost, *self.removed]) if first < limit else []

    def bytes_between(self, first: int, limit: int) -> int:
        """Size on disk of the committed records from ``first`` on and below ``limit``. Exact where both are in the sparse
        index; otherwise each end may be off by the 64 KiB between two entries."""
        segments = self.segments
        limit = min(limit, self.committed_id)
        if first >= limit or not segments:
            return 0
        from_at, to_at = self._at(first), self._at(limit - 1)
        size = segments[to_at].position_of(limit) - segments[from_at].position_of(first)
        return size + sum(segment.end for segment in segments[from_at:to_at])

    def is_unreadable(self, msg_id: int) -> bool:
        """Whether the disk refuses to read this record, until a restart."""
        return last_of_range(self.unreadable, msg_id) is not None

    # -- reading

    def read(self, from_id: int, max_count: int, max_bytes: int = READ_BYTES) -> tuple[Records | None, int, int]:
        """Read consecutive records from ``from_id`` on.

        Returns: (run, row of its first record to use, id after what was read). The run is None when the stretch holds no
        readable record: ids up to the returned one are lost or unreadable. At least one record comes where there is
        one, whatever ``max_bytes``.

        Raises: OSError other than EIO when the segment cannot be opened.
        """
        if (found := self.tail.find(from_id)) is not None:
            return *found, min(found[0].ids[-1] + 1, from_id + max_count)
        if (gap := self._gap_at(from_id)) is not None:
            return None, 0, min(gap + 1, self.committed_id)
        count = max_count
        room = self.tail.ahead_bytes() if count < AHEAD_ROWS and self._hints.stopped_at(from_id) else 0
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
        """Read single records by ascending ids, from anywhere in the log: as many as fit, one at least.

        Returns: a run of the records from the first id on, up to one that needs ``read``; None when that is the first one.

        Raises: OSError when the segment cannot be opened or read.
        """
        rows: list[Row] = []
        scans_max = self._positions.scans + SCANS_MAX
        for msg_id in ids:
            row = self._row_of(msg_id) if self._positions.scans < scans_max else None
            if row is None or (rows and max_bytes < len(row[2]) + len(row[3])):
                break
            max_bytes -= len(row[2]) + len(row[3])
            rows.append(row)
        if not rows:
            return None
        ts_ns, keys, payloads, headers, expires_at_ns = zip(*rows, strict=True)
        return Records(ids[: len(rows)], ts_ns, keys, payloads,
                       headers if any(headers) else None, expires_at_ns if any(expires_at_ns) else None)  # fmt: skip

    def _row_of(self, msg_id: int) -> Row | None:
        """Read one record; None when only ``read`` can tell why it is missing. Raises: OSError."""
        found = self.tail.find(msg_id)
        if found is None:
            if not self.first_id <= msg_id < self.committed_id:
                return None
            segment = self.segment_of(msg_id)
            if msg_id >= segment.next_id or segment.damages or segment.is_away or self.examinations.concern(segment.base_id):
                return None
            try:
                self.open(segment)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                return None
            return self._positions.read(segment, msg_id)
        run, row = found
        headers = b"" if run.headers is None else run.headers[row]
        expires_at_ns = 0 if run.expires_at_ns is None else run.expires_at_ns[row]
        return run.ts_ns[row], run.keys[row], run.payloads[row], headers, expires_at_ns

    def read_frames(self, from_id: int, max_count: int, max_bytes: int, *, whole: bool = True) -> tuple[bytes, int, int]:
        """Read committed frames byte for byte, for FETCH. ``whole``: the first comes even if it is longer than ``max_bytes``.

        Returns: (frames, how many, next id). Lost ids inside the range are skipped and the next id passes them.
        Raises: OutOfRange when ``from_id`` lies below the first or above the next id.
        """
        if not self.first_id <= from_id <= self.committed_id:
            raise OutOfRange.outside(self.topic, from_id, self.first_id, self.committed_id)
        parts: list[bytes] = []
        count = size = 0
        while from_id < self.committed_id and count < max_count and (whole or size + FRAME_OVERHEAD <= max_bytes):
            if (gap := self._gap_at(from_id)) is not None:
                from_id = min(gap + 1, self.committed_id)
                continue
            limit = min(max_count - count, self._next_gap(from_id) - from_id)
            try:
                data, start, end, next_id = self._read_frames(from_id, limit, max_bytes - size, whole=whole)
            except BeingFetched:
                if not parts:
                    raise
                break
            if next_id == from_id:
                break
            if start < end:
                parts.append(data[start:end])
                size += end - start
                count += next_id - from_id
                whole = False
            from_id = next_id
        return b"".join(parts), count, from_id

    def id_at_time(self, ts_ns: int, now_ns: int) -> int:
        """The first committed record at or after a time, see ``time_search``; the next id when there is none."""
        return id_at_time(self, ts_ns, now_ns)

    # -- changes by the committer and by retention

    def advance(self, next_id: int) -> None:
        """Move the committed position to ``next_id``."""
        self.committed_id = next_id

    def forget_below(self, first_id: int) -> None:
        """Forget everything about lower ids, which are not retained any more. The first id never falls."""
        first_id = self.first_id = max(first_id, self.first_id)
        self.lost = above(self.lost, first_id)
        self.unreadable = above(self.unreadable, first_id)
        self.removed = above(self.removed, first_id)

    def take_out(self, going: Sequence[Segment]) -> None:
        """Remove segments from the log, never the last one. The caller removes the files."""
        gone = {id(segment) for segment in going}
        first_goes = bool(self.segments) and id(self.segments[0]) in gone  # else what is lost before it stays lost
        self.segments[:] = [segment for segment in self.segments if id(segment) not in gone]
        for segment in going:
            self.files.close(segment)
            if segment.next_id > segment.base_id:
                self.removed = union([*self.removed, (segment.base_id, segment.next_id - 1)])
        self.lost = subtract(self.lost, self.removed)
        self.unreadable = subtract(self.unreadable, self.removed)
        if self.segments and first_goes:
            self.forget_below(self.segments[0].base_id)

    def close(self) -> None:
        for segment in self.segments:
            self.files.close(segment)

    # -- inside

    def _gap_at(self, msg_id: int) -> int | None:
        """The last id of the lost, unreadable or removed range that holds ``msg_id``."""
        if msg_id < self.first_id:
            return self.first_id - 1
        for ranges in (self.lost, self.unreadable, self.removed):
            if (last := last_of_range(ranges, msg_id)) is not None:
                return last
        return None

    def _next_gap(self, msg_id: int) -> int:
        """The first id of the next lost, unreadable or removed range, at most the committed position."""
        best = self.committed_id
        for ranges in (self.lost, self.unreadable, self.removed):
            at = bisect_left(ranges, (msg_id, 0))
            if at < len(ranges):
                best = min(best, ranges[at][0])
        return best

    def segment_of(self, msg_id: int) -> Segment:
        """The segment whose range holds an id. Assumes that there is a segment."""
        return self.segments[self._at(msg_id)]

    def _at(self, msg_id: int) -> int:
        return max(bisect_right(self.segments, msg_id, key=lambda segment: segment.base_id) - 1, 0)

    def open(self, segment: Segment) -> None:
        """Open the file of a segment; the least recently used ones are closed. Raises: OSError."""
        self.files.use(segment)
        segment.open(self.fs)

    def _read_frames(
        self, from_id: int, max_count: int, max_bytes: int, columns: Columns | None = None, *, whole: bool = True
    ) -> tuple[bytes, int, int, int]:
        """Read valid frames of one segment from ``from_id`` on, without a gap.

        Args:
            columns: empty; filled with what is in the frames, payloads too. Without, they are only checked.
            whole: the first record comes even if it is longer than ``max_bytes``.

        Returns: (data, position of the first frame in it, end of the last, next id). Without a frame both positions are equal.
        That is so when the first record proved damaged: it has been entered as lost, and the next id passes it; and when it is
        too long and not ``whole``: then the next id is ``from_id``.
        """
        at = self._at(from_id)
        segment = self.segments[at]
        if segment.sha256 is not None:
            segment = self.files.cold.use(self.topic, self.segments[at : at + 2], from_id, self._adopt_fetched)
        if self.examinations.is_unjudged(segment.base_id):
            return self._past_damage(segment, from_id, from_id, max_count, max_bytes, columns, whole, CHANGED)
        try:
            self.open(segment)
            if not self._hints.stopped_at(from_id):  # a reader that goes on does not ask again
                segment.check_unchanged()
        except OSError as error:
            if error.errno == errno.ESTALE and segment.file is None and not segment.sealed:
                self.on_replaced(segment, error.strerror or "")
            if error.errno == errno.ESTALE or (segment.sha256 is not None and error.errno in LASTING):
                return self._past_damage(segment, from_id, from_id, max_count, max_bytes, columns, whole, CHANGED)
            if error.errno not in LASTING:
                raise
            self._pass_over(segment, from_id, segment.next_id, error)
            return b"", 0, 0, segment.next_id
        assert segment.file is not None
        at_id, pos = self._hints.place_of(segment, from_id, whole=not segment.damages and not self.unreadable)
        stop_at = segment.whole_until(pos)
        max_count = min(max_count, segment.next_id - from_id)
        want = max(min(max_bytes, READ_BYTES, max(max_count, 4) * PAGE_BYTES), FRAME_OVERHEAD)
        wrong_id = -1
        while True:
            want = min(want, stop_at - pos)
            try:
                data = segment.file.pread(want, pos)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                break
            used, stop = 0, Stop.COUNT
            if at_id < from_id:
                used, at_id, stop = scan(data, 0, at_id, max_count=from_id - at_id)
            if at_id == from_id:
                end, next_id, stop = scan(
                    data, used, from_id, columns, with_payloads=True, max_count=max_count, max_bytes=max_bytes
                )
                if next_id > from_id and (whole or end - used <= max_bytes):
                    if next_id < segment.next_id:
                        self._hints.note(next_id, segment, pos + end)
                    return data, used, end, next_id
                if next_id > from_id or (not whole and stop is Stop.PARTIAL and len(data) - used >= max_bytes):
                    self._hints.note(from_id, segment, pos + used)
                    return b"", 0, 0, from_id
            cut = stop is Stop.PARTIAL and len(data) == want < stop_at - pos
            pos += used
            if used and (cut or stop is Stop.END) and pos < stop_at:
                continue
            needed = frame_bytes(data) if cut else None
            if needed is not None and needed > want:
                want = max(needed, READ_BYTES)
            elif wrong_id == at_id:
                break
            else:
                wrong_id = at_id  # read it once more: it may have been the read, not the disk
        return self._past_damage(segment, at_id, from_id, max_count, max_bytes, columns, whole)

    # -- damage: what the scanner says, and nothing else

    def _past_damage(
        self, segment: Segment, at_id: int, from_id: int, max_count: int, max_bytes: int, columns: Columns | None, whole: bool,
        why: str = "a record of it fails its check",
    ) -> tuple[bytes, int, int, int]:  # fmt: skip
        """Go on behind a committed record that fails its check, is refused by the disk, or whose file was changed. The segment
        is examined, once for all. Returns: as ``_read_frames``. Raises: BeingExamined meanwhile; OSError when it cannot be."""
        if segment.sha256 is not None:  # it was right when it was fetched
            self.files.close(segment)
            self.files.cold.spoilt(segment)
            return self._read_frames(from_id, max_count, max_bytes, columns, whole=whole)
        examinations = self.examinations
        if not examinations.is_running(segment.base_id):
            if (error := examinations.take_failure(segment.base_id)) is not None:
                raise error
            if why != CHANGED and examinations.is_wrong_again(at_id):
                after = segment.next_known_id(max(at_id, from_id))
                self._pass_over(segment, from_id, after, "gives other bytes at each read")
                return b"", 0, 0, after
            self.examine(segment, why)
        if examinations.is_running(segment.base_id):
            raise BeingExamined(segment.path, self.when_examined)
        if (gap := self._gap_at(from_id)) is not None:
            return b"", 0, 0, min(gap + 1, segment.next_id)
        return self._read_frames(from_id, min(max_count, self._next_gap(from_id) - from_id), max_bytes, columns, whole=whole)

    def when_examined(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the scans of damaged segments are done; at once when there are none."""
        self.examinations.when_done(call)

    def examine(self, segment: Segment, why: str = CHANGED) -> None:
        """Examine the file of a segment anew, as the next start will; once at a time."""
        if why == CHANGED:
            self.examinations.note_change(segment.base_id)
        if self.examinations.is_running(segment.base_id):
            return
        base_id, next_id, end = segment.base_id, segment.next_id, None if segment.sealed else segment.end
        then = segment.end, segment.keyed, segment.expiring
        found, errors = list[ScanResult | str](), list[OSError]()
        if segment.sealed:  # what stands there now counts; the active file is open for the committer, too
            self.files.close(segment)
            segment.inode = None

        def job() -> None:
            try:
                found.append(judge_anew(self.fs, self.path, segment, self.heads, next_id, end=end))
            except OSError as error:
                errors.append(error)

        def done() -> None:
            judged, error = found[0] if found else None, errors[0] if errors else None
            lasting = error is not None and error.errno in LASTING
            if judged is None and error is None:  # no memory, or a bug: the log says so
                error = OSError(errno.EAGAIN, "the segment could not be examined", segment.path)
            changed = self.examinations.is_unjudged(base_id)
            waiting = self.examinations.end(base_id, None if lasting else error)
            if any(each is segment for each in self.segments):
                if isinstance(judged, str):
                    self._leave_out(segment, judged)
                elif judged is not None:
                    if changed:  # else the disk may still refuse what it refused a reader
                        self.unreadable = subtract(self.unreadable, [(base_id, next_id - 1)])
                    adopt(segment, judged, *then)
                    self._adopt_damage(segment)
                elif lasting:
                    self._pass_over(segment, max(base_id, self.first_id), next_id, error)
                elif changed:
                    segment.stamp = NO_STAMP  # so that the next look sees the change again
                if segment.sealed and end is not None:  # it was written for a whole one
                    self.run_behind(lambda: segment.drop_sidecar(self.fs), lambda: None)
            call_all(waiting)

        self.examinations.begin(base_id)
        logger.warning("topic %s: %s: %s; the segment is scanned", self.topic, segment.path, why)
        self.run_behind(job, done)

    def _adopt_fetched(self, segment: Segment, found: ScanResult) -> None:
        """Take over an evicted segment that can be read again."""
        adopt(segment, found, segment.end, segment.keyed, segment.expiring)
        self._adopt_damage(segment)

    def _adopt_damage(self, segment: Segment) -> None:
        """Take over the damages of a segment: readers skip them from now on, and consumers learn what is lost."""
        self._hints.clear()
        self._positions.forget(segment)
        known = [*self.lost, *self.unreadable, *self.removed]
        lost = subtract(above(segment.ids_of_damage(unreadable=False), self.first_id), known)
        unreadable = subtract(above(segment.ids_of_damage(unreadable=True), self.first_id), known)
        self.lost = union([*self.lost, *lost])
        self.unreadable = union([*self.unreadable, *unreadable])
        for line in damage_report(segment.damages) if lost or unreadable or segment.has_surplus else ():
            logger.error("topic %s: %s: %s", self.topic, segment.path, line)
        for first, last in lost:
            self.on_lost(first, last)

    def _leave_out(self, segment: Segment, reason: str) -> None:
        """Leave out a file that belongs to another log: its ids are lost. In the newest segment they count as damage, since its
        place in the log stays taken."""
        logger.error("topic %s: %s %s: it is not served; `toymq repair` puts it aside", self.topic, segment.path, reason)
        self._problems.append(f"{segment.path} {reason}")
        if segment.next_id > segment.base_id:
            segment.damages = [Damage(0, segment.end, segment.base_id, segment.next_id - 1)]
            self.unreadable = subtract(self.unreadable, [segment.damages[0].ids])
            self._adopt_damage(segment)
        if segment is not self.segments[-1]:
            self.files.close(segment)
            self.segments[:] = [each for each in self.segments if each is not segment]  # retention leaves it alone, too

    def _pass_over(self, segment: Segment, from_id: int, after: int, why: object) -> None:
        """Skip records that the disk refuses to read, until a restart. That is not damage."""
        self.unreadable = union([*self.unreadable, *subtract([(from_id, after - 1)], self.lost)])
        logger.error("topic %s: %s (%s: %s); passed over until restart",
                     self.topic, record_range(from_id, after - 1, "cannot be read"), segment.path, why)  # fmt: skip
