"""``App``: the workers of an application and its connection to a broker."""

import asyncio
import logging
import os
import ssl as ssl_module
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

from toymq import arguments, json_values
from toymq.arguments import Seconds
from toymq.client import Client
from toymq.connecting import connect
from toymq.errors import ClientClosed
from toymq.keyword_hints import hinted
from toymq.message import Receipt
from toymq.nack_reason import DeadOn
from toymq.options import Connected, Event, MessageTracing, OnEvent
from toymq.url import DEFAULT_URL
from toymq.workers.job import EXECUTORS, Executor, Job, PublishOptions, Settings
from toymq.workers.loop_watch import LoopWatch
from toymq.workers.replies import Replies
from toymq.workers.retries import Retries
from toymq.workers.runner import Runner
from toymq.workers.schedule import Schedule
from toymq_py.consumer_options import POLL_MODES
from toymq_py.errors import BadArgument, ConfigError

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger("toymq.workers")
CONCURRENCY_MAX = 10_000
WINDOW_PER_SLOT = 4
"""Messages that a process holds for each job that may run: enough to hide the network, few enough to leave work for others."""
CONNECT_S = 3600.0
"""How long a worker waits for its first connection: it may be started before the broker."""
PATIENCE_S = 1.0
"""The time after which a worker says that it waits for its broker."""
SHUTDOWN_S = 25.0
"""The time for a shutdown, below the 30 s that Kubernetes waits before it kills."""
CRON_FIELDS = 5
"""The number of words of a cron expression."""
PERIODIC = "every"
"""The first word of the topics of periodic jobs."""


def _executor(value: object) -> Executor:
    """Check the argument ``executor`` of ``App.worker``. Raises: TypeError, BadArgument."""
    if (found := arguments.text("executor", value)) not in EXECUTORS:
        raise BadArgument(f"invalid executor {found!r}: write {' or '.join(EXECUTORS)}")
    return found


def _check_called(name: str, example: str, argument: object) -> None:
    """Check that a decorator is used with its arguments: ``@app.worker("topic")``, not ``@app.worker``. Raises: TypeError."""
    if callable(argument):
        function = getattr(argument, "__name__", "the function")
        raise TypeError(f'`@app.{name}` needs an argument: write `@app.{name}("{example}")` above {function}')


def _period_ms(period: object) -> int:
    """Check the period of ``App.every``. Returns: milliseconds. Raises: TypeError, BadArgument."""
    if isinstance(period, str) and len(period.split()) >= CRON_FIELDS:
        raise BadArgument(
            f'period is a duration, "5m" say, not {period!r}: there are no cron expressions; look at the clock in the function'
        )
    return arguments.duration_ms("period", period, 1000)


