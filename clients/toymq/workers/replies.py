"""Results of jobs: a caller has a private topic for its results, and the message of each job names that topic and the number of
the call.

    job      toymq-reply-to: replies.1764230400.5f…   toymq-call: 17
    result   {"result": 3}                            toymq-call: 17
    failure  {"error": "ValueError", "text": "…"}     toymq-call: 17

The topic is deleted when its caller leaves. A killed caller leaves its topic behind; the next caller removes old ones.
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
from toymq.errors import ClientClosed, ConnectionLost, JobFailed, RequestTimeout, SubscriptionEnded
from toymq.message import Receipt, Settings
from toymq.nack_reason import text_of
from toymq.options import GOODBYE_S
from toymq.subscription import Subscription
from toymq_py.clock import Clock, SystemClock
from toymq_py.errors import BadArgument, Forbidden, PayloadTooLarge, ToymqError
from toymq_py.failure import cut

logger = logging.getLogger("toymq.workers")
REPLY_TO, CALL = "toymq-reply-to", "toymq-call"
PREFIX = "replies."
"""The beginning of topics for replies: a worker answers to no others, whatever a message asks for."""
CONSUMER = "caller"
SETTINGS: Settings = {"ttl": "1h", "retain_acked_for": 0}
LEFT_BEHIND_S = 24 * 3600
"""The age at which a topic without a caller is removed."""
SWEPT_MAX = 100
TEXT_BYTES_MAX = 16 * 1024
"""Most bytes of an exception's text that a caller gets."""
Publish = Callable[[dict[str, str], float], Coroutine[Any, Any, Receipt]]
"""Publishes a job with headers; the seconds are what is left of the time of its call."""


def is_wanted(headers: Mapping[str, str]) -> bool:
    """Whether a caller waits for the job's result."""
    return headers.get(REPLY_TO, "").startswith(PREFIX) and CALL in headers


class Reply(bytes):
    """A result of a job, encoded as a message by the process that ran the job."""


def result_of(what: str, value: object) -> bytes:
    """Encode a result as a message; a failure if JSON cannot express the result: the job is done, and another run would end the
    same."""
    if isinstance(value, Reply):
        return value
    try:
        return json.dumps({"result": json_values.write(f"the result of {what}", value)}).encode()
    except (TypeError, BadArgument) as error:
        return failure_of(error)


def failure_of(error: BaseException) -> bytes:
    """Encode the failure of a job that is not tried again as a message."""
    text = cut(text_of(error)[: TEXT_BYTES_MAX + 1], TEXT_BYTES_MAX)
    return json.dumps({"error": type(error).__name__, "text": text}).encode()


async def reply(client: Client, headers: Mapping[str, str], payload: bytes) -> None:
    """Publish a result to the caller's topic, if that exists. It is never created here: neither by a late result, nor by
    messages that name thousands of topics. The job is done in any case, so an error here is only logged."""
    try:
        await client.offsets(headers[REPLY_TO])
        try:
            await client.pub(headers[REPLY_TO], payload, headers={CALL: headers[CALL]})
        except PayloadTooLarge as error:
            await client.pub(headers[REPLY_TO], failure_of(error), headers={CALL: headers[CALL]})
    except ToymqError as error:
        logger.warning("a result is not told to %s: %s", headers[REPLY_TO], error)


class Replies:
    """Receives the results that one process waits for, over a connection of its own."""

    def __init__(self, new_client: Callable[[], Client], clock: Clock | None = None) -> None:
        """``new_client``: makes a client that is not open yet; called again after a failure."""
        self._new_client = new_client
        self._client: Client | None = None
        self._now_ns = (clock or SystemClock()).wall_ns
        self._opening = asyncio.Lock()
        self._topic: str | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._calls = 0

    async def call(self, name: str, publish: Publish, timeout_s: float) -> Any:
        """Publish a job and wait for its result.

        Raises: JobFailed, RequestTimeout, ConnectionLost (the topic for results was deleted), ClientClosed, and as
        ``Client.pub``.
        """
        self._calls += 1
        number = str(self._calls)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                topic = await self._open()
                left_s = (limit.when() or 0.0) - asyncio.get_running_loop().time()
                await publish({REPLY_TO: topic, CALL: number}, max(left_s, 0.001))
                payload = await answer
        except TimeoutError as error:
            if isinstance(error, ToymqError):
                raise
            raise RequestTimeout(
                f"no result of {name} within {timeout_s:g} s: no worker began it, it still runs, or it failed and is tried"
                " again, as the worker's log says; with retries=0 a failure is a JobFailed at once"
            ) from None
        finally:
            self._waiting.pop(number, None)
        found = json_values.load(payload)
        if not isinstance(found, dict) or ("error" in found) == ("result" in found):
            raise JobFailed(name, "BadResult", "its worker speaks another format")
        if "error" in found:
            raise JobFailed(name, str(found["error"]), str(found.get("text", "")))
        return found["result"]

    async def _open(self) -> str:
        """Create the topic for results, once, and return its name. Raises: RequestError, ConnectFailed, …"""
        async with self._opening:
            if self._topic is None:
                client = self._client
                if client is None:
                    client = await self._new_client()
                    self._client = client
                topic = f"{PREFIX}{self._now_ns() // 1_000_000_000}.{secrets.token_hex(8)}"
                with suppress(Forbidden):  # without rights to settings the subscription makes it
                    await client.create(topic, SETTINGS)
                messages = await client.sub(topic, CONSUMER)
                self._reader = asyncio.get_running_loop().create_task(self._read(messages), name=f"toymq {topic}")
                self._topic = topic
                await self._sweep(client)
            return self._topic

    async def _read(self, subscription: Subscription) -> None:
        """Pass results to the calls that wait for them, until the topic is deleted."""
        try:
            async with subscription as messages:
                async for message in messages:
                    answer = self._waiting.get(message.headers.get(CALL, ""))
                    if answer is not None and not answer.done():
                        answer.set_result(message.payload)
                    await message.ack()
        except (SubscriptionEnded, ToymqError) as error:
            self._topic = None  # the next call makes another one
            self._fail(ConnectionLost(f"the topic of results is gone: {error}"))

    def _fail(self, error: ToymqError) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

    async def _sweep(self, client: Client) -> None:
        """Delete the topics of killed callers, except those that the token may not delete."""
        with suppress(ToymqError):
            old = self._now_ns() // 1_000_000_000 - LEFT_BEHIND_S
            for described in (await client.topics(f"{PREFIX}>"))[:SWEPT_MAX]:
                words = described["topic"].split(".")
                attached = any(consumer["sessions"] for consumer in described["consumers"])
                if len(words) == 3 and words[1].isdigit() and int(words[1]) < old and not attached:
                    await client.delete(described["topic"])

    async def close(self) -> None:
        """Fail the calls that wait, delete the topic for results and close the client; an unreachable broker is not waited
        for."""
        self._fail(ClientClosed("the app was left while a call waited for its result"))
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        if self._client is None:
            return
        if self._topic is not None:
            with suppress(ToymqError, TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._client.delete(self._topic)
        await self._client.close()
