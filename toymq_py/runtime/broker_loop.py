"""A broker on an event loop: its threads, clock and disk. What the daemon and the embedded form wire alike."""

import asyncio
import logging
import os
import resource
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial

from toymq_py.auth.quotas import Quotas
from toymq_py.broker import Broker, Done
from toymq_py.clock import Clock
from toymq_py.config.definitions import (
    Change,
    ChangeSettings,
    CreateTopic,
    Definitions,
    MakeConsumer,
    PutWebhook,
    described,
    plan,
)
from toymq_py.config.options import BrokerOptions
from toymq_py.config.webhooks import DOCUMENT, WEBHOOKS_MAX, Webhook, check_webhook_name
from toymq_py.errors import ConfigError, DamagedData, RequestError
from toymq_py.model import EARLIEST
from toymq_py.runtime import heap_trimming
from toymq_py.storage import checked_json
from toymq_py.storage.commit.sync_threads import SyncThreads
from toymq_py.storage.fs import RealFileSystem
from toymq_py.topic import Tracer

logger = logging.getLogger("toymq_py.broker")

DIRECTORY_LOOK_S = 2.0
"""How often the broker looks whether its directory is still its own: what was answered OK meanwhile is gone with it."""
DESCRIPTORS_RESERVED = 64
OPEN_FILES_MIN, OPEN_FILES_LIMIT = 16, 16_384
LAG_PERIOD_S = 0.25
LAG_PERIODS = 40
"""The lag of the loop is the worst of ten seconds: whoever looks once a second sees every one."""


MEMORY_PERIOD_S = 0.25
MEMORY_PERCENT = 80
"""Of the machine's or the cgroup's memory: beyond it the kernel would begin to look for whom to kill."""
MEMORY_LOW_PERCENT = 90
"""Of the limit: publishes are taken again below it."""


class LoopScheduler:
    """The event loop and the sync threads, as the layers below know them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = SyncThreads(loop.call_soon_threadsafe)

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._threads.offload(job, done)

    def close(self) -> None:
        self._threads.close()


class DirectoryWatch:
    """Has the broker look at its directory every few seconds, as PostgreSQL does with its lock file."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop = loop
        self._broker = broker
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look, until ``stop``."""
        self._timer = self._loop.call_later(DIRECTORY_LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._broker.look_at_directory(self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class LoopLag:
    """How late the event loop gets to a timer: what whoever has something for the broker waits, beside the disk."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._late_s: deque[float] = deque(maxlen=LAG_PERIODS)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure, until ``stop``."""
        self._due = self._clock.monotonic() + LAG_PERIOD_S
        self._timer = self._loop.call_later(LAG_PERIOD_S, self._look)

    def _look(self) -> None:
        self._late_s.append(max(self._clock.monotonic() - self._due, 0.0))
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def worst_s(self) -> float:
        """Of the last ten seconds, the present delay included, in seconds."""
        overdue_s = self._clock.monotonic() - self._due if self._timer is not None else 0.0
        return max([*self._late_s, overdue_s, 0.0])


