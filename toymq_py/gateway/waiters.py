"""Everything in the gateway that waits for something, and the end of it all when the broker shuts down.

Belongs to the loop. Knows nothing of what is waited for.
"""

import asyncio
from collections.abc import Callable

from toymq_py.broker import Done
from toymq_py.errors import RequestError
from toymq_py.storage.disk_errors import storage_error


class Waiting:
    """One for the whole gateway."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stopped = False
        """The broker shuts down: nothing waits or streams any more."""
        self._loop = loop
        self._waits: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waits)

    async def wait_for(self, begin: Callable[[Callable[[], None]], Callable[[], object]], seconds: float) -> bool:
        """Wait for what ``begin`` is given to be called, at most ``seconds``, and no longer than the broker runs.

        Args:
            begin: takes a callback and returns what withdraws it.

        Returns: whether it was called. False may come early, by ``wake``.
        """
        if self.stopped:
            return False
        over: asyncio.Future[None] = self._loop.create_future()
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
        """Wait so long, and no longer than the broker runs or ``wake`` is called."""
        await self.wait_for(lambda call: lambda: None, seconds)

    async def pause(self) -> None:
        """Let others have a turn of the loop: for what is made in slices."""
        await asyncio.sleep(0)

    def wake(self) -> None:
        """Everything that waits looks again at what it waits for: the rights have changed."""
        for over in self._waits:
            fulfil(over)

    def stop(self) -> None:
        """Everything that waits ends now, and nothing waits any more. Idempotent."""
        self.stopped = True
        self.wake()


async def stored(begin: Callable[[Done], None]) -> None:
    """Wait until ``begin``'s effect is on stable storage. Cancelled, it goes on.

    Raises: RequestError when it is not, or when ``begin`` does.
    """
    outcome: asyncio.Future[OSError | RequestError | None] = asyncio.get_running_loop().create_future()

    def done(error: OSError | RequestError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    begin(done)
    error = await outcome
    if error is not None:
        raise error if isinstance(error, RequestError) else storage_error(error)


def fulfil(future: asyncio.Future[None]) -> None:
    """Idempotent."""
    if not future.done():
        future.set_result(None)
