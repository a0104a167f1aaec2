"""Finds the next delivery of a consumer with mode=keyed: one message of each group key at a time, in order.

Contract: delivery.md, "mode"; ADR 0122. The order is ``KeyLanes``', leases come from the consumer, records and keys from the
log. Belongs to the event loop.
"""

import logging
from collections.abc import Callable
from itertools import takewhile
from math import inf
from sys import maxsize

from toymq_py.consumer import Consumer, KeyLanes, Lessee
from toymq_py.group_key import group_key
from toymq_py.records import IdRange, Records
from toymq_py.storage.log import READ_BYTES
from toymq_py.topic.deliverer import (
    DUE_PER_DELIVERY,
    SCAN_ROWS,
    ChannelContext,
    Deliverer,
    LeasedRows,
    NoDelivery,
    rows_of,
)

logger = logging.getLogger("toymq_py.subscription")

FULL_EACH_S = 600.0
"""The time between two warnings of a consumer whose look-ahead is full."""
KEY_ORDER = Lessee(0)
"""The owner of the leases of messages that were delivered before the consumer was keyed, and wait for their key now."""


class KeyedDeliverer(Deliverer):
    """Leases the next messages whose keys are free: first redeliveries and messages that waited for their key, by ascending id,
    then new ones from the log. A message whose key is busy waits in the lanes, and is read again when its turn comes."""

    __slots__ = ("_lanes", "_read", "_warned_at")

    def __init__(self, context: ChannelContext, consumer: Consumer, notify_ready: Callable[[], None]) -> None:
        """Begin to order a consumer's messages. ``notify_ready`` is called soon after the turn of a waiting message has come,
        and serves as ``on_examined`` of ``Deliverer``."""
        super().__init__(context, consumer, notify_ready)
        self._lanes = consumer.lanes = KeyLanes(consumer.floor, lambda: context.scheduler.soon(notify_ready))
        self._warned_at = -inf
        self._read: Records | None = None  # what the last scan read and had no room for; ``READ_BYTES`` at most

    def has_again(self) -> bool:
        return super().has_again() or bool(self._lanes.turns)

    def available(self) -> int:
        lanes = self._lanes
        ready = self._consumer.redeliverable + len(lanes.free) + len(lanes.turns)
        return ready if lanes.full else ready + len(lanes.late) + max(self._log.committed_id - lanes.scanned, 0)

    def _next(self, lessee: Lessee, room: int, max_bytes: int, deadline: float, now: float) -> LeasedRows | NoDelivery | None:
        consumer, lanes = self._consumer, self._lanes
        if lanes.turns:
            self._take_turns()
        again = consumer.first_ready()
        if again is not None and again >= lanes.scanned:
            again = None  # a lower id may have its key
        if lanes.free and (again is None or (lanes.free[0] < again and not self._again_only)):
            return self._take_free(lessee, maxsize if again is None else again, room, max_bytes, deadline, now)
        if again is not None:
            return self._take_heads_again(lessee, min(room, lanes.scanned - again), max_bytes, deadline, now)
        if lanes.full:
            self._warn_full(now)
            return NoDelivery.NOTHING_READY
        if lanes.late:
            self._enter_late(lessee, now)
            return None
        limit = self._log.committed_id
        span = consumer.next_unread(lanes.scanned, limit)
        if span is not None:
            return self._scan(lessee, span, room, max_bytes, deadline, now)
        if lanes.scanned < limit:  # the rest is acked or not due
            consumer.pass_over(limit - 1)
            lanes.scanned = limit
            return None
        return NoDelivery.NOTHING_READY

    def _warn_full(self, now: float) -> None:
        """Warn that the lanes are full: nothing else shows why messages whose keys are free are not delivered."""
        if now >= self._warned_at + FULL_EACH_S:
            self._warned_at = now
            attempt, msg_id = self._consumer.most_attempted()
            logger.warning(
                "%s of %s: %d messages wait for their keys, as many as it looks ahead: those behind wait, too, whatever their "
                "key. The most attempts has id %d: %d", self._consumer.name, self._context.topic,
                self._lanes.waiting, msg_id, attempt,
            )  # fmt: skip

    def _take_turns(self) -> None:
        """Look at the messages that have become the heads of their lanes, and release those that may be delivered."""
        consumer, lanes = self._consumer, self._lanes
        while lanes.turns:
            msg_id = lanes.turns.pop()
            if consumer.has_acked_all(msg_id, msg_id):
                lanes.acked(msg_id, msg_id)
            elif consumer.is_due(msg_id):
                lanes.release(msg_id)
            else:
                consumer.unsend(KEY_ORDER, msg_id, msg_id)

    def _take_free(
        self, lessee: Lessee, limit: int, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        """Lease heads below ``limit`` that were never delivered, as far as one cheap read gives their records."""
        consumer, free = self._consumer, self._lanes.free
        lowest = list(takewhile(lambda msg_id: msg_id < limit, free[: min(room, DUE_PER_DELIVERY)]))
        ids = list(filter(consumer.is_due, lowest))  # the others are acked
        run = self._log.read_each(ids, min(max_bytes, READ_BYTES)) if ids else None
        count = 0
        if run is not None:
            count = len(run) if run.expires_at_ns is None else self._drop_expired(run, 0, len(run))
            if run.headers is not None and count:
                count = self._drop_others(run, 0, count)
            if count:
                consumer.take_each(lessee, ids[:count], deadline, now)
        elif ids:
            self._read_closer(lessee, ids[0], now)
        free[: len(lowest)] = list(filter(consumer.is_due, ids))
        return None if run is None or not count else (run, 0, count, 1, run.payload_bytes)

    def _take_heads_again(
        self, lessee: Lessee, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        """Lease redeliveries; one that is not the head of its lane waits."""
        rows = self._take_again(lessee, room, max_bytes, deadline, now)
        if rows is None:
            return None
        run, start, stop, attempt, size = rows
        for row in range(start, stop):
            msg_id, key = run.ids[row], self._key(run, row)
            if key and not self._lanes.enter(msg_id, key):
                self._consumer.unsend(lessee, msg_id, run.ids[stop - 1])
                self._consumer.hold(KEY_ORDER, msg_id, msg_id)
                return (run, start, row, attempt, size) if row > start else None
        return rows

    def _key(self, run: Records, row: int) -> bytes:
        return group_key(self._context.topic, run.keys[row], b"" if run.headers is None else run.headers[row])

    def _enter_late(self, lessee: Lessee, now: float) -> None:
        """Enter messages whose delay has ended since their ids were scanned."""
        lanes, consumer = self._lanes, self._consumer
        if (run := self._read_late(lessee, lanes.late, now)) is None:
            return
        for row, msg_id in enumerate(run.ids):
            key = self._key(run, row)
            if consumer.is_due(msg_id) and (not key or lanes.enter(msg_id, key)):
                lanes.release(msg_id)

    def _scan(
        self, lessee: Lessee, span: IdRange, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        """Read the next records of the log, enter them into the lanes, and lease those whose keys are free."""
        consumer, lanes = self._consumer, self._lanes
        first, last = span
        run, start = self._read, 0
        if run is not None and run.ids[0] <= first <= run.ids[-1]:
            start = first - run.ids[0]
            next_id = run.ids[-1] + 1
        else:
            run, start, next_id = self._log.read(first, min(max(room, SCAN_ROWS), last - first + 1), READ_BYTES)
        if run is None:
            lanes.scanned = self._pass_over_unread(lessee, first, min(next_id - 1, last), now) + 1
            return None
        self._read = None
        stop = start + min(last + 1, next_id) - first
        if not self._is_new(first):
            self._enter_delivered(run, start, stop)
            return None
        stop = self._stop_of_new(run, start, stop)
        if run.expires_at_ns is not None:
            stop = start + self._drop_expired(run, start, stop - start)
        if run.headers is not None and stop > start:
            stop = start + self._drop_others(run, start, stop - start)
        topic, ids, keys, payloads, headers = self._context.topic, run.ids, run.keys, run.payloads, run.headers
        chosen: list[int] = []
        size, row = 0, start
        while row < stop and len(chosen) < room and not lanes.full:
            block = b"" if headers is None else headers[row]
            cost = len(payloads[row]) + len(block)
            if chosen and size + cost > max_bytes:
                break
            key = group_key(topic, keys[row], block)
            if not key or lanes.enter(ids[row], key):
                chosen.append(row)
                size += cost
            row += 1
        if row == start:
            return None  # dropped
        lanes.scanned = run.ids[row - 1] + 1
        if row < stop:
            self._read = run
        if len(chosen) == row - start and consumer.cursor == first:
            consumer.take_fresh(lessee, first, lanes.scanned - 1, deadline, now)
            return run, start, row, 1, size
        consumer.pass_over(lanes.scanned - 1)
        if not chosen:
            return None
        consumer.take_each(lessee, [run.ids[row] for row in chosen], deadline, now)
        return rows_of(run, chosen), 0, len(chosen), 1, size

    def _is_new(self, msg_id: int) -> bool:
        """Whether the id was never delivered."""
        return msg_id >= self._consumer.cursor or self._consumer.is_due(msg_id)

    def _stop_of_new(self, run: Records, start: int, stop: int) -> int:
        """The row after the messages from ``start`` on that were never delivered."""
        for row in range(start + 1, stop):
            if run.ids[row] >= self._consumer.cursor:
                break
            if not self._is_new(run.ids[row]):
                return row
        return stop

    def _enter_delivered(self, run: Records, start: int, stop: int) -> None:
        """Enter records that were delivered before this deliverer began."""
        for row in range(start, stop):
            msg_id = run.ids[row]
            if self._is_new(msg_id) or self._lanes.full:
                return
            if key := self._key(run, row):
                self._lanes.enter(msg_id, key)
            self._lanes.scanned = msg_id + 1
