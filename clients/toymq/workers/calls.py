"""How a job's function is called for a message: a coroutine in the event loop, a plain function in a thread."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Protocol

from toymq.subscription import Message
from toymq.workers.job import Job
from toymq.workers.threads import Threads


class Caller(Protocol):
    """Calls one function. Owned by its runner."""

    async def start(self) -> None:
        """Raises: ConfigError: the function cannot be called this way."""

    def call(self, message: Message) -> Awaitable[object]:
        """What the function returns. Raises: Unfit, and what the function raises."""

    def stop(self) -> None:
        """Release threads and processes; no job runs any more, but for what cannot be stopped."""

    @property
    def can_stop(self) -> bool:
        """Whether a job that is cancelled ends."""


class InLoop:
    """Awaits a coroutine function, at most for its timeout."""

    can_stop = True

    def __init__(self, job: Job[..., Any]) -> None:
        self._arguments_of = job.arguments_of
        self._function = job.function
        self._name, self._timeout_s = job.name, job.settings.timeout_s

    async def start(self) -> None:
        """Nothing to do."""

    def call(self, message: Message) -> Awaitable[object]:
        found: Awaitable[object] = self._function(**self._arguments_of(message))
        return found if self._timeout_s is None else self._limited(found, self._timeout_s)

    async def _limited(self, running: Awaitable[object], timeout_s: float) -> object:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await running
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"{self._name} took longer than {timeout_s:g} s") from error
            raise

    def stop(self) -> None:
        """Nothing to do."""


class InThreads:
    """Calls a plain function in one of as many threads as jobs may run at once. A thread cannot be stopped."""

    can_stop = False

    def __init__(self, job: Job[..., Any]) -> None:
        self._arguments_of = job.arguments_of
        self._function = job.function
        self._name = job.name
        self._threads = Threads(job.settings.concurrency, f"toymq {job.name}", asyncio.get_running_loop())

    async def start(self) -> None:
        """Nothing to do: threads start with the first jobs."""

    def call(self, message: Message) -> Awaitable[object]:
        found = self._arguments_of(message)
        return self._threads.submit(copy_context(), in_thread, self._function, found, self._name)

    def stop(self) -> None:
        self._threads.stop()


def in_thread(function: Callable[..., object], arguments: dict[str, Any], name: str) -> object:
    """Call a plain function. Raises: RuntimeError, for what a future cannot hold; TypeError."""
    try:
        found = function(**arguments)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error
    if inspect.isawaitable(found):
        if inspect.iscoroutine(found):
            found.close()
        raise TypeError(
            f"{name} returned {type(found).__name__} and did none of its work: a function that awaits is written `async def`,"
            " also where a decorator wraps it"
        )
    return found
