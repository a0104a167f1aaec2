"""Snapshots of all topics, once a second, shared by all watchers.

Contract: gateway.md. Without watchers no snapshot is made. A watcher's first event (``snapshot``) has all topics, each later
event (``change``) only the topics that changed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

from toymq_py.auth.tokens import Grant
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.gateway.elsewhere import Elsewhere
from toymq_py.gateway.neighbours import Neighbours
from toymq_py.gateway.waiters import Waiting
from toymq_py.merging import merged_stats, merged_topics
from toymq_py.observability.history import History, slow_since_ms
from toymq_py.placement import named

INTERVAL_S = 1.0
TOPICS_PER_TURN = 64
"""Topics that are described before other tasks get a turn; a millisecond."""
SAME_MOMENT_MS = 50
"""Times that differ by less are equal: they are computed from an age and a later reading of the clock."""


async def _at_once() -> None:
    """The default of ``room`` in ``Snapshots.watch``: there is always room."""


class Snapshots:
    """The last snapshot of all topics. The first watcher whose second is over makes the next one; the others reuse it."""

    def __init__(
        self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop, waiting: Waiting, history: History,
        neighbours: Neighbours | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            history: knows since when consumers are slow.
            neighbours: the other workers of the broker, whose topics are shown, too.
        """
        self.elsewhere = Elsewhere(broker, clock, loop)
        """The other workers, or groups of a cluster, whose topics are shown, too."""
        self.elsewhere.ask = None if neighbours is None else neighbours.stats_of
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._waiting = waiting
        self._history = history
        self._topics: dict[str, str] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._now_ms = 0
        self._stats = "{}"
        self._away: list[dict[str, Any]] = []
        self._changed: list[str] = []
        self._gone: list[str] = []
        self._change: bytes | None = None
        self._number = 0
        self._made_at = float("-inf")
        self._making = asyncio.Lock()

    async def watch(
        self, present: Callable[[], Grant | None] = lambda: None, room: Callable[[], Awaitable[None]] = _at_once
    ) -> AsyncIterator[bytes]:
        """Yield events until the broker shuts down. A watcher that missed a snapshot gets all topics again.

        Args:
            present: returns the current grant, which limits the topics that are shown; None shows all.
            room: waits until the watcher may have all topics at once.
        """
        await self._refresh()
        await room()
        seen = self._number
        yield self._whole(present())
        while await self._next():
            if self._number == seen + 1:
                yield self._differences(present())
            elif self._number != seen:
                await room()
                yield self._whole(present())
            seen = self._number

    async def _next(self) -> bool:
        """Wait for the next snapshot. Returns: whether the broker still runs."""
        delay_s = self._made_at + INTERVAL_S - self._loop.time()
        if delay_s > 0:
            await self._waiting.sleep(delay_s)
        if not self._waiting.stopped:
            await self._refresh()
        return not self._waiting.stopped

    async def _refresh(self) -> None:
        async with self._making:
            if self._loop.time() - self._made_at < INTERVAL_S / 2:
                return
            described: dict[str, dict[str, Any]] = {}
            topics: dict[str, str] = {}
            self._changed = []
            await self.elsewhere.look()
            self._away = self.elsewhere.away()
            stats = [self._broker.stats(), *self.elsewhere.stats()]
            found = merged_topics([self._broker.describe(None), self.elsewhere.topics()])
            while part := list(islice(found, TOPICS_PER_TURN)):
                self._now_ms = self._clock.wall_ns() // 1_000_000
                for item in part:
                    name, before = item["topic"], self._described.get(item["topic"])
                    at_ms = item.pop("heard_ms", self._now_ms)
                    described[name] = timeless(item, before, at_ms)
                    self._enter_place(item, before)
                    if name in self._broker.topics:
                        for consumer in item["consumers"]:
                            consumer["slow_since_ms"] = self._history.slow_since_ms(name, consumer["consumer"])
                    else:
                        judge_slow(item, before, at_ms)
                    if before == item:
                        topics[name] = self._topics[name]
                    else:
                        topics[name] = json.dumps(item)
                        self._changed.append(name)
                await self._waiting.pause()
            self._stats = json.dumps(merged_stats(stats))
            self._gone = [name for name in self._described if name not in described]
            self._topics, self._described = topics, described
            self._change = None
            self._number += 1
            self._made_at = self._loop.time()

    def _enter_place(self, item: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Set the group or worker of a topic in its description, if there are several. A topic never changes its worker."""
        placement = self._broker.placement
        if placement.is_divided and isinstance(placement.here, str):
            item["group"] = placement.place_of(item["topic"])
        elif placement.is_divided:
            item["worker"] = before["worker"] if before is not None else placement.place_of(item["topic"])

    def _differences(self, grant: Grant | None) -> bytes:
        if grant is None:
            if self._change is None:  # encoded once, for all
                self._change = self._event("change", self._changed, self._gone)
            return self._change
        return self._event("change", filter(grant.sees, self._changed), list(filter(grant.sees, self._gone)))

    def _whole(self, grant: Grant | None) -> bytes:
        return self._event("snapshot", self._topics if grant is None else filter(grant.sees, self._topics), [])

    def _event(self, name: str, topics: Iterable[str], gone: list[str]) -> bytes:
        listed = ", ".join(self._topics[topic] for topic in topics)
        places = json.dumps({"here": named(self._broker.placement.here), "away": self._away})[1:-1]
        data = f'"now_ms": {self._now_ms}, "stats": {self._stats}, "topics": [{listed}], "gone": {json.dumps(gone)}, {places}'
        return f"event: {name}\ndata: {{{data}}}\n\n".encode()


def judge_slow(item: dict[str, Any], before: dict[str, Any] | None, now_ms: int) -> None:
    """Set since when each consumer is slow, in the description of a topic of another worker or group: ``History`` knows only
    consumers of this process. ``before``: the topic's last description. Call ``timeless`` first."""
    known = {} if before is None else {each["consumer"]: each["slow_since_ms"] for each in before["consumers"]}
    for consumer in item["consumers"]:
        before_ms = known.get(consumer["consumer"])
        consumer["slow_since_ms"] = slow_since_ms(consumer["oldest_unacked_at_ms"], now_ms, before_ms)


def timeless(item: dict[str, Any], before: dict[str, Any] | None, now_ms: int) -> dict[str, Any]:
    """Replace ages by the times since which they count, in place. Ages change every second even if nothing happens, so
    thousands of unchanged topics would be sent.

    Args:
        before: the topic's description in the last snapshot.
    """
    known = {} if before is None else {each["consumer"]: each["oldest_unacked_at_ms"] for each in before["consumers"]}
    for consumer in item["consumers"]:
        age_s = consumer.pop("oldest_unacked_age_s")
        at_ms = round(now_ms - age_s * 1000) if age_s else None
        then_ms = known.get(consumer["consumer"])
        same = at_ms is not None and then_ms is not None and abs(at_ms - then_ms) <= SAME_MOMENT_MS
        consumer["oldest_unacked_at_ms"] = then_ms if same else at_ms
    return item
