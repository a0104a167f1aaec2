"""Moves held messages of a topic to its dead-letter topic.

Contract: delivery.md, "Attempts"; ADR 0023. First the letter is on stable storage, then its message counts as acked; in between
the key of the letter sees to it that a kill makes no second copy. Belongs to the event loop.

    consumer: HELD ──take_held──▶ MOVING ── append, commit ──▶ buried (acked)
                ▲                   │
                └── backoff ◀── disk full, log failed
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.callbacks import call_all
from toymq_py.clock import Clock
from toymq_py.consumer import Consumer, HeldRange
from toymq_py.deadletter.ledger import MoveLedger
from toymq_py.deadletter.transfer import SLICE_ROWS_MAX, UNSTORED_MAX, RecordReader, TransferBatch
from toymq_py.errors import RequestError
from toymq_py.letter import (
    ATTEMPTS,
    CONSUMER,
    FIRST_DELIVERED,
    LAST_DELIVERED,
    ORIGIN_TOPIC,
    failure_headers,
    header_block,
    letter_key,
    message_headers,
)
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.topic import Channel, Published, Topic

logger = logging.getLogger("toymq_py.deadletter")

RETRY_MIN_S, RETRY_MAX_S = 0.1, 30.0
"""The delay before a move that failed is tried again, doubling."""


class DeadLetterMover:
    """Moves held messages of one topic to its dead-letter topic, a batch at a time. Each batch waits for its commit."""

    def __init__(
        self,
        topic: Topic,
        ledger: MoveLedger,
        *,
        scheduler: Scheduler,
        clock: Clock,
        letters: Callable[[], Topic],
        idle: Callable[[], None],
    ) -> None:
        """
        Args:
            letters: returns the dead-letter topic; raises RequestError when there is none and it cannot be created now.
            idle: called when there is nothing to do, or nothing can be done for a while.
        """
        self._topic = topic
        self._ledger = ledger
        self._scheduler = scheduler
        self._clock = clock
        self._letters = letters
        self._idle = idle
        self._channels: dict[Channel, None] = {}
        self._reader = RecordReader(topic)
        self._unstored = 0
        self._retry_s = RETRY_MIN_S
        self.waiters: dict[Callable[[], None], None] = {}
        """Called when the next letters are stored."""
        self.busy = False
        """Whether the mover goes on by itself: now, or when a commit ends."""
        self.waiting = False
        """Whether the last try failed and the next one waits for its time."""
        self.suspended = False
        """Whether it begins no more batches."""

    def add(self, channel: Channel) -> None:
        """Move the held messages of this channel's consumer."""
        self._channels[channel] = None
        self._go_on()

    def _go_on(self) -> None:
        if not self.busy and not self.waiting:
            self.busy = True
            self._scheduler.soon(self._next)

    def _next(self) -> None:
        if self.suspended:
            self.busy = False
            self._idle()
            return
        if self._unstored >= UNSTORED_MAX:
            self._topic.flush_offsets(self._offsets_stored)
            return
        while self._channels:
            channel = next(iter(self._channels))
            del self._channels[channel]
            if self._topic.deleted or channel.closed:
                continue
            held = channel.consumer.take_held(SLICE_ROWS_MAX)
            if not held:
                continue
            self._channels[channel] = None  # behind the others
            self._move(channel, held)
            return
        self._reader = RecordReader(self._topic)  # nothing is kept in memory meanwhile
        self.busy = False
        self._idle()

    def _offsets_stored(self, error: OSError | RequestError | None) -> None:
        if error is not None and not self._topic.deleted:
            self._fail(error)
            return
        self._unstored = 0
        self._scheduler.soon(self._next)

    def _move(self, channel: Channel, held: list[HeldRange]) -> None:
        consumer = channel.consumer
        first, last = held[0].first, held[-1].last
        letters = TransferBatch()
        try:
            after = self._write(channel, held, letters)
            consumer.unhold(after, last)
            if not letters.ids:
                self._scheduler.soon(self._next)
                return
            ids, target = letters.ids, self._letters()
            letters.append_to(target, partial(self._stored, target, channel, ids), partial(self._done, consumer, ids))
        except (RequestError, OSError) as error:
            consumer.unhold(first, last)
            self._fail(error)

    def _write(self, channel: Channel, held: list[HeldRange], letters: TransferBatch) -> int:
        """Add held messages to the batch as dead letters, until it is full. Returns: the id after the last one. Raises:
        OSError."""
        topic, consumer = self._topic, channel.consumer
        name = consumer.name
        at = held[0].first
        for item in held:
            origin, times = self._shared_headers(name, item)
            at = item.first
            while at <= item.last:
                if letters.full:
                    return at
                run, row = self._reader.find(at)
                if run is None:
                    next_id = row
                    channel.skip_held_without_record(at, min(next_id - 1, item.last))
                    at = next_id
                    continue
                key, block = run.keys[row], b"" if run.headers is None else run.headers[row]
                failed = None if consumer.failures is None else consumer.failures.find(at)
                letters.add(
                    at,
                    letter_key(topic.name, name, at, run.ts_ns[row], consumer.since_ns),
                    run.payloads[row],
                    message_headers(topic.name, key, block, at) + origin + failure_headers(item.reason, failed) + times,
                )
                at += 1
        return at

    def _shared_headers(self, consumer: str, held: HeldRange) -> tuple[bytes, bytes]:
        """Header blocks that all dead letters of a held range share: those before the headers of the failure, and those after
        them."""
        origin = ((ORIGIN_TOPIC, self._topic.name.encode()), (CONSUMER, consumer.encode()), (ATTEMPTS, b"%d" % held.attempt))
        times: list[tuple[bytes, bytes]] = []
        if held.delivered is not None:
            for name, at in zip((FIRST_DELIVERED, LAST_DELIVERED), held.delivered, strict=True):
                if at is not None:
                    ago_s = self._clock.monotonic() - at
                    times.append((name, b"%d" % (self._clock.wall_ns() // 1_000_000 - round(ago_s * 1000))))
        return header_block(origin), header_block(times)

    def _stored(self, target: Topic, channel: Channel, ids: Sequence[int], start: int, stop: int, outcome: Published) -> None:
        self._ledger.add(target, outcome.first_id)
        channel.ack_dead_lettered(ids[start], ids[stop - 1])
        self._unstored += stop - start
        waiters, self.waiters = self.waiters, {}
        call_all(waiters)

    def _done(self, consumer: Consumer, ids: Sequence[int], refused: RequestError | None) -> None:
        if refused is not None:
            consumer.unhold(ids[0], ids[-1])
            self._fail(refused)
            return
        if self._retry_s > RETRY_MIN_S:
            logger.warning("topic %s: dead letters are stored again", self._topic.name)
        self._retry_s = RETRY_MIN_S
        self._scheduler.soon(self._next)

    def _fail(self, error: RequestError | OSError) -> None:
        """Log a failed move and schedule the next try. The messages stay held."""
        if self._retry_s == RETRY_MIN_S:  # once: a full disk may take long
            logger.error("topic %s: messages cannot be moved to the dead letters (%s); trying again", self._topic.name, error)
        delay_s = self._retry_s
        self._retry_s = min(2 * delay_s, RETRY_MAX_S)
        self.busy, self.waiting = False, True
        self._scheduler.later(delay_s, self._again)
        self._idle()

    def _again(self) -> None:
        self.waiting = False
        self._go_on()
