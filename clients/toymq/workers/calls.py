"""Callers of job functions: a coroutine runs in the event loop, a plain function in a thread or a process."""

import asyncio
import logging
import sys
from collections.abc import Awaitable
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from toymq.errors import JobProcessEnded
from toymq.nack_reason import FromProcess, text_of
from toymq.subscription import Message
from toymq.workers.job import Job, Unfit
from toymq.workers.job_messages import Answer, Done, Place, Raised, Refused, Request
from toymq.workers.job_process import JobProcess, Lifeline
from toymq.workers.replies import Reply, is_wanted
from toymq.workers.threads import Threads

logger = logging.getLogger("toymq.workers")


def caller_of(job: Job[..., Any]) -> "Caller":
    """Make the caller that fits a job's function and executor."""
    if job.is_async:
        return InLoop(job)
    return InProcesses(job) if job.settings.executor == "process" else InThreads(job)


class Caller(Protocol):
    """Calls one job function. Owned by the worker's ``Runner``."""

    async def get_ready(self) -> None:
        """Prepare for the next call, before its message is taken. Raises: ConfigError when the function cannot be called in
        this way."""

    def call(self, message: Message) -> Awaitable[object]:
        """Call the function for a message. Raises: Unfit, and what the function raises."""

    def stop(self) -> None:
        """Release threads and processes. No job runs any more, except in a thread, which cannot be stopped."""

    @property
    def gets_ready(self) -> bool:
        """Whether ``get_ready`` has something to do."""

    @property
    def can_stop(self) -> bool:
        """Whether cancelling a call ends it: a thread cannot be stopped."""


class InLoop:
    """Awaits a coroutine function in the event loop, at most for its timeout."""

    can_stop = True
    gets_ready = False

    def __init__(self, job: Job[..., Any]) -> None:
        self._arguments_of = job.arguments_of
        self._function = job.function
        self._name, self._timeout_s = job.name, job.settings.timeout_s

    async def get_ready(self) -> None:
        """Do nothing."""

    def call(self, message: Message) -> Awaitable[object]:
        found: Awaitable[object] = self._function(**self._arguments_of(message))
        return found if self._timeout_s is None else self._limited(found, self._timeout_s)

    async def _limited(self, running: Awaitable[object], timeout_s: float) -> object:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await running
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"{self._name} took longer than {timeout_s:g} s") from error
            raise

    def stop(self) -> None:
        """Do nothing."""


class InThreads:
    """Calls a plain function in one of as many threads as jobs may run at once. A thread cannot be stopped."""

    can_stop = False
    gets_ready = False

    def __init__(self, job: Job[..., Any]) -> None:
        self._arguments_of = job.arguments_of
        self._call_plain = job.call_plain
        self._threads = Threads(job.settings.concurrency, f"toymq {job.name}", asyncio.get_running_loop())

    async def get_ready(self) -> None:
        """Do nothing: threads start with the first jobs."""

    def call(self, message: Message) -> Awaitable[object]:
        found = self._arguments_of(message)
        return self._threads.submit(copy_context(), self._call_plain, found)

    def stop(self) -> None:
        self._threads.stop()


class InProcesses:
    """Calls a plain function in child processes, as many as jobs may run at once. A process whose job exceeds its timeout is
    killed. A process is started before the message for it is taken: a start takes so long that the message's lease could end.

    Owns the threads that wait for the processes, so that the event loop goes on, and with it the renewal of leases.
    """

    can_stop = True
    gets_ready = True

    def __init__(self, job: Job[..., Any]) -> None:
        function = job.function
        self._place = Place(function.__module__, function.__qualname__, job.topic)
        self._name, self._timeout_s = job.name, job.settings.timeout_s
        self._threads = Threads(job.settings.concurrency, f"toymq {job.name}", asyncio.get_running_loop())
        self._lifeline = Lifeline()
        self._idle: list[JobProcess] = []
        self._all: set[JobProcess] = set()

    def _has_idle(self) -> bool:
        while self._idle and not self._idle[-1].is_alive:  # killed without a job
            self._drop(self._idle.pop())
        return bool(self._idle)

    async def get_ready(self) -> None:
        """Make sure that there is an idle process. Raises: ConfigError when the function cannot be imported."""
        await asyncio.sleep(0)  # the task of the message before takes its process first
        if not self._has_idle():
            try:
                self._idle.append(await self._started())
            except JobProcessEnded as error:
                logger.warning("%s; the next job starts another one", error)

    async def _started(self) -> JobProcess:
        process = JobProcess(self._place, self._lifeline)
        self._all.add(process)
        try:
            await self._threads.submit(copy_context(), process.start)
        except BaseException:
            self._drop(process)
            raise
        return process

    def _drop(self, process: JobProcess) -> None:
        self._all.discard(process)
        process.kill()

    async def call(self, message: Message) -> object:
        process = self._idle.pop() if self._has_idle() else await self._started()
        request = Request(
            message.topic, message.id, message.attempt, message.ts_ns, message.key, message._headers, message.payload,
            is_wanted(message.headers),
        )  # fmt: skip
        facts = {"job": self._name, "message_id": message.id, "attempt": message.attempt}
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                answer = await self._threads.submit(copy_context(), process.call, request, partial(_log, facts))
        except BaseException as error:
            self._drop(process)
            if isinstance(error, TimeoutError) and limit.expired():
                raise TimeoutError(f"{self._name} took longer than {self._timeout_s:g} s: its process was killed") from None
            raise
        self._idle.append(process)
        return _outcome(answer)

    def stop(self) -> None:
        for process in self._all:
            process.kill()
        self._threads.stop()
        self._lifeline.close()


def _log(facts: dict[str, Any], fields: dict[str, Any]) -> None:
    """Log a record that a job's process has sent, as if it were logged here; ``facts`` are fields to add."""
    record = logging.makeLogRecord({**fields, **facts})
    logging.getLogger(record.name).handle(record)


def _outcome(answer: Answer) -> object:
    """Return the function's result from the process's answer. Raises: Unfit, and what the function raised."""
    if isinstance(answer, Done):
        return None if answer.reply is None else Reply(answer.reply)
    if isinstance(answer, Refused):
        raise Unfit(answer.text)
    error = exception_of(answer)
    raise error from FromProcess(answer.text, answer.traceback)


def exception_of(raised: Raised) -> Exception:
    """Make the exception that a job raised in another process. If its class is not imported here, it gets a class of the same
    name, derived from its first base class that is imported. ``dead_on`` works with either."""
    for module, qualname in raised.kinds:
        kind: Any = sys.modules.get(module)
        for name in qualname.split("."):
            kind = getattr(kind, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            break
    else:
        kind = RuntimeError  # it was none that a job can be expected to raise
    if (kind.__module__, kind.__qualname__) != raised.kinds[0]:
        kind = _named(kind, *raised.kinds[0])
    try:
        error: Exception = kind.__new__(kind, raised.text)  # without ``__init__``, which may want other arguments
    except Exception:  # noqa: BLE001 (of the user's class)
        error = RuntimeError(raised.text)
    error.args = (raised.text,)
    return error


def failure_for(error: BaseException) -> Exception:
    """Make the exception that fails a job whose function raised no ``Exception`` (KeyboardInterrupt, say), which would end more
    than the job. It has the same class name and text."""
    return _named(RuntimeError, type(error).__module__, type(error).__qualname__)(text_of(error))


def _named(base: type[Exception], module: str, qualname: str) -> type[Exception]:
    return type(qualname.rpartition(".")[2], (base,), {"__module__": module, "__qualname__": qualname})
