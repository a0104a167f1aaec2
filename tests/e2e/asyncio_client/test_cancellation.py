"""Every call is cancelled at each of its awaits."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import toymq
from tests.support.in_process import InProcess
from tests.support.quick_client import connect
from tests.support.steps import cancelled_at
from toymq import Client, Message


async def _use(messages: toymq.Subscription, call: Callable[[Message], Awaitable[object]]) -> None:
    await call(await messages.next(5))


async def _iterate(mq: Client) -> None:
    async with mq.sub("t", "other") as messages:
        async for message in messages:
            await message.ack()
            break


async def _publish_many(mq: Client) -> None:
    async for _ in mq.pub_many("many", [b"x"] * 30, window=4):
        pass


CALLS: dict[str, Callable[[Client, toymq.Subscription], Awaitable[object]]] = {
    "pub": lambda mq, _: mq.pub("t", b"x"),
    "pub_many": lambda mq, _: _publish_many(mq),
    "ping": lambda mq, _: mq.ping(),
    "describe": lambda mq, _: mq.describe("t"),
    "fetch": lambda mq, _: mq.fetch("t", 0, 1),
    "fetch, waiting": lambda mq, _: mq.fetch("t", 0, 1, wait=1),
    "pull": lambda mq, _: mq.pull("t", "puller", 5),
    "sub": lambda mq, _: _iterate(mq),
    "next": lambda _, messages: messages.next(5),
    "ack, synced": lambda _, messages: _use(messages, lambda message: message.ack(sync=True)),
    "nack": lambda _, messages: _use(messages, lambda message: message.nack(0)),
    "extend": lambda _, messages: _use(messages, lambda message: message.extend()),
    "drain of the subscription": lambda _, messages: messages.drain(5),
    "close of the subscription": lambda _, messages: messages.close(),
}


async def test_connecting_that_is_cancelled_leaves_nothing(broker: InProcess) -> None:
    before = asyncio.all_tasks()
    for step in range(60):
        mq = connect(f"127.0.0.1:{broker.port}")
        cancelled = await cancelled_at(mq.open(), step)
        if not cancelled:
            assert await mq.ping() > 0
        await mq.close()
        if left := asyncio.all_tasks() - before:
            await asyncio.wait(left, timeout=5)
        with pytest.raises(toymq.ClientClosed):
            await mq.open()
        if not cancelled:
            break
    assert 0 < step < 59


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled_leaves_the_connection_usable(mq: Client, name: str) -> None:
    """The call is cancelled at each of its awaits: no later call gets its reply, no delivery is lost, and nothing hangs."""
    await mq.pub_many("t", [b"%d" % n for n in range(50)])
    for step in range(60):
        messages = await mq.sub("t", "c", visibility=30)
        cancelled = await cancelled_at(CALLS[name](mq, messages), step)  # type: ignore[arg-type]
        assert (await mq.pub("check", b"x", key=f"{step}")).msg_id == step
        assert (await mq.describe("check"))["next_id"] == step + 1
        await messages.close()
        (found,) = [one for one in (await mq.describe("t"))["consumers"] if one["consumer"] == "c"]
        async with mq.sub("t", "c") as again:
            assert (await again.next(5)).id == (found["last_acked"] + 1 if found["has_acked"] else 0)
        if not cancelled:
            break
    else:
        pytest.fail(f"{name} has more than 60 awaits")
    if name not in ("next", "close of the subscription"):
        assert step > 0, "it was cancelled at least once"
