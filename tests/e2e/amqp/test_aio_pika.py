"""The asyncio client aio-pika, unchanged; its connections survive kills of the broker. Skipped by name where not installed."""

import asyncio
from typing import Any

import pytest

from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from tests.support.requirements import require

pytestmark = require("amqp-clients")
aio_pika = pytest.importorskip("aio_pika")


async def test_a_consumer_of_a_topic_exchange(broker: BrokerProcess) -> None:
    async with await aio_pika.connect_robust(broker.amqp) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue("all", durable=True)
        await queue.bind(exchange, "orders.#")
        for number in range(20):
            headers: Any = {"n": number}
            await exchange.publish(aio_pika.Message(b"%d" % number, headers=headers), f"orders.{number}")
        seen = []
        async with queue.iterator(timeout=TIMEOUT_S) as messages:
            async for message in messages:
                async with message.process():
                    seen.append((message.routing_key, message.headers["n"], message.body))
                if len(seen) == 20:
                    break
        assert seen == [(f"orders.{number}", number, b"%d" % number) for number in range(20)]


async def test_what_was_confirmed_outlives_kills_of_the_broker(broker: BrokerProcess) -> None:
    confirmed: set[bytes] = set()
    got: set[bytes] = set()
    stop = asyncio.Event()
    async with await aio_pika.connect_robust(broker.amqp, reconnect_interval=0.05) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue("q", durable=True)

        async def publish() -> None:
            number = 0
            while not stop.is_set():
                body = b"%d" % number
                try:
                    await channel.default_exchange.publish(aio_pika.Message(body), "q", timeout=5)
                    confirmed.add(body)
                    number += 1
                except Exception:  # noqa: BLE001 (whatever a connection that is lost raises)
                    await asyncio.sleep(0.02)

        publishing = asyncio.get_running_loop().create_task(publish())
        for _ in range(3):
            before = len(confirmed)
            async with asyncio.timeout(TIMEOUT_S):
                while len(confirmed) < before + 30:  # noqa: ASYNC110 (it grows beside)
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(broker.restart)
        stop.set()
        await publishing
    async with await aio_pika.connect(broker.amqp) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q", durable=True)
        async with asyncio.timeout(TIMEOUT_S):
            while not confirmed <= got:
                message = await queue.get(fail=False)
                if message is not None:
                    got.add(message.body)
                    await message.ack()
    assert confirmed <= got
