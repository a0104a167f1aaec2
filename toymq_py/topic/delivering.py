"""How messages leave a topic: what a subscription takes next, and what stands in the way of that.

Contract: delivery.md, "Order", "Delay", "Clocks"; storage.md, "Recovery" (its last paragraph). Leases come from the consumer,
records from the log; what is expired, lost or another consumer's never gets out. Belongs to the event loop.
"""

from math import inf
from typing import TYPE_CHECKING

from toymq_py.clock import Clock
from toymq_py.consumer import Lessee
from toymq_py.letter import rows_for
from toymq_py.metrics import Metrics
from toymq_py.model import IdRange, Records
from toymq_py.storage.disk_errors import BeingExamined
from toymq_py.storage.log import READ_BYTES
from toymq_py.storage.scheduling import Scheduler
from toymq_py.topic.subscription import Delivery, Subscription, ranges_of

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic

UNREADABLE = Lessee(0)
"""Owner of the leases that stand for records the disk refuses to give: held until a restart, never delivered."""
DUE_PER_DELIVERY = 128
"""Each is read and leased by itself: two milliseconds."""
PASSES_MAX = 8
"""Reads of one take that found nothing to deliver: lost or expired records, or another consumer's."""


class Deliverer:
    """Hands out what a topic's consumers have not seen, and what they shall see again."""

    def __init__(self, topic: "Topic", *, clock: Clock, scheduler: Scheduler, metrics: Metrics) -> None:
        self._topic = topic
        self._log = topic.log
        self._clock = clock
        self._scheduler = scheduler
        self._metrics = metrics
        self._examining = False

    def take(self, subscription: Subscription, room: int, max_bytes: int) -> Delivery | None:
        """See ``Subscription.take``. With None it is woken when there is something."""
        topic, consumer = self._topic, subscription.consumer
        visibility_s = subscription.visibility_s
        if visibility_s is None:
            visibility_s = topic.policy.visibility_s
        now = self._clock.monotonic()
        deadline = now + visibility_s
        delivery = None
        passes = 0
        while delivery is None:
            passes += 1
            if passes > PASSES_MAX and subscription.mode is not None:  # a poll would be told that there is nothing
                self._scheduler.soon(subscription.roomy)  # others have their turn before it goes on
                return None
            try:
                if consumer.has_ready():
                    delivery = self._take_ready(subscription, room, max_bytes, deadline, now)
                    continue
                fresh = consumer.next_fresh(self._log.committed_id)
                if fresh is None:
                    subscription.attached.idle[subscription] = None
                    return None
                delivery = self._take_fresh(subscription, fresh, room, max_bytes, deadline, now)
            except BeingExamined as busy:
                subscription.attached.idle[subscription] = None
                self._wait_for(busy)
                return None
        topic.arm_for(consumer)
        topic.changed()
        self._metrics.deliver_total += delivery.stop - delivery.start
        return delivery

    def _wait_for(self, busy: BeingExamined) -> None:
        """What comes next stands behind damage: a thread looks how far that goes, and then all are woken."""
        if self._examining:
            return
        self._examining = True

        def done() -> None:
            self._examining = False
            for consumer in list(self._topic.consumers.values()):
                self._topic.look_again(consumer)

        busy.when_done(done)

    def _take_ready(
        self, subscription: Subscription, room: int, max_bytes: int, deadline: float, now: float
    ) -> Delivery | None:
        consumer = subscription.consumer
        if ids := consumer.due(min(room, DUE_PER_DELIVERY)):
            return self._take_due(subscription, ids, max_bytes, deadline, now)
        ((first, last, attempt),) = consumer.take_ready(subscription.lessee, min(room, 256), deadline, max_runs=1, now=now)
        try:
            run, start, next_id = self._log.read(first, last - first + 1, min(max_bytes, READ_BYTES))
        except OSError:
            consumer.unsend(subscription.lessee, first, last)
            raise
        if run is None:
            self._pass_over(subscription, first, min(next_id - 1, last))
            if next_id <= last:
                consumer.unsend(subscription.lessee, next_id, last)
            return None
        count = min(last, next_id - 1) - first + 1
        if run.expires_at_ns is not None and not (count := self._drop_expired(subscription, run, start, count)):
            consumer.unsend(subscription.lessee, first, last)
            return None
        if run.headers is not None and attempt == 1 and not (count := self._drop_others(subscription, run, start, count)):
            consumer.unsend(subscription.lessee, first, last)
            return None
        stop, size = _fit(run, start, count, max_bytes)
        if run.ids[stop - 1] < last:
            consumer.unsend(subscription.lessee, run.ids[stop - 1] + 1, last)
        self._metrics.redeliver_total += stop - start if attempt > 1 else 0
        return Delivery(subscription, run, start, stop, attempt, size)

    def _take_due(
        self, subscription: Subscription, ids: list[int], max_bytes: int, deadline: float, now: float
    ) -> Delivery | None:
        """What fell due behind the cursor, as much of it as can be read without ado; only that is leased. None when the lowest
        is expired, another consumer's, or has to be read with more care: that one is ready as any other then."""
        consumer = subscription.consumer
        run = self._log.read_each(ids, min(max_bytes, READ_BYTES))
        if run is None:
            consumer.take_due(subscription.lessee, ids[:1], deadline, now)
            consumer.unsend(subscription.lessee, ids[0], ids[0])
            return None
        count = len(run) if run.expires_at_ns is None else self._drop_expired(subscription, run, 0, len(run))
        if run.headers is not None and count:
            count = self._drop_others(subscription, run, 0, count)
        if not count:
            return None
        consumer.take_due(subscription.lessee, ids[:count], deadline, now)
        return Delivery(subscription, run, 0, count, 1, run.payload_bytes)

    def _take_fresh(
        self, subscription: Subscription, fresh: IdRange, room: int, max_bytes: int, deadline: float, now: float
    ) -> Delivery | None:
        first, last = fresh
        count = min(room, last - first + 1)
        run, start, next_id = self._log.read(first, count, min(max_bytes, READ_BYTES))
        if run is None:
            self._pass_over(subscription, first, min(next_id - 1, last), fresh=True)
            return None
        count = min(count, next_id - first)
        if run.expires_at_ns is not None and not (count := self._drop_expired(subscription, run, start, count)):
            return None
        if run.headers is not None and not (count := self._drop_others(subscription, run, start, count)):
            return None
        stop, size = _fit(run, start, count, max_bytes)
        subscription.consumer.take_fresh(subscription.lessee, first, run.ids[stop - 1], deadline, now)
        return Delivery(subscription, run, start, stop, 1, size)

    def _drop_expired(self, subscription: Subscription, run: Records, start: int, count: int) -> int:
        """Whose time is over counts as acked. Returns: how many rows from ``start`` on are to be delivered; 0 when those at the
        front were dropped."""
        assert run.expires_at_ns is not None
        now_ns = self._clock.wall_ns()
        over = [0 < at_ns <= now_ns for at_ns in run.expires_at_ns[start : start + count]]
        if not over[0]:
            return over.index(True) if True in over else count
        dropped = over.index(False) if False in over else count
        for first, last in ranges_of(run.ids[start : start + dropped]):
            subscription.consumer.skip(first, last)
        self._topic.expired_total += dropped
        self._topic.changed()
        return 0

    def _drop_others(self, subscription: Subscription, run: Records, start: int, count: int) -> int:
        """What came back from the dead letters for another consumer counts as acked. Returns: as ``_drop_expired``."""
        mine, stop = rows_for(run, start, start + count, subscription.consumer.name.encode())
        if mine == start:
            return stop - start
        for first, last in ranges_of(run.ids[start:mine]):
            subscription.consumer.skip(first, last)
        self._topic.changed()
        return 0

    def _pass_over(self, subscription: Subscription, first: int, last: int, *, fresh: bool = False) -> None:
        """Records that were to be delivered and cannot be had. Lost ones count as acked; what the disk refuses (EIO) does
        not: it stays leased to nobody until a restart."""
        consumer = subscription.consumer
        if self._log.is_unreadable(first):
            if fresh:
                consumer.take_fresh(subscription.lessee, first, last, inf)
            consumer.unsend(subscription.lessee, first, last)
            consumer.hold(UNREADABLE, first, last)
        else:
            consumer.skip(first, last)  # the read that found the damage may have done so already
        self._topic.changed()


def _fit(run: Records, start: int, count: int, max_bytes: int) -> tuple[int, int]:
    """(row after the last that fits, bytes): as many rows as ``max_bytes`` allows, at least one."""
    stop = start + count
    if start == 0 and stop == len(run) and run.payload_bytes <= max_bytes:
        return stop, run.payload_bytes
    sizes = list(map(len, run.payloads[start:stop]))
    if run.headers is not None:
        sizes = [size + len(block) for size, block in zip(sizes, run.headers[start:stop], strict=True)]
    total = sum(sizes)
    while total > max_bytes and len(sizes) > 1:
        total -= sizes.pop()
    return start + len(sizes), total
