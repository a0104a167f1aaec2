"""Waits of the gateway that end when the broker shuts down: long polls, streams, pauses.

Belongs to the event loop. Does not know what is waited for.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from toymq_py.broker_waits import fulfil
from toymq_py.gateway.turns import Prompt


class Waiting:
    """All waits of the gateway; one object for all requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stopped = False
        """Whether the broker shuts down: waits and streams end."""
        self._loop = loop
        self._waits: dict[asyncio.Future[None], None] = {}
        self._pauses: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Number of waits."""
        return len(self._waits)

    async def wait_for(
        self, begin: Callable[[Callable[[], None]], Callable[[], object]], seconds: float, *, prompt: bool = False
    ) -> bool:
        """Wait for a callback, at most ``seconds``, and no longer than until the broker shuts down.

        Args:
            begin: registers a callback and returns a function that withdraws it.
            prompt: the waiting request continues at once, without a turn (``Prompt``).

        Returns: whether the callback was called. ``wake`` ends the wait with False.
        """
        if self.stopped:
            return False
        over = Prompt(loop=self._loop) if prompt else self._loop.create_future()
        called = False

        def call() -> None:
            nonlocal called
            called = True
            fulfil(over)

        withdraw = begin(call)
        self._waits[over] = None
        timer = self._loop.call_later(seconds, fulfil, over)
        try:
            await over
        finally:
            del self._waits[over]
            timer.cancel()
            withdraw()
        return called

    async def sleep(self, seconds: float) -> None:
        """Wait ``seconds``, or until ``wake`` or the shutdown."""
        await self.wait_for(lambda call: lambda: None, seconds)

    async def rest(self, seconds: float) -> None:
        """Wait ``seconds``, or until the shutdown; unlike ``sleep``, not ended by ``wake``. For background work, which needs no
        rights."""
        until = self._loop.time() + seconds
        while not self.stopped and (left_s := until - self._loop.time()) > 0:
            await self.sleep(left_s)

    async def pause(self) -> None:
        """Give other tasks a turn of the event loop, between slices of work. In each pass of the loop only one paused caller
        continues: a hundred large answers at a time block the loop no longer than one.
        """
        turn: asyncio.Future[None] = self._loop.create_future()
        self._pauses.append(turn)
        if len(self._pauses) == 1:
            self._loop.call_soon(self._end_pause)
        await turn

    async def turn(self) -> None:
        """Let a request continue in its next turn, as its connection now counts for another token or address."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_soon(fulfil, turn)
        await turn

    def _end_pause(self) -> None:
        fulfil(self._pauses.popleft())
        if self._pauses:
            self._loop.call_soon(self._end_pause)

    def wake(self) -> None:
        """End all waits early, since rights have changed: their requests check them again."""
        for over in self._waits:
            fulfil(over)

    def stop(self) -> None:
        """End all waits; later ones end at once. Idempotent."""
        self.stopped = True
        self.wake()
