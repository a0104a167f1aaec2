"""The app of tests/e2e/workers/test_kills.py: says each job that it does in a file of its own."""

import asyncio
import os
from pathlib import Path

import toymq

app = toymq.App()
SAID = Path(os.environ.get("TEST_SAID", "."))


def say(*words: object) -> None:
    """A whole line, also when it is killed right afterwards."""
    line = " ".join(map(str, words)) + "\n"
    with (SAID / f"{os.getpid()}.txt").open("ab", buffering=0) as file:
        file.write(line.encode())


@app.worker("jobs", concurrency=4, retries=50, backoff="1ms", dead_on=ValueError)
async def work(number: int) -> None:
    if number % 10 == 7:
        raise ValueError(f"job {number} is hopeless")
    await asyncio.sleep(0.002)
    say("async", number)


@app.worker("blocking", concurrency=2, retries=50, backoff="1ms")
def block(number: int) -> None:
    say("plain", number)
