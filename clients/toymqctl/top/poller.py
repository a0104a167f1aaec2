"""Source of the screen's figures: a broker, over the client, which reconnects by itself."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any

import toymq
from toymq import Connected, Disconnected
from toymq.requests import partial_stats
from toymq_py.errors import BadArgument, OutOfRange
from toymq_py.storage.record import iter_frames
from toymqctl.broker import Broker
from toymqctl.lines import Row

TIMEOUT_S = 5.0
"""Time-out of a request: STATS of ten thousand topics takes a while."""
FETCH_COUNT = 100


class Feed(ABC):
    """Interface of the screen to a broker. Raises: ToymqError, OSError."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The broker's address, to be shown."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Why there is no connection now; None when there is one."""

    @abstractmethod
    async def stats(self) -> dict[str, Any]:
        """STATS of the broker, in the shape of protocol.md, "JSON shapes"; ``away``: of which workers or groups it is without.
        """

    @abstractmethod
    async def newest(self, topic: str, count: int) -> list[Row]:
        """The last messages of a topic, the newest first. Nothing is consumed."""


class BrokerFeed(Feed):
    """A context manager: entering it connects."""

    def __init__(self, broker: Broker) -> None:
        self._address = str(broker.address)
        self._trouble: str | None = None
        self._knows_partial = True
        """An older broker does not, and has no figures while a worker or group is away."""
        self._client = broker.client(timeout_s=TIMEOUT_S, on_event=self._on_event)

    async def __aenter__(self) -> "BrokerFeed":
        await self._client.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    def _on_event(self, event: "toymq.Connected | toymq.Disconnected") -> None:
        match event:
            case Connected():
                self._trouble = None
            case Disconnected():
                self._trouble = event.reason

    @property
    def address(self) -> str:
        return self._address

    @property
    def trouble(self) -> str | None:
        return self._trouble

    async def stats(self) -> dict[str, Any]:
        if self._knows_partial:
            try:
                return await self._client._ask(partial_stats())
            except BadArgument:
                self._knows_partial = False
        return await self._client.stats()

    async def newest(self, topic: str, count: int) -> list[Row]:
        first_id, next_id = await self._client.offsets(topic)
        at = max(first_id, next_id - count)
        found: list[Row] = []
        while at < next_id:
            try:
                batch = await self._client.fetch(topic, at, min(next_id - at, FETCH_COUNT))
            except OutOfRange as error:
                if error.first_id <= at:
                    raise
                at = error.first_id  # retention removed older ones
                continue
            for frame in iter_frames(batch.frames):
                found.append(Row.fetched(topic, frame.msg_id, frame.ts_ns, frame.key, frame.headers, frame.payload))
            at = batch.next_id
        return found[::-1]
