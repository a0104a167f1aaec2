"""A client belongs to the event loop in which it was connected."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import toymq
from tests.support.in_process import InProcess
from toymq import Client
from toymq_py.errors import ConfigError


async def test_a_call_in_another_event_loop_is_refused_before_anything_is_sent(broker: InProcess, mq: Client) -> None:
    """Found: asyncio's own error came after the message was published; in debug mode the client's own loop then hung."""
    asyncio.get_running_loop().set_debug(True)
    await mq.pub("t", b"0")
    await mq.pub("t", b"1")
    messages = await mq.sub("t", "c", auto_ack=True)
    message = await messages.next(5)

    async def many() -> None:
        async for _ in mq.pub_many("t", [b"x"]):
            pass

    async def handle() -> None:
        async with message.process():
            raise AssertionError("the handler began")

    async def iterate() -> None:
        async for _ in messages.batches(2, 0):
            pass

    calls: list[Callable[[], Awaitable[object]]] = [
        mq.open, mq.ping, mq.close, lambda: mq.pub("t", b"x"), many, lambda: mq.pull("t", "d"), lambda: mq.drain(1),
        messages._start, lambda: messages.next(1), iterate, messages.close, lambda: messages.drain(1),
        message.ack, message.nack, message.dead_letter, message.extend, handle,
    ]  # fmt: skip

    async def elsewhere() -> None:
        for call in calls:
            with pytest.raises(ConfigError, match="belongs to the event loop in which it was connected"):
                await call()
        with pytest.raises(ConfigError, match="belongs to the event loop"):
            mq.sub("t", "other")

    await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    (consumer,) = (await mq.describe("t"))["consumers"]
    assert (consumer["inflight"], consumer["backlog"]) == (2, 2), "nothing was acked, nacked or given back"
    assert (await mq.pub("t", b"2")).msg_id == 2
    assert (await messages.next(5)).id == 1
    await messages.close()


async def test_a_second_asyncio_run_is_told_to_connect_again(broker: InProcess) -> None:
    def twice() -> None:
        with asyncio.Runner() as first:
            mq = first.run(toymq.connect(f"127.0.0.1:{broker.port}").open())
            ours = asyncio.all_tasks(first.get_loop())
            with asyncio.Runner() as second, pytest.raises(ConfigError, match=r"connect again here \(each asyncio.run\(\)"):
                second.run(mq.ping())
            assert asyncio.all_tasks(first.get_loop()) == ours
            first.run(mq.close())

    await asyncio.to_thread(twice)
