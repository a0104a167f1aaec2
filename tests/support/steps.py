"""Cancels a coroutine at the nth of its awaits."""

import asyncio
import itertools
import types
from collections.abc import Coroutine, Generator
from typing import Any


@types.coroutine
def _driven(coroutine: Coroutine[Any, Any, Any], step: int) -> Generator[Any, None, bool]:
    for number in itertools.count():
        try:
            waited_for = coroutine.send(None) if number != step + 1 else coroutine.throw(asyncio.CancelledError())
        except StopIteration:
            return number > step
        except asyncio.CancelledError:
            return True
        if number == step:
            waited_for._asyncio_future_blocking = False  # nothing awaits it here
            continue
        yield waited_for
    raise AssertionError("not reached")


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], step: int) -> bool:
    """Run a coroutine and cancel it at its ``step``-th await, counted from 0. Returns: False when it had fewer awaits and is
    done."""
    return await _driven(coroutine, step)
