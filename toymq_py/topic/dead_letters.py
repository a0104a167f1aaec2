"""Dead letters: what a message becomes that nobody can process, and the way to the dead-letter topic.

Contract: delivery.md, "Attempts"; ADR 0023. First the letter is on stable storage, then its message counts as acked; in between
the key of the letter sees to it that a kill makes no second copy. Joins a topic with its dead-letter topic, which topics
themselves know nothing of. Belongs to the event loop.

    consumer: HELD ──take_held──▶ MOVING ── append, commit ──▶ buried (acked)
                ▲                   │
                └── backoff ◀── disk full, log failed
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from toymq_py.clock import Clock
from toymq_py.consumer import Consumer, Held
from toymq_py.consumer.failures import Failed
from toymq_py.errors import BadArgument, RequestError, ShuttingDown
from toymq_py.model import DEAD_LETTERS, PRODUCER_PREFIX, IdRange
from toymq_py.storage.scheduling import Scheduler
from toymq_py.topic.moving import (
    ATTEMPTS,
    CONSUMER,
    ERROR,
    ERROR_TYPE,
    FAILED_AT,
    FIRST_DELIVERED,
    LAST_DELIVERED,
    LETTER_KEY,
    ORIGIN_ID,
    ORIGIN_KEY,
    ORIGIN_TOPIC,
    REASON,
    REDRIVE_KEY,
    REDRIVES,
    SLICE_ROWS_MAX,
    TRACEBACK,
    UNSTORED_MAX,
    Reading,
    Slice,
    split_headers,
)
from toymq_py.topic.publishing import Published
from toymq_py.topic.redrive import Redrive, RedriveDone

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic

logger = logging.getLogger("toymq_py.topic")

RETRY_MIN_S, RETRY_MAX_S = 0.1, 30.0
"""How soon a move that failed is tried again, doubling."""


class DeadLetters:
    """All that is on its way between topics and their dead-letter topics."""

    def __init__(self, scheduler: Scheduler, clock: Clock, topic: Callable[[str], "Topic"]) -> None:
        """``topic`` gives a topic by name, a new one when there is none; raises RequestError when it cannot be had."""
        self._scheduler = scheduler
        self._clock = clock
        self._topic = topic
        self._movers: dict[Topic, DeadLetterMover] = {}
        self._redrives: dict[Topic, deque[Redrive]] = {}  # of each dead-letter topic, the one that runs first
        self._finished: Callable[[], None] | None = None
        self._closed = False

    def held(self, topic: "Topic", consumer: Consumer) -> None:
        """Something is held there."""
        if self._closed:
            return  # it is found again at the next start
        mover = self._movers.get(topic)
        if mover is None:
            mover = self._movers[topic] = DeadLetterMover(
                topic,
                scheduler=self._scheduler,
                clock=self._clock,
                letters=lambda: self._topic(topic.name + DEAD_LETTERS),
                idle=self._settle,
            )
        mover.add(consumer)

    def forget(self, topic: "Topic") -> None:
        """It was deleted."""
        self._movers.pop(topic, None)

    def when_stored(self, topic: "Topic", call: Callable[[], None]) -> Callable[[], object]:
        """Have ``call`` called once, when the next messages of a topic are dead letters on stable storage.

        Returns: what withdraws it.
        """
        mover = self._movers.get(topic)
        if mover is None:
            return lambda: None
        mover.waiters[call] = None
        return lambda: mover.waiters.pop(call, None)

    def redrive(self, letters: "Topic", ids: Sequence[IdRange] | None, max_count: int | None, done: RedriveDone) -> None:
        """Move letters back, those with the ``ids`` or all, ``max_count`` at most. One REDRIVE of a topic after the other.

        Raises: BadArgument (it is no dead-letter topic), ShuttingDown; then ``done`` is not called.
        """
        if not letters.is_dead_letters:
            raise BadArgument(f"{letters.name} is no dead-letter topic: their names end with {DEAD_LETTERS}")
        if self._closed or self._finished is not None:
            raise ShuttingDown("the broker is shutting down")

        def ended(count: int, error: OSError | RequestError | None) -> None:
            queue.popleft()
            if queue:
                queue[0].start()
            else:
                del self._redrives[letters]
            done(count, error)
            self._settle()

        redrive = Redrive(
            letters, ids=ids, max_count=max_count, scheduler=self._scheduler, done=ended,
            origin=lambda: self._topic(letters.name.removesuffix(DEAD_LETTERS)),
        )  # fmt: skip
        queue = self._redrives.setdefault(letters, deque())
        queue.append(redrive)
        if len(queue) == 1:
            redrive.start()

    def finish(self, done: Callable[[], None]) -> None:
        """Shutdown: move what is held as far as the disk takes it, end what is on its way back; then call ``done``."""
        for queue in self._redrives.values():
            for redrive in queue:
                redrive.stopping = True
        self._finished = done
        self._settle()

    def _settle(self) -> None:
        if self._finished is not None and not self._redrives and not any(mover.busy for mover in self._movers.values()):
            self._closed = True
            done, self._finished = self._finished, None
            done()


class DeadLetterMover:
    """Moves what one topic's consumers hold to its dead-letter topic, a slice at a time; each slice waits for its commit."""

    def __init__(
        self,
        topic: "Topic",
        *,
        scheduler: Scheduler,
        clock: Clock,
        letters: Callable[[], "Topic"],
        idle: Callable[[], None],
    ) -> None:
        """
        Args:
            letters: the dead-letter topic; raises RequestError when it cannot be had now.
            idle: called when there is nothing to do, or nothing can be done for a while.
        """
        self._topic = topic
        self._scheduler = scheduler
        self._clock = clock
        self._letters = letters
        self._idle = idle
        self._consumers: dict[Consumer, None] = {}
        self._reading = Reading(topic)
        self._unstored = 0
        self._retry_s = RETRY_MIN_S
        self.waiters: dict[Callable[[], None], None] = {}
        """Called when the next ones are stored."""
        self.busy = False
        """It will go on by itself, now or when a disk is done."""
        self.waiting = False
        """The last try failed; the next is in time."""

    def add(self, consumer: Consumer) -> None:
        """The consumer holds something."""
        self._consumers[consumer] = None
        self._go_on()

    def _go_on(self) -> None:
        if not self.busy and not self.waiting:
            self.busy = True
            self._scheduler.soon(self._next)

    def _next(self) -> None:
        if self._unstored >= UNSTORED_MAX:
            self._topic.flush_offsets(self._offsets_stored)
            return
        while self._consumers:
            consumer = next(iter(self._consumers))
            del self._consumers[consumer]
            if self._topic.deleted or self._topic.consumers.get(consumer.name) is not consumer:
                continue
            held = consumer.take_held(SLICE_ROWS_MAX)
            if not held:
                continue
            self._consumers[consumer] = None  # behind the others
            self._move(consumer, held)
            return
        self._reading = Reading(self._topic)  # nothing is kept in memory meanwhile
        self.busy = False
        self._idle()

    def _offsets_stored(self, error: OSError | RequestError | None) -> None:
        if error is not None and not self._topic.deleted:
            self._fail(error)
            return
        self._unstored = 0
        self._scheduler.soon(self._next)

    def _move(self, consumer: Consumer, held: list[Held]) -> None:
        first, last = held[0].first, held[-1].last
        letters = Slice()
        try:
            after = self._write(consumer, held, letters)
            consumer.unhold(after, last)
            if not letters.ids:
                self._scheduler.soon(self._next)
                return
            ids, target = letters.ids, self._letters()
            letters.append_to(target, partial(self._stored, target, consumer, ids), partial(self._done, consumer, ids))
        except (RequestError, OSError) as error:
            consumer.unhold(first, last)
            self._fail(error)

    def _write(self, consumer: Consumer, held: list[Held], letters: Slice) -> int:
        """Make letters of what is held, until the slice is full. Returns: the id behind the last. Raises: OSError."""
        topic = self._topic
        name = consumer.name.encode()
        head = b"%b%b:%b:" % (LETTER_KEY, topic.name.encode(), name)
        at = held[0].first
        for item in held:
            origin, times = self._shared_headers(name, item)
            at = item.first
            while at <= item.last:
                if letters.full:
                    return at
                run, row = self._reading.find(at)
                if run is None:
                    next_id = row
                    topic.pass_over_held(consumer, at, min(next_id - 1, item.last))
                    at = next_id
                    continue
                key, block = run.keys[row], b"" if run.headers is None else run.headers[row]
                failed = None if consumer.failures is None else consumer.failures.find(at)
                letters.add(
                    at,
                    b"%b%d:%d:%d" % (head, at, run.ts_ns[row], consumer.since_ns),
                    run.payloads[row],
                    letter_headers(key, block, at) + origin + failure_headers(item.reason, failed) + times,
                )
                at += 1
        return at

    def _shared_headers(self, consumer: bytes, held: Held) -> tuple[bytes, bytes]:
        """Those before what is said of the failure, and those behind."""
        origin = ((ORIGIN_TOPIC, self._topic.name.encode()), (CONSUMER, consumer), (ATTEMPTS, b"%d" % held.attempt))
        times: list[tuple[bytes, bytes]] = []
        if held.delivered is not None:
            for name, at in zip((FIRST_DELIVERED, LAST_DELIVERED), held.delivered, strict=True):
                if at is not None:
                    ago_s = self._clock.monotonic() - at
                    times.append((name, b"%d" % (self._clock.wall_ns() // 1_000_000 - round(ago_s * 1000))))
        return _block(origin), _block(times)

    def _stored(
        self, target: "Topic", consumer: Consumer, ids: Sequence[int], start: int, stop: int, outcome: Published
    ) -> None:
        self._topic.moves.add(target, outcome.first_id)
        self._topic.bury(consumer, ids[start], ids[stop - 1])
        self._unstored += stop - start
        waiters, self.waiters = self.waiters, {}
        for call in waiters:
            call()

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
        """Nothing is lost: what is held stays held, and is tried again."""
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


def failure_headers(given_up: str, failed: Failed | None) -> bytes:
    """Why it died. ``given_up``: the reason of a letter of which no NACK gave one."""
    if failed is None:
        return _block([(REASON, given_up.encode())])
    failure, at_ms = failed
    traceback = None if failure.traceback is None else json.dumps(failure.traceback, ensure_ascii=False)
    lines = (
        (REASON, failure.reason or given_up), (ERROR_TYPE, failure.error_type), (ERROR, failure.error),
        (TRACEBACK, traceback), (FAILED_AT, str(at_ms)),
    )  # fmt: skip
    return _block([(name, text.encode()) for name, text in lines if text is not None])


def _block(lines: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\n" % line for line in lines)


def letter_headers(key: bytes, block: bytes, msg_id: int) -> bytes:
    """The header block of a letter without what it shares with others: the message's own headers, its id, and its key."""
    kept, ours = split_headers(block)
    if not key.startswith(REDRIVE_KEY) or REDRIVES not in ours:
        own = key and not key.startswith(PRODUCER_PREFIX)
        ours = {ORIGIN_KEY: key} if own else {}  # whatever a publisher wrote under these names
    redrives = b"" if REDRIVES not in ours else b"%b: %b\n" % (REDRIVES, ours[REDRIVES])
    origin_key = b"" if ORIGIN_KEY not in ours else b"%b: %b\n" % (ORIGIN_KEY, ours[ORIGIN_KEY])
    return b"%b%b%b%b: %d\n" % (kept, redrives, origin_key, ORIGIN_ID, msg_id)
