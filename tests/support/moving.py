"""Checks of a real client: that under load its subscriptions make progress after each outage; and that it survives when it
sends while its connection ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from toymq import Client, Message, Subscription
from toymq.link import Link
from toymq_py.errors import ConnectionLost

TOPIC = "load"
WINDOWS = (1, 16, 1024)
"""Of three consumers: the second and the third have connections of their own."""
BURST = 200
"""Messages that are published at once, when the slowest consumer had the burst before the last."""
MOVE_S = 30.0
"""A subscription that is stalled never moves; one of a busy machine does within seconds."""


class UnderLoad:
    """A publisher and several subscriptions of one client, whose handlers let other tasks run."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._round = 0
        self._newest = dict.fromkeys(WINDOWS, (-1, 0))
        """Id and round of the newest message that was handed out."""
        self._news = asyncio.Condition()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["UnderLoad"]:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._publish()), *(tasks.create_task(self._consume(window)) for window in WINDOWS)]
            try:
                yield self
            finally:
                for task in running:
                    task.cancel()

    async def all_move(self) -> None:
        """Wait until each subscription has handed out a message published from now on. Raises: AssertionError, which names
        those that do not."""
        self._round += 1
        try:
            async with asyncio.timeout(MOVE_S), self._news:
                await self._news.wait_for(lambda: not self._stalled())
        except TimeoutError:
            raise AssertionError(f"stalled in round {self._round}: subscriptions with the windows {self._stalled()}") from None

    def _stalled(self) -> list[int]:
        return [window for window, (_, newest) in self._newest.items() if newest < self._round]

    async def _publish(self) -> None:
        while True:
            receipts = await self._mq.pub_many(TOPIC, [b"%d" % self._round] * BURST)
            enough = receipts[0].msg_id - BURST
            async with self._news:
                await self._news.wait_for(lambda enough=enough: min(self._newest.values())[0] >= enough)  # type: ignore[misc]

    async def _consume(self, window: int) -> None:
        async with self._mq.sub(TOPIC, f"window-{window}", window=window) as messages:
            async for message in messages:
                self._newest[window] = max(self._newest[window], (message.id, int(message.payload)))
                async with self._news:
                    self._news.notify_all()
                await asyncio.sleep(0)
                await message.ack()


# -- what a client says in the pass of the loop in which its connection ends

Speak = Callable[[Client, Subscription, Message], Awaitable[object]]


async def _other(mq: Client, messages: Subscription, message: Message) -> None:
    async with mq.sub("other", "c"):
        pass


async def _harmless(call: Coroutine[Any, Any, object]) -> None:
    with suppress(ConnectionLost):  # it cannot be asked again
        await call


OUTPUTS: dict[str, Speak] = {
    "publish": lambda mq, messages, message: mq.pub("t", b"said"),
    "publish with a key": lambda mq, messages, message: mq.pub("t", b"said", key="k"),
    "publish many": lambda mq, messages, message: mq.pub_many("t", [b"a", b"b"])._all(),
    "ack": lambda mq, messages, message: message.ack(),
    "synced ack": lambda mq, messages, message: message.ack(sync=True),
    "nack": lambda mq, messages, message: message.nack(0),
    "extend": lambda mq, messages, message: message.extend(),
    "dead letter": lambda mq, messages, message: _harmless(message.dead_letter()),
    "ask": lambda mq, messages, message: mq.ping(),
    "subscribe": _other,
}


async def speaks_as_its_connection_ends(mq: Client, speak: Speak) -> None:
    """Let the client send while its connection ends. Raises: RequestTimeout when the client never recovers."""
    await mq.pub("t", b"first")
    async with mq.sub("t", "c") as messages:
        message = await messages.next(MOVE_S)
        link: Link = mq._link
        wire = link._wire
        assert wire is not None
        assert wire.transport is not None
        said = asyncio.ensure_future(speak(mq, messages, message))
        wire.transport.abort()
        wire.connection_lost(None)  # so that the next pass of the loop is: it speaks, the link hears of the loss, the flush
        await said
        receipt = await mq.pub("t", b"last")
        while (await messages.next(MOVE_S)).id != receipt.msg_id:
            pass
