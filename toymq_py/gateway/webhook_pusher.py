"""Webhooks: push the messages of a topic to a URL, with retries and a signature.

Contract: gateway.md; ADR 0024. A webhook is a consumer of its own: 2xx acks the message, any other answer nacks it with a
backoff, and after ``max_attempts`` it is a dead letter. The definitions are one checksummed file in the data directory.
``webhook_sender.py`` sends and signs.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from toymq_py.broker import Broker
from toymq_py.broker_waits import stored
from toymq_py.clock import Clock
from toymq_py.config.webhooks import Webhook
from toymq_py.errors import DamagedData, InternalError, NoSuchConsumer, RequestError, StorageFailed
from toymq_py.failure import failure_of
from toymq_py.gateway.headers import parse_block
from toymq_py.gateway.long_poll import LongPoll
from toymq_py.gateway.name_lookups import THREADS_MAX
from toymq_py.gateway.waiters import Waiting
from toymq_py.gateway.webhook_sender import WebhookSender, backoff_s
from toymq_py.names import TopicPattern
from toymq_py.records import PRODUCER_PREFIX
from toymq_py.token_bucket import TokenBucket
from toymq_py.topic import Delivery
from toymq_py.trace_context import log_fields, trace_context

logger = logging.getLogger("toymq_py.gateway")

CONSUMER_PREFIX = "webhook."
"""The prefix of the names of the webhooks' consumers."""
LEASE_SPARE_S = 30.0
"""How much longer a lease is than the push's timeout."""
POLL_S = 60.0
TROUBLE_S = 5.0
"""The wait after a poll that failed."""
TEST_PAYLOAD = b"This is a test of a toymq webhook, not a message."
PUSH_BYTES_MAX = 4 * 1024 * 1024
LETTER_LINES, LETTER_LINES_PER_S = 10, 0.1
"""Lines of the log about dead letters, at once and then a second, of all webhooks; each has the count, so none is missed."""


