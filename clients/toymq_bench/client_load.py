"""The Python clients themselves under load: CPU and throughput of the process that uses one."""

import asyncio
import time
from collections.abc import Iterator

import toymq
from toymq import sync
from toymq.message import Item
from toymq_bench.broker import Broker
from toymq_bench.errors import WrongReply
from toymq_bench.frames import payload
from toymq_bench.progress import phase
from toymq_bench.traffic import delete, names

WINDOW = 4096
CONSUMER = "c"


def items(count: int, size: int, *, keyed: bool) -> Iterator[Item]:
    """Yield payloads for ``pub_many``: each with a unique key, or without a key, in which case the client numbers it."""
    body = payload(size, marked=False)
    return ((b"k%d" % number, body) if keyed else body for number in range(count))


def measure(broker: Broker, kind: str, count: int, size: int, label: str, *, keyed: bool) -> dict[str, float]:
    """Measure ``count`` messages from ``pub_many`` to one subscriber in this process, each acked.

    Args:
        kind: ``asyncio``: publishes and consumes at the same time on one connection; ``blocking``: first publishes, then
            consumes.

    Raises: ToymqError, OSError.
    """
    (topic,) = topics = names(1)
    with phase(label, 1):
        began, cpu_s, own_s = time.perf_counter(), broker.cpu_s(), time.process_time()
        url = f"toymq://{broker.host}:{broker.port}"
        if kind == "asyncio":
            published_s, consumed_s = asyncio.run(_asyncio(url, topic, items(count, size, keyed=keyed), count))
        else:
            published_s, consumed_s = _blocking(url, topic, items(count, size, keyed=keyed), count)
        span_s = time.perf_counter() - began
        cpu_s, own_s = broker.cpu_s() - cpu_s, time.process_time() - own_s
    delete(broker, topics)
    return {
        "publishes_per_s": count / published_s,
        "deliveries_per_s": count / consumed_s,
        "client_cpu_us": own_s * 1e6 / count,
        "broker_cpu_us": cpu_s * 1e6 / count,
        "client_cores": own_s / span_s,
        "broker_cores": cpu_s / span_s,
    }


async def _asyncio(url: str, topic: str, load: Iterator[Item], count: int) -> tuple[float, float]:
    """Return the seconds until all messages are published, and until all are consumed."""
    async with toymq.connect(url) as mq:
        began = time.perf_counter()

        async def publish() -> float:
            async for _ in mq.pub_many(topic, load, window=WINDOW):
                pass
            return time.perf_counter() - began

        async def consume() -> float:
            next_id = 0
            async with mq.sub(topic, CONSUMER, window=WINDOW) as messages:
                async for message in messages:
                    _check(message.id, next_id)
                    await message.ack()
                    next_id += 1
                    if next_id == count:
                        break
            return time.perf_counter() - began

        async with asyncio.TaskGroup() as tasks:
            publishing, consuming = tasks.create_task(publish()), tasks.create_task(consume())
        return publishing.result(), consuming.result()


def _blocking(url: str, topic: str, load: Iterator[Item], count: int) -> tuple[float, float]:
    """Return the seconds that publishing took, and those that consuming took."""
    with sync.connect(url) as mq:
        began = time.perf_counter()
        for _ in mq.pub_many(topic, load, window=WINDOW):
            pass
        published = time.perf_counter()
        next_id = 0
        with mq.sub(topic, CONSUMER, window=WINDOW) as messages:
            for message in messages:
                _check(message.id, next_id)
                message.ack()
                next_id += 1
                if next_id == count:
                    break
        return published - began, time.perf_counter() - published


def _check(msg_id: int, expected: int) -> None:
    if msg_id != expected:
        raise WrongReply(f"id {msg_id} was delivered, and {expected} was the next")
