"""Threads that run jobs for an event loop and report results to it in batches: to wake the loop for each job would cost more
than the job."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from typing import Any

Task = tuple["asyncio.Future[Any]", Context, Callable[..., Any], tuple[Any, ...]]


class Threads:
    """Up to ``count`` threads, started when there is work. Owned by the event loop; the threads touch only ``_ended`` and
    ``_told``.

    They are daemon threads: a thread cannot be stopped, and at exit Python would wait for one that hangs.
    """

    def __init__(self, count: int, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._count = count
        self._name = name
        self._loop = loop
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        """Whether the loop is about to look at ``_ended``."""

    def submit(self, context: Context, function: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Call a function in a thread. To cancel the future does not stop the function."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put((future, context, function, args))
        return future

    def stop(self) -> None:
        """Let each thread end after the job that it does now."""
        for _ in self._threads:
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, context, function, args = task
            result, error = None, None
            try:
                result = context.run(function, *args)
            except BaseException as raised:  # noqa: BLE001 (the coroutine that awaits has it)
                error = raised
            self._ended.append((future, result, error))
            del task, future, context, function, args, result, error  # what a job had does not live until the next one
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: its process ends
                    return

    def _collect(self) -> None:
        self._told = False  # first: what ends from now on tells it again
        while self._ended:
            future, result, error = self._ended.popleft()
            self._busy -= 1
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
