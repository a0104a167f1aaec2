"""When a topic's retention is applied, and what it asks for: segments to remove, a roll, another look.

Contract: storage.md, "Retention". Which segments may go is decided in ``storage.retention``; the topic removes them.
"""

import weakref
from collections.abc import Callable, Collection, Sequence

from toymq_py.clock import Clock
from toymq_py.consumer import Consumer
from toymq_py.storage.committer import Committer
from toymq_py.storage.log import Log
from toymq_py.storage.offsets import AckedView, OffsetsState
from toymq_py.storage.retention import removable_by_acks, roll_age_ns
from toymq_py.storage.scheduling import Scheduler
from toymq_py.storage.segment import Segment
from toymq_py.storage.space import SpaceGuard


class RetentionKeeper:
    """Looks at a topic's segments whenever something changed that may let one go, and when one gets old enough."""

    def __init__(
        self,
        log: Log,
        committer: Committer,
        *,
        scheduler: Scheduler,
        clock: Clock,
        space: SpaceGuard,
        apply_again: Callable[[], None],
        remove: Callable[[list[Segment]], None],
    ) -> None:
        """``apply_again`` is to call ``apply`` with what is true then."""
        self._log = log
        self._committer = committer
        self._scheduler = scheduler
        self._clock = clock
        self._space = space
        self._apply_again = apply_again
        self._remove = remove
        self._look_at: float | None = None

    def apply(
        self, stored: OffsetsState, consumers: Collection[Consumer], retain_acked_for_ns: int, *, full: bool = False
    ) -> None:
        """Remove what may go, and see that the active segment can go in its turn.

        Args:
            stored: the consumers' state that is on stable storage; with ``full`` the present one, as nothing can be stored.
            consumers: those that there are now. SEEK and FORGET may have taken back what is stored.
        """
        if not stored.consumers or not consumers:
            return
        now_ns = self._clock.wall_ns()
        views = [AckedView.of(raw) for raw in stored.consumers.values()]
        low = full or self._space.getting_low()
        going = removable_by_acks(
            self._log.segments[:-1], views, now_ns=now_ns, retain_acked_for_ns=retain_acked_for_ns, disk_low=low
        )
        going = [
            segment for segment in going
            if all(consumer.has_acked_all(segment.base_id, segment.next_id - 1) for consumer in consumers)
        ]  # fmt: skip
        if going:
            self._remove(going)
        self._roll(now_ns, retain_acked_for_ns, views, low=low)

    def _roll(self, now_ns: int, retain_ns: int, views: Sequence[AckedView], *, low: bool) -> None:
        """Seal an active segment that is old enough, or that stands in the way of a low disk; and look again in time."""
        segments = self._log.segments
        if not segments:
            return
        active = segments[-1]
        due_ns = [segment.newest_ts_ns + retain_ns - now_ns for segment in segments[:-1]]
        if active.end and not active.sealed:
            oldest_ns = active.index_ts_ns[0] if active.index_ts_ns else active.newest_ts_ns
            age_ns = roll_age_ns(retain_ns)
            acked = all(view.covers(active.base_id, active.next_id - 1) for view in views)
            if now_ns - oldest_ns < age_ns and not (low and acked):
                due_ns.append(oldest_ns + age_ns - now_ns)
            elif self._committer.idle:
                self._committer.roll()
            else:
                due_ns.append(1)
        waiting = [ns for ns in due_ns if ns > 0]
        if waiting:
            self._look_again(max(min(waiting) / 1e9, 1.0))

    def _look_again(self, delay_s: float) -> None:
        at = self._clock.monotonic() + delay_s
        if self._look_at is not None and self._look_at <= at:
            return
        self._look_at = at
        itself = weakref.ref(self)  # the timer outlives the topic, by up to the retention time, and must not keep it

        def due() -> None:
            keeper = itself()
            if keeper is not None and keeper._look_at == at:
                keeper._look_at = None
                keeper._apply_again()

        self._scheduler.later(delay_s, due)
