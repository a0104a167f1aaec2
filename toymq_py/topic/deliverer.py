"""Finds the next delivery of a consumer: leases and records, without lost, expired and unreadable ones.

Contract: delivery.md, "Order", "Delay", "Clocks"; storage.md, "Recovery" (its last paragraph). Leases come from the consumer,
records from the log. Belongs to the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice, pairwise
from operator import lt

from toymq_py.believed_time import BelievedTime
from toymq_py.clock import Clock
from toymq_py.consumer import Consumer, DeliveryPolicy, FailureBudget, IdSet, Lessee
from toymq_py.disk_errors import BeingExamined
from toymq_py.errors import RequestError
from toymq_py.letter import rows_for
from toymq_py.metrics import Metrics
from toymq_py.records import MSG_ID_MAX, IdRange, Records
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.storage.log import READ_BYTES, Log
from toymq_py.topic.delivery_budget import DeliveryBudget
from toymq_py.topic.delivery_permit import DeliveryPermit

UNREADABLE = Lessee(0)
"""The owner of the leases that stand for records that the disk refuses to give: held until a restart, never delivered."""
DUE_PER_DELIVERY = 128
"""Most messages that fell due in one delivery: each is read and leased by itself, two milliseconds in all."""
SCAN_ROWS = 256
"""Rows that one look ahead of the turn reads, where the mode or priorities ask for it."""
PASSES_MAX = 8
"""Most reads of one take that find nothing to deliver: lost or expired records, or another consumer's."""

LeasedRows = tuple[Records, int, int, int, int]
"""Leased records: a run, the first row, the row behind the last, the attempt, payload bytes, about."""


class NoDelivery(Enum):
    """Why a take returned no messages."""

    NOTHING_READY = "nothing is ready"
    OTHERS_FIRST = "many reads found nothing to deliver: others have their turn before it goes on"
    BEING_EXAMINED = "a thread looks how far damage goes; the channel is told when that is known"


@dataclass(slots=True)
class ChannelContext:
    """State that the channels of one topic share."""

    topic: str
    log: Log
    clock: Clock
    scheduler: Scheduler
    metrics: Metrics
    policy: DeliveryPolicy
    failure_budget: FailureBudget
    budget: DeliveryBudget
    changed: Callable[[], None]
    """Called when consumer state has unsaved changes."""
    permit: DeliveryPermit
    believed: BelievedTime
    takers: int = 0
    """The number of sessions and polls, on all channels."""
    expired_total: int = 0
    """Messages past their ttl since the start of the broker, once for every consumer."""
    dead_lettered_total: int = 0
    """Messages that were moved to the dead letters since the start of the broker."""
    topic_deleted: bool = False
    moved: RequestError | None = None
    """The error for clients that still have hold of a topic that has gone to another group; ``topic_deleted`` is True then,
    too."""
    is_stream: bool = False
    """Whether AMQP's readers have positions of their own: messages wait for nothing (ADR 0175)."""


