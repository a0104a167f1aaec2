"""Publishes of one AMQP channel on their way to the log, and the confirms that answer them.

Contract: amqp.md, "Model" (basic.publish): a confirm comes when the message is on stable storage in each of its queues, in the
order of the publishes. Belongs to the event loop.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from toymq_py.amqp import methods
from toymq_py.amqp.queues import Queues
from toymq_py.broker import Done
from toymq_py.callbacks import call_all
from toymq_py.errors import DiskLow, PayloadTooLarge, QueueFull, RequestError, TierBehind
from toymq_py.topic import Published

RUN_MAX = 256
"""The most publishes that are appended at once."""
OVERFLOWS = frozenset((QueueFull.code, PayloadTooLarge.code))
"""Errors of a queue that is full, or too short for the message at all."""


@dataclass(slots=True)
class Held:
    """Counts the publishes that a connection holds, over all its channels, in bytes."""

    published: int = 0
    """Publishes that are not answered yet."""
    in_transactions: int = 0
    """Publishes that wait for tx.commit."""
    refused: "list[Publishes]" = field(default_factory=list)
    """Runs with publishes that the disk had no room for, and that wait for it: nothing else is applied meanwhile."""

    def again(self) -> None:
        """Append the waiting publishes: the disk has room again."""
        refused, self.refused = self.refused, []
        for publishes in refused:
            publishes.again()


@dataclass(slots=True)
class _Run:
    """Consecutive publishes to the same queues, appended together."""

    topics: tuple[str, ...]
    with_ttl: bool
    with_delay: bool
    bodies: list[bytes] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    ttls_ms: list[int] = field(default_factory=list)
    delays_ms: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    """Consecutive publishes that wait for the same commits."""

    run: _Run
    start: int
    stop: int
    size: int
    waits: int
    error: RequestError | None = None
    failed: dict[str, RequestError] = field(default_factory=dict)
    """The topics in which the messages are not stored, and why."""

    @property
    def count(self) -> int:
        return self.stop - self.start


class Publishes:
    """Appends the publishes of a channel in runs, and reports their outcomes in order."""

    def __init__(
        self, queues: Queues, held: Held, *, confirmed: Callable[[int, bool], None],
        refused: Callable[[RequestError, str, bool], None],
        progress: Callable[[], None], waits_for_space: Callable[[], bool],
    ) -> None:  # fmt: skip
        """
        Args:
            confirmed: called with a count: so many of the oldest unanswered publishes were stored (True) or refused (False).
            refused: called with the error of a publish that was not stored, the topic that refused it, and whether its queues
                were declared to refuse.
            waits_for_space: returns whether a publish waits while the disk is low, instead of being refused.
            progress: called when publishes were answered, so that more may be accepted.
        """
        self._queues = queues
        self._broker = queues.broker
        self._confirmed = confirmed
        self._refused = refused
        self._progress = progress
        self._waits_for_space = waits_for_space
        self._unstored: list[_Pending] = []
        self._run: _Run | None = None
        self._pending: deque[_Pending] = deque()
        self._when_answered: list[Done] = []
        self._held = held

    @property
    def waiting(self) -> bool:
        """Whether some publishes are unanswered."""
        return bool(self._pending) or self._run is not None

    @property
    def count(self) -> int:
        """The number of unanswered publishes."""
        return sum(each.count for each in self._pending) + (0 if self._run is None else len(self._run.bodies))

    def when_answered(self, done: Done) -> None:
        """Call ``done`` when no publish waits; at once if the last was answered since the caller looked."""
        if self.waiting:
            self._when_answered.append(done)
        else:
            done(None)

    def add(
        self, topics: tuple[str, ...], body: bytes, block: bytes, ttl_ms: int | None = None, delay_ms: int | None = None
    ) -> None:
        """Publish to topics. Without any, the message is only confirmed, in the order of publishes."""
        run, extras = self._run, (ttl_ms is not None, delay_ms is not None)
        if run is None or run.topics != topics or (run.with_ttl, run.with_delay) != extras or len(run.bodies) >= RUN_MAX:
            self.flush()
            run = self._run = _Run(topics, *extras)
        run.bodies.append(body)
        run.blocks.append(block)
        if ttl_ms is not None:
            run.ttls_ms.append(ttl_ms)
        if delay_ms is not None:
            run.delays_ms.append(delay_ms)
        self._held.published += len(body) + len(block)

    def abandon(self) -> None:
        """Forget the publishes that were not appended: the channel is gone."""
        run, self._run = self._run, None
        if run is not None:
            self._held.published -= sum(map(len, run.bodies)) + sum(map(len, run.blocks))

    def again(self) -> None:
        """Append the publishes that the disk had no room for, in the same order."""
        unstored, self._unstored = self._unstored, []
        for pending in unstored:
            self._held.published -= pending.size
            run, topics = pending.run, tuple(pending.failed)
            for row in range(pending.start, pending.stop):
                ttl_ms = run.ttls_ms[row] if run.with_ttl else None
                delay_ms = run.delays_ms[row] if run.with_delay else None
                self.add(topics, run.bodies[row], run.blocks[row], ttl_ms, delay_ms)
        self.flush()

    def flush(self) -> None:
        """Append the collected publishes."""
        run, self._run = self._run, None
        if run is None:
            return
        run.topics = tuple(filter(self._broker.has, run.topics))  # a queue that was deleted meanwhile is not made anew
        if len(run.topics) == 1:
            self._append(run)
        else:
            for row in range(len(run.bodies)):
                self._append_to_each(run, row)
        self._settle()

    def _append(self, run: _Run) -> None:
        sizes = [len(body) + len(block) for body, block in zip(run.bodies, run.blocks, strict=True)]
        start = 0
        for outcome in self._published(run.topics[0], run.bodies, run.blocks, run.delays_ms or None, run.ttls_ms or None):
            if isinstance(outcome, RequestError):
                self._pending.append(_Pending(run, start, len(sizes), sum(sizes[start:]), 0, outcome, {run.topics[0]: outcome}))
                return
            stop = start + outcome.count
            pending = _Pending(run, start, stop, sum(sizes[start:stop]), 1)
            start = stop
            self._pending.append(pending)
            self._wait(pending, outcome, run.topics[0])

    def _append_to_each(self, run: _Run, row: int) -> None:
        """Append one message to several queues, or to none."""
        body, block = run.bodies[row], run.blocks[row]
        ttls_ms = [run.ttls_ms[row]] if run.with_ttl else None
        delays_ms = [run.delays_ms[row]] if run.with_delay else None
        pending = _Pending(run, row, row + 1, len(body) + len(block), 1)  # for this loop: what is refused is answered at once
        self._pending.append(pending)
        for topic in run.topics:
            for outcome in self._published(topic, [body], [block], delays_ms, ttls_ms):
                if isinstance(outcome, RequestError):
                    pending.error = pending.error or outcome
                    pending.failed[topic] = outcome
                    continue
                pending.waits += 1
                self._wait(pending, outcome, topic)
        pending.waits -= 1  # the caller settles

    def _published(
        self, topic: str, bodies: list[bytes], blocks: list[bytes], delays_ms: list[int] | None, ttls_ms: list[int] | None
    ) -> "list[Published | RequestError]":
        expiry = None if ttls_ms is None else self._queues.expiries.of_topic(topic)
        first_ms = 0
        if ttls_ms is not None and expiry is not None:
            waits_ms = ttls_ms if delays_ms is None else list(map(max, ttls_ms, delays_ms))
            first_ms, ttls_ms = min(waits_ms), None
        try:
            found = self._broker.topic_to_publish(topic).publish([b""] * len(bodies), bodies, blocks, delays_ms, ttls_ms)
        except RequestError as error:
            self._broker.metrics.refused(error.code, len(bodies))
            return [error.bare()]
        if expiry is not None:
            for outcome in found:
                outcome.commit.add_waiter(lambda: expiry.published(first_ms))
        return list(found)

    def _wait(self, pending: _Pending, outcome: Published, topic: str) -> None:
        outcome.commit.add_waiter(partial(self._done, pending, outcome, topic))

    def _done(self, pending: _Pending, outcome: Published, topic: str) -> None:
        error = outcome.error or outcome.commit.error
        if error is not None:
            pending.error = pending.error or error
            pending.failed[topic] = error
        pending.waits -= 1
        if not pending.waits and self._pending and self._pending[0] is pending:
            self._settle()

    def _settle(self) -> None:
        """Answer the oldest publishes whose commits are done."""
        stored = answered = 0
        while self._pending and not self._pending[0].waits:
            pending = self._pending.popleft()
            answered += 1
            if isinstance(pending.error, DiskLow | TierBehind) and self._waits_for_space():
                if not self._unstored:
                    self._held.refused.append(self)
                self._unstored.append(pending)
                continue
            self._held.published -= pending.size
            if pending.error is None:
                stored += pending.count
                continue
            if stored:
                self._confirmed(stored, True)
                stored = 0
            self._refused(pending.error, next(iter(pending.failed)), self._overflowed(pending))
            self._confirmed(pending.count, False)
        if stored:
            self._confirmed(stored, True)
        if answered:
            self._progress()
        if not self._pending and self._when_answered:
            calls, self._when_answered = self._when_answered, []
            call_all(calls, None)

    def _overflowed(self, pending: _Pending) -> bool:
        """Dead-letter the messages that full queues refused, where ``reject-publish-dlx`` was declared. Returns: whether all
        refusals came from queues with a declared length: RabbitMQ does not report those to a publisher without confirms."""
        full = [topic for topic, error in pending.failed.items() if error.code in OVERFLOWS]
        for topic in full:
            if (expiry := self._queues.expiries.of_topic(topic)) is not None:
                for row in range(pending.start, pending.stop):
                    expiry.refused(pending.run.bodies[row], pending.run.blocks[row])
        return len(full) == len(pending.failed) and all(map(self._queues.is_limited, full))


class Confirms:
    """The numbers of a channel's publishes, and the frames that confirm them."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._answered = 0

    def frame(self, count: int, stored: bool) -> bytes:
        """Answer the oldest ``count`` publishes."""
        self._answered += count
        name = "basic.ack" if stored else "basic.nack"
        return methods.encode(self._channel, name, delivery_tag=self._answered, multiple=count > 1)
