"""Runs a coroutine without a task: for the many requests that wait for one fsync and for nothing else. Knows no HTTP."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Steps(Generic[T]):
    """One coroutine. It begins at once and goes on when a future that it awaits is done.

    A coroutine that needs a task, for a timeout or a ``TaskGroup``, awaits ``asyncio.sleep(0)`` before: a task does the rest.
    """

    __slots__ = ("_context", "_coroutine", "_done", "_loop", "_task")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T],
        done: Callable[[T | BaseException], None],
    ) -> None:
        """``done`` gets what the coroutine returns or raises, unless it is cancelled."""
        self._loop = loop
        self._coroutine: Coroutine[Any, Any, T] | None = coroutine
        self._done = done
        self._context = copy_context()
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Run until it waits."""
        self._context.run(self._step, None)

    def cancel(self) -> None:
        """End it where it waits. ``done`` is not called."""
        coroutine, self._coroutine = self._coroutine, None
        if self._task is not None:
            self._task.cancel()
        elif coroutine is not None:
            self._context.run(coroutine.close)

    def _step(self, _awaited: "asyncio.Future[object] | None") -> None:
        coroutine = self._coroutine
        if coroutine is None:
            return
        try:
            future: asyncio.Future[object] | None = coroutine.send(None)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:  # noqa: BLE001 (as a task keeps it)
            self._end(error)
        else:
            if future is None:
                self._task = self._loop.create_task(coroutine, context=self._context)
                self._task.add_done_callback(self._task_done)
            else:
                future.add_done_callback(self._step, context=self._context)

    def _task_done(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            self._end(task.exception() or task.result())

    def _end(self, result: T | BaseException) -> None:
        self._coroutine = None
        self._done(result)
