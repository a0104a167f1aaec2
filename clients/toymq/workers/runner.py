"""Runs one worker in this process: takes messages of its consumer, calls the function for each, and acks or nacks it."""

import asyncio
import logging
from random import Random
from typing import Any

from toymq.client import Client
from toymq.leased_message import Processing
from toymq.nack_reason import text_of, traceback_of
from toymq.subscription import Message, Subscription
from toymq.workers.calls import caller_of, failure_for
from toymq.workers.job import Job, Unfit
from toymq.workers.replies import failure_of, is_wanted, reply, result_of
from toymq.workers.retries import OUT_OF_ATTEMPTS
from toymq_py.clock import Clock, SystemClock
from toymq_py.failure import ERROR_BYTES_MAX, cut
from toymq_py.names import is_dead_letters

logger = logging.getLogger("toymq.workers")
STUBBORN_S = 1.0
"""How long a job that is cancelled may take to end; one that goes on is left behind."""


def _write_traceback(record: logging.LogRecord) -> bool:
    """A log filter that fills in the text of a record's traceback, which any handler's formatter then uses for the
    exception."""
    if record.exc_info is not None and record.exc_info[1] is not None:
        record.exc_text = traceback_of(record.exc_info[1])
    return True


logger.addFilter(_write_traceback)


class Counts:
    """Counts of jobs by outcome since the process began. ``begun`` counts first attempts; ``waited_s`` is the sum of their
    times from publish to begin."""

    def __init__(self) -> None:
        self.done = self.failed = self.dead = self.begun = 0
        self.waited_s = self.waited_last_s = self.worked_s = 0.0


