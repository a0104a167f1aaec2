"""Hints where sequential readers of a log stopped. Belongs to the event loop."""

from toymq_py.storage.segment import Segment

HINTS_MAX = 64
HINTS_BACK = 16
"""How many records a reader may have skipped and still go on where it was."""


class ReaderHints:
    """Positions in the log where readers stopped, by id: a reader that continues there need not search the sparse index and
    scan the frames before. At ``HINTS_MAX`` all are dropped."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[int, tuple[Segment, int]] = {}

    def note(self, next_id: int, segment: Segment, pos: int) -> None:
        """Note that a reader stopped before ``next_id``, and may go on there."""
        if len(self._places) >= HINTS_MAX:
            self._places.clear()
        self._places[next_id] = (segment, pos)

    def stopped_at(self, msg_id: int) -> bool:
        """Whether a reader stopped exactly before this id."""
        return msg_id in self._places

    def place_of(self, segment: Segment, from_id: int, *, whole: bool) -> tuple[int, int]:
        """(id, position) of a frame at or shortly before ``from_id``: where a reader stopped, otherwise from the sparse index.
        A hint is used once. ``whole``: there is no damage between the two ids."""
        known = segment.seek_id(from_id)
        for back in range(HINTS_BACK + 1 if whole else 1):
            hint = self._places.get(from_id - back)
            if hint is not None and hint[0] is segment:
                del self._places[from_id - back]
                return (from_id - back, hint[1]) if hint[1] > known[1] else known
        return known

    def clear(self) -> None:
        self._places.clear()
