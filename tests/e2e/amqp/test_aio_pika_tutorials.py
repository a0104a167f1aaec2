"""RabbitMQ's tutorials 1 to 7 with aio-pika: the calls that they make. Skipped by name where it is not installed.

The programs themselves, unchanged, are run by ``make test-amqp-peers TUTORIALS=DIR``.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from tests.support.requirements import require

pytestmark = require("amqp-clients")
aio_pika = pytest.importorskip("aio_pika")


@asynccontextmanager
async def channel_of(broker: BrokerProcess) -> AsyncIterator[Any]:
    async with await aio_pika.connect(broker.amqp) as connection:
        yield await connection.channel()


def kept(found: "asyncio.Queue[bytes]") -> Callable[[Any], Awaitable[None]]:
    """Return a callback that puts each message's body into a queue: what the tutorials call ``on_message``."""

    async def on_message(message: Any) -> None:
        async with message.process():
            await found.put(message.body)

    return on_message


async def received(found: "asyncio.Queue[bytes]", count: int) -> list[bytes]:
    async with asyncio.timeout(TIMEOUT_S):
        return [await found.get() for _ in range(count)]


async def test_tutorial_1_introduction(broker: BrokerProcess) -> None:
    found: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        await found.put(message.body)

    async with channel_of(broker) as receiver, channel_of(broker) as sender:
        queue = await receiver.declare_queue("hello")
        await queue.consume(on_message, no_ack=True)
        to = await sender.declare_queue("hello")
        await sender.default_exchange.publish(aio_pika.Message(b"Hello World!"), routing_key=to.name)
        assert await received(found, 1) == [b"Hello World!"]


async def test_tutorial_2_work_queues(broker: BrokerProcess) -> None:
    found: asyncio.Queue[bytes] = asyncio.Queue()
    async with channel_of(broker) as first, channel_of(broker) as second, channel_of(broker) as sender:
        for worker in (first, second):
            await worker.set_qos(prefetch_count=1)
            queue = await worker.declare_queue("task_queue", durable=True)
            await queue.consume(kept(found))
        for number in range(10):
            message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await sender.default_exchange.publish(message, routing_key="task_queue")
        assert sorted(await received(found, 10)) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("fanout", ("",), [b"kern.critical", b"kern.info", b"cron.info"]),
        ("direct", ("kern.info", "cron.info"), [b"kern.info", b"cron.info"]),
        ("topic", ("*.critical", "cron.#"), [b"kern.critical", b"cron.info"]),
    ],
    ids=["3 publish and subscribe", "4 routing", "5 topics"],
)
async def test_tutorials_of_exchanges(broker: BrokerProcess, kind: str, keys: tuple[str, ...], expected: list[bytes]) -> None:
    found: asyncio.Queue[bytes] = asyncio.Queue()
    async with channel_of(broker) as receiver, channel_of(broker) as sender:
        await receiver.set_qos(prefetch_count=1)
        exchange = await receiver.declare_exchange(f"{kind}_logs", aio_pika.ExchangeType(kind))
        queue = await receiver.declare_queue(exclusive=True)
        for key in keys:
            await queue.bind(exchange, routing_key=key)
        await queue.consume(kept(found))
        to = await sender.declare_exchange(f"{kind}_logs", aio_pika.ExchangeType(kind))
        for name in ("kern.critical", "kern.info", "cron.info"):
            message = aio_pika.Message(name.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await to.publish(message, routing_key=name)
        assert await received(found, len(expected)) == expected


async def test_tutorial_6_remote_procedure_call(broker: BrokerProcess) -> None:
    async def serve(channel: Any) -> None:
        queue = await channel.declare_queue("rpc_queue")
        ready.set()
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process(requeue=False):
                    answer = aio_pika.Message(b"%d" % (2 * int(message.body)), correlation_id=message.correlation_id)
                    await channel.default_exchange.publish(answer, routing_key=message.reply_to)

    ready = asyncio.Event()
    async with channel_of(broker) as server, channel_of(broker) as client:
        serving = asyncio.get_running_loop().create_task(serve(server))
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def on_response(message: Any) -> None:
            answered.set_result((message.correlation_id, message.body))

        async with asyncio.timeout(TIMEOUT_S):
            await ready.wait()
            callback = await client.declare_queue(exclusive=True)
            await callback.consume(on_response, no_ack=True)
            message = aio_pika.Message(b"21", correlation_id="7", reply_to=callback.name, content_type="text/plain")
            await client.default_exchange.publish(message, routing_key="rpc_queue")
            assert await answered == ("7", b"42")
        serving.cancel()
        await asyncio.wait([serving])


async def test_tutorial_7_publisher_confirms(broker: BrokerProcess) -> None:
    """Wait for confirms one by one, in batches, and for all at once."""
    async with channel_of(broker) as channel:
        queue = await channel.declare_queue("hello")

        async def publish(number: int) -> object:
            message = aio_pika.Message(b"Hello World %d!" % number)
            return await channel.default_exchange.publish(message, routing_key=queue.name, timeout=TIMEOUT_S)

        confirmations = [await publish(number) for number in range(20)]
        confirmations += await asyncio.gather(*map(publish, range(100)))
        assert {type(each).__name__ for each in confirmations} == {"Ack"}
        assert (await channel.declare_queue("hello", passive=True)).declaration_result.message_count == 120
