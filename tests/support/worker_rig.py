"""Runs the workers of an application (``toymq.workers``) in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from toymq import App


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[asyncio.Task[bool]]:
    """Run the app's workers while the block runs, and stop them at its end."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        try:
            yield tasks.create_task(app.run(stop, **options))
        finally:
            stop.set()


async def until(done: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            found = done()
            if (await found if isinstance(found, Awaitable) else found):
                return
            await asyncio.sleep(0.005)
