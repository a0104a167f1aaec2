"""Runs a simulated world from a seed: the real broker and server, clients, kills and power cuts, all in virtual time.

    history, verdict = run(seed)

What is real: everything of ``toymq_py`` but ``daemon`` and ``storage.fs``. What is simulated: time, network, disk, sync
threads. The clients are those of the chaos harness.
"""

import asyncio
import logging
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tests.support.sim_disk import SimDisk
from tests.support.sim_event_loop import SimEventLoop, SimListener, SimTransport
from toymq_chaos import queueing
from toymq_chaos.checker import POWER, check
from toymq_chaos.history import Event, Recorder
from toymq_chaos.verdict import Verdict
from toymq_chaos.workload import Client, Habits, Message, Publisher, Subscriber
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.server import Server

EPOCH_NS = 1_781_767_800_000_000_000
VISIBILITY_MS = 400
TOPICS = ("alpha", "beta")
ENDS = ("kill", "power", "stop", "cut", "job", "job", "job", "job")
"""How a life ends: SIGKILL, power cut, SIGTERM, SIGKILL after lost connections, death inside what a sync thread does."""
DEADLY = (
    (12, "", ""), (6, "sync", ".log"), (6, "sync", ".log"), (6, "pwrite", ".log"), (4, "sync", ".tmp"), (4, "rename", ""),
    (4, "sync_dir", ""),
)  # fmt: skip
"""Where one dies there: at one of the next so many calls of a kind, on a path that ends so."""
HABITS = Habits(cut_frame=0.03)
QUIET_S = 3.0
"""When nothing came for so long, everything has come: well above the visibility timeout and every back-off."""


class Killed(BaseException):
    """Raised where the process dies, in the middle of its work on the disk."""


class MortalDisk(SimDisk):
    """A disk that raises ``Killed`` at the n-th call from now on by a sync thread, or by recovery. ``dies_on``: count only
    calls of one kind on a path with this ending."""

    dies_after: int | None = None
    dies_on = ("", "")
    mortal = False

    def _record(self, op: str, path: str, args: tuple[object, ...]) -> int | None:
        if self.mortal and self.dies_after is not None and self.dies_on[0] in ("", op) and path.endswith(self.dies_on[1]):
            self.dies_after -= 1
            if self.dies_after < 0:
                self.dies_after = None
                raise Killed
        return super()._record(op, path, args)

    def _successor(self, rng: random.Random) -> "MortalDisk":
        return MortalDisk(
            rng, capacity_bytes=self.capacity_bytes, ordered_metadata=self.ordered_metadata,
            torn_sectors=self.torn_sectors, root="", tracing=False,
        )  # fmt: skip


class VirtualClock:
    """A clock in virtual time; implements ``toymq_py.clock.Clock``. The wall clock may be set, also backwards."""

    def __init__(self, loop: SimEventLoop) -> None:
        self._loop = loop
        self.jumped_ns = 0

    def wall_ns(self) -> int:
        return EPOCH_NS + self.jumped_ns + round(self._loop.now * 1e9)

    def monotonic(self) -> float:
        return self._loop.now


