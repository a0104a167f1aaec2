"""Results of jobs: a caller has a private topic for them, and the message of its job names that topic and the call.

    job      toymq-reply-to: replies.1764230400.5f…   toymq-call: 17
    result   {"result": 3}                            toymq-call: 17
    failure  {"error": "ValueError", "text": "…"}     toymq-call: 17

The topic is deleted when its caller leaves. One that was killed leaves it behind; the next caller removes what is old.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from toymq import json_values
from toymq.client import Client
from toymq.errors import ConnectionLost, JobFailed, RequestTimeout, SubscriptionEnded
from toymq.message import Receipt, Settings
from toymq_py.clock import Clock, SystemClock
from toymq_py.errors import BadArgument, ToymqError

logger = logging.getLogger("toymq.workers")
REPLY_TO, CALL = "toymq-reply-to", "toymq-call"
PREFIX = "replies."
"""A worker answers to no other topics, whatever a message asks for."""
CONSUMER = "caller"
SETTINGS: Settings = {"ttl": "1h", "retain_acked_for": 0}
LEFT_BEHIND_S = 24 * 3600
"""A topic without a caller that is so old is removed."""
SWEPT_MAX = 100
Publish = Callable[[dict[str, str]], Coroutine[Any, Any, Receipt]]
"""Publishes a job with headers."""


def is_wanted(headers: Mapping[str, str]) -> bool:
    """Whether a caller waits for the result."""
    return headers.get(REPLY_TO, "").startswith(PREFIX) and CALL in headers


def result_of(what: str, value: object) -> bytes:
    """The message of a result; of a failure where JSON cannot say it: the job is done, and another run would end the same."""
    try:
        return json.dumps({"result": json_values.write(f"the result of {what}", value)}).encode()
    except (TypeError, BadArgument) as error:
        return failure_of(error)


def failure_of(error: BaseException) -> bytes:
    """The message of a job that failed for good."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (its own __str__)
        text = ""
    return json.dumps({"error": type(error).__name__, "text": text}).encode()


async def reply(client: Client, headers: Mapping[str, str], payload: bytes) -> None:
    """Publish a result. The job is done in any case: a failure here is only logged."""
    try:
        await client.pub(headers[REPLY_TO], payload, headers={CALL: headers[CALL]})
    except ToymqError as error:
        logger.warning("a result is not told to %s: %s", headers[REPLY_TO], error)


class Replies:
    """The results that one process waits for. Owns its client."""

    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        """``client``: not open yet."""
        self._client = client
        self._now_ns = (clock or SystemClock()).wall_ns
        self._opening = asyncio.Lock()
        self._topic: str | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._calls = 0

    async def call(self, name: str, publish: Publish, timeout_s: float) -> Any:
        """Publish a job and wait for its result.

        Raises: JobFailed, RequestTimeout, ConnectionLost (the topic of the results was deleted), and as ``Client.pub``.
        """
        topic = await self._open()
        self._calls += 1
        number = str(self._calls)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await publish({REPLY_TO: topic, CALL: number})
                payload = await answer
        except TimeoutError as error:
            if isinstance(error, ToymqError):
                raise
            raise RequestTimeout(f"no result of {name} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
        found = json_values.load(payload)
        if not isinstance(found, dict) or ("error" in found) == ("result" in found):
            raise JobFailed(name, "BadResult", "its worker speaks another format")
        if "error" in found:
            raise JobFailed(name, str(found["error"]), str(found.get("text", "")))
        return found["result"]

    async def _open(self) -> str:
        """The topic of the results. Raises: RequestError, ConnectFailed, …"""
        async with self._opening:
            if self._topic is None:
                await self._client
                topic = f"{PREFIX}{self._now_ns() // 1_000_000_000}.{secrets.token_hex(8)}"
                await self._client.create(topic, SETTINGS)
                self._reader = asyncio.get_running_loop().create_task(self._read(topic), name=f"toymq {topic}")
                self._topic = topic
                await self._sweep()
            return self._topic

    async def _read(self, topic: str) -> None:
        """Hand out results until the topic is deleted."""
        try:
            async with self._client.sub(topic, CONSUMER) as messages:
                async for message in messages:
                    answer = self._waiting.get(message.headers.get(CALL, ""))
                    if answer is not None and not answer.done():
                        answer.set_result(message.payload)
                    await message.ack()
        except (SubscriptionEnded, ToymqError) as error:
            self._topic = None  # the next call makes another one
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionLost(f"the topic of results is gone: {error}"))

    async def _sweep(self) -> None:
        """Remove topics of callers that were killed. What the token may not delete stays."""
        with suppress(ToymqError):
            old = self._now_ns() // 1_000_000_000 - LEFT_BEHIND_S
            for described in (await self._client.topics(f"{PREFIX}>"))[:SWEPT_MAX]:
                words = described["topic"].split(".")
                attached = any(consumer["sessions"] for consumer in described["consumers"])
                if len(words) == 3 and words[1].isdigit() and int(words[1]) < old and not attached:
                    await self._client.delete(described["topic"])

    async def close(self) -> None:
        """Remove the topic and close the client."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        if self._topic is not None:
            with suppress(ToymqError):
                await self._client.delete(self._topic)
        await self._client.close()
