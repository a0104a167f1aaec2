"""Calls of the asyncio client that inspect and administer: describe, fetch, purge, dead letters."""

import asyncio

import pytest

from toymq import Client
from toymq_py.errors import (
    BadArgument,
    Forbidden,
    NoSuchTopic,
    OutOfRange,
    QueueFull,
)


async def test_purge_drops_what_is_there_and_ids_go_on(mq: Client) -> None:
    with pytest.raises(NoSuchTopic):
        await mq.purge("t")
    await mq.create("t", {"backlog_max_messages": "2"})
    for payload in (b"a", b"b"):
        await mq.pub("t", payload)
    with pytest.raises(QueueFull) as caught:
        await mq.pub("t", b"c")
    assert caught.value.retryable
    assert await mq.purge("t") == 2
    assert (await mq.pub("t", b"c")).msg_id == 2


async def test_dead_letters_and_back(mq: Client) -> None:
    for n in range(3):
        await mq.pub("jobs", b"%d" % n, key=f"k{n}", headers={"a": "b"})
    async with mq.sub("jobs", "c") as messages, mq.sub("jobs.dlq", "audit") as letters:
        first, second, third = [await messages.next(5) for _ in range(3)]
        assert await first.dead_letter("broken")
        assert not await first.dead_letter(), "its lease is over"
        assert await mq.nack("jobs", "c", [(1, 2)], dead=True) == 2
        assert (second.id, third.id) == (1, 2)
        found = [await letters.next(5) for _ in range(3)]
        assert [letter.payload for letter in found] == [b"0", b"1", b"2"]
        headers = found[0].headers
        assert (headers["a"], headers["toymq-reason"], headers["toymq-origin-key"]) == ("b", "broken", "k0")
        assert [letter.headers["toymq-reason"] for letter in found[1:]] == ["rejected", "rejected"]
        with pytest.raises(BadArgument, match="no dead-letter topic of its own"):
            await found[0].dead_letter()
        with pytest.raises(Forbidden):
            await mq.pub("jobs.dlq", b"x")
        assert await mq.redrive("jobs.dlq", ids=[(0, 0), (2, 9)], max=1) == 1
        assert await mq.redrive("jobs.dlq", ids=[(0, 0), (2, 9)]) == 1
        assert await mq.redrive("jobs.dlq") == 1
        assert await mq.redrive("jobs.dlq") == 0
        again = [await messages.next(5) for _ in range(3)]
        assert [message.payload for message in again] == [b"0", b"2", b"1"]
        assert again[0].headers == {
            "a": "b", "toymq-origin-key": "k0", "toymq-redrives": "1", "toymq-redrive-consumer": "c",
        }  # fmt: skip
        for message in again:
            await message.ack()


async def test_looking_and_arranging(mq: Client) -> None:
    await mq.create("made", {"visibility": 5})
    assert await mq.config("made", {"dedupe_keys": 7}) == {"visibility": 5, "dedupe_keys": 7}
    await mq.pub_many("made", [b"%d" % n for n in range(5)])
    assert await mq.offsets("made", at_ms=0) == (0, 5)
    batch = await mq.fetch("made", 1, 2)
    assert (batch.count, batch.next_id) == (2, 3)
    assert (await mq.fetch("made", 5, 1, wait=0.01)).count == 0
    with pytest.raises(OutOfRange) as caught:
        await mq.fetch("made", 6, 1)
    assert caught.value.first_id == 0
    assert [topic["topic"] for topic in await mq.topics("made")] == ["made"]
    assert (await mq.stats())["connections"] >= 1
    assert await mq.ping() > 0
    assert mq.server is not None
    assert mq.server.startswith("toymq")
    assert mq.max_payload == 2 * 1024 * 1024
    async with mq.sub("made", "c") as messages:
        first = await messages.next(5)
        assert await mq.nack("made", "c", [(0, 0), (9, 9)], delay=0) == 1, "9 is not inflight"
        while (again := await messages.next(5)).id != 0:
            pass
        assert again.attempt == 2
        assert await mq.ack("made", "c", [(0, 4)], sync=True) == 5
        assert not await first.extend()
    assert await mq.delete("made") == 5
    with pytest.raises(NoSuchTopic):
        await mq.describe("made")


async def test_a_waiting_fetch_holds_nobody_else(mq: Client) -> None:
    await mq.create("t")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mq.fetch("t", 0, 1, wait=20))
        await asyncio.sleep(0)
        assert (await mq.pub("t", b"x")).msg_id == 0
    assert waiting.result().count == 1
