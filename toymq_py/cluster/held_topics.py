"""Topics that are moving between this group and another: commands for them wait until etcd has said where they are.

Contract: groups.md, stage 3. ADR 0194. Belongs to the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from toymq_py.errors import EtcdError, PlacementUnknown
from toymq_py.replication.kept_places import KeptPlaces, Move, Record

T = TypeVar("T")

RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0
"""The time between two requests to etcd without an answer."""


class Books(Protocol):
    """What held topics need of ``GroupPlacement``."""

    group: str
    epoch: int

    @property
    def moves(self) -> Mapping[str, Move]:
        """The moves that operators asked for, by topic, as far as they are known."""

    def occupy(self, topic: str) -> bool:
        """Let commands for a topic wait. Returns: False when another change of its record is under way."""

    def vacate(self, topic: str) -> None:
        """End ``occupy``: waiting commands go on."""

    def refuse_waiting(self, topic: str, error: PlacementUnknown) -> None:
        """Refuse the commands that wait for a topic, and those of the next moment; later ones wait again."""

    def learn(self, topic: str, record: Record | None) -> None:
        """Apply a record that was read linearizably from etcd; None when the topic has none."""


class HeldTopics:
    """The topics that are just moving to or from another group; ``topic in held`` tells whether one is."""

    def __init__(self, kept: KeptPlaces, books: Books) -> None:
        self.on_moves: Callable[[], None] = lambda: None
        """Called when the moves that operators ask for may have changed."""
        self._kept = kept
        self._books = books
        self._held: set[str] = set()

    def __contains__(self, topic: str) -> bool:
        return topic in self._held

    def wanted(self) -> dict[str, Move]:
        """The moves to this group that operators asked for, by topic, as far as they are known."""
        here = self._books.group
        return {topic: move for topic, move in self._books.moves.items() if move.to == here and move.refused is None}

    def hold(self, topic: str) -> bool:
        """Let all commands for a topic and its dead letters wait. Returns: False while its record is being changed."""
        if not self._books.occupy(topic):
            return False
        self._held.add(topic)
        return True

    def let_go(self, topic: str) -> None:
        """End ``hold``: waiting commands go on, here or elsewhere."""
        self._held.discard(topic)
        self._books.vacate(topic)

    async def give(self, topic: str, revision: int, to: str, epoch_there: int, attempt: int) -> bool:
        """Give a held topic to another group, and wait for etcd's answer. Returns: whether the other group has it now; if not,
        it is still here, and this attempt is over.

        Args:
            revision: the etcd revision of the topic's record.
        """
        books = self._books

        async def ask() -> Record | None:
            outcome = await self._kept.give(topic, revision, books.epoch, to, epoch_there, attempt)
            return Record(to, outcome.revision) if outcome.done else await self._kept.record(topic)

        record = await self._asked(topic, ask)
        if record is not None and record.group == books.group:
            return False
        books.learn(topic, record)
        return True

    async def take(self, topic: str, attempt: int) -> bool:
        """Wait until etcd says whether this attempt gave a held topic to this group. Either way the attempt is over."""
        books = self._books

        async def ask() -> Record | None:
            await self._kept.attempt(topic, Move(books.group, attempt), books.epoch)
            return await self._kept.record(topic)

        record = await self._asked(topic, ask)
        if record is not None:
            books.learn(topic, record)
        return record is not None and record.group == books.group

    async def _asked(self, topic: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request to etcd until it is answered. Commands that wait for the topic are refused meanwhile."""
        delay_s = RETRY_MIN_S
        while True:
            try:
                return await ask()
            except EtcdError as error:
                text = f"etcd does not say which group has {topic}, which is moved: {error}"
                self._books.refuse_waiting(topic, PlacementUnknown(text))
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)