def open_files_max(max_connections: int) -> int:
    """How many segment files may be open: what the connections leave of the descriptors, but for a reserve to accept by, to
    write offsets and to read directories; and a quarter at most, as the process may be another program's."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return OPEN_FILES_LIMIT
    reserve = max(DESCRIPTORS_RESERVED, allowed // 8)
    return max(min(allowed - max_connections - reserve, allowed // 4, OPEN_FILES_LIMIT), OPEN_FILES_MIN)


class MemoryWatch:
    """Tells the quotas when the process has too much memory, and when that is over."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        quotas: Quotas,
        max_bytes: int,
        rss_bytes: Callable[[], int] = heap_trimming.rss_bytes,
    ) -> None:
        """``max_bytes`` 0 is ``MEMORY_PERCENT`` of what there is."""
        self._loop = loop
        self._quotas = quotas
        self.max_bytes = max_bytes or heap_trimming.available_bytes() * MEMORY_PERCENT // 100
        self._rss_bytes = rss_bytes
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Now, and from now on, until ``stop``."""
        rss_bytes, high = self._rss_bytes(), self._quotas.memory_high
        if high:
            heap_trimming.trim()
        if not high and rss_bytes > self.max_bytes:
            self._quotas.memory_high = True
            logger.error("%d bytes of memory, above --memory-max %d: publishes are refused", rss_bytes, self.max_bytes)
        elif high and rss_bytes < self.max_bytes * MEMORY_LOW_PERCENT // 100:
            self._quotas.memory_high = False
            logger.warning("%d bytes of memory: publishes are taken again", rss_bytes)
        self._timer = self._loop.call_later(MEMORY_PERIOD_S, self.look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def opened_broker(
    options: BrokerOptions, clock: Clock, loop: asyncio.AbstractEventLoop, tracer: Tracer | None = None,
    address: str | None = None,
) -> Iterator[Broker]:  # fmt: skip
    """A broker that has its directory and has recovered it; both are given back at the end. Blocks.

    ``tracer`` follows messages; ``address`` as of ``Broker.open``.

    Raises: DirectoryLocked, DataDirectoryError.
    """
    scheduler = LoopScheduler(loop)
    lag = LoopLag(loop, clock)
    broker = Broker(
        options, fs=RealFileSystem(), scheduler=scheduler, clock=clock,
        rss_bytes=heap_trimming.rss_bytes, tasks=lambda: len(asyncio.all_tasks(loop)), loop_lag_s=lag.worst_s,
        tracer=tracer, open_files_max=open_files_max(options.max_connections),
    )  # fmt: skip
    watch = DirectoryWatch(loop, broker)
    try:
        broker.open(os.getpid(), address)
        lag.start()
        watch.start()
        yield broker
    finally:
        watch.stop()
        lag.stop()
        scheduler.close()
        broker.close()


async def apply_definitions(wanted: Definitions, broker: Broker) -> list[Change]:
    """Make an open broker have what is wanted; returns when it is on stable storage.

    Returns: what was changed.

    Raises: ConfigError, which names the topic; what was changed before stays.
    """
    webhooks = read_webhooks(broker) if wanted.webhooks else {}
    # A topic that could not be opened is no obstacle for others (reliability.md, promise 4).
    rows = [row for row in broker.describe(None) if row["topic"] in wanted.topics] if wanted.topics else []
    changes = plan(wanted, described(rows, webhooks))
    puts = [change for change in changes if isinstance(change, PutWebhook)]
    for change in changes:
        if not isinstance(change, PutWebhook) and (error := await _made(partial(_begin, change, broker))) is not None:
            raise ConfigError(f"topic {change.topic}: {error}") from error
    if puts:
        webhooks |= {put.name: put.webhook for put in puts}
        if len(webhooks) > WEBHOOKS_MAX:
            raise ConfigError(f"{WEBHOOKS_MAX} webhooks are the limit")
        data = checked_json.encode("webhooks", {name: asdict(webhook) for name, webhook in webhooks.items()})
        if (error := await _made(partial(broker.directory.store_document, DOCUMENT, data))) is not None:
            raise ConfigError(f"{DOCUMENT}: {error}") from error
    return changes


def read_webhooks(broker: Broker) -> dict[str, Webhook]:
    """Those that are defined. Blocks. Raises: ConfigError, when that cannot be read."""
    try:
        data = broker.directory.read_document(DOCUMENT)
        found = {} if data is None else checked_json.decode("webhooks", data)
        return {check_webhook_name(name): Webhook.from_json(raw) for name, raw in found.items()}
    except (OSError, DamagedData, RequestError, AttributeError) as error:
        raise ConfigError(f"{DOCUMENT} cannot be read: {error}") from error


def openable(wanted: Definitions, broker: Broker) -> Definitions:
    """What is wanted, without the topics that could not be opened: the broker starts, and serves the others."""
    problems = {row["topic"]: row["problem"] for row in broker.describe(None) if "problem" in row} if wanted.topics else {}
    for name in sorted(problems.keys() & wanted.topics.keys()):
        logger.error("topic %s: its definition is left out: %s", name, problems[name])
    return replace(wanted, topics={name: topic for name, topic in wanted.topics.items() if name not in problems})


async def _made(begin: Callable[[Done], None]) -> OSError | RequestError | None:
    """Begin something and wait until it is on stable storage. Returns: why it is not, if so."""
    finished: asyncio.Future[OSError | RequestError | None] = asyncio.get_running_loop().create_future()
    try:
        begin(finished.set_result)
        return await finished
    except (RequestError, OSError) as refusal:
        return refusal


def _begin(change: CreateTopic | ChangeSettings | MakeConsumer, broker: Broker, done: Done) -> None:
    match change:
        case CreateTopic():
            broker.create(change.topic, change.settings, done)
        case ChangeSettings():
            broker.configure(change.topic, change.settings, done)
        case MakeConsumer():
            topic = broker.topic(change.topic)
            # It is new, and nobody is moved; or it is not, and its state is lost.
            topic.seek(change.consumer, EARLIEST if topic.offsets.lacks_consumers else change.start)
            topic.flush_offsets(done)
