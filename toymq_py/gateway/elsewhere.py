"""The last known statistics of other places, and which of them do not answer. A place is another worker of this broker, or
another group of its cluster. ADR 0261.

Contract: gateway.md. A place that does not answer is not forgotten: its topics stay, marked as old, and its counters keep
their last values, so that no rate jumps when it goes or comes. A place that never answered is only named.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.errors import RequestError
from toymq_py.merging import merged_topics
from toymq_py.names import PARTITION_MARK, whole_name
from toymq_py.placement import Place, named

WITHIN_S = 2.0
"""The time in which a place has to answer; a later answer does not count this time."""
OLD_S = 4.0
"""Older figures are marked as old: a failover takes less."""

Figures = tuple[dict[str, Any], list[dict[str, Any]]]
"""The answer to STATS: the figures of a place, and its topics by name."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The last statistics of a place, and when they came: on the event loop's clock, and on the wall clock."""

    stats: dict[str, Any]
    topics: list[dict[str, Any]]
    at_s: float
    at_ms: int


class Elsewhere:
    """Asks the other places for statistics, and keeps the last ones. Without ``ask`` there are no other places. Belongs to the
    broker's event loop."""

    def __init__(self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.ask: Callable[[Place], Awaitable[Figures]] | None = None
        """Asks one place for its figures. Raises: RequestError."""
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._heard: dict[Place, Heard] = {}
        self._silent: dict[Place, str] = {}  # why, of those that did not answer the last time

    async def look(self) -> None:
        """Ask all other places for their statistics."""
        if (ask := self.ask) is None:
            return
        placement = self._broker.placement
        places = [place for place in placement.places() if place != placement.here]
        self._heard = {place: heard for place, heard in self._heard.items() if place in places}
        self._silent = {place: why for place, why in self._silent.items() if place in places}
        await asyncio.gather(*(self._look_at(place, ask) for place in places))

    async def _look_at(self, place: Place, ask: Callable[[Place], Awaitable[Figures]]) -> None:
        if why := self._broker.placement.problem_of(place):  # nothing is there that could answer
            self._silent[place] = why
            return
        try:
            async with asyncio.timeout(WITHIN_S):
                stats, topics = await ask(place)
        except RequestError as error:
            self._silent[place] = str(error).removeprefix(f"{named(place)} ").removesuffix(": try again")
        except TimeoutError:
            self._silent[place] = f"does not answer within {WITHIN_S:g} s"
        else:
            self._silent.pop(place, None)
            self._heard[place] = Heard(stats, topics, self._loop.time(), self._clock.wall_ns() // 1_000_000)

    def _is_away(self, place: Place) -> bool:
        heard = self._heard.get(place)
        return place in self._silent and (heard is None or self._loop.time() - heard.at_s >= OLD_S)

    def away(self) -> list[dict[str, Any]]:
        """The places whose statistics are old, or missing (``as_of_ms`` is None); a worker with its process id, if it runs."""
        found: list[dict[str, Any]] = []
        for place, why in sorted(self._silent.items()):
            if self._is_away(place):
                as_of_ms = self._heard[place].at_ms if place in self._heard else None
                found.append({"place": named(place), "why": why, "as_of_ms": as_of_ms})
                if (pid := self._broker.placement.pid_of(place)) is not None:
                    found[-1]["pid"] = pid
        return found

    def stats(self) -> list[dict[str, Any]]:
        """The statistics of each place; only the counters of a place that did not answer."""
        return [
            {name: value for name, value in heard.stats.items() if place not in self._silent or name.endswith("_total")}
            for place, heard in self._heard.items()
        ]

    def topics(self) -> Iterator[dict[str, Any]]:
        """All topics at other places, by name. Each has ``heard_ms``, the time of its statistics, and if that is long ago also
        ``as_of_ms``, which is None for a topic of which only the name is known. The caller may change the dicts."""
        return merged_topics([*(self._topics_of(place) for place in self._heard), self._unheard()])

    def _topics_of(self, place: Place) -> Iterator[dict[str, Any]]:
        heard, broker = self._heard[place], self._broker
        old = {"as_of_ms": heard.at_ms} if self._is_away(place) else {}
        for topic in heard.topics:
            name = topic["topic"]
            if name not in broker.topics and not (old and broker.placement.place_of(name) != place):  # it was moved
                yield {**topic, **old, "heard_ms": heard.at_ms, "consumers": [dict(each) for each in topic["consumers"]]}

    def _unheard(self) -> Iterator[dict[str, Any]]:
        """Topics at places that do not answer, of which only the names are known: a group's from etcd, and a worker's
        partitions, which all workers know."""
        away = {place for place in self._silent if self._is_away(place)}
        records = self._records() if away else {}
        known = {topic["topic"] for place in away if place in self._heard for topic in self._heard[place].topics}
        known |= {whole_name(name) for name in records if PARTITION_MARK in name}
        for name, place in records.items():
            if place in away and name not in known:
                yield {"topic": name, "as_of_ms": None, "heard_ms": 0, "consumers": []}

    def _records(self) -> Mapping[str, Place]:
        """The names of topics, sorted, with the place of each, as far as known without asking the places."""
        placement = self._broker.placement
        if isinstance(placement.here, str):
            topics: Mapping[str, Place] = placement.described(lambda topic: True).get("topics", {})
            return topics
        wholes = self._broker.partitioned.by_name.values()
        return {name: placement.place_of(name) for name in sorted(name for whole in wholes for name in whole.names)}