class Deliverer:
    """Leases the next messages of one consumer and reads them from the log."""

    __slots__ = ("_again_only", "_closed", "_consumer", "_context", "_is_full", "_log", "_on_examined", "is_examining")

    def __init__(self, context: ChannelContext, consumer: Consumer, on_examined: Callable[[], None]) -> None:
        """``on_examined`` is called when messages can be taken that were ``BEING_EXAMINED``, or for which the delivery budget
        had no room."""
        self._context = context
        self._consumer = consumer
        self._log = context.log
        self._on_examined = on_examined
        self.is_examining = False
        """Whether a thread looks how far damage goes."""
        self._closed = False
        self._again_only = False
        """Whether the present take gets redeliveries alone."""
        self._is_full = False
        """Whether as many messages are delivered and not acked as may be: a take had none, or redeliveries alone."""

    def take(
        self, lessee: Lessee, deadline: float, now: float, room: int, max_bytes: int, *, patient: bool
    ) -> LeasedRows | NoDelivery:
        """Lease the next messages, redeliveries first: at most ``room``, and about ``max_bytes``, but one at least.

        Args:
            deadline, now: monotonic, in seconds.
            patient: go on even if many reads in a row find nothing to deliver.

        Raises: OSError when the log cannot be read.
        """
        passes = 0
        while True:
            passes += 1
            if passes > PASSES_MAX and not patient:
                return NoDelivery.OTHERS_FIRST
            if lessee.settles:
                self._again_only = False
            elif (room := self._room(room)) == 0:
                return NoDelivery.NOTHING_READY
            try:
                rows = self._next(lessee, room, max_bytes, deadline, now)
            except BeingExamined as busy:
                self._wait_for(busy)
                return NoDelivery.BEING_EXAMINED
            if rows is not None:
                return rows

    def _room(self, room: int) -> int:
        """How many messages may be leased, at most ``room``. If the consumer has too many unsettled ones, only redeliveries
        may: ``_again_only``."""
        spare = self._spare()
        self._again_only = spare <= 0
        if spare > 0:
            self._is_full = False
            return min(room, spare)
        if not self._is_full:
            self._is_full = True
            self._context.metrics.limit_reached("unacked")
        self._context.budget.wait(self._on_examined)
        return room if self.has_again() else 0

    def _spare(self) -> int:
        """How many new messages may be leased, given how many the consumer has unsettled."""
        consumer, budget = self._consumer, self._context.budget
        outstanding = consumer.outstanding
        if outstanding != consumer.counted and not self._closed:
            budget.change(outstanding - consumer.counted)
            consumer.counted = outstanding
        return budget.room(outstanding)

    def has_room_again(self) -> bool:
        """Whether new messages can be leased although the last try could not, so that waiting sessions and polls have to be
        woken. Called when messages were settled."""
        return self._spare() > 0 and self._is_full

    def close(self) -> None:
        """Note that this consumer's deliveries have ended for good. Idempotent."""
        if not self._closed:
            self._closed = True
            self._context.budget.change(-self._consumer.counted)

    def has_again(self) -> bool:
        """Whether the next message may be one that was delivered before."""
        return self._consumer.redeliverable > 0

    def available(self) -> int:
        """Approximately how many messages could be leased now."""
        return self._consumer.available(self._log.committed_id)

    def head(self) -> int | None:
        """The lowest id that could be leased now."""
        consumer = self._consumer
        fresh, again = consumer.next_fresh(self._log.committed_id), consumer.first_ready()
        ids = [*consumer.due(1), *(() if again is None else (again,)), *(() if fresh is None else (fresh[0],))]
        return min(ids, default=None)

    def _next(self, lessee: Lessee, room: int, max_bytes: int, deadline: float, now: float) -> LeasedRows | NoDelivery | None:
        """Make one pass of ``take``: None when a read found nothing to deliver, but the next one may."""
        consumer = self._consumer
        if consumer.has_ready():
            return self._take_ready(lessee, room, max_bytes, deadline, now)
        fresh = consumer.next_fresh(self._log.committed_id)
        if fresh is None:
            return NoDelivery.NOTHING_READY
        return self._take_fresh(lessee, fresh, room, max_bytes, deadline, now)

    def _wait_for(self, busy: BeingExamined) -> None:
        if not self.is_examining:
            self.is_examining = True
            self._context.metrics.channels_examining += 1
            busy.when_done(self._examined)

    def _examined(self) -> None:
        self.is_examining = False
        self._context.metrics.channels_examining -= 1
        self._on_examined()

    def _take_ready(
        self, lessee: Lessee, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        if not self._again_only and (ids := self._consumer.due(min(room, DUE_PER_DELIVERY))):
            return self._take_due(lessee, ids, max_bytes, deadline, now)
        return self._take_again(lessee, room, max_bytes, deadline, now)

    def _take_again(
        self, lessee: Lessee, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        """Lease the lowest messages that wait for redelivery. Of a lessee with several topics, a message whose leases have
        ended several times without an answer is leased alone (ADR 0265)."""
        consumer = self._consumer
        most = 1 if lessee.order is not None and consumer.is_suspect(consumer.first_ready()) else min(room, 256)
        ((first, last, attempt),) = consumer.take_ready(lessee, most, deadline, max_runs=1, now=now)
        try:
            run, start, next_id = self._log.read(first, last - first + 1, min(max_bytes, READ_BYTES))
        except OSError:
            consumer.unsend(lessee, first, last)
            raise
        if run is None:
            self._pass_over(lessee, first, min(next_id - 1, last))
            if next_id <= last:
                consumer.unsend(lessee, next_id, last)
            return None
        count = min(last, next_id - 1) - first + 1
        if run.expires_at_ns is not None and not (count := self._drop_expired(run, start, count)):
            consumer.unsend(lessee, first, last)
            return None
        if run.headers is not None and attempt == 1 and not (count := self._drop_others(run, start, count)):
            consumer.unsend(lessee, first, last)
            return None
        stop, size = fit(run, start, count, max_bytes)
        if run.ids[stop - 1] < last:
            consumer.unsend(lessee, run.ids[stop - 1] + 1, last)
        return run, start, stop, attempt, size

    def _take_due(
        self, lessee: Lessee, ids: list[int], max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        """Lease ids that fell due behind the cursor, as far as one cheap read gives their records. None when the lowest one is
        not leased: it is expired, another consumer's, or needs a full read and is ready like a redelivery now."""
        consumer = self._consumer
        run = self._log.read_each(ids, min(max_bytes, READ_BYTES))
        if run is None:
            consumer.take_due(lessee, ids[:1], deadline, now)
            consumer.unsend(lessee, ids[0], ids[0])
            return None
        count = len(run) if run.expires_at_ns is None else self._drop_expired(run, 0, len(run))
        if run.headers is not None and count:
            count = self._drop_others(run, 0, count)
        if not count:
            return None
        consumer.take_due(lessee, ids[:count], deadline, now)
        return run, 0, count, 1, run.payload_bytes

    def _take_fresh(
        self, lessee: Lessee, fresh: IdRange, room: int, max_bytes: int, deadline: float, now: float
    ) -> LeasedRows | None:
        first, last = fresh
        count = min(room, last - first + 1)
        run, start, next_id = self._log.read(first, count, min(max_bytes, READ_BYTES))
        if run is None:
            self._pass_over(lessee, first, min(next_id - 1, last), fresh=True)
            return None
        count = min(count, next_id - first)
        if run.expires_at_ns is not None and not (count := self._drop_expired(run, start, count)):
            return None
        if run.headers is not None and not (count := self._drop_others(run, start, count)):
            return None
        stop, size = fit(run, start, count, max_bytes)
        self._consumer.take_fresh(lessee, first, run.ids[stop - 1], deadline, now)
        return run, start, stop, 1, size

    def _drop_expired(self, run: Records, start: int, count: int) -> int:
        """Ack expired records. Returns: how many rows from ``start`` on are to be delivered; 0 when rows at the front were
        dropped."""
        assert run.expires_at_ns is not None
        now_ns = self._context.clock.wall_ns()
        over = [0 < at_ns <= now_ns for at_ns in run.expires_at_ns[start : start + count]]
        if not over[0]:
            return over.index(True) if True in over else count
        dropped = over.index(False) if False in over else count
        for first, last in ranges_of(run.ids[start : start + dropped]):
            self._consumer.skip(first, last)
        self._context.expired_total += dropped
        self._context.changed()
        return 0

    def _drop_others(self, run: Records, start: int, count: int) -> int:
        """Ack records that were redriven for another consumer. Returns: as ``_drop_expired``."""
        mine, stop = rows_for(self._context.topic, run, start, start + count, self._consumer.name.encode())
        if mine == start:
            return stop - start
        for first, last in ranges_of(run.ids[start:mine]):
            self._consumer.skip(first, last)
        self._context.changed()
        return 0

    def _pass_over(self, lessee: Lessee, first: int, last: int, *, fresh: bool = False) -> None:
        """Pass over records that cannot be read. Lost ones are acked. Those that the disk refuses (EIO) stay leased to
        ``UNREADABLE`` until a restart."""
        consumer = self._consumer
        if self._log.is_unreadable(first):
            if fresh:
                consumer.take_fresh(lessee, first, last, 0.0)
            consumer.unsend(lessee, first, last)
            consumer.hold(UNREADABLE, first, last)
        else:
            consumer.skip(first, last)  # the read that found the damage may have done so already
        self._context.changed()

    def _pass_over_unread(self, lessee: Lessee, first: int, last: int, now: float) -> int:
        """As ``_pass_over``, for ids that a deliverer reads ahead of the cursor to order them. Returns: the last id passed
        over."""
        consumer = self._consumer
        if self._log.is_unreadable(first):
            last = min(last, first + SCAN_ROWS)
            consumer.pass_over(last)
            if ids := [msg_id for msg_id in range(first, last + 1) if consumer.is_due(msg_id)]:
                consumer.take_each(lessee, ids, 0.0, now)
                consumer.unsend(lessee, first, last)
            consumer.hold(UNREADABLE, first, last)
        else:
            consumer.skip(first, last)
            consumer.pass_over(last)
        self._context.changed()
        return last

    def _read_late(self, lessee: Lessee, late: IdSet, now: float) -> Records | None:
        """Read the lowest messages of ``late``, whose delay ended when later ids had been looked at already, and take them out
        of ``late``; the caller enters those that are due. None when the first needs a full read. Raises: OSError."""
        ids = late.lowest(DUE_PER_DELIVERY, MSG_ID_MAX + 1)
        run = self._log.read_each(ids, READ_BYTES)
        for msg_id in ids[:1] if run is None else run.ids:
            late.discard(msg_id)
        if run is None and self._consumer.is_due(ids[0]):
            self._read_closer(lessee, ids[0], now)
        return run

    def _read_closer(self, lessee: Lessee, msg_id: int, now: float) -> None:
        """Make a due id ready like a redelivery, because ``read_each`` could not read its record: a redelivery gets a full
        read."""
        self._consumer.take_each(lessee, [msg_id], 0.0, now)
        self._consumer.unsend(lessee, msg_id, msg_id)


def rows_of(run: Records, rows: list[int]) -> Records:
    """The given rows of a run, as a run of their own."""
    headers, expires_at_ns = run.headers, run.expires_at_ns
    return Records(
        [run.ids[row] for row in rows], [run.ts_ns[row] for row in rows], [run.keys[row] for row in rows],
        [run.payloads[row] for row in rows],
        None if headers is None else [headers[row] for row in rows],
        None if expires_at_ns is None else [expires_at_ns[row] for row in rows],
    )  # fmt: skip


def fit(run: Records, start: int, count: int, max_bytes: int) -> tuple[int, int]:
    """How many rows fit. Returns: the row after the last one that fits in ``max_bytes``, at least one row, and the bytes."""
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


def stretches_of(ids: Sequence[int]) -> list[Sequence[int]]:
    """Ids in any order, cut where they do not ascend."""
    if all(map(lt, ids, islice(ids, 1, None))):
        return [ids]
    cuts = [row for row in range(1, len(ids)) if ids[row] <= ids[row - 1]]
    return [ids[start:stop] for start, stop in pairwise([0, *cuts, len(ids)])]


def ranges_of(ids: Sequence[int]) -> list[IdRange]:
    """Ascending ids, joined to ranges."""
    if not ids:
        return []
    if ids[-1] - ids[0] + 1 == len(ids):
        return [(ids[0], ids[-1])]
    ranges = [(ids[0], ids[0])]
    for msg_id in ids[1:]:
        if msg_id == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], msg_id
        else:
            ranges.append((msg_id, msg_id))
    return ranges
