"""``pub_many`` of the asyncio client."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import Protocol

from toymq.arguments import Seconds
from toymq.link import Link
from toymq.message import Item, Receipt, chunks
from toymq.mixups import AsyncFor
from toymq.options import Options
from toymq.pending_publishes import Batch, PublishMany


class Publisher(Protocol):
    """The part of the asyncio client that ``pub_many`` needs."""

    _options: Options

    def _home(self, topic: str) -> Link: ...
    @property
    def _body_bytes_max(self) -> int: ...


class Publishing(PublishMany, AsyncFor):
    """What ``pub_many`` returns: await it for all receipts, or iterate it for one after the other; once only."""

    _called = "pub_many"

    def __init__(
        self, client: Publisher, topic: str, items: Iterable[Item], delay: Seconds | None, ttl: Seconds | None, window: int
    ) -> None:
        super().__init__(topic, items, delay, ttl, window, "await it, or iterate it")
        self._client = client

    def __await__(self) -> Generator[object, None, list[Receipt]]:
        return self._all().__await__()

    async def _all(self) -> list[Receipt]:
        return [receipt async for receipt in self]

    async def __aiter__(self) -> AsyncIterator[Receipt]:
        self._begun = True
        unanswered: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        outstanding = 0
        client = self._client
        header_block = client._options.header_block_of_many(self._topic)
        adds = client._options.adds_headers
        for items, error in chunks(self._items, self._size, client._body_bytes_max, header_block, adds, *self._times):
            link = client._home(self._topic)
            if items:  # none before a first item that is wrong: a batch of none would never be done
                unanswered.append(link.batch(len(items), await link.room(self._topic) if link.crowded else None))
                link.conversation.publish(self._topic, items, unanswered[-1][0])
                outstanding += len(items)
            while unanswered and (outstanding > self._window - self._size or error is not None):
                for receipt in await _receipts(unanswered[0]):
                    yield receipt
                outstanding -= len(unanswered.popleft()[0].outcomes)
            if error is not None:
                raise error
        for one in unanswered:
            for receipt in await _receipts(one):
                yield receipt


async def _receipts(sent: tuple[Batch, "asyncio.Future[None]"]) -> Iterator[Receipt]:
    batch, done = sent
    await done
    return (receipt_of(batch, index) for index in range(len(batch.outcomes)))


def receipt_of(batch: Batch, index: int) -> Receipt:
    """Return the receipt at ``index`` of a batch. Raises: the error of that publish, if it failed."""
    outcome = batch.outcomes[index]
    assert outcome is not None, "a batch is done when it has all outcomes"
    if isinstance(outcome, Receipt):
        return outcome
    raise outcome