class App:
    """The workers of an application and its connection to a broker. Make an ``App`` in a module, decorate functions, run
    ``toymq worker module:app``.

    ``async with app:`` connects, so that ``Job.send`` publishes, for example in a web application.
    """

    def __init__(
        self, urls: str | Sequence[str] | None = None, *, name: str | None = None, ssl: ssl_module.SSLContext | None = None,
        tracing: MessageTracing | None = None, describe_errors: bool = True,
    ) -> None:  # fmt: skip
        """
        Args:
            urls: as of ``connect``; None takes the environment's TOYMQ_URL, else a broker on this machine.
            name, ssl, tracing, describe_errors: as of ``connect``.
        """
        self._urls = urls if urls is not None else os.environ.get("TOYMQ_URL") or DEFAULT_URL
        self._name, self._ssl, self._tracing, self._describe_errors = name, ssl, tracing, describe_errors
        self._client: Client | None = None
        self._replies: Replies | None = None
        self._jobs: list[Job[..., Any]] = []
        self._schedules: list[Schedule] = []
        self.runners: list[Runner] = []
        """The runners of ``run``, while it lasts."""
        self.connected = False
        """Whether the broker is connected; health checks ask."""

    # -- workers

    @hinted
    def worker(
        self, topic: str, *, consumer: str = "workers", concurrency: int = 1, window: int | None = None,
        retries: int | None = None, backoff: Seconds | None = None, dead_on: DeadOn = (), timeout: Seconds | None = None,
        visibility: Seconds | None = None, mode: Literal["shared", "keyed"] = "shared",
        executor: Executor = "thread",
    ) -> Callable[[Callable[P, R]], Job[P, R]]:  # fmt: skip
        """Decorate a function that does the jobs of a topic: a coroutine function, or a plain one, which runs in threads or
        processes.

        The job is acked when the function returns. When it raises, the job is tried again; after the last retry, or an
        exception of ``dead_on``, it is a dead letter with the exception's type, text and traceback. A message whose payload
        does not fit the function's parameters is a dead letter at once. Each job runs at least once: make a second run
        harmless.

        Args:
            topic: a name, or a pattern.
            consumer: workers with the same topic and consumer share the jobs.
            concurrency: most jobs of this worker at once in one process.
            window: most unacked messages of one process; by default four times ``concurrency``.
            retries: how often a failed job is tried again; None: up to the topic's ``max_attempts``, which is a limit in any
                case.
            backoff: delay before a failed job is tried again: ``"10s"``, or ``"1s..1m"``, which doubles each time; None: the
                topic's.
            dead_on: exceptions after which a retry would fail, too.
            timeout: time limit of a job, after which a coroutine is cancelled, a process is killed, and the job has failed.
            visibility: visibility timeout of the leases, which are renewed while a job runs or waits in the window.
            executor: for a plain function: ``process`` calls it in child processes, which import its module; when one crashes
                or is killed, only its job fails. Arguments and results are the same as in a thread.
            mode: ``keyed`` does jobs with the same key one after the other, in the order of their publishing.

        Raises: TypeError, BadName, BadArgument, ConfigError (another function has this topic and consumer).
        """
        _check_called("worker", "jobs", topic)
        concurrency = arguments.whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        settings = Settings(
            arguments.consumer(consumer),
            concurrency,
            concurrency * WINDOW_PER_SLOT if window is None else arguments.count("window", window),
            visibility,
            None if timeout is None else arguments.duration_ms("timeout", timeout, 1) / 1000,
            Retries.checked(retries, backoff, dead_on),
            arguments.mode(mode, POLL_MODES) or "shared",
            _executor(executor),
        )
        arguments.visibility(visibility)
        topic = arguments.topic_or_pattern(topic)

        def decorate(function: Callable[P, R]) -> Job[P, R]:
            if not callable(function) or isinstance(function, Job | type):
                raise TypeError(f"worker decorates a function, not {arguments.shown(function)}")
            job = Job(self, function, topic, settings)
            for other in self._jobs:
                if (other.topic, other.settings.consumer) == (topic, settings.consumer):
                    raise ConfigError(
                        f"{other.name} takes the jobs of {topic} as {settings.consumer} already: give {job.name} a topic of its"
                        " own, or another consumer, which gets each message, too"
                    )
                if other.name == job.name and "<" not in job.name and other.function is not function:
                    raise ConfigError(
                        f"there are two functions {job.name}, for {other.topic} and {topic}: the second hides the first, whose"
                        " jobs cannot be sent by its name; rename one"
                    )
            self._jobs.append(job)
            return job

        return decorate

    @hinted
    def every(
        self, period: Seconds, *, topic: str | None = None, retries: int | None = 0, backoff: Seconds | None = None,
        dead_on: DeadOn = (), timeout: Seconds | None = None, executor: Executor = "thread",
    ) -> Callable[[Callable[[], R]], Job[[], R]]:  # fmt: skip
        """Decorate a function that runs once in each period, in only one of all workers, at whole multiples of the period since
        1970 (UTC).

        Args:
            period: ``"1h"``, or seconds; from a second to ten years.
            topic: the topic to which its jobs are published; default ``every.<name of the function>``.
            retries, backoff, dead_on, timeout, executor: as of ``worker``.

        Raises: as ``worker``; TypeError for a function that needs an argument: a periodic job has none.
        """
        _check_called("every", "1h", period)
        period_ms = _period_ms(period)

        def decorate(function: Callable[[], R]) -> Job[[], R]:
            name = arguments.topic(topic if topic is not None else f"{PERIODIC}.{getattr(function, '__name__', '')}")
            decorated = self.worker(
                name, retries=retries, backoff=backoff, dead_on=dead_on, timeout=timeout, executor=executor
            )
            job = decorated(function)
            if job.needed:
                self._jobs.remove(job)
                needed = ", ".join(job.needed)
                raise TypeError(
                    f"{job.name} needs {needed}, and a tick has no arguments: give {needed} a default, or look it up in the"
                    " function"
                )
            self._schedules.append(Schedule(job, period_ms))
            return job

        return decorate

    # -- the connection

    @property
    def client(self) -> Client:
        """The app's client, for publishing and all else. Raises: ClientClosed."""
        if self._client is None:
            raise ClientClosed("this app is not connected: publish within `async with` it, or in a worker")
        return self._client

    @property
    def replies(self) -> Replies:
        """The receiver of job results. It has a connection of its own, which still works while the workers are drained. Raises:
        ClientClosed."""
        self.client  # noqa: B018 (raises when there is none)
        if self._replies is None:
            self._replies = Replies(lambda: self._new_client(0.0))
        return self._replies

    async def call(self, topic: str, /, *args: Any, **kwargs: Any) -> Any:
        """Publish a job by the name of its topic, and wait for its result: ``await app.call("sums-wanted", 1, 2)``.

        If this app has the job, this is ``Job.call``. A job of another program gets its arguments by name, its result is a JSON
        value, and the time limit is 30 s.

        Raises: JobFailed, RequestTimeout, BadName; TypeError for positional arguments of a job that this app does not have.
        """
        for job in self._jobs:
            if job.topic == topic:
                return await job.call(*args, **kwargs)
        if args:
            raise TypeError(f"this app has no job of {arguments.shown(topic)}: give its arguments by name, first=1 say")
        name, payload = arguments.topic(topic), json_values.dump(f"the job of {topic}", kwargs)

        async def publish(headers: dict[str, str], left_s: float) -> Receipt:
            return await self.client.pub(name, payload, headers=headers, ttl=left_s)

        return await self.replies.call(name, publish, PublishOptions().timeout_s)

    async def _leave(self) -> Client:
        """Close everything but the client, and return the client."""
        client, self._client = self.client, None
        replies, self._replies = self._replies, None
        if replies is not None:
            await replies.close()
        return client

    async def __aenter__(self) -> "App":
        await self._connect(None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client = await self._leave()
        await client.__aexit__(kind, error, trace)

    async def _connect(self, wait_s: float | None) -> Client:
        if self._client is not None:
            raise ConfigError("this app is connected already")
        self._client = self._new_client(wait_s, self._notice)
        try:
            return await self._client
        except BaseException:
            self._client = None
            raise

    def _new_client(self, wait_s: float | None, on_event: OnEvent | None = None) -> Client:
        return connect(
            self._urls, name=self._name, ssl=self._ssl, tracing=self._tracing, describe_errors=self._describe_errors,
            wait_s=wait_s, on_event=on_event,
        )  # fmt: skip

    def _notice(self, event: Event) -> None:
        self.connected = isinstance(event, Connected)

    def figures(self) -> dict[str, dict[str, float]]:
        """Metrics of the running workers, by function name (with the topic, if a function has several); ``toymq worker
        --metrics`` serves them."""
        several = Counter(runner.job.name for runner in self.runners)
        found = {}
        for runner in self.runners:
            job = runner.job
            found[job.name if several[job.name] == 1 else f"{job.name} ({job.topic})"] = runner.figures()
        return found

    def problem(self) -> str | None:
        """Why no job can be taken now, or None when all is well; ``toymq worker --metrics`` serves it as health."""
        if not self.runners:
            return "no worker runs: it starts, or stops"
        return None if self.connected else "the broker is not connected"

    # -- working

    async def run(self, stop: asyncio.Event, *, concurrency: int | None = None, shutdown: Seconds = SHUTDOWN_S) -> bool:
        """Do jobs until ``stop`` is set. Then no job is begun, running jobs have ``shutdown`` to end, and the unfinished ones
        go to other workers.

        Args:
            concurrency: overrides the ``concurrency`` of every worker.

        Returns: False when a job goes on here although another worker has it now: in a thread, or in a coroutine that catches
        its cancellation.

        Raises: TypeError, BadArgument, ConfigError (there is no worker, or it is connected), ConnectFailed, RequestError,
            SubscriptionEnded.
        """
        if not isinstance(stop, asyncio.Event):  # that of threading would hold the loop
            raise TypeError(f"stop is an asyncio.Event, not {arguments.shown(stop)}")
        if concurrency is not None:
            arguments.whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
        if not self._jobs:
            raise ConfigError("this app has no worker: decorate a function with `@app.worker(\"topic\")`")
        shutdown_s = arguments.timeout("shutdown", shutdown)
        client = await self._connected_unless(stop)
        if client is None:
            return True
        try:
            return await self._work(client, stop, concurrency, shutdown_s)
        finally:
            self.runners = []
            self.connected = False
            await self._leave()
            await client.close()

    async def _connected_unless(self, stop: asyncio.Event) -> Client | None:
        """Wait until the broker is reachable, however long that takes; None when ``stop`` is set before."""
        loop = asyncio.get_running_loop()
        connecting, stopping = loop.create_task(self._connect(CONNECT_S)), loop.create_task(stop.wait())
        try:
            said: set[str] = set()
            while not (await asyncio.wait((connecting, stopping), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                trouble = self.client._trouble or ": no answer"
                if trouble not in said:
                    logger.warning("the broker is not there yet%s; the workers wait for it", trouble)
                    said.add(trouble)
            return await connecting if connecting.done() else None
        finally:
            for task in (connecting, stopping):
                task.cancel()
            await asyncio.gather(connecting, stopping, return_exceptions=True)

    async def _work(self, client: Client, stop: asyncio.Event, concurrency: int | None, shutdown_s: float) -> bool:
        random = Random()
        self.runners = [Runner(job.at_once(concurrency, WINDOW_PER_SLOT), client, random) for job in self._jobs]
        loop = asyncio.get_running_loop()
        stopping: asyncio.Task[Any] = loop.create_task(stop.wait())
        working = [loop.create_task(one.run(), name=one.job.name) for one in self.runners]
        watch = LoopWatch([one.job.name for one in self.runners if one.job.is_async])
        ticking = [loop.create_task(one.run(client), name=one.job.name) for one in self._schedules]
        try:
            watch.start()
            await asyncio.wait((stopping, *working, *ticking), return_when=asyncio.FIRST_COMPLETED)
            for task in ticking:
                task.cancel()
            logger.info("no more jobs are taken; those that run have %g s", shutdown_s)
            await client.drain(shutdown_s)
        finally:
            watch.stop()
            ended = [await one.stop() for one in self.runners]
            for task in (stopping, *working, *ticking):
                task.cancel()
            await asyncio.gather(stopping, *working, *ticking, return_exceptions=True)
        for task in (*working, *ticking):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return all(ended)
