"""An hour of the broker's statistics in bounded memory, for the dashboard's charts.

ADR 0145. A sample every ``STEP_S`` reads the broker's own state, in slices, and changes nothing. A topic has a ring buffer of
``ROWS`` samples of ``TOPIC_COLUMNS``; at most ``TOPICS_MAX`` topics have one. Nothing is stored: after a start the history is
empty. Belongs to the event loop.
"""

import asyncio
import logging
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from math import nan
from typing import Any, NamedTuple

from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.names import DEAD_LETTERS
from toymq_py.observability.slices import Slices
from toymq_py.topic import Channel, Topic, oldest_due_ns

logger = logging.getLogger("toymq_py.gateway")

STEP_S = 10
"""The time between two samples: a value that changes faster is seen as its mean."""
ROWS = 360
"""Samples that can be read: an hour."""
TOPICS_MAX = 1000
"""Topics with a ring, of 7.4 KB. At the bound a topic with messages or takers replaces one that did not move for an hour."""
SLOW_S = 60
"""A consumer is slow while its oldest unacked message has been due for longer."""
LAGGING_MAX = 10_000
"""Most consumers with a backlog for which the time is kept since when they have it and are slow; some 3 MB."""

TOPIC_COLUMNS = ("published", "acked", "backlog", "oldest_s", "letters")
"""The columns of a topic: messages a second, published and acked; messages that the slowest consumer has not acked; how long
the oldest of them has been due, in seconds; dead letters that wait, in the topic or for it."""
COUNTERS = ("publish_total", "deliver_total", "ack_total", "redeliver_total")
BROKER_COLUMNS = ("published", "delivered", "acked", "redelivered", "backlog", "oldest_s", "letters")
"""The columns of the broker: rates of the counters; sums of the topics' numbers, and the highest age. Topics of dead letters
count by their letters."""


class Ring:
    """A ring buffer of samples with a few columns, by step number. It has one row more than readers see, for writing."""

    __slots__ = ("_values", "_width", "since")

    def __init__(self, width: int, since: int) -> None:
        """``since``: the first step with a sample."""
        self._width = width
        self._values = array("f", [nan]) * (width * (ROWS + 1))
        self.since = since

    def put(self, step: int, values: Sequence[float]) -> None:
        at = step % (ROWS + 1) * self._width
        self._values[at : at + self._width] = array("f", values)

    def get(self, step: int, column: int) -> float:
        """The value of a column at a step; NaN for a step before ``since``."""
        return nan if step < self.since else self._values[step % (ROWS + 1) * self._width + column]


class _Progress(NamedTuple):
    """The counters of a topic since the start of the broker, and its waiting messages."""

    published: int
    acked: int
    backlog: int
    oldest_s: float
    letters: int
    has_takers: bool


class _Lag(NamedTuple):
    """What is remembered of a consumer with a backlog."""

    channel: Channel
    due: tuple[int, ...]
    """The first ids that are due. While they stay the same, so does ``oldest_ns``, and no record is read for a consumer that
    makes no progress."""
    oldest_ns: int | None
    slow_since_ms: int | None


class _Kept:
    """A topic's ring, and its counters at the last sample."""

    __slots__ = ("acked", "moved_at", "published", "ring")

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.published = 0
        self.acked = 0
        self.moved_at = ring.since


class Window(NamedTuple):
    """The steps that an answer covers, from ``first`` to ``last``. ``last_ms``: when the last one was taken, in Unix ms."""

    first: int
    last: int
    last_ms: int


