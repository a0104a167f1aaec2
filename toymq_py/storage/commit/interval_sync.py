"""``--fsync interval``: syncs of a log whose records are answered when they are written. Belongs to the event loop.

Contract: storage.md, "Append and group commit".
"""

from collections.abc import Callable

from toymq_py.clock import Clock
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.log import Log
from toymq_py.storage.segment import Segment


class IntervalSync:
    """Syncs the active segment an interval after its first unsynced record. Nothing is scheduled while there is none."""

    def __init__(
        self,
        log: Log,
        scheduler: Scheduler,
        clock: Clock,
        interval_s: float,
        run_behind: Callable[[Callable[[], None], Callable[[], None]], None],
        ended: Callable[[Segment, float | None, OSError | None], None],
    ) -> None:
        """
        Args:
            run_behind: runs a job on a sync thread, then its callback on the loop.
            ended: called with the segment of each sync, and the seconds it took or its error; with neither after a bug.
        """
        self._log = log
        self._scheduler = scheduler
        self._monotonic = clock.monotonic
        self._interval_s = interval_s
        self._run_behind = run_behind
        self._ended = ended
        self._timer = False
        self._stopped = False
        self.due = False
        """Whether records were written and answered, and no sync of them has begun."""

    def written(self) -> None:
        """Note that records were written to the active segment, which stays busy until they are synced."""
        self.due = self._log.segments[-1].busy = True
        if not self._timer:
            self._timer = True
            self._scheduler.later(self._interval_s, self._sync)

    def stop(self) -> None:
        """Sync no more: the log is poisoned, and a failed sync must not be repeated."""
        self._stopped = True

    def _sync(self) -> None:
        self._timer = False
        if not self.due or self._stopped or not self._log.segments:
            return
        active = self._log.segments[-1]
        file = active.file
        if file is None or active.sealed:  # sealing synced it
            self.due = False
            return
        self.due, active.busy = False, True
        errors: list[OSError] = []
        took_s: list[float] = []
        monotonic = self._monotonic

        def job() -> None:
            began = monotonic()
            try:
                file.sync()
                took_s.append(monotonic() - began)
            except OSError as error:
                errors.append(error)

        def done() -> None:
            self._ended(active, took_s[0] if took_s else None, errors[0] if errors else None)

        self._run_behind(job, done)
