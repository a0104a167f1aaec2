"""Writes consumer state to disk, debounced.

Contract: storage.md, "offsets.json". A flush begins no later than 100 ms after the first unsaved change; one flush at a
time for all topics, off the event loop; stretched so that flushing costs at most 5 % of a core. Belongs to the loop.
"""

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from toymq_py.callbacks import call_all
from toymq_py.clock import Clock
from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.storage import offsets
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.segment import topic_of

logger = logging.getLogger("toymq_py.storage")

DEBOUNCE_S = 0.1
COST_SHARE_MAX = 0.05
JOBS_MAX = 4
"""Most sync threads of a flush that is waited for: side by side, syncs share commits of the file system's journal, and of a new
pattern consumer's thousand topics none waits for all others (ADR 0102). More threads compete with the loop for the interpreter
while they encode."""
SOURCES_PER_RUN = 64
"""Topics whose offsets are written in one run: to take their states and to tell that they are stored holds the loop for 30 us
each, at least."""
RETRY_S = 1.0
"""How soon a failed flush is tried again."""


class FlushSource(Protocol):
    """Consumer state of one topic, as the flusher sees it."""

    path: str

    def offsets_snapshot(self) -> OffsetsState:
        """Return the state to write; called on the loop."""

    def offsets_flushed(self, state: OffsetsState) -> None:
        """Note that ``state`` is on stable storage."""

    def offsets_refused(self, error: OSError) -> None:
        """Note that the state could not be written; it will be tried again."""


Done = Callable[[OSError | RequestError | None], None]