class History:
    """The ring buffers of the broker and its topics, and the slow consumers. ``run`` takes samples; other methods only read."""

    def __init__(self, broker: Broker, clock: Clock, *, topics_max: int = TOPICS_MAX) -> None:
        self._broker = broker
        self._clock = clock
        self._topics_max = topics_max
        self._whole = Ring(len(BROKER_COLUMNS), 0)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """The kept samples by topic; the topic that moved last is the last."""
        self._started = clock.monotonic()
        self._steps = array("q", [-1]) * (ROWS + 1)
        """The step that each row of all rings holds."""
        self._last_step = -1
        self._last_at = self._started
        self._last_ms = clock.wall_ns() // 1_000_000
        self._counters = [0] * len(COUNTERS)
        self._lagging: dict[tuple[str, str], _Lag] = {}
        self.topics_left_out = 0
        """Topics without a ring at the last sample."""

    async def run(self) -> None:
        """Take samples until cancelled. A bug ends the history, but not the gateway."""
        try:
            while True:
                await self.sample()
                await asyncio.sleep(self._started + (self._last_step + 1) * STEP_S - self._clock.monotonic())
        except Exception:
            logger.exception("bug in the history: it has no more samples until a restart")

    async def sample(self) -> None:
        """Take the sample of the current step, unless it was taken. A missed step stays without values."""
        now = self._clock.monotonic()
        step = int((now - self._started) // STEP_S)
        if step <= self._last_step:
            return
        seconds = now - self._last_at if self._last_step >= 0 else nan
        self._steps[step % (ROWS + 1)] = step
        counters = [getattr(self._broker.metrics, name) for name in COUNTERS]
        sums = await self._sample_topics(step, seconds)
        rates = [(after - before) / seconds for after, before in zip(counters, self._counters, strict=True)]
        self._whole.put(step, [*rates, *sums])
        self._counters = counters
        self._last_at = now
        self._last_ms = self._clock.wall_ns() // 1_000_000
        self._last_step = step

    async def _sample_topics(self, step: int, seconds: float) -> list[float]:
        """Sample the topics. Returns: the last columns of the broker's row."""
        slices, topics = Slices(self._clock), self._broker.topics
        lagging: dict[tuple[str, str], _Lag] = {}
        backlog, oldest_s, letters, left_out = 0, 0.0, 0, 0
        for name in list(topics):
            topic = topics.get(name)
            if topic is None or topic.deleted:
                continue
            found = await self._look(topic, lagging, slices)
            if topic.is_dead_letters:
                letters += found.letters
            else:
                backlog += found.backlog
                oldest_s = max(oldest_s, found.oldest_s)
            left_out += not self._put(name, step, seconds, found)
        for name in [name for name in self._kept if name not in topics or topics[name].deleted]:
            del self._kept[name]
        self._lagging = lagging
        self.topics_left_out = left_out
        return [backlog, oldest_s, letters]

    async def _look(self, topic: Topic, lagging: dict[tuple[str, str], _Lag], slices: Slices) -> _Progress:
        log, backlog, acked, oldest_s, has_takers = topic.log, 0, 0, 0.0, False
        for name, channel in list(topic.channels.items()):
            acked += channel.acked_total
            has_takers = has_takers or channel.takers > 0
            if waiting := channel.consumer.counts(log.committed_id).backlog:
                lag, age_s = self._lag(topic, name, channel)
                backlog, oldest_s = max(backlog, waiting), max(oldest_s, age_s)
                if len(lagging) < LAGGING_MAX:
                    lagging[topic.name, name] = lag
            await slices.turn()
        if not topic.channels:
            backlog, _ = topic.unconsumed()
        letters = topic if topic.is_dead_letters else self._broker.topics.get(topic.name + DEAD_LETTERS)
        in_letters = 0 if letters is None else letters.redrive_consumer.waiting()
        await slices.turn()
        return _Progress(log.committed_id, acked, backlog, oldest_s, in_letters, has_takers)

    def _lag(self, topic: Topic, name: str, channel: Channel) -> tuple[_Lag, float]:
        """Measure a consumer with a backlog. Returns: what to remember of it, and for how many seconds its oldest message has
        been due."""
        known, now_ns = self._lagging.get((topic.name, name)), self._clock.wall_ns()
        due = tuple(channel.consumer.first_due(topic.log.committed_id))
        if known is not None and known.channel is not channel:
            known = None  # another consumer of this name
        same = known is not None and known.due == due
        oldest_ns = known.oldest_ns if known is not None and same else oldest_due_ns(channel)
        age_s = 0.0 if oldest_ns is None else max(now_ns - oldest_ns, 0) / 1e9
        before = None if known is None else known.slow_since_ms
        slow_ms = slow_since_ms(None if oldest_ns is None else oldest_ns / 1e6, now_ns / 1e6, before)
        return _Lag(channel, due, oldest_ns, slow_ms), age_s

    def _put(self, name: str, step: int, seconds: float, found: _Progress) -> bool:
        """Put a sample into a topic's ring buffer. Returns: whether the topic has one."""
        kept, published, acked = self._kept.get(name), nan, nan
        if kept is not None:
            published = max(found.published - kept.published, 0) / seconds  # a topic of this name may be another one
            acked = max(found.acked - kept.acked, 0) / seconds  # that of a consumer that was forgotten is missing
        elif (kept := self._new_ring(name, step, found)) is None:
            return False
        elif step > 0 and not self.topics_left_out:  # it is a new topic
            published, acked = found.published / seconds, found.acked / seconds
        if published > 0 or acked > 0:
            kept.moved_at = step
            self._kept.move_to_end(name)
        kept.published, kept.acked = found.published, found.acked
        kept.ring.put(step, (published, acked, found.backlog, found.oldest_s, found.letters))
        return True

    def _new_ring(self, name: str, step: int, found: _Progress) -> _Kept | None:
        if len(self._kept) >= self._topics_max:
            quietest = next(iter(self._kept))
            if step - self._kept[quietest].moved_at < ROWS or not (found.backlog or found.has_takers):
                return None
            del self._kept[quietest]
        kept = self._kept[name] = _Kept(Ring(len(TOPIC_COLUMNS), step))
        return kept

    # -- reading

    @property
    def topics(self) -> list[str]:
        """The names of the topics that have a ring buffer."""
        return sorted(self._kept)

    def slow_since_ms(self, topic: str, consumer: str) -> int | None:
        """Since when a consumer is slow, in Unix ms; None when it is not. Measured at most ``STEP_S`` ago."""
        lag = self._lagging.get((topic, consumer))
        return None if lag is None else lag.slow_since_ms

    def window(self, last_s: int) -> Window:
        """The steps of the last seconds, including those before the broker's start."""
        rows = min(max(-(-last_s // STEP_S), 1), ROWS)
        return Window(self._last_step - rows + 1, self._last_step, self._last_ms)

    def whole(self, window: Window) -> dict[str, list[float | None]]:
        """The broker's values by column, one for each step; None for a missed step, or one before the broker's start."""
        return self._columns(self._whole, BROKER_COLUMNS, window)

    def topic(self, name: str, window: Window) -> dict[str, list[float | None]] | None:
        """A topic's values by column, one for each step; None when the topic has no ring buffer."""
        kept = self._kept.get(name)
        return None if kept is None else self._columns(kept.ring, TOPIC_COLUMNS, window)

    def _columns(self, ring: Ring, names: Sequence[str], window: Window) -> dict[str, Any]:
        steps = range(window.first, window.last + 1)
        known = [step >= 0 and self._steps[step % (ROWS + 1)] == step for step in steps]
        return {
            name: [_number(ring.get(step, column)) if is_known else None for step, is_known in zip(steps, known, strict=True)]
            for column, name in enumerate(names)
        }


def _number(value: float) -> float | None:
    """A value for JSON, to a thousandth; None for NaN."""
    if value != value:
        return None
    return int(value) if value.is_integer() else round(value, 3)


def slow_since_ms(oldest_ms: float | None, now_ms: float, before: int | None) -> int | None:
    """Since when a consumer is slow, in Unix ms; None when it is not.

    Args:
        oldest_ms: when its oldest message fell due; None without one.
        before: the result at the last look. It is kept while the consumer stays slow, even if the oldest message changed.
    """
    if oldest_ms is None or now_ms - oldest_ms <= SLOW_S * 1000:
        return None
    return round(oldest_ms + SLOW_S * 1000) if before is None else before
