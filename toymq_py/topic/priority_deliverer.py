"""Finds the next delivery of a consumer by priority: of the ready messages the highest first, those of one priority in order.

Contract: amqp.md, "Model" (x-max-priority); ADR 0160. The order is ``PriorityLanes``', leases come from the consumer, records
and priorities from the log. Belongs to the event loop.
"""

from collections.abc import Callable

from toymq_py.consumer import Consumer, Lessee, PriorityLanes
from toymq_py.records import IdRange, Records
from toymq_py.storage.log import READ_BYTES
from toymq_py.topic.deliverer import (
    DUE_PER_DELIVERY,
    SCAN_ROWS,
    ChannelContext,
    Deliverer,
    LeasedRows,
    NoDelivery,
    fit,
    rows_of,
)

PRIORITY_ORDER = Lessee(0)
"""The owner of the leases of redeliveries that wait for their turn."""
AGAIN_PER_PASS = 64
"""Stretches of redeliveries that one pass reads."""
ACKED_RANGES_MAX = 131_072
"""Most ranges of acks out of order, which are in memory and in the offsets: with more, delivery is in order of ids."""


class PriorityDeliverer(Deliverer):
    """Looks at all messages of the log, up to a bound, before it leases those that come first."""

    __slots__ = ("_lanes", "_priority_of", "_read")

    def __init__(
        self, context: ChannelContext, consumer: Consumer, notify_ready: Callable[[], None], priority_of: Callable[[bytes], int]
    ) -> None:
        """Begin to order a consumer's messages. ``priority_of`` reads the priority in a header block; ``notify_ready`` serves
        as ``on_examined`` of ``Deliverer``."""
        super().__init__(context, consumer, notify_ready)
        self._priority_of = priority_of
        self._lanes = consumer.lanes = PriorityLanes(consumer.floor)
        self._read: Records | None = None  # what the last look ahead has read: often it is wanted at once

    def has_again(self) -> bool:
        return super().has_again() or self._lanes.again > 0

    def available(self) -> int:
        return super().available() + self._lanes.again

    def head(self) -> int | None:
        first = self._lanes.first()
        return super().head() if first is None else first

    def _next(self, lessee: Lessee, room: int, max_bytes: int, deadline: float, now: float) -> LeasedRows | NoDelivery | None:
        consumer, lanes = self._consumer, self._lanes
        if lanes.late:
            self._enter_late(lessee, now)
            return None
        if consumer.redeliverable and not lanes.again_full:
            self._enter_again(lessee)
            return None
        limit = self._log.committed_id
        if not lanes.goal:
            lanes.goal = limit
        if lanes.scanned < lanes.goal:
            self._look_ahead(lessee, limit, now)
            return None
        lanes.goal = 0
        if consumer.redeliverable:  # more than can be ordered
            return self._take_again(lessee, room, max_bytes, deadline, now)
        level = lanes.lowest() if consumer.acked_ranges > ACKED_RANGES_MAX else lanes.highest()
        if level is None:
            self._read = None
            return NoDelivery.NOTHING_READY
        if (again := lanes.next_again(level, min(room, SCAN_ROWS))) is not None:
            lanes.take_again(*again)
            consumer.unsend(PRIORITY_ORDER, *again)
            if consumer.first_ready() is None:  # held: out of attempts since. A call: to mypyc ``redeliverable`` is 0 here
                return None
            return self._take_again(lessee, room, max_bytes, deadline, now)
        if self._again_only:
            return NoDelivery.NOTHING_READY
        return self._take_level(lessee, level, room, max_bytes, deadline, now)

    def _take_level(
        self, lessee: Lessee, level: int, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        """Lease new messages of one priority, as far as one cheap read gives their records."""
        consumer, lanes = self._consumer, self._lanes
        ids = lanes.next_fresh(level, min(room, SCAN_ROWS), lanes.first_again(level))
        run = self._records(ids, min(max_bytes, READ_BYTES))
        if run is None:
            lanes.taken(ids[:1])
            self._read_closer(lessee, ids[0], now)
            return None
        count = len(run) if run.expires_at_ns is None else self._drop_expired(run, 0, len(run))
        if run.headers is not None and count:
            count = self._drop_others(run, 0, count)
        if not count:
            return None
        stop, size = fit(run, 0, count, max_bytes)
        lanes.taken(ids[:stop])
        consumer.take_each(lessee, ids[:stop], deadline, now)
        return run, 0, stop, 1, size

    def _records(self, ids: list[int], max_bytes: int) -> Records | None:
        """The records of ascending ids, from the first on; None when the first one needs a full read. Raises: OSError."""
        run = self._read
        if run is not None and run.ids[0] <= ids[0] <= run.ids[-1]:
            first = run.ids[0]
            return rows_of(run, [msg_id - first for msg_id in ids if msg_id <= run.ids[-1]])
        if ids[-1] - ids[0] + 1 < len(ids) + SCAN_ROWS:  # close together
            run, start, next_id = self._log.read(ids[0], ids[-1] + 1 - ids[0], max_bytes)
            if run is None:
                return None
            return rows_of(run, [start + msg_id - ids[0] for msg_id in ids if msg_id < next_id])
        return self._log.read_each(ids[:DUE_PER_DELIVERY], max_bytes)

    # -- looking ahead

    def _look_ahead(self, lessee: Lessee, limit: int, now: float) -> None:
        """Read the next records of the log, and enter their priorities."""
        consumer, lanes = self._consumer, self._lanes
        span = consumer.next_unread(lanes.scanned, limit)
        if span is None:  # the rest is acked or not due
            consumer.pass_over(limit - 1)
            lanes.scanned = limit
            return
        first, last = span
        if lanes.is_beyond(first + SCAN_ROWS):
            lanes.goal = lanes.scanned
            return
        run, start, next_id = self._log.read(first, min(SCAN_ROWS, last + 1 - first), READ_BYTES)
        if run is None:
            lanes.scanned = self._pass_over_unread(lessee, first, min(next_id - 1, last), now) + 1
            return
        last = min(last, next_id - 1)
        cursor = consumer.cursor
        for row in range(start, start + last + 1 - first):
            msg_id = run.ids[row]
            if msg_id >= cursor or consumer.is_due(msg_id):  # else it was delivered, and is leased or comes again
                lanes.enter(msg_id, self._priority(run, row))
        consumer.pass_over(last)
        lanes.scanned = last + 1
        self._read = run

    def _priority(self, run: Records, row: int) -> int:
        block = b"" if run.headers is None else run.headers[row]
        return self._priority_of(block) if block else 0

    def _enter_late(self, lessee: Lessee, now: float) -> None:
        """Enter messages whose delay has ended since their ids were looked at."""
        lanes, consumer = self._lanes, self._consumer
        if (run := self._read_late(lessee, lanes.late, now)) is None:
            return
        for row, msg_id in enumerate(run.ids):
            if not consumer.is_due(msg_id):
                continue
            if lanes.is_beyond(msg_id):
                self._read_closer(lessee, msg_id, now)  # as a redelivery
            else:
                lanes.enter(msg_id, self._priority(run, row))

    def _enter_again(self, lessee: Lessee) -> None:
        """Enter the lowest redeliveries, so that they wait for the turn of their priority."""
        for _ in range(AGAIN_PER_PASS):
            span = self._consumer.ready_range()
            if span is None or self._lanes.again_full:
                return
            first, last = self._of_one_read(lessee, span)
            if last >= first:
                self._consumer.hold(PRIORITY_ORDER, first, last)

    def _of_one_read(self, lessee: Lessee, span: IdRange) -> IdRange:
        """Read redeliveries of the span and enter them. Returns: the range of those entered."""
        first, last = span
        run, start, next_id = self._log.read(first, min(SCAN_ROWS, last + 1 - first), READ_BYTES)
        last = min(last, next_id - 1)
        if run is None:
            self._pass_over(lessee, first, last)
            return first, first - 1
        last = min(last, first + len(run) - start - 1)
        for row in range(start, start + last + 1 - first):
            self._lanes.enter_again(run.ids[row], self._priority(run, row))
        return first, last
