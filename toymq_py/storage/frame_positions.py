"""Positions of frames in the parts of segments that are read at random. Belongs to the event loop."""

import errno
from array import array
from bisect import bisect_right

from toymq_py.storage.record import Columns, Row, decode_row, scan
from toymq_py.storage.segment import Segment


class FramePositions:
    """Cache of where each frame begins, by part of a segment.

    A part is what lies between two entries of a segment's sparse index, about 64 KiB. Without the cache every read of one
    record would scan a whole part. Holds at most ``FRAMES_MAX`` positions of 4 bytes and evicts the least recently used part.
    """

    __slots__ = ("_frames", "_parts", "scans")

    FRAMES_MAX = 1 << 20

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], array[int]] = {}  # by the segment's first id and its index entry
        self._frames = 0
        self.scans = 0
        """Parts scanned so far."""

    def read(self, segment: Segment, msg_id: int) -> Row | None:
        """One record of an open segment without known damage.

        Returns: None when the record is not at its position, or the disk cannot read it: ``Log.read`` finds out why.

        Raises: OSError other than EIO.
        """
        entry = bisect_right(segment.index_ids, msg_id) - 1
        if entry < 0:
            return None
        assert segment.file is not None
        row = msg_id - segment.index_ids[entry]
        try:
            positions = self._positions_of(segment, entry)
            if row + 1 >= len(positions):
                return None
            start = positions[row]
            return decode_row(segment.file.pread(positions[row + 1] - start, segment.index_positions[entry] + start), msg_id)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None

    def forget(self, segment: Segment) -> None:
        """Drop the positions of a segment whose sparse index has changed."""
        for key in [key for key in self._parts if key[0] == segment.base_id]:
            self._frames -= len(self._parts.pop(key))

    def _positions_of(self, segment: Segment, entry: int) -> "array[int]":
        """The position of each frame of a part, and of the end of the last one, relative to the part's beginning."""
        key = segment.base_id, entry
        positions = self._parts.pop(key, None)
        if positions is None:
            positions = self._scan(segment, entry)
            if entry + 1 == len(segment.index_ids) and not segment.sealed:
                return positions  # the part still grows
            self._frames += len(positions)
            while self._frames > self.FRAMES_MAX and self._parts:
                self._frames -= len(self._parts.pop(next(iter(self._parts))))
        self._parts[key] = positions  # now the most recently used
        return positions

    def _scan(self, segment: Segment, entry: int) -> "array[int]":
        assert segment.file is not None
        self.scans += 1
        last = entry + 1 == len(segment.index_ids)
        start = segment.index_positions[entry]
        end = segment.end if last else segment.index_positions[entry + 1]
        columns = Columns()
        used, _, _ = scan(segment.file.pread(end - start, start), 0, segment.index_ids[entry], columns)
        positions = array("I", columns.positions)
        positions.append(used)
        return positions
