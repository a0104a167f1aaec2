"""A process that shares a queue (``toymq.open``): publishes messages to its own topic, consumes those of its neighbour, and
prints each that it has handled.

It ends when its standard input is closed and its neighbour's messages are all acked. Arguments: directory, own topic,
neighbour's topic, messages, seconds that the first handler blocks the whole process.
"""

import asyncio
import os
import sys
import time
from dataclasses import replace

import toymq
from toymq import Client
from toymq_py.embedded.host import EMBEDDED

CONSUMER = "worker"


async def produce(mq: Client, topic: str, messages: int) -> None:
    items = ((f"{topic}-{number}", b"%b-%d" % (topic.encode(), number)) for number in range(messages))
    async for _ in mq.pub_many(topic, items, window=64):
        pass


async def consume(mq: Client, topic: str, block_s: float, handled: asyncio.Event) -> None:
    async with mq.sub(topic, CONSUMER, window=64) as messages:
        async for message in messages:
            if block_s:
                time.sleep(block_s)  # noqa: ASYNC251 (that is what is tried)
                block_s = 0
            os.write(sys.stdout.fileno(), message.payload + b"\n")
            await message.ack()
            handled.set()


async def until_acked(mq: Client, topic: str, handled: asyncio.Event) -> None:
    while True:
        handled.clear()
        await mq.ping()  # acks that were given before it was asked are sent before its answer comes
        if all(consumer["backlog"] == 0 for consumer in (await mq.describe(topic))["consumers"]):
            return
        await handled.wait()


async def work(data_dir: str, own: str, neighbours: str, messages: int, block_s: float) -> None:
    queue = toymq.open(data_dir, options=replace(EMBEDDED, min_free_bytes=0), timeout_s=120)
    async with queue as mq, asyncio.TaskGroup() as tasks:
        handled = asyncio.Event()
        producing = tasks.create_task(produce(mq, own, messages))
        consuming = tasks.create_task(consume(mq, neighbours, block_s, handled))
        await asyncio.to_thread(sys.stdin.buffer.read)
        await producing
        await until_acked(mq, neighbours, handled)
        consuming.cancel()


if __name__ == "__main__":
    directory, own_topic, neighbours_topic, count, seconds = sys.argv[1:]
    asyncio.run(work(directory, own_topic, neighbours_topic, int(count), float(seconds)))
