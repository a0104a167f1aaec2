"""Time stamps of appended records, one for each loop pass, and how long a pass waits for the disk."""

import logging
from collections import deque

from toymq_py.clock import Clock
from toymq_py.storage.segment import CLOCK_AHEAD_MAX_NS

logger = logging.getLogger("toymq_py.storage")


class PassClock:
    """Time stamps for appended records. All records of one loop pass get the same one; the time stamps of a log never fall."""

    __slots__ = ("_clock", "_last_ts_ns", "_passes", "_topic", "ts_ns")

    def __init__(self, clock: Clock, topic: str, last_ts_ns: int) -> None:
        """``last_ts_ns`` is the time of the log's newest record, 0 for none."""
        self._clock = clock
        self._topic = topic
        self._last_ts_ns = last_ts_ns
        self._passes: deque[tuple[int, float]] = deque()  # first id and time of each pass with uncommitted records
        self.ts_ns = 0
        """The time stamp of this pass; 0 before its first append."""
        if (ahead_ns := last_ts_ns - clock.wall_ns()) > CLOCK_AHEAD_MAX_NS:
            self._log_ahead(ahead_ns, "one of the two is wrong")

    def begin(self, first_id: int) -> bool:
        """Take the time of a new pass, before its first append.

        Returns: whether time stamps go back here, which needs a new segment. They do when the log's newest record is far ahead
        of the clock: otherwise all records would get its time until the clock has caught up. After a smaller jump of the clock
        they do get it.
        """
        wall_ns = self._clock.wall_ns()
        goes_back = self._last_ts_ns > wall_ns + CLOCK_AHEAD_MAX_NS
        if goes_back:
            self._log_ahead(self._last_ts_ns - wall_ns, "times go back, in a new segment")
            self._last_ts_ns = wall_ns
        self.ts_ns = self._last_ts_ns = max(wall_ns, self._last_ts_ns)
        self._passes.append((first_id, self._clock.monotonic()))
        return goes_back

    def end(self) -> None:
        """Note that the loop pass has ended, so that the next append takes a new time."""
        self.ts_ns = 0

    def reset(self, last_ts_ns: int) -> None:
        """Forget all passes: their records were refused. If this pass appends again, it takes the time again."""
        self._passes.clear()
        self.ts_ns, self._last_ts_ns = 0, last_ts_ns

    def waits(self, first_id: int, next_id: int) -> list[tuple[float, int]]:
        """How long committed records waited since their append: seconds and number of records, for each pass.

        The newest of these passes may have filled the next batch, too.
        """
        passes, now, waits = self._passes, self._clock.monotonic(), []
        while first_id < next_id:
            if len(passes) > 1 and passes[1][0] <= first_id:
                passes.popleft()
                continue
            stop = min(passes[1][0], next_id) if len(passes) > 1 else next_id
            waits.append((now - passes[0][1], stop - first_id))
            first_id = stop
        return waits

    def _log_ahead(self, ahead_ns: int, consequence: str) -> None:
        days = ahead_ns / 86_400e9
        logger.error("topic %s: its newest record is %.1f days ahead of the clock: %s", self._topic, days, consequence)
