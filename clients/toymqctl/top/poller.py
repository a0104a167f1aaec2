"""Gets the screen's figures from a broker, over a client that reconnects by itself."""

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
    """The screen's interface to a broker. The methods raise ToymqError and OSError."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The broker's address, as the screen shows it."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Why there is no connection now; None when there is one."""

    @abstractmethod
    async def stats(self) -> dict[str, Any]:
        """Return STATS of the broker, in the shape of protocol.md, "JSON shapes"; ``away`` names workers or groups that it
        lacks."""

    @abstractmethod
    async def newest(self, topic: str, count: int) -> list[Row]:
        """Return the last messages of a topic, the newest first, without consuming them."""


class BrokerFeed(Feed):
    """The feed of a real broker. A context manager, which connects when it is entered."""

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
