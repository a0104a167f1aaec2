"""Runs one worker in this process: takes messages of its consumer, calls the function, acks or nacks."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from random import Random
from typing import Any

from toymq.client import Client
from toymq.nack_reason import text_of
from toymq.subscription import Message, Subscription
from toymq.workers.job import Job
from toymq.workers.replies import failure_of, is_wanted, reply, result_of
from toymq.workers.retries import OUT_OF_ATTEMPTS
from toymq_py.clock import Clock, SystemClock
from toymq_py.errors import BadArgument
from toymq_py.names import DEAD_LETTERS

logger = logging.getLogger("toymq.workers")


class Counts:
    """What became of jobs since the process began; ``begun`` are those of a first attempt, ``waited_s`` is their time from
    publish to begin."""

    def __init__(self) -> None:
        self.done = self.failed = self.dead = self.begun = 0
        self.waited_s = self.waited_last_s = self.worked_s = 0.0


class Runner:
    """Up to ``concurrency`` jobs of one worker at once."""

    def __init__(self, job: Job[..., Any], client: Client, random: Random, clock: Clock | None = None) -> None:
        self.job = job
        self.counts = Counts()
        self._clock = clock or SystemClock()
        self._running: dict[Message, float] = {}
        """Since when, on the monotonic clock; the oldest first."""
        self._client = client
        self._random = random
        self._slots = asyncio.Semaphore(job.settings.concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        if not job.is_async:
            self._threads = ThreadPoolExecutor(job.settings.concurrency, thread_name_prefix=f"toymq {job.name}")

    async def run(self) -> None:
        """Work until the subscription is closed or drained.

        Raises: RequestError (the consumer is exclusive, say), ConsumerDeleted, ClientClosed.
        """
        settings = self.job.settings
        messages = self._client.sub(
            self.job.topic, settings.consumer, mode=settings.mode, window=settings.window, visibility=settings.visibility,
            auto_extend=True,
        )  # fmt: skip
        async with messages:
            logger.info("%s takes jobs of %s as %s", self.job.name, self.job.topic, settings.consumer)
            await self._dispatch(messages)

    async def _dispatch(self, messages: Subscription) -> None:
        """A task for each message, and none before a slot is free: what waits here another worker might have."""
        while True:
            await self._slots.acquire()
            try:
                message = await anext(messages)
            except StopAsyncIteration:
                return
            task = asyncio.get_running_loop().create_task(self._handle(message), name=f"{self.job.name} {message.id}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: the end of a job is not told to the broker, which delivers it again: %s", task.get_name(), error)

    async def stop(self) -> bool:
        """Cancel the jobs that still run: their messages go back at once. Returns: whether all ended, a thread goes on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            logger.warning("%s: %d jobs did not end in time and go to other workers", self.job.name, len(tasks))
            await asyncio.wait(tasks)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        counts = self.counts
        logger.info("%s: %d done, %d failed attempts, %d dead letters", self.job.name, counts.done, counts.failed, counts.dead)
        return self._threads is None or not tasks

    # -- one job

    async def _handle(self, message: Message) -> None:
        """Raises: ToymqError, where the broker cannot be told."""
        try:
            arguments = self._arguments(message)
        except BadArgument as error:
            await self._refuse(message, error)
        else:
            began = self._running[message] = self._clock.monotonic()
            self._count_wait(message)
            try:
                await self._run(message, arguments)
            finally:
                del self._running[message]
                self.counts.worked_s += self._clock.monotonic() - began

    def _count_wait(self, message: Message) -> None:
        """A later attempt waited for its turn again, which says nothing of the load."""
        if message.attempt == 1:
            counts = self.counts
            counts.begun += 1
            counts.waited_last_s = max((self._clock.wall_ns() - message.ts_ns) / 1e9, 0.0)
            counts.waited_s += counts.waited_last_s

    def figures(self) -> dict[str, float]:
        """Numbers for /metrics, by the names there."""
        counts = self.counts
        oldest = next(iter(self._running.values()), None)
        return {
            "worker_jobs_done_total": counts.done,
            "worker_jobs_failed_total": counts.failed,
            "worker_jobs_dead_total": counts.dead,
            "worker_jobs_running": len(self._running),
            "worker_concurrency": self.job.settings.concurrency,
            "worker_oldest_running_seconds": 0.0 if oldest is None else self._clock.monotonic() - oldest,
            "worker_job_seconds_total": counts.worked_s,
            "worker_wait_seconds_total": counts.waited_s,
            "worker_begun_total": counts.begun,
            "worker_last_wait_seconds": counts.waited_last_s,
        }

    def _arguments(self, message: Message) -> dict[str, Any]:
        """What the function is called with. Raises: BadArgument, where it is not to be called."""
        if self.job.settings.retries.is_used_up(message.attempt):
            raise BadArgument(
                f"all {message.attempt - 1} attempts are used up; the last one ended without an answer: its worker was killed,"
                " or it held Python's lock for longer than its lease"
            )
        return self.job.arguments_of(message)

    async def _refuse(self, message: Message, error: BadArgument) -> None:
        self.counts.dead += 1
        if message.topic.endswith(DEAD_LETTERS):
            await message.nack(error=error)  # a dead letter has none of its own
        else:
            await message.dead_letter(str(error))
            await self._reply(message, failure_of(error))
        logger.error("%s %d does not run: %s", message.topic, message.id, error, extra=self._facts(message))

    async def _run(self, message: Message, arguments: dict[str, Any]) -> None:
        retries, attempt = self.job.settings.retries, message.attempt
        is_last = retries.is_last(attempt)
        try:
            handling = message.process(
                retry_delay=retries.delay_s(attempt, self._random), dead_on=Exception if is_last else retries.dead_on
            )
            handling.dead_reason = OUT_OF_ATTEMPTS if is_last else None
            async with handling:
                result = await self._call(arguments)
                await self._reply(message, result_of(self.job.name, result))
        except Exception as error:
            is_dead = is_last or isinstance(error, retries.dead_on)
            self.counts.failed += 1
            self.counts.dead += is_dead
            if is_dead:
                await self._reply(message, failure_of(error))
            end = "is a dead letter" if is_dead else "is tried again"
            logger.warning(
                "%s %d failed at attempt %d and %s: %s: %s", message.topic, message.id, attempt, end, type(error).__name__,
                text_of(error), exc_info=error, extra=self._facts(message),
            )  # fmt: skip
        else:
            self.counts.done += 1
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s %d is done", message.topic, message.id, extra=self._facts(message))

    def _facts(self, message: Message) -> dict[str, object]:
        """Of a line in the log."""
        return {"job": self.job.name, "message_id": message.id, "attempt": message.attempt}

    async def _reply(self, message: Message, payload: bytes) -> None:
        """Tell the caller, if one waits."""
        if message._headers and is_wanted(headers := message.headers):
            await reply(self._client, headers, payload)

    async def _call(self, arguments: dict[str, Any]) -> object:
        function, timeout_s = self.job.function, self.job.settings.timeout_s
        if self._threads is not None:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, copy_context().run, _in_thread, function, arguments)
        if timeout_s is None:
            return await function(**arguments)
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await function(**arguments)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"{self.job.name} took longer than {timeout_s:g} s") from error
            raise


def _in_thread(function: Callable[..., object], arguments: dict[str, Any]) -> object:
    try:
        return function(**arguments)
    except StopIteration as error:  # a future cannot hold one
        raise RuntimeError("the function raised StopIteration") from error
