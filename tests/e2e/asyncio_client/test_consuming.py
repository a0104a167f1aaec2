"""The asyncio client's subscriptions."""

import asyncio

import pytest

import toymq_client as toymq
from tests.support.in_process import InProcess
from toymq_client import Client
from toymq_py.errors import (
    AlreadySubscribed,
)


async def test_process_acks_or_gives_back(mq: Client) -> None:
    await mq.pub_many("t", [b"good", b"bad", b"cancelled"])
    async with mq.sub("t", "c") as messages:
        async with (await messages.next(5)).process() as message:
            assert message.payload == b"good"
        with pytest.raises(ZeroDivisionError):
            async with (await messages.next(5)).process(retry_delay=0):
                raise ZeroDivisionError
        with pytest.raises(asyncio.CancelledError):
            async with (await messages.next(5)).process():
                raise asyncio.CancelledError
        again = [await messages.next(5), await messages.next(5)]
        assert sorted((message.payload, message.attempt) for message in again) == [(b"bad", 2), (b"cancelled", 2)]


async def test_auto_ack_acks_when_the_body_ended(mq: Client) -> None:
    await mq.pub_many("t", [b"0", b"1", b"2"])
    async with mq.sub("t", "c", auto_ack=True) as messages:
        async for message in messages:
            if message.id == 2:
                break
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["last_acked"], found["backlog"]) == (1, 1)


async def test_batches_are_full_or_what_came_in_time(mq: Client) -> None:
    await mq.pub_many("t", [b"x"] * 25)
    sizes = []
    async with mq.sub("t", "c", auto_ack=True) as messages:
        async for batch in messages.batches(max=10, wait=0.01):
            sizes.append(len(batch))
            if sum(sizes) == 25:
                await messages.close()
    assert sizes == [10, 10, 5]


async def test_leases_are_renewed_while_a_handler_runs(broker: InProcess, mq: Client) -> None:
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", visibility=0.5, auto_extend=True) as messages:
        message = await messages.next(5)
        with pytest.raises(toymq.RequestTimeout):
            await messages.next(1.2)
        await message.ack(sync=True)
    assert (await mq.describe("t"))["consumers"][0]["backlog"] == 0


async def test_leases_of_what_waits_for_the_next_iteration_are_renewed(mq: Client) -> None:
    """Else a slow handler gets all that is behind it again and again, until it is dead letters that nobody handled."""
    await mq.pub_many("t", [b"x", b"y"])
    async with mq.sub("t", "c", mode="shared", visibility=0.5, auto_extend=True) as messages:
        await (await messages.next(5)).ack()
        assert await mq.pull("t", "c", wait=1.2) == []
        assert (await messages.next(5)).attempt == 1


async def test_without_renewal_it_comes_again(mq: Client) -> None:
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", visibility=0.05) as messages:
        first, second = await messages.next(5), await messages.next(5)
        assert (first.attempt, second.attempt) == (1, 2)


async def test_two_consumers_of_a_topic_in_one_client(mq: Client) -> None:
    """A session has one subscription a topic: the second gets a connection of its own."""
    await mq.pub("t", b"x")
    async with mq.sub("t", "billing") as billing, mq.sub("t", "audit") as audit:
        for messages in (billing, audit):
            message = await messages.next(5)
            assert message.payload == b"x"
            await message.ack()
        with pytest.raises(AlreadySubscribed):
            mq.sub("t", "audit")
    consumers = (await mq.describe("t"))["consumers"]
    assert {found["consumer"]: found["backlog"] for found in consumers} == {"billing": 0, "audit": 0}


async def test_taken_over_ends_the_iteration_and_is_not_answered(broker: InProcess, mq: Client) -> None:
    async with toymq.connect(f"127.0.0.1:{broker.port}") as other, mq.sub("t", "c") as mine, other.sub("t", "c") as theirs:
        with pytest.raises(toymq.TakenOver) as caught:
            await mine.next(5)
        assert (caught.value.code, caught.value.retryable) == ("TAKEN_OVER", False)
        with pytest.raises(toymq.TakenOver):
            async for _ in mine:
                pass
        await mq.pub("t", b"x")
        assert (await theirs.next(5)).payload == b"x"


async def test_a_deleted_consumer_ends_and_a_moved_one_goes_on(mq: Client) -> None:
    await mq.pub_many("t", [b"0", b"1"])
    async with mq.sub("t", "c") as messages:
        for n in range(2):
            message = await messages.next(5)
            assert message.id == n
            await message.ack()
        assert await mq.seek("t", "c", "1") == 1
        assert (await messages.next(5)).id == 1
        await mq.forget("t", "c")
        with pytest.raises(toymq.ConsumerDeleted):
            await messages.next(5)


async def test_patterns_that_overlap(mq: Client) -> None:
    async with mq.sub("orders.*", "c") as some, mq.sub("orders.>", "d") as all_of_them, mq.sub("orders.eu", "e") as one:
        await mq.pub("orders.eu", b"x")
        await mq.pub("orders.eu.north", b"y")
        assert [(await messages.next(5)).topic for messages in (some, one)] == ["orders.eu", "orders.eu"]
        assert {(await all_of_them.next(5)).topic for _ in range(2)} == {"orders.eu", "orders.eu.north"}
        with pytest.raises(AlreadySubscribed):
            mq.sub("orders.*", "c")
