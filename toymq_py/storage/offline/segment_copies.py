"""Copies the segments of a topic to a backup that may already have copies of them. ADR 0026, 0086, 0091."""

import contextlib
from bisect import bisect
from collections.abc import Container
from itertools import zip_longest

from toymq_py.disk_errors import is_lasting, unreadable_text
from toymq_py.storage.fs import COPY_BYTES, TEMPORARY, FileSystem, copy_file, replace_file
from toymq_py.storage.offline.backup_directory import MARK_NAME
from toymq_py.storage.offline.backup_report import BackupReport
from toymq_py.storage.offline.earlier_copy import (
    common_bytes,
    holds_all_of,
    join,
    keep_lost,
    read_part,
    records_more,
)
from toymq_py.storage.scanner import Progress, ScanResult, scan_segment
from toymq_py.storage.segment import Segment, load_sidecar, segment_name

ENDS_BYTES = 4096
"""Bytes at either end of two segments that are compared to know whether they are the same: every record has its time in
nanoseconds."""


class SourceChanged(Exception):
    """The topic changed while it was copied."""


class OtherLog(Exception):
    """The copy in the backup is of another log with the same name."""


class SegmentCopies:
    """Copies segments, and tells the report what it did."""

    def __init__(self, fs: FileSystem, backup_dir: str, report: BackupReport, progress: Progress) -> None:
        self._fs = fs
        self._backup_dir = backup_dir
        self._report = report
        self._progress = progress

    def copy(
        self, path: str, to: str, bases: list[int], away: Container[int], lost: list[Segment], next_id: int
    ) -> int:
        """Copy the segments of a topic.

        Args:
            bases: first ids of the source's segments, ascending.
            away: the segments among them that only the bucket of ``--tier`` has: their copies from an earlier backup stay.
            lost: copies of segments that the source has lost: they stay.
            next_id: the id that the last segment should reach at least.

        Returns: the id after the last record, 0 without segments.

        Raises: SourceChanged, OtherLog, FileNotFoundError when a segment went meanwhile; OSError.
        """
        fs, end = self._fs, 0
        before: tuple[str, Segment] | None = None
        followings = dict(zip_longest(bases, bases[1:]))
        gone = {segment.base_id: segment for segment in lost}
        self._check_beside(path, to, [base_id for base_id in bases if base_id not in away], lost)
        for base_id in sorted([*(base_id for base_id in bases if base_id not in away), *gone]):
            file, copy = f"{path}/{segment_name(base_id)}", f"{to}/{segment_name(base_id)}"
            if base_id in gone:
                before = copy, gone[base_id]
                continue
            following = followings[base_id]
            try:
                if before is not None and before[1].next_id > base_id and self._is_within(file, base_id, *before):
                    self._drop(copy)
                    end = before[1].next_id
                    continue
                if following is None:
                    end = max(end, self._copy_newest(file, copy, base_id, next_id))
                elif self._copy_sealed(file, copy, base_id, following):
                    before = copy, scan_segment(fs, copy, base_id).segment
            except OSError as error:
                if isinstance(error, FileNotFoundError | NotADirectoryError) or not _refuses(fs, file):
                    raise
                self.pass_over(file, error)
        return end

    def pass_over(self, path: str, error: OSError) -> None:
        """Report a file that cannot be read, and go on without it. Raises: OSError."""
        self._name(f"{path}: {unreadable_text(error)}, and was not copied")

    def _name(self, problem: str) -> None:
        """Add the problem of an unreadable file to the report. Raises: OSError when the backup's own mark is unreadable, too:
        the machine can read nothing then, so no backup is possible."""
        read_part(self._fs, f"{self._backup_dir}/{MARK_NAME}", 1, 0)
        self._report.problem(problem)

    def mend(self, file: str, to: str) -> None:
        """Replace a damaged copy by its source, if the source has all records that the copy still has. Raises: OSError."""
        base_id = int(to[-24:-4])
        try:
            if not self._keeps(file, to, scan_segment(self._fs, file, base_id), base_id):
                self._copy(file, to, self._fs.file_size(file))
        except (FileNotFoundError, SourceChanged, OtherLog):
            return
        except OSError as error:
            if not _refuses(self._fs, file):
                raise
            self.pass_over(file, error)

    def _is_within(self, file: str, base_id: int, to: str, ours: Segment) -> bool:
        """Whether the copy of an earlier segment has all records of this one. Raises: OtherLog when it has others of the same
        ids."""
        theirs = scan_segment(self._fs, file, base_id).segment
        common = common_bytes(self._fs, file, theirs, to, ours)
        if common is None:
            raise OtherLog
        return common == theirs.end

    def _check_beside(self, path: str, to: str, bases: list[int], lost: list[Segment]) -> None:
        """Raise OtherLog when a segment of the source has other records than the copy of a later one that is lost, before
        anything of it is copied."""
        for ours in lost:
            at = bisect(bases, ours.base_id) - 1
            if at < 0:
                continue
            file, copy = f"{path}/{segment_name(bases[at])}", f"{to}/{segment_name(ours.base_id)}"
            try:
                theirs = scan_segment(self._fs, file, bases[at]).segment
                if theirs.next_id > ours.base_id and common_bytes(self._fs, copy, ours, file, theirs) is None:
                    raise OtherLog
            except OSError:
                if not _refuses(self._fs, file):  # else it is not copied, and says nothing
                    raise

    def _drop(self, to: str) -> None:
        for path in (to, to[:-4] + ".idx"):
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(path)

    def _copy_sealed(self, file: str, to: str, base_id: int, following: int) -> bool:
        """Copy a sealed segment. Returns: whether the existing copy was kept, which may reach to a higher id than the source's
        file."""
        fs = self._fs
        size = fs.file_size(file)
        same = fs.exists(to) and fs.file_size(to) == size and _ends(fs, to, size) == _ends(fs, file, size)
        better = joined = False
        if not same and fs.exists(to):
            found = scan_segment(fs, file, base_id, next_id=following)
            better = self._keeps(file, to, found, following)
            joined = not better and self._joins(file, to, found.segment, size)
        if joined:
            better = True
        elif same or better:
            if to not in self._report.copied | self._report.kept:
                self._report.kept.add(to)
                self._progress(size)
        else:
            self._copy(file, to, size)
        segment = load_sidecar(fs, file, base_id, following)  # a cache: it is written behind, and may not be there yet
        if better or segment is None or (same and segment.damages):  # the copy may be without the damage that the sidecar tells
            return better and not joined
        data, copy = fs.read_file(segment.sidecar_path), to[:-4] + ".idx"
        if not fs.exists(copy) or fs.read_file(copy) != data:
            replace_file(fs, copy, data)
        return False

    def _keeps(self, file: str, to: str, found: ScanResult, next_id: int) -> bool:
        """Whether to keep the copy of a segment, since it holds all records of the source's file, and more.

        Args:
            found: the scan of the source's file.
            next_id: the id that the segment should reach at least.
        """
        theirs = found.segment
        if not theirs.damages and theirs.end >= self._fs.file_size(to):
            return False
        more = records_more(self._fs, file, to, theirs)
        if more and (theirs.damages or theirs.next_id < next_id):  # else they may never have been acknowledged
            self._report.problem(f"{file} is damaged: the backup keeps its copy, which has {more} records more")
            self._note(to, theirs.base_id)
        return more > 0

    def _note(self, to: str, base_id: int) -> None:
        """Note that a copy has records that the source has lost: after a restore they count as acked, and retention removes
        them with their segment."""
        keep_lost(self._fs, to.rpartition("/")[0], [scan_segment(self._fs, to, base_id).segment])

    def _joins(self, file: str, to: str, theirs: Segment, size: int) -> bool:
        """Put the source's segment in the place of its copy, with the copy's records where the source is damaged. Returns:
        whether the copy had such records."""
        if not theirs.damages:
            return False
        temporary = to + TEMPORARY
        try:
            more = join(self._fs, file, to, theirs, size, temporary)
            if more:
                self._fs.rename(temporary, to)
                self._report.copied.add(to)
                self._report.copied_bytes += size
                self._report.problem(f"{file} is damaged: the backup keeps {more} records that it had")
                self._note(to, theirs.base_id)
            return more > 0
        finally:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)

    def _copy_newest(self, file: str, to: str, base_id: int, next_id: int) -> int:
        """Copy the newest segment up to its last valid record. Bytes behind it were not acknowledged, and may be incomplete.
        Returns: the id after the last copied record."""
        fs = self._fs
        found = _settled(fs, file, base_id)
        if found.unreadable_tail:
            self._name(f"{file}: it cannot be read behind byte {found.segment.end}, and was copied so far")
        if fs.exists(to) and self._keeps(file, to, found, next_id):
            self._report.kept.add(to)
            return scan_segment(fs, to, base_id).segment.next_id
        # With damage in it, what is behind the last record is part of what that was judged by.
        size = found.size if found.segment.damages else found.segment.end
        if fs.exists(to) and self._joins(file, to, found.segment, size):
            return scan_segment(fs, to, base_id).segment.next_id
        self._copy(file, to, size)
        copied = scan_segment(fs, to, base_id).segment
        if (copied.next_id, copied.damages) != (found.segment.next_id, found.segment.damages) and not copied.damages:
            raise SourceChanged  # it was cut meanwhile
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(to[:-4] + ".idx")
        return found.segment.next_id

    def _copy(self, file: str, to: str, size: int) -> None:
        """Replace ``to`` by ``size`` bytes of a file, once all are on the disk. Raises: OtherLog when ``to`` has records that
        the file lacks."""
        fs, temporary = self._fs, to + TEMPORARY
        if fs.exists(to) and not holds_all_of(fs, file, to, scan_segment(fs, to, int(to[-24:-4])).segment):
            raise OtherLog
        try:
            if copy_file(fs, file, temporary, end=size, progress=self._progress) < size:
                raise SourceChanged  # retention on a full disk takes the bytes first
            fs.rename(temporary, to)
        except OSError:
            with contextlib.suppress(OSError):
                fs.unlink(temporary)
            raise
        self._report.kept.discard(to)
        self._report.copied.add(to)
        self._report.copied_bytes += size


def _settled(fs: FileSystem, path: str, base_id: int) -> ScanResult:
    """Scan a segment that may be written meanwhile: a page that was read too early looks like damage, but only once."""
    found = scan_segment(fs, path, base_id)
    while found.segment.damages:
        again = scan_segment(fs, path, base_id)
        if all(damage in found.segment.damages for damage in again.segment.damages):
            return again
        found = again
    return found


def _ends(fs: FileSystem, path: str, size: int) -> tuple[bytes, bytes]:
    return read_part(fs, path, ENDS_BYTES, 0), read_part(fs, path, ENDS_BYTES, max(size - ENDS_BYTES, 0))


def _refuses(fs: FileSystem, path: str) -> bool:
    """Whether a file exists and the disk refuses to read some of it."""
    try:
        for position in range(0, fs.file_size(path), COPY_BYTES):
            read_part(fs, path, COPY_BYTES, position)
    except FileNotFoundError:
        return False
    except OSError as error:
        return is_lasting(error)
    return False
