"""A broker on an event loop: its threads, clock and disk. What the daemon and the embedded form wire alike."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toymq_py import memory
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.config import BrokerOptions
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.scheduling import SyncThreads


class LoopScheduler:
    """The event loop and the sync threads, as the layers below know them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = SyncThreads(loop.call_soon_threadsafe)

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._threads.offload(job, done)

    def close(self) -> None:
        self._threads.close()


@contextmanager
def opened_broker(options: BrokerOptions, clock: Clock, loop: asyncio.AbstractEventLoop) -> Iterator[Broker]:
    """A broker that has its directory and has recovered it; both are given back at the end. Blocks.

    Raises: DirectoryLocked, DataDirectoryError.
    """
    scheduler = LoopScheduler(loop)
    broker = Broker(
        options, fs=RealFileSystem(), scheduler=scheduler, clock=clock,
        rss_bytes=memory.rss_bytes, tasks=lambda: len(asyncio.all_tasks(loop)),
    )  # fmt: skip
    try:
        broker.open(os.getpid())
        yield broker
    finally:
        scheduler.close()
        broker.close()