class VirtualThreads:
    """The sync threads of one process; implements ``toymq_py.storage.commit.sync_threads.Scheduler``. Those of a dead process
    do nothing more."""

    def __init__(self, loop: SimEventLoop, disk: MortalDisk, killed: Callable[[], None]) -> None:
        self._loop = loop
        self._disk = disk
        self._killed = killed
        self.alive = True

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(self._if_alive, call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, self._if_alive, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run a whole job at some later moment, and report it done at a still later one."""

        def run() -> None:
            self._disk.mortal = True
            try:
                job()
            except Killed:
                self._killed()
                return
            finally:
                self._disk.mortal = False
            self._loop.call_later(self._loop.rng.choice((0.0, 0.0002)), self._if_alive, done)

        self._loop.call_later(self._loop.rng.choice((0.0001, 0.0005, 0.002, 0.01)), self._if_alive, run)

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run a job on the loop's own thread: time passes, in which nothing else on the loop runs; the process may die in it,
        too."""
        self._disk.mortal = True
        try:
            job()
        finally:
            self._disk.mortal = False
        self._loop.now += self._loop.rng.choice((0.0001, 0.0005, 0.002, 0.01))
        done()

    def _if_alive(self, call: Callable[[], None]) -> None:
        if not self.alive:
            return
        try:
            call()
        except Killed:  # in what ``run_here`` ran
            self.alive = False
            self._killed()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens in one world, as counts."""

    messages: int = 24
    """Per publisher."""
    publishers: int = 2
    consumers: int = 2
    """Per topic."""
    lives: int = 3
    queues: bool = False
    """The clients of a work queue and their topics (``toymq_chaos.queueing``), instead of those that publish and subscribe."""
    max_unacked: int = 100_000


QUEUES = Plan(messages=40, lives=4, queues=True)


class World:
    """The world: a supervisor whose broker processes come and go, and clients, which stay."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = random.Random(seed)
        self.loop = SimEventLoop(random.Random(self.rng.random()))
        self.clock = VirtualClock(self.loop)
        self.disk = MortalDisk(random.Random(self.rng.random()), tracing=False, torn_sectors=self.rng.random() < 0.5)
        self.events: list[Event] = []
        self.recorder = Recorder(self.now_ns, self._take)
        self.listener: SimListener | None = None
        self._all_subscribed = asyncio.Event()
        self._subscribed: set[tuple[str, str]] = set()
        self._needed = {(topic, f"c{n}") for topic in TOPICS for n in range(plan.consumers)}
        if plan.queues:
            self._needed = set(queueing.NEEDED)
        self.calm = False
        """The faults are over: clients behave from here on."""
        self.last_activity = 0.0
        self._farthest_ns = 0
        self._happened = asyncio.Event()
        self._happens_at = 0
        self._died: asyncio.Event | None = None
        self._transports: list[SimTransport] = []
        self.options = BrokerOptions(
            data_dir="/data/d",
            segment_bytes=self.rng.choice((4096, 16_384, 65_536)),
            min_free_bytes=0,
            visibility_ms=VISIBILITY_MS,
            retain_acked_for_ms=self.rng.choice((0, 10_000_000 if plan.queues else 100_000)),  # or longer than a jump
            shutdown_timeout_ms=500,
            max_unacked=plan.max_unacked,
        )

    def _take(self, event: Event) -> None:
        if event.op in ("pub", "deliver", "ack", "nack"):
            self.last_activity = self.loop.now
        self.events.append(event)
        if len(self.events) == self._happens_at:
            self._happened.set()

    def now_ns(self) -> int:
        return EPOCH_NS + round(self.loop.now * 1e9)

    def subscribed(self, topic: str, consumer: str) -> None:
        self._subscribed.add((topic, consumer))
        if self._subscribed == self._needed:
            self._all_subscribed.set()

    async def ready(self) -> None:
        await self._all_subscribed.wait()

    async def connect(self, client: Client) -> None:
        while True:
            if self.listener is not None:
                with suppress(ConnectionRefusedError):
                    self._transports.append(self.listener.connect(client))
                    self.recorder(client.name, "connect")
                    return
            await asyncio.sleep(0.01 + 0.02 * self.loop.rng.random())

    def _messages(self, name: str, rng: random.Random) -> Iterator[Message]:
        for n in range(self.plan.messages):
            yield Message(rng.choice(TOPICS), f"{name}-{n}", rng.randbytes(rng.choice((0, 3, 40, 900, 6000))))

    # -- processes

    async def run(self) -> None:
        """Run all lives of the broker, then let the clients finish."""
        if self.plan.queues:
            await self._run_queues()
            return
        async with asyncio.TaskGroup() as tasks:
            workers = []
            for name in (f"p{n}" for n in range(self.plan.publishers)):
                rng = random.Random(self.rng.random())
                publisher = Publisher(self, name, rng, self._messages(name, random.Random(self.rng.random())), HABITS)
                workers.append(tasks.create_task(publisher.run()))
            readers = [
                tasks.create_task(
                    Subscriber(self, f"c{n}-{topic}", random.Random(self.rng.random()), topic, f"c{n}", HABITS).run()
                )
                for topic in TOPICS
                for n in range(self.plan.consumers)
            ]
            await self._live_through(tasks, workers, readers)

    async def _run_queues(self) -> None:
        queueing.declare(self.recorder)
        plan = self.plan
        senders, others = queueing.clients(self, self.rng, HABITS, plan.publishers, plan.messages)
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(sender.run()) for sender in senders]
            await self._live_through(tasks, workers, [tasks.create_task(other.run()) for other in others])

    async def _live_through(
        self, tasks: asyncio.TaskGroup, workers: "list[asyncio.Task[None]]", readers: "list[asyncio.Task[None]]"
    ) -> None:
        for _ in range(self.plan.lives - 1):
            await self._live(self.rng.choice(ENDS))
        self.calm = True
        if self.plan.queues:  # set back, the clock would let what is delayed wait for longer than the drain does
            self._set_clock(self._farthest_ns)
        stop = asyncio.Event()
        last = tasks.create_task(self._live("stop", stop))
        for worker in workers:
            await worker
        self.last_activity = max(self.last_activity, self.loop.now)  # nothing was there to do anything for a while
        while self.loop.now < self.last_activity + QUIET_S:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(self.last_activity + QUIET_S - self.loop.now)
        self.recorder("supervisor", "drained")
        for reader in readers:
            reader.cancel()
        stop.set()
        await last

    def _set_clock(self, ahead_ns: int) -> None:
        self.clock.jumped_ns = ahead_ns
        self._farthest_ns = max(self._farthest_ns, ahead_ns)
        self.recorder("nemesis", "clock", ahead_ns=ahead_ns)

    async def _live(self, end: str, stop: asyncio.Event | None = None) -> None:
        """Run one process from start to end: until ``stop`` is set, or else until a number of events have happened."""
        died = self._died = asyncio.Event()
        threads = VirtualThreads(self.loop, self.disk, died.set)
        while True:
            if end == "job" and self.rng.random() < 0.3:
                self.disk.dies_on = ("", "")
                self.disk.dies_after = self.rng.randrange(30)  # perhaps in the middle of recovery
            broker = Broker(self.options, fs=self.disk, scheduler=threads, clock=self.clock)
            broker.commit_place.is_loop = lambda records, size: self.loop.rng.random() < 0.5  # type: ignore[method-assign]
            self.disk.mortal = True
            try:
                broker.open(1)
                break
            except Killed:
                power = self.rng.random() < 0.5
                self.recorder("broker", "kill", note=f"recovery, {POWER}" if power else "recovery")
                self._end_process(broker, threads, power=power)
                threads = VirtualThreads(self.loop, self.disk, died.set)
        self.disk.dies_after, self.disk.mortal = None, False
        listener = SimListener(self.loop)
        server = Server(broker, self.clock, self.loop)
        running = self.loop.create_task(server.run([listener]))  # type: ignore[list-item]
        self.listener = listener
        self.recorder("broker", "start", visibility_ms=VISIBILITY_MS)
        if stop is None:
            if self.plan.queues:
                await self.ready()  # the topics take a while to make, and nothing is published before
            self._happened = asyncio.Event()
            self._happens_at = len(self.events) + self.rng.randrange(1, 4 * self.plan.messages)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.5):
                    await self._happened.wait()
            await asyncio.sleep(self.rng.choice((0, 0.005)) * self.rng.random())
        else:
            await stop.wait()
        if end == "cut":
            for transport in self._transports:
                if self.rng.random() < 0.5:
                    transport.abort()
            self.recorder("nemesis", "cut")
            await asyncio.sleep(0.2 * self.rng.random())
        if end == "job":
            soon, op, suffix = self.rng.choice(DEADLY)
            self.disk.dies_on = (op, suffix)
            self.disk.dies_after = self.rng.randrange(soon)
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await died.wait()
        if self.rng.random() < 0.2:
            self._set_clock(self.clock.jumped_ns + self.rng.choice((-3_600_000_000_000, 5_000_000_000)))
        if end == "stop":
            server.stop()
            await running
            self.recorder("broker", "stop")
            self._tell_dropped(broker)
            broker.close()
            self._end_process(broker, threads, power=False)
        else:
            power = end == "power" or (end == "job" and self.rng.random() < 0.8)
            self.recorder("broker", "kill", note=f"{end}, {POWER}" if power else end)
            self._end_process(broker, threads, power=power)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await asyncio.sleep(0.05 * self.rng.random())

    def _end_process(self, broker: Broker, threads: VirtualThreads, *, power: bool) -> None:
        threads.alive = False
        self.listener = None
        self._tell_dropped(broker)
        self.disk = self.disk.crash() if power else self.disk.kill()  # type: ignore[assignment]
        for transport in self._transports:
            transport.abort()
        self._transports.clear()

    def _tell_dropped(self, broker: Broker) -> None:
        for topic in broker.topics.values():
            if topic.retention.dropped_total:
                self.recorder("broker", "dropped", topic=topic.name, count=topic.retention.dropped_total)


