"""The segments of a log that are being examined for damage, and which of them may not be read meanwhile. Belongs to the event
loop."""

from collections.abc import Callable

WRONG_READS_MAX = 3
"""How often a record may fail a reader's check although it passes the scanner's."""
WRONG_IDS_MAX = 64


class Examinations:
    """The segments under examination, by first id: a thread scans each of them, because a record failed its check or the file
    was changed."""

    __slots__ = ("_failed", "_running", "_unjudged", "_wrong")

    def __init__(self) -> None:
        self._running: dict[int, list[Callable[[], None]]] = {}  # those that wait
        self._unjudged: set[int] = set()  # their file was changed
        self._failed: dict[int, OSError] = {}  # the last time
        self._wrong: dict[int, int] = {}  # id to how often the scanner had nothing against it

    def is_running(self, base_id: int) -> bool:
        return base_id in self._running

    def is_unjudged(self, base_id: int) -> bool:
        """Whether the file was changed, so that it must not be read, even after an examination that failed."""
        return base_id in self._unjudged

    def concern(self, base_id: int) -> bool:
        """Whether a segment is being examined, or has to be examined before it is read."""
        return base_id in self._running or base_id in self._unjudged

    def note_change(self, base_id: int) -> None:
        self._unjudged.add(base_id)

    def begin(self, base_id: int) -> None:
        self._running[base_id] = []

    def end(self, base_id: int, error: OSError | None) -> list[Callable[[], None]]:
        """End an examination. ``error``: why the segment could not be examined. Returns: the calls that wait for the end."""
        if error is None:
            self._unjudged.discard(base_id)
            self._failed.pop(base_id, None)
        else:
            self._failed[base_id] = error
        return self._running.pop(base_id)

    def take_failure(self, base_id: int) -> OSError | None:
        """Why the last examination of a segment failed, reported once: the next reader has it examined again."""
        return self._failed.pop(base_id, None)

    def when_done(self, call: Callable[[], None]) -> None:
        """Call ``call`` when no examination runs; at once when none does."""
        for waiting in self._running.values():
            waiting.append(lambda: self.when_done(call))
            return
        call()

    def is_wrong_again(self, msg_id: int) -> bool:
        """Count a record that fails its check although the scanner finds no damage. Returns: whether to give it up."""
        tries = self._wrong.get(msg_id, 0)
        if tries >= WRONG_READS_MAX:
            return True
        if len(self._wrong) >= WRONG_IDS_MAX:
            self._wrong.clear()
        self._wrong[msg_id] = tries + 1
        return False