class OffsetsFlusher:
    """Writes the offsets of changed topics, in groups.

    A topic that changes while it is being written is written again. A failed flush (a full disk, say) keeps the topic
    dirty and is retried; it poisons nothing.
    """

    def __init__(self, fs: FileSystem, scheduler: Scheduler, clock: Clock) -> None:
        self._fs = fs
        self._scheduler = scheduler
        self._clock = clock
        self._dirty: dict[FlushSource, None] = {}
        self._waiters: dict[FlushSource, list[Done]] = {}
        self._running = False
        self._timer: float | None = None  # when the armed timer fires
        self._not_before = 0.0
        self._failing: dict[FlushSource, float] = {}  # and when it is tried again
        self._idle_waiters: list[Callable[[], None]] = []
        self._quiet_waiters: list[Callable[[], None]] = []
        self._discarded: set[FlushSource] = set()
        self._stopped: RequestError | None = None
        self._abandoned = False
        self._writing = 0
        self._more = False  # the last run had more to write

    @property
    def unsaved(self) -> int:
        """About how many sources have changes that are not on stable storage."""
        return len(self._dirty) + self._writing

    def abandon(self) -> None:
        """Stop after the files that are being written now: the broker ends at once."""
        self._abandoned = True

    def stop(self, error: RequestError) -> None:
        """Stop writing: the directory no longer belongs to the broker. All waiting and later ``flush`` calls get ``error``."""
        self._stopped = error
        self._dirty.clear()
        waiters, self._waiters = self._waiters, {}
        for calls in waiters.values():
            call_all(calls, error)

    def mark(self, source: FlushSource) -> None:
        """Mark a source as unsaved. Cheap when it is marked already."""
        if source not in self._dirty and self._stopped is None:
            self._dirty[source] = None
            self._arm(max(self._clock.monotonic() + DEBOUNCE_S, self._not_before))

    def flush(self, source: FlushSource, done: Done) -> None:
        """Write the source as it is now. ``done`` gets None when that is on stable storage, or the error."""
        if self._stopped is not None:
            done(self._stopped)
            return
        self._waiters.setdefault(source, []).append(done)
        self._dirty[source] = None
        self._arm(self._clock.monotonic())

    def discard(self, source: FlushSource) -> None:
        """Forget a source whose topic is being deleted. Calls that wait for its flush get an error."""
        self._dirty.pop(source, None)
        if self._running:
            self._discarded.add(source)
        self._failing.pop(source, None)
        call_all(self._waiters.pop(source, ()), NoSuchTopic("the topic is being deleted"))

    def when_quiet(self, call: Callable[[], None]) -> None:
        """Call ``call`` when no offsets file is being written; at once when none is."""
        if self._running:
            self._quiet_waiters.append(call)
        else:
            call()

    def flush_all(self, done: Callable[[], None]) -> None:
        """Write every unsaved source once, for shutdown."""
        self._idle_waiters.append(done)
        self._arm(self._clock.monotonic())

    def _arm(self, at: float) -> None:
        if self._running or (self._timer is not None and self._timer <= at):
            return
        self._timer = at
        self._scheduler.later(max(at - self._clock.monotonic(), 0.0), lambda: self._due(at))

    def _due(self, at: float) -> None:
        if self._timer != at or self._running:
            return  # a timer that was superseded by an earlier one
        self._timer = None
        self._run()

    def _run(self) -> None:
        now = self._clock.monotonic()
        sources = [s for s in self._dirty if self._failing.get(s, now) <= now or s in self._waiters or self._idle_waiters]
        if len(sources) > SOURCES_PER_RUN:
            sources.sort(key=lambda source: source not in self._waiters)
        self._more = len(sources) > SOURCES_PER_RUN
        del sources[SOURCES_PER_RUN:]
        for source in sources:
            del self._dirty[source]
        waiters = {source: self._waiters.pop(source, []) for source in sources}
        errors: dict[FlushSource, OSError] = {}
        fs, monotonic = self._fs, self._clock.monotonic
        started = monotonic()
        work = [(source, source.offsets_snapshot()) for source in sources]
        cost_s = [monotonic() - started]  # of computing; waiting for the disk takes no core
        awaited = self._idle_waiters or any(waiters.values())
        shares = [work[n::JOBS_MAX] for n in range(min(JOBS_MAX, len(work)))] if awaited else [work]
        open_jobs = len(shares)

        def job(share: list[tuple[FlushSource, OffsetsState]]) -> None:
            for source, state in share:
                if self._abandoned:
                    errors[source] = OSError(errno.ECANCELED, "the broker ends")
                    continue
                began = monotonic()
                data = offsets.encode(state, topic_of(source.path))
                cost_s.append(monotonic() - began)
                try:
                    offsets.write(fs, source.path, data, makes=state.next_id == 0)
                except OSError as error:
                    errors[source] = error

        def finished() -> None:
            nonlocal open_jobs
            open_jobs -= 1
            if open_jobs > 0 or self._abandoned:
                return
            self._running = False
            self._writing = 0
            now = monotonic()
            self._not_before = now + sum(cost_s) / COST_SHARE_MAX
            quiet, self._quiet_waiters = self._quiet_waiters, []
            call_all(quiet)
            for source, state in work:
                self._tell(source, state, errors.get(source), waiters[source])
            self._discarded.clear()
            self._finish(now)

        self._running = True
        self._writing = len(work)
        if not work:
            finished()
        for share in shares if work else ():
            self._scheduler.offload(partial(job, share), finished)

    def _tell(self, source: FlushSource, state: OffsetsState, error: OSError | None, waiters: list[Done]) -> None:
        if error is None and source not in self._discarded:
            self._failing.pop(source, None)
            source.offsets_flushed(state)
        elif error is not None and source not in self._discarded:
            known = source in self._failing
            self._failing[source] = self._clock.monotonic() + RETRY_S
            if not known:
                logger.error("offsets of %s not written (%s); trying again", source.path, error.strerror or error)
            if self._stopped is None:
                self._dirty[source] = None
            source.offsets_refused(error)
        call_all(waiters, error)

    def _finish(self, now: float) -> None:
        if self._waiters:
            self._arm(now)
        elif self._dirty and not self._idle_waiters:
            soon = max(now if self._more else now + DEBOUNCE_S, self._not_before)
            self._arm(min(max(soon, self._failing.get(source, soon)) for source in self._dirty))
        else:
            idle, self._idle_waiters = self._idle_waiters, []
            if idle and set(self._dirty) - set(self._failing):
                self._idle_waiters = idle
                self._arm(now)
                return
            call_all(idle)
