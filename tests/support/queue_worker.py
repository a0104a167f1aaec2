"""A worker process of a shared or keyed consumer, which prints each message that it gets and each that it has done. It ends
when its standard input is closed.

Arguments: port, topic, consumer, mode. Lines: ``got <id> <attempt> <ns>``, ``done <id> <ns>``; times are of the machine's
    monotonic clock.
"""

import asyncio
import os
import sys
import time
from contextlib import suppress

import toymq
from toymq_py.consumer_options import Mode, parse_mode

WORK_S = 0.002
WINDOW = 4


def say(*words: object) -> None:
    """Print a whole line, so that it is complete even if the process is killed right afterwards."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


async def work(port: int, topic: str, consumer: str, mode: Mode) -> None:
    async with toymq.connect(f"127.0.0.1:{port}", wait_s=60, backoff_max_s=0.2, timeout_s=120) as mq:
        messages = await mq.sub(topic, consumer, mode=mode, window=WINDOW, visibility=600)

        async def handle() -> None:
            async for message in messages:
                say("got", message.id, message.attempt, time.perf_counter_ns())
                await asyncio.sleep(WORK_S)
                say("done", message.id, time.perf_counter_ns())
                await message.ack()

        async with asyncio.TaskGroup() as tasks:
            handlers = [tasks.create_task(handle()) for _ in range(2)]
            say("ready")
            await asyncio.to_thread(sys.stdin.buffer.read)
            await messages.drain(30)
            for handler in handlers:
                handler.cancel()


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        asyncio.run(work(int(sys.argv[1]), sys.argv[2], sys.argv[3], parse_mode(sys.argv[4])))
