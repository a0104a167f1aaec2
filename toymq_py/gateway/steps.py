"""Runs a coroutine without a task, for the many requests that wait only for one fsync. Knows no HTTP."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from toymq_py.gateway.turns import Turns, in_turns

T = TypeVar("T")


class Steps(Generic[T]):
    """Runs one coroutine: begins at once, and continues in a later turn when a future that the coroutine awaits is done.

    A coroutine that needs a task, for a timeout or a ``TaskGroup``, first awaits ``asyncio.sleep(0)``: a task runs the rest.
    """

    __slots__ = ("_context", "_coroutine", "_done", "_task", "_turns")

    def __init__(
        self,
        turns: Turns,
        coroutine: Coroutine[Any, Any, T],
        done: Callable[[T | BaseException], None],
    ) -> None:
        """``done`` gets the coroutine's result or exception, unless it is cancelled."""
        self._turns = turns
        self._coroutine: Coroutine[Any, Any, T] | None = coroutine
        self._done = done
        self._context = copy_context()
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """Run the coroutine, within a turn, until it awaits something."""
        self._context.run(self._step)

    def cancel(self) -> None:
        """Cancel the coroutine where it waits. ``done`` is not called."""
        coroutine, self._coroutine = self._coroutine, None
        if self._task is not None:
            self._task.cancel()
        elif coroutine is not None:
            self._context.run(coroutine.close)

    def _awaited(self, _future: "asyncio.Future[object]") -> None:
        self._turns.take(self.start)

    def _step(self) -> None:
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
                turns = self._turns
                self._task = turns.loop.create_task(in_turns(lambda: coroutine, turns), context=self._context)
                self._task.add_done_callback(self._task_done)
            else:
                future.add_done_callback(self._awaited)

    def _task_done(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            self._end(task.exception() or task.result())

    def _end(self, result: T | BaseException) -> None:
        self._coroutine = None
        self._done(result)
