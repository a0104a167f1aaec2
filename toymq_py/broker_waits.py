"""Coroutines that wait for the broker: until a change is on stable storage, or a name is free. Belongs to the event loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from toymq_py.broker import Done
from toymq_py.disk_errors import storage_error
from toymq_py.errors import NameBusy, RequestError
from toymq_py.topic import Commit

Made = TypeVar("Made")


async def stored(begin: Callable[[Done], None]) -> None:
    """Wait until the change that ``begin`` starts is on stable storage. A cancellation does not undo the change.

    If a topic of the same name is still being deleted, ``begin`` is called again after that.

    Raises: RequestError when the change could not be stored, or as ``begin``.
    """
    outcome: asyncio.Future[OSError | RequestError | None] = asyncio.get_running_loop().create_future()

    def done(error: OSError | RequestError | None) -> None:
        if not outcome.done():
            outcome.set_result(error)

    while True:
        try:
            begin(done)
            break
        except NameBusy as busy:
            await gone(busy)
    error = await outcome
    if error is not None:
        raise error if isinstance(error, RequestError) else storage_error(error)


async def made(make: Callable[[], Made]) -> Made:
    """Call a function that makes a topic; if the name is still taken for a moment, wait and call it again. Raises: as ``make``,
    except NameBusy."""
    while True:
        try:
            return make()
        except NameBusy as busy:
            await gone(busy)


async def gone(busy: NameBusy) -> None:
    """Wait until the name that an error says is busy is free."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    busy.when_done(partial(fulfil, over))
    await over


async def settled(commit: Commit) -> RequestError | None:
    """Wait until a commit is on stable storage. Returns: why it failed, else None. A cancellation does not stop the commit."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    commit.add_waiter(partial(fulfil, over))
    await over
    return commit.error


def fulfil(future: asyncio.Future[None]) -> None:
    """Set a future's result unless it is done."""
    if not future.done():
        future.set_result(None)
