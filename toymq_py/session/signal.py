"""An event for one waiting task, without a lock or a list of waiters."""

import asyncio


class Signal:
    """Wakes the one task that waits; a ``set`` before the wait is not lost."""

    __slots__ = ("_flag", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flag = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._flag = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return when set, and unset. Cancellation leaves the signal as it was."""
        if not self._flag:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._flag = False
