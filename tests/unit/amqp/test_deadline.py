"""A timer that can be set again before it fires."""

import asyncio

from toymq_py.amqp.deadline import Deadline


async def test_only_what_was_set_last_is_called() -> None:
    loop = asyncio.get_running_loop()
    deadline, called = Deadline(loop), asyncio.Event()
    deadline.set(0.0, lambda: (_ for _ in ()).throw(AssertionError("it was set anew")))
    deadline.set(0.0, called.set)
    async with asyncio.timeout(10):
        await called.wait()
    deadline.set(0.0, lambda: (_ for _ in ()).throw(AssertionError("it was cancelled")))
    deadline.cancel()
    deadline.cancel()
    later = asyncio.Event()
    loop.call_later(0.0, later.set)
    await later.wait()
