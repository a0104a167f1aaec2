"""Limits the open segment files of all topics together. Belongs to the event loop."""

from toymq_py.storage.evicted import Cold, NoCold
from toymq_py.storage.segment import Segment

OPEN_FILES_MAX = 1024
"""The default for the most open files: the broker's process says how many its descriptors allow."""


class OpenFiles:
    """Keeps at most ``limit`` segment files open. The least recently used are closed, except those that a sync thread writes.
    So descriptors are left for connections, offsets and directories, however many topics there are."""

    __slots__ = ("_newest", "_segments", "cold", "limit")

    def __init__(self, limit: int = OPEN_FILES_MAX) -> None:
        self.limit = limit
        self.cold: Cold = NoCold()
        """Fetches files that are in the bucket."""
        self._newest: Segment | None = None  # the one that was used last
        self._segments: dict[int, Segment] = {}  # by identity, the one that was not used for longest first

    def use(self, segment: Segment) -> None:
        """Count a segment's file as open and most recently used; it is open, or will be at once."""
        if segment is self._newest:
            return
        self._newest = segment
        segments = self._segments
        segments.pop(id(segment), None)
        segments[id(segment)] = segment
        if len(segments) > self.limit:
            self._make_room(segment)

    def close(self, segment: Segment) -> None:
        """Close the file of a segment, if it is open."""
        segment.close()
        self._segments.pop(id(segment), None)
        if segment is self._newest:
            self._newest = None

    def _make_room(self, wanted: Segment) -> None:
        idle = [segment for segment in self._segments.values() if segment is not wanted and not segment.busy]
        for segment in idle[: len(self._segments) - self.limit]:
            self.close(segment)