class Runner:
    """Runs up to ``concurrency`` jobs of one worker at once, each in a task of its own: it may have a time limit, be cancelled,
    and set context variables."""

    def __init__(self, job: Job[..., Any], client: Client, random: Random, clock: Clock | None = None) -> None:
        self.job = job
        self.counts = Counts()
        clock = clock or SystemClock()
        self._monotonic, self._wall_ns = clock.monotonic, clock.wall_ns
        self._running: dict[Message, tuple[asyncio.Task[None], float]] = {}
        """The task of each job, and since when, on the monotonic clock; the oldest first."""
        self._client = client
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._free = job.settings.concurrency
        self._freed: asyncio.Future[None] | None = None
        """Done when a slot is free, for the task that waits for one."""
        self._caller = caller_of(job)
        self._stopping = False

    async def run(self) -> None:
        """Work until the subscription is closed or drained.

        Raises: RequestError (the consumer is exclusive, say), ConsumerDeleted, ClientClosed, ConfigError (the function cannot
        be called).
        """
        settings = self.job.settings
        await self._caller.get_ready()
        messages = self._client.sub(
            self.job.topic, settings.consumer, mode=settings.mode, window=settings.window, visibility=settings.visibility,
            auto_extend=True,
        )  # fmt: skip
        async with messages:
            logger.info("%s takes jobs of %s as %s", self.job.name, self.job.topic, settings.consumer)
            await self._dispatch(messages)
            while self._running:  # to leave gives back what still runs, and another worker would begin it
                await asyncio.wait([task for task, _ in self._running.values()])

    async def _dispatch(self, messages: Subscription) -> None:
        """Start a task for each message. A message is not taken before a slot is free: until then another worker might take
        it."""
        create_task, running, name = self._loop.create_task, self._running, self.job.name
        async for message in messages:
            running[message] = create_task(self._handle(message), name=name), self._monotonic()
            self._free -= 1
            if self._free == 0:
                self._freed = self._loop.create_future()
                await self._freed
            if self._caller.gets_ready:
                await self._caller.get_ready()

    def _free_slot(self) -> None:
        self._free += 1
        if self._freed is not None:
            if not self._freed.done():
                self._freed.set_result(None)
            self._freed = None

    async def stop(self) -> bool:
        """Cancel the running jobs, whose messages are given back at once. Returns: whether all ended: a thread goes on, and so
        does a coroutine that catches its cancellation."""
        self._stopping = True
        tasks = [task for task, _ in self._running.values()]
        left: set[asyncio.Task[None]] = set()
        for task in tasks:
            task.cancel()
        if tasks:
            logger.warning("%s: %d jobs did not end in time and go to other workers", self.job.name, len(tasks))
            _, left = await asyncio.wait(tasks, timeout=STUBBORN_S)
        if left:
            logger.error(
                "%s: %d jobs go on although they were cancelled: the function catches asyncio.CancelledError and does not raise"
                " it again", self.job.name, len(left),
            )  # fmt: skip
        self._caller.stop()
        counts = self.counts
        logger.info("%s: %d done, %d failed attempts, %d dead letters", self.job.name, counts.done, counts.failed, counts.dead)
        return not left and (self._caller.can_stop or not tasks)

    # -- one job

    async def _handle(self, message: Message) -> None:
        """Handle a message in a task of its own, from which no error propagates."""
        try:
            if message.attempt == 1:
                self._count_wait(message)
            await self._run(message)
        except Exception as error:  # noqa: BLE001 (the connection is gone, or a bug)
            logger.error(  # noqa: TRY400 (its text says it)
                "%s %s %d: the end of a job is not told to the broker, which delivers it again: %s", self.job.name,
                message.topic, message.id, error,
            )  # fmt: skip
        finally:
            _, began = self._running.pop(message)
            self.counts.worked_s += self._monotonic() - began
            self._free_slot()

    def _count_wait(self, message: Message) -> None:
        """Count how long a message waited for its first attempt. The waits of later attempts include delays, and say nothing
        about the load."""
        counts = self.counts
        counts.begun += 1
        counts.waited_last_s = max((self._wall_ns() - message.ts_ns) / 1e9, 0.0)
        counts.waited_s += counts.waited_last_s

    def figures(self) -> dict[str, float]:
        """The worker's metrics, by their names in /metrics."""
        counts = self.counts
        _, oldest = next(iter(self._running.values()), (None, None))
        return {
            "worker_jobs_done_total": counts.done,
            "worker_jobs_failed_total": counts.failed,
            "worker_jobs_dead_total": counts.dead,
            "worker_jobs_running": len(self._running),
            "worker_concurrency": self.job.settings.concurrency,
            "worker_oldest_running_seconds": 0.0 if oldest is None else self._monotonic() - oldest,
            "worker_job_seconds_total": counts.worked_s,
            "worker_wait_seconds_total": counts.waited_s,
            "worker_begun_total": counts.begun,
            "worker_last_wait_seconds": counts.waited_last_s,
        }

    async def _refuse(self, message: Message, error: Unfit) -> None:
        self.counts.dead += 1
        if is_dead_letters(message.topic):
            await message.nack(error=error)  # a dead letter has none of its own
        else:
            await message.dead_letter(str(error))
            await self._reply(message, failure_of(error))
        logger.error("%s %d does not run: %s", message.topic, message.id, error, extra=self._facts(message))

    async def _run(self, message: Message) -> None:
        """Run a job and ack or nack its message. Raises: ToymqError when the broker cannot be told."""
        handling = message.process()
        try:
            async with handling:
                try:
                    result = await self._call(message)
                except Unfit as error:
                    return await self._refuse(message, error)
                except Exception as error:
                    self._plan(handling, message.attempt, error)
                    raise
                if message._headers and is_wanted(headers := message.headers):
                    await reply(self._client, headers, result_of(self.job.name, result))
        except Exception as error:  # noqa: BLE001 (of the function)
            await self._failed(message, error, is_dead=isinstance(error, handling.dead_on))
        else:
            self.counts.done += 1
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s %d is done", message.topic, message.id, extra=self._facts(message))

    async def _call(self, message: Message) -> object:
        """Call the job's function for a message.

        Raises: Unfit, and what the function raises; an ``Exception`` in place of one, such as SystemExit, that would end more
            than the job.
        """
        if message.attempt > 1 and self.job.settings.retries.is_used_up(message.attempt):
            raise Unfit(
                f"all {message.attempt - 1} attempts are used up; the last one ended without an answer: its worker was killed,"
                " or it held Python's lock for longer than its lease"
            )
        try:
            return await self._caller.call(message)
        except Exception:
            raise
        except BaseException as error:
            name = self.job.name
            if isinstance(error, asyncio.CancelledError):
                if self._stopping:
                    raise
                failure: Exception = RuntimeError(f"{name} raised CancelledError: something that it awaits was cancelled")
            elif isinstance(error, SystemExit):
                failure = RuntimeError(f"{name} called sys.exit({error.code!r}), which would end the worker")
            elif asyncio.current_task(self._loop) is not self._running[message][0]:
                raise  # GeneratorExit: the loop is gone, and Python closes this coroutine
            else:  # KeyboardInterrupt, too: Ctrl-C does not raise it here, but cancels
                failure = failure_for(error)
            raise failure.with_traceback(error.__traceback__) from error

    def _plan(self, handling: Processing[Message], attempt: int, error: Exception) -> None:
        """Decide whether a failed job's message is retried, after what delay, or becomes a dead letter."""
        retries = self.job.settings.retries
        if retries.is_last(attempt):
            handling.dead_on, handling.dead_reason = Exception, OUT_OF_ATTEMPTS
        else:
            handling.dead_on, handling.retry_delay = retries.dead_on, retries.delay_s(attempt, self._random)

    async def _failed(self, message: Message, error: Exception, *, is_dead: bool) -> None:
        self.counts.failed += 1
        self.counts.dead += is_dead
        if is_dead:
            await self._reply(message, failure_of(error))
        end = "is a dead letter" if is_dead else "is tried again"
        logger.warning(
            "%s %d failed at attempt %d and %s: %s: %s", message.topic, message.id, message.attempt, end, type(error).__name__,
            cut(text_of(error)[: ERROR_BYTES_MAX + 1], ERROR_BYTES_MAX), exc_info=error, extra=self._facts(message),
        )  # fmt: skip

    def _facts(self, message: Message) -> dict[str, object]:
        """The extra fields of a log record about a job."""
        return {"job": self.job.name, "message_id": message.id, "attempt": message.attempt}

    async def _reply(self, message: Message, payload: bytes) -> None:
        """Send an encoded result or failure to the caller, if one waits."""
        if message._headers and is_wanted(headers := message.headers):
            await reply(self._client, headers, payload)