def run(seed: int, plan: Plan = Plan()) -> tuple[list[Event], Verdict]:
    """Run the world of a seed. Returns: everything that happened, and the verdict whether the promises were kept."""
    logger = logging.getLogger("toymq_py")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    world = World(seed, plan)
    try:
        with warnings.catch_warnings():
            # A killed server's task group refuses a connection that was just accepted, and Python 3.11 leaves its coroutine.
            warnings.filterwarnings("ignore", "coroutine 'Server._serve' was never awaited", RuntimeWarning)
            world.loop.run_until_complete(world.run())
    except RuntimeError as error:
        raise RuntimeError(f"seed {seed}: {error}") from error
    finally:
        _end_tasks(world.loop)
        world.loop.close()
        logger.setLevel(level)
    # A flush begins 100 ms after an ack and takes a few turns of the simulated disk.
    keys_end_with_acks = world.options.retain_acked_for_ms == 0
    return world.events, check(world.events, ack_window_ns=250_000_000, keys_end_with_acks=keys_end_with_acks)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End the tasks that a hanging world leaves: here, and not when the garbage collector finds them in another test."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        with suppress(Exception, BaseExceptionGroup):
            task.get_coro().close()  # type: ignore[union-attr]


def shrink(seed: int, plan: Plan) -> tuple[Plan, Verdict]:
    """Return the smallest plan under which a seed still breaks a promise. Assumes that it does under this plan."""
    _, verdict = run(seed, plan)
    smaller = True
    while smaller:
        smaller = False
        for field, value in (("publishers", 1), ("consumers", 1), ("lives", plan.lives - 1), ("messages", plan.messages // 2)):
            if not 0 < value < getattr(plan, field):
                continue
            candidate = replace(plan, **{field: value})
            _, found = run(seed, candidate)
            if not found.ok:
                plan, verdict, smaller = candidate, found, True
    return plan, verdict