class WebhookPusher:
    """All webhooks, and a task for each while ``run`` lasts."""

    def __init__(
        self, broker: Broker, sender: WebhookSender, clock: Clock, loop: asyncio.AbstractEventLoop, waiting: Waiting
    ) -> None:  # fmt: skip
        """Reads the definitions, so it blocks."""
        self.defined: dict[str, Webhook] = {}
        self.failures: dict[str, str] = {}
        """Why the last push failed, by webhook; absent when it succeeded."""
        self.letters: Counter[str] = Counter()
        """How many messages became dead letters after their last push since the start, by webhook."""
        self._letter_lines = TokenBucket(clock, LETTER_LINES, LETTER_LINES_PER_S)
        self._broker = broker
        self._sender = sender
        self._loop = loop
        self._waiting = waiting
        self._problem: StorageFailed | None = None
        self._changing = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._load()

    def _load(self) -> None:
        try:
            self.defined = self._broker.directory.read_webhooks()
        except (OSError, DamagedData) as error:
            self._problem = StorageFailed(f"webhooks.json cannot be read: {error}; nothing is pushed until `toymq repair`")
            logger.error("%s", self._problem)  # noqa: TRY400 (the file, not a bug)

    async def run(self) -> None:
        """Push until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                for name in self.defined:
                    self._start(name)
                await self._loop.create_future()
            finally:
                self._tasks = None

    def _start(self, name: str) -> None:
        if self._tasks is not None:
            self._workers[name] = self._tasks.create_task(self._serve(name, self.defined[name]))

    def _stop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.cancel()

    # -- definitions

    def check(self) -> None:
        """Check that the definitions could be read. Raises: StorageFailed."""
        if self._problem is not None:
            raise self._problem

    async def put(self, name: str, webhook: Webhook, *, keep_secret: bool = False) -> bool:
        """Define a webhook, durably. Returns: whether it is new.

        Args:
            keep_secret: keep the secret of the replaced webhook. No answer shows secrets, so a client cannot send it back.

        Raises: Forbidden (a private address), BadArgument (too many webhooks), StorageFailed, DiskFull.
        """
        await self._sender.check(webhook.check_secret().url)
        async with self._changing:
            known = self.defined.get(name)
            if keep_secret and known is not None:
                webhook = replace(webhook, secret=known.secret)  # as it is by now
            await self._store({**self.defined, name: webhook})
            self.defined[name] = webhook
            self.failures.pop(name, None)
            self._stop(name)
            self._start(name)
            if known is not None and known.topic != webhook.topic:
                await self._forget(name, spared=TopicPattern(webhook.topic))
            return known is None

    async def delete(self, name: str) -> bool:
        """Delete a webhook with its consumer. Returns: whether it existed. Raises: StorageFailed, DiskFull."""
        async with self._changing:
            if name not in self.defined:
                return False
            await self._store({other: webhook for other, webhook in self.defined.items() if other != name})
            del self.defined[name]
            self.failures.pop(name, None)
            self.letters.pop(name, None)
            self._stop(name)
            await self._forget(name)
            return True

    async def test(self, name: str) -> str | None:
        """Push a text that is marked as a test, once, signed like all pushes. Returns: why it was not accepted, or None."""
        webhook = self.defined[name]
        headers = {"content-type": "text/plain", "x-topic": webhook.topic, "x-test": "true"}
        return await self._sender.send(
            webhook.url, webhook.secret, webhook.timeout_ms, f"test:{name}", headers, TEST_PAYLOAD
        )  # fmt: skip

    async def _forget(self, name: str, spared: TopicPattern | None = None) -> None:
        """Delete the consumers of a webhook, except on topics that ``spared`` matches. Raises: StorageFailed, DiskFull."""
        for topic in list(self._broker.topics.values()):
            if spared is not None and spared.matches(topic.name):
                continue
            try:
                topic.forget(CONSUMER_PREFIX + name)
            except NoSuchConsumer:
                continue
            await stored(topic.flush_offsets)

    async def _store(self, defined: Mapping[str, Webhook]) -> None:
        self.check()
        await stored(partial(self._broker.directory.store_webhooks, defined))

    # -- pushing

    async def _serve(self, name: str, webhook: Webhook) -> None:
        """Push one webhook's messages until cancelled or the shutdown."""
        lease_s = webhook.timeout_ms / 1000 + LEASE_SPARE_S
        while not self._waiting.stopped:
            try:
                polling = LongPoll(self._broker, self._waiting, webhook.topic, CONSUMER_PREFIX + name, visibility_s=lease_s)
                deliveries = await polling.poll(webhook.concurrency, PUSH_BYTES_MAX, POLL_S)
            except (RequestError, OSError) as error:
                self.failures[name] = str(error)
                await self._waiting.sleep(TROUBLE_S)
                continue
            except Exception:
                logger.exception("bug in webhook %s", name)
                self.failures[name] = str(InternalError())
                await self._waiting.sleep(TROUBLE_S)
                continue
            async with asyncio.TaskGroup() as pushes:
                for delivery in deliveries:
                    for row in range(delivery.start, delivery.stop):
                        pushes.create_task(self._push(name, webhook, delivery, row))

    async def _push(self, name: str, webhook: Webhook, delivery: Delivery, row: int) -> None:
        """Push one message; ack or nack it."""
        channel, msg_id = delivery.subscription.channel, delivery.records.ids[row]
        trace = log_fields(delivery.records.headers[row] if delivery.records.headers is not None else None)
        try:
            async with asyncio.timeout(LEASE_SPARE_S / 2):
                lookup = await self._sender.begin_lookup(webhook.url)
        except TimeoutError:  # the lookups of others do not count an attempt
            self.failures[name] = f"waits for the lookup of its host: {THREADS_MAX} others do not answer, or no thread is left"
            delivery.subscription.unsend(msg_id, msg_id)
            return
        try:
            failure = await self._sender.send(
                webhook.url, webhook.secret, webhook.timeout_ms, f"{delivery.topic}:{msg_id}", _headers(delivery, row),
                delivery.records.payloads[row], lookup,
            )  # fmt: skip
        except Exception:
            logger.exception("bug in a push of webhook %s", name, extra=trace)
            failure = str(InternalError())
        if failure is None:
            self.failures.pop(name, None)
            channel.ack([(msg_id, msg_id)])
        else:
            if name not in self.failures:  # once, until a push succeeds
                logger.warning("webhook %s: %s", name, failure, extra=trace)
            self.failures[name] = failure
            ids = channel.leased_under([(msg_id, msg_id)], delivery.subscription.lessee.number)
            channel.nack(ids, backoff_s(delivery.attempt), failure=failure_of(error=failure))
            if ids and channel.consumer.is_last(delivery.attempt):
                self._count_letter(name, f"{delivery.topic}:{msg_id}", failure, trace)

    def _count_letter(self, name: str, message: str, failure: str, trace: Mapping[str, str]) -> None:
        self.letters[name] += 1
        if self._letter_lines.wait_s() and self.letters[name] > 1:
            return
        self._letter_lines.take()
        logger.warning(
            "webhook %s: %s becomes a dead letter, its %d. since the start: %s", name, message, self.letters[name], failure,
            extra=trace,
        )  # fmt: skip


def _headers(delivery: Delivery, row: int) -> dict[str, str]:
    """The headers of a push that describe the message."""
    records = delivery.records
    headers = {
        "content-type": "application/octet-stream",
        "x-topic": delivery.topic,
        "x-message-id": str(records.ids[row]),
        "x-attempt": str(delivery.attempt),
    }
    if records.keys[row] and not records.keys[row].startswith(PRODUCER_PREFIX):
        headers["idempotency-key"] = records.keys[row].decode("ascii", "replace")
    if records.headers is not None and records.headers[row]:
        headers["x-headers"] = json.dumps(parse_block(records.headers[row]))
        context = trace_context(records.headers[row])
        if context is not None:
            headers["traceparent"] = context.traceparent
            if context.state:
                headers["tracestate"] = context.state
    return headers
