"""An asyncio client that reconnects at once, and with the same delays in each run."""

from collections.abc import Awaitable
from random import Random

import toymq
from toymq import Client


def connect(url: str, **options: object) -> Client:
    """Make such a client; the options are those of ``toymq.connect``."""
    return toymq.connect(url, backoff_min_s=0.001, backoff_max_s=0.01, random=Random(1), **options)  # type: ignore[arg-type]


async def code_of(call: Awaitable[object]) -> str:
    try:
        await call
    except toymq.ToymqError as error:
        return error.code
    return "no error"
