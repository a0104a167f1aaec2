"""A broker on an event loop: its threads, clock and disk. What the daemon and the embedded form wire alike."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toymq_py import memory
from toymq_py.broker import Broker, Done
from toymq_py.clock import Clock
from toymq_py.config import BrokerOptions
from toymq_py.definitions import Change, ChangeSettings, CreateTopic, Definitions, MakeConsumer, described, plan
from toymq_py.errors import ConfigError, RequestError
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.scheduling import SyncThreads
from toymq_py.topic import Tracer

LAG_PERIOD_S = 0.25
LAG_PERIODS = 40
"""The lag of the loop is the worst of ten seconds: whoever looks once a second sees every one."""


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


@contextmanager
def opened_broker(
    options: BrokerOptions, clock: Clock, loop: asyncio.AbstractEventLoop, tracer: Tracer | None = None
) -> Iterator[Broker]:
    """A broker that has its directory and has recovered it; both are given back at the end. Blocks.

    ``tracer`` follows messages.

    Raises: DirectoryLocked, DataDirectoryError.
    """
    scheduler = LoopScheduler(loop)
    lag = LoopLag(loop, clock)
    broker = Broker(
        options, fs=RealFileSystem(), scheduler=scheduler, clock=clock,
        rss_bytes=memory.rss_bytes, tasks=lambda: len(asyncio.all_tasks(loop)), loop_lag_s=lag.worst_s,
        tracer=tracer,
    )  # fmt: skip
    try:
        broker.open(os.getpid())
        lag.start()
        yield broker
    finally:
        lag.stop()
        scheduler.close()
        broker.close()


async def apply_definitions(wanted: Definitions, broker: Broker) -> list[Change]:
    """Make an open broker have what is wanted; returns when it is on stable storage.

    Returns: what was changed.

    Raises: ConfigError, which names the topic; what was changed before stays.
    """
    changes = plan(wanted, described(broker.describe(None)))
    for change in changes:
        finished: asyncio.Future[OSError | RequestError | None] = asyncio.get_running_loop().create_future()
        try:
            _begin(change, broker, finished.set_result)
            error = await finished
        except (RequestError, OSError) as refusal:
            error = refusal
        if error is not None:
            raise ConfigError(f"topic {change.topic}: {error}") from error
    return changes


def _begin(change: Change, broker: Broker, done: Done) -> None:
    match change:
        case CreateTopic():
            broker.create(change.topic, change.settings, done)
        case ChangeSettings():
            broker.configure(change.topic, change.settings, done)
        case MakeConsumer():
            topic = broker.topic(change.topic)
            topic.seek(change.consumer, change.start)  # it is new, and nobody is moved
            topic.flush_offsets(done)
