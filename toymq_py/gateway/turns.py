"""Runs HTTP requests in turns: each step of a request is a turn of the fair queue, in the share of its token or address.

Contract: gateway.md; ADR 0250, 0263. Steps that asyncio itself resumes would count for no share: a thousand requests that came
together would run all their steps in a row while other clients wait. Belongs to the event loop. Knows no HTTP.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from toymq_py.net.fair_queue import FairQueue, Runnable, Seated

T = TypeVar("T")
TURNS = "toymq.turns"
"""Key in the ASGI scope: the ``Turns`` of a request's connection, for the tasks that it makes."""
Step = Callable[[], object]


class Prompt(asyncio.Future[None]):
    """A future after which the awaiting request continues at once, without a turn. For a request that is woken to take
    messages: until its turn came, others would have taken them."""


class Turns:
    """The turns of one connection's requests: each step runs in one."""

    __slots__ = ("__weakref__", "_closed", "_runnable", "_steps", "loop")

    def __init__(self, queue: FairQueue, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._runnable = Runnable(queue, self._work)
        self._steps: deque[Step] = deque()
        self._closed = False

    def sit(self, seat: Seated) -> None:
        """Set the token or address for whose share the turns count."""
        self._runnable.seat = seat

    def take(self, step: Step) -> None:
        """Run a step in the next turn, even if the connection is lost, since work that has begun is finished."""
        self._steps.append(step)
        if self._closed:
            self._runnable.work = self._work
        self._runnable.wake()

    def close(self) -> None:
        """Note that the connection is lost: break the reference cycle once no step is left."""
        self._closed = True
        if not self._steps:
            self._runnable.close()

    def _work(self, _slice_end: float) -> bool:
        try:
            self._steps.popleft()()
        except Exception as error:  # noqa: BLE001 (as the loop does; what is raised here would end the turns of all)
            self.loop.call_exception_handler({"message": "bug in a step of a request", "exception": error})
        if self._closed and not self._steps:
            self._runnable.close()
        return bool(self._steps)


class Turn:
    """One turn, as a future that a task awaits: the task continues within the turn. With a future of asyncio it would continue
    after the turn."""

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._cancelled: asyncio.CancelledError | None = None
        self._asyncio_future_blocking = True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._turns.loop

    def add_done_callback(self, call: Callable[[Any], object], *, context: Context) -> None:
        self._turns.take(partial(context.run, call, self))

    def cancel(self, msg: object = None) -> bool:
        """Keep the turn; when it comes, the awaiting task gets the cancellation."""
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        return True

    def result(self) -> None:
        if self._cancelled is not None:
            raise self._cancelled


@coroutine
def in_turns(begin: Callable[[], Coroutine[Any, Any, T]], turns: Turns) -> Generator[Any, None, T]:
    """An awaitable that runs a coroutine in the current task, each step of it in a turn."""
    yield Turn(turns)
    work = begin()
    error: BaseException | None = None
    try:
        while True:
            try:
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            error = None
            try:
                if awaited is not None:
                    yield awaited
                if type(awaited) is not Prompt:
                    yield Turn(turns)
            except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 (passed on)
                error = raised
    finally:
        work.close()
