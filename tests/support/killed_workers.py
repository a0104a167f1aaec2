"""The app of tests/e2e/workers/test_kills.py: each process writes to a file when it begins and ends each job."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import toymq
from toymq.options import Event

SAID = Path(os.environ.get("TEST_SAID", "."))
RETRIES = 50


def say(*words: object) -> None:
    """Write a whole line, so that it is complete even if the process is killed right afterwards."""
    line = " ".join(map(str, words)) + "\n"
    with (SAID / f"{os.getpid()}.txt").open("ab", buffering=0) as file:
        file.write(line.encode())


class SayingApp(toymq.App):
    """An app that also reports when it is connected: until then it cannot ack jobs that it got from a killed broker."""

    def _notice(self, event: Event) -> None:
        super()._notice(event)
        if self.connected:
            say("online", "-", "-", 0, time.monotonic_ns())


app = SayingApp()


@contextmanager
def said(kind: str, key: object, number: int) -> Iterator[None]:
    """Report the begin of the block, and its end: ``end``: done; ``left``: it raised, or was cancelled."""
    say("begin", kind, key, number, time.monotonic_ns())
    event = "left"
    try:
        yield
        event = "end"
    finally:
        say(event, kind, key, number, time.monotonic_ns())


@app.worker("jobs", concurrency=4, retries=RETRIES, backoff="1ms", dead_on=ValueError)
async def work(number: int) -> None:
    with said("async", number, number):
        if number % 10 == 7:
            raise ValueError(f"job {number} is hopeless")
        await asyncio.sleep(0.002)


@app.worker("blocking", concurrency=2, retries=RETRIES, backoff="1ms")
def block(number: int) -> None:
    with said("plain", number, number):
        pass


@app.worker("processes", concurrency=1, retries=RETRIES, backoff="1ms", executor="process", timeout="1m")
def compute(number: int) -> None:
    with said("process", number, number):
        pass


@app.worker("keyed", concurrency=4, retries=RETRIES, backoff="1ms", mode="keyed")
async def in_order(group: str, number: int) -> None:
    with said("keyed", group, number):
        await asyncio.sleep(0.002)
