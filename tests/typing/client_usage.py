"""Never run: `make types` checks that the clients' public signatures say what they take and return. A line that must be refused
has its ``type: ignore``, which mypy reports when nothing is to be ignored any more."""

from typing import assert_type

import toymq
from toymq import sync
from toymq.compat import vsqs


async def asyncio_client() -> None:
    async with toymq.connect("toymq://127.0.0.1:6789", name="me", timeout_s=5) as mq:
        assert_type(mq, toymq.Client)
        assert_type(await mq.pub("t", b"x", key="k", headers={"a": "b"}, delay=1.5), toymq.Receipt)
        assert_type(await mq.pub_many("t", [b"x", ("key", b"y"), (None, b"z"), ("k", b"z", {"a": "b"})]), list[toymq.Receipt])
        assert_type(await mq.pub_value("t", {"a": 1}, codec="msgpack", key="k"), toymq.Receipt)
        assert_type(await mq.pub_many("t", toymq.values([1, 2], codec=toymq.Codec("", bytes, bytes))), list[toymq.Receipt])
        await mq.pub_value("t", 1, codec="yaml")  # type: ignore[arg-type]
        async for receipt in mq.pub_many("t", (b"%d" % n for n in range(3))):
            assert_type(receipt.msg_id, int)
            assert_type(receipt.duplicate, bool)
        async with mq.sub("t", "c", mode="shared", visibility=30) as messages:
            assert_type(messages, toymq.Subscription)
            async for message in messages:
                assert_type(message, toymq.Message)
                assert_type(message.payload, bytes)
                assert_type(message.headers, dict[str, str])
                assert_type(await message.extend(), bool)
                async with message.process(retry_delay=1, dead_on=(ValueError, KeyError)) as same:
                    assert_type(same, toymq.Message)
            async for batch in messages.batches(max=10, wait=1):
                assert_type(batch, list[toymq.Message])
        assert_type(await mq.pull("t.*", "c", 5, wait=1, visibility=60.5), list[toymq.Message])
        assert_type(await mq.pub_many("t", [b"x"], delay=1, ttl=2.5), list[toymq.Receipt])
        assert_type(await mq.nack("t", "c", [(1, 2)], dead=True, reason="any text", error=ValueError("bad")), int)
        assert_type(await mq.redrive("t.dlq", ids=[(1, 2)], max=5), int)
        assert_type(await mq.purge("t"), int)
        assert_type(await mq.seek("t", "c", "latest"), int)
        await mq.create("t", {"max_attempts": 3, "visibility": "default"})
        for leased in await mq.pull("t", "c"):
            assert_type(await leased.dead_letter("reason"), bool)
        assert_type(await mq.offsets("t"), tuple[int, int])
        assert_type(await mq.drain(5), bool)
    assert_type(await toymq.connect(["a", "b"]), toymq.Client)

    await mq.pub("t", "text")  # type: ignore[arg-type]
    await mq.pub("t", b"x", keys="k")  # type: ignore[call-arg]
    await mq.pub_many("t", ["text"])  # type: ignore[list-item]
    mq.sub("t", "c", mode="solo")  # type: ignore[arg-type]
    mq.sub("t")  # type: ignore[call-arg]
    toymq.connect(port=6789)  # type: ignore[call-arg]
    await mq.pull("t", "c", "5")  # type: ignore[arg-type]
    await mq.pull("t", "c", delay=5)  # type: ignore[call-arg]
    await mq.pub_many("t", [b"x"], delay="5s")
    await mq.pub_many("t", [b"x"], delay=b"5s")  # type: ignore[arg-type]


def blocking_client() -> None:
    with sync.connect("toymq://127.0.0.1:6789") as mq:
        assert_type(mq, sync.Client)
        assert_type(mq.pub("t", b"x", key=b"k"), toymq.Receipt)
        for receipt in mq.pub_many("t", [b"x"]):
            assert_type(receipt, toymq.Receipt)
        with mq.sub("t", "c") as messages:
            for message in messages:
                assert_type(message, sync.Message)
                with message.process(dead_on=ValueError):
                    assert_type(message.ack(), None)
            assert_type(messages.next(1), sync.Message)
        for leased in mq.pull("t.*", "c", 5, wait=1):
            assert_type(leased, sync.Message)
            assert_type(leased.dead_letter(), bool)
    mq.pub("t", "text")  # type: ignore[arg-type]
    mq.sub("t", "c", auto_extend="yes")  # type: ignore[arg-type]
    mq.pub_many("t", [b"x"], ttl="5s")
    mq.pub_many("t", [b"x"], ttl=b"5s")  # type: ignore[arg-type]


def as_vsqs() -> None:
    queue = vsqs.QueueManager("./queues").get_queue("jobs", capacity=5)
    assert_type(queue.publish(b"x", timeout=1), str)
    m_id, data = queue.receive()
    if m_id is not None:
        queue.delete(m_id)
    assert_type(data, bytes | None)
    assert_type(queue.size(), int)
    queue.publish("text")  # type: ignore[arg-type]


async def embedded() -> None:
    async with toymq.open("./queue", timeout_s=5) as mq:
        assert_type(await mq.pub("t", b"x"), toymq.Receipt)
        client: toymq.Client = mq
        assert_type(client.connected, bool)
    with toymq.sync.open("./queue") as blocking:
        same: sync.Client = blocking
        assert_type(same.connected, bool)

    toymq.open(1)  # type: ignore[arg-type]
    toymq.sync.open("./queue", url="x")  # type: ignore[call-arg]
