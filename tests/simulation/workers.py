"""Runs a simulated world of a broker with ``--workers N`` from a seed: its processes on one directory, in virtual time.

    history, verdict = run(seed)

In addition to what is real in ``world``, these are real, too: commands that a worker passes on to another one, lists and
patterns over all workers, ``MOVED``, and ``toymq workers --set`` between two lives. Any worker may be killed, also in the
middle of its work on the disk or in recovery, while the others go on; a power cut ends all. The workers share one listener, and
each has another one for the other workers.
"""

import asyncio
import itertools
import logging
import socket
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from tests.simulation.world import DEADLY, HABITS, QUIET_S, VISIBILITY_MS, Killed, MortalDisk, VirtualThreads, World, _end_tasks
from tests.simulation.world import Plan as OneProcess
from tests.support.sim_unix_sockets import Connections, Entrance, SharedListener, UnixSockets
from toymq_chaos import queueing
from toymq_chaos.checker import POWER
from toymq_chaos.history import Event
from toymq_chaos.verdict import Verdict
from toymq_chaos.views import Views
from toymq_chaos.workload import Client
from toymq_py.broker import ALONE, Broker
from toymq_py.data_directory import made_and_locked
from toymq_py.forking import BACK_OFF_MIN_S
from toymq_py.placement import Placement
from toymq_py.protocol import Cluster
from toymq_py.server import Server
from toymq_py.session import upstream
from toymq_py.storage.offline.redistribute import redistribute
from toymq_py.storage.workers_file import divide, load, worker_path

ROOT = "/data/d"
REPLACED_S = BACK_OFF_MIN_S
"""A worker that was killed has no successor for so long; see ``views``."""
STEPS = 3_000_000
FOLLOWS = 0.3
"""Share of the publishers' connections that follow MOVED: they get it, and connect again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens in one world, as counts."""

    messages: int = 25
    """Per publisher."""
    publishers: int = 2
    lives: int = 3
    """Of the supervisor."""
    kills: int = 3
    """Of single workers, at most, in each life."""


@dataclass(slots=True)
class Process:
    """The process of one worker."""

    worker: int
    disk: MortalDisk
    connections: Connections
    threads: VirtualThreads
    broker: Broker
    server: Server
    running: "asyncio.Task[None]"


@dataclass(slots=True)
class Division:
    """All workers during one life of the supervisor."""

    number: int
    everyone: SharedListener
    of_workers: list[SharedListener] = field(default_factory=list)
    """Unix sockets."""
    changes: list[int] = field(default_factory=list)
    """As in ``Placement``."""
    processes: dict[int, Process] = field(default_factory=dict)
    connections: dict[int, Connections] = field(default_factory=dict)


class WorkerWorld(World):
    """The world: the supervisor, and clients of work queues."""

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, OneProcess(plan.messages, plan.publishers, lives=plan.lives, queues=True))
        self.loop.steps_left = STEPS
        self._workers_plan = plan
        self._division: Division | None = None
        self._restarts: set[asyncio.Task[None]] = set()
        self._power_fails = asyncio.Event()

    # -- what clients call

    async def connect(self, client: Client) -> None:
        """Connect a client, and wait until a worker has accepted it: a connection that waits in the listener's queue outlives a
        worker."""
        while True:
            division = self._division
            if division is not None:
                wire = division.everyone.connect(client)
                while wire.ends[1] is None and not wire.lost:  # noqa: ASYNC110 (virtual time)
                    await asyncio.sleep(0.001)
                if not wire.lost:
                    self.recorder(client.name, "connect")
                    if client.name.startswith("q") and self.loop.rng.random() < FOLLOWS:
                        with suppress(Exception):
                            await client.ask(Cluster(moved=True))
                    return
                client.lost = False
                client.heard.clear()
            await asyncio.sleep(0.01 + 0.02 * self.loop.rng.random())

    # -- the supervisor

    async def run(self) -> None:
        queueing.declare(self.recorder)
        plan = self._workers_plan
        senders, others = queueing.clients(self, self.rng, HABITS, plan.publishers, plan.messages)
        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(sender.run()) for sender in senders]
            reading = [tasks.create_task(other.run()) for other in others]
            number = self.rng.choice((2, 3))
            for _ in range(plan.lives - 1):
                await self._start(number)
                await self._live_with_kills()
                await self._end(self.rng.choice(("stop", "power", "power")))
                number = self._divided_anew(self.rng.choice((1, 2, 3)))
            self._set_clock(self._farthest_ns)  # set back, it would let what is delayed wait for longer than the drain does
            await self._start(number)
            await self._live_with_kills(jumps=0.0)
            self.calm = True
            assert self._division is not None
            for process in self._division.processes.values():
                process.disk.dies_after = None
            for sender in sending:
                await sender
            self.last_activity = max(self.last_activity, self.loop.now)
            while self.loop.now < self.last_activity + QUIET_S:  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(self.last_activity + QUIET_S - self.loop.now)
            self.recorder("supervisor", "drained")
            for reader in reading:
                reader.cancel()
            await self._end("stop")

    def _beside(self) -> MortalDisk:
        disk = self.disk.beside()
        assert isinstance(disk, MortalDisk)
        return disk

    async def _start(self, number: int) -> None:
        """Divide a new directory among ``number`` workers, and start them."""
        disk = self._beside()
        lock = made_and_locked(disk, ROOT, 1, "sim")
        if number > 1:
            divide(disk, ROOT, number)
        lock.release()
        division = Division(number, SharedListener(self.loop))
        division.changes = [0] * number
        division.of_workers = [SharedListener(self.loop, socket.AF_UNIX) for _ in range(number)]
        for worker in range(number):
            while not await self._start_worker(division, worker):
                pass
        self.recorder("broker", "start", visibility_ms=VISIBILITY_MS, workers=number)
        self._division = division

    async def _start_worker(self, division: Division, worker: int) -> bool:
        """Start a worker. Returns: whether it survived its recovery."""
        disk = self._beside()
        threads = VirtualThreads(self.loop, disk, lambda: self._killed(division, worker))
        number = division.number
        options = replace(self.options, data_dir=worker_path(ROOT, worker) if number > 1 else ROOT)
        placement = ALONE
        if number > 1:
            paths = [f"{worker}>{other}" for other in range(number)]
            placement = Placement(worker, [f"sim:{7000 + other}" for other in range(number)], paths, paths, division.changes)
        broker = Broker(options, fs=disk, scheduler=threads, clock=self.clock, placement=placement)
        broker.commit_place.is_loop = lambda records, size: self.loop.rng.random() < 0.5  # type: ignore[method-assign]
        if self.rng.random() < 0.1 and not self.calm:
            disk.dies_after = self.rng.randrange(30)
        disk.mortal = True
        try:
            broker.open(1)
        except Killed:
            threads.alive = False
            disk.end()
            await asyncio.sleep(0.01)
            return False
        disk.dies_after, disk.mortal = None, False
        connections = division.connections[worker] = Connections()
        entrances = [Entrance(listener, connections) for listener in (division.everyone, division.of_workers[worker])]
        connections.entrances = entrances
        server = Server(broker, self.clock, self.loop)
        running = self.loop.create_task(server.run(entrances))  # type: ignore[arg-type]
        division.processes[worker] = Process(worker, disk, connections, threads, broker, server, running)
        return True

    async def _live_with_kills(self, jumps: float = 0.2) -> None:
        """Run until a number of events have happened, killing single workers meanwhile. ``jumps``: the probability that the
        clock jumps."""
        division = self._division
        assert division is not None
        await self.ready()
        for _ in range(self.rng.randrange(self._workers_plan.kills + 1)):
            await self._things_happen()
            process = division.processes.get(self.rng.randrange(division.number))
            if process is not None and self.rng.random() < 0.5:
                self._killed(division, process.worker)
            elif process is not None:
                soon, op, suffix = self.rng.choice(DEADLY)
                process.disk.dies_on = (op, suffix)
                process.disk.dies_after = self.rng.randrange(soon)
            if self.rng.random() < jumps:
                self._set_clock(self.clock.jumped_ns + self.rng.choice((-3_600_000_000_000, 5_000_000_000)))
        await self._things_happen()

    async def _things_happen(self) -> None:
        self._happened = asyncio.Event()
        self._happens_at = len(self.events) + self.rng.randrange(1, 3 * self._workers_plan.messages)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                await self._happened.wait()

    def _killed(self, division: Division, worker: int) -> None:
        """Kill one worker by SIGKILL; a successor follows, unless all workers have ended."""
        process = division.processes.pop(worker, None)
        if process is None:
            return
        self.recorder("broker", "kill", note=f"worker {worker}", worker=worker)
        self._ended(division, process)
        task = self.loop.create_task(self._replace(division, worker))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    def _ended(self, division: Division, process: Process) -> None:
        process.threads.alive = False
        self._tell_dropped(process.broker)
        process.disk.end()
        process.connections.die()
        division.of_workers[process.worker].cut_waiting()  # see ``views``: what it had not taken yet
        process.running.cancel()

    async def _replace(self, division: Division, worker: int) -> None:
        await asyncio.sleep(REPLACED_S + 0.1 * self.rng.random())
        while self._division is division and not await self._start_worker(division, worker):
            pass

    async def _end(self, how: str) -> None:
        """End the supervisor and all workers: orderly, or by a power cut."""
        division = self._division
        assert division is not None
        self._division = None
        for task in list(self._restarts):
            task.cancel()
        processes = list(division.processes.values())
        division.processes.clear()
        for process in processes:
            process.disk.dies_after = None
        if how == "stop":
            for process in processes:
                process.server.stop()
            for process in processes:
                await process.running
            self.recorder("broker", "stop")
            for process in processes:
                self._tell_dropped(process.broker)
                process.broker.close()
        else:
            self.recorder("broker", "kill", note=POWER)
        for process in processes:
            self._ended(division, process)
        division.everyone.cut_waiting()
        disk = self.disk.crash() if how == "power" else self.disk
        assert isinstance(disk, MortalDisk)
        self.disk = disk
        await asyncio.sleep(0.05 * self.rng.random())

    def _divided_anew(self, number: int) -> int:
        """Run ``toymq workers --set``, killed at one call after the other, by SIGKILL or a power cut. Returns: the new number
        of workers."""
        if (load(self._beside(), ROOT) or 1) == number:
            return number
        for killed in itertools.count():
            disk = self._beside()
            disk.dies_after, disk.mortal = self.rng.randrange(60 + 5 * killed), True  # each run looks at all of it first
            try:
                lock = made_and_locked(disk, ROOT, 1, "sim")
                redistribute(disk, ROOT, number)
                lock.release()
            except Killed:
                disk.end()
                if self.rng.random() < 0.5:
                    self.disk = self.disk.crash()  # type: ignore[assignment]
                continue
            disk.end()
            return number
        raise AssertionError

    def find(self, path: str) -> tuple[SharedListener, Connections]:
        """Return the listener that a path ``own>other`` names, and the connections of the process that connects."""
        own, _, other = path.partition(">")
        division = self._division
        if division is None or int(own) not in division.connections:
            raise ConnectionRefusedError
        return division.of_workers[int(other)], division.connections[int(own)]


def run(seed: int, plan: Plan = Plan()) -> tuple[list[Event], Verdict]:
    """Run the world of a seed. Returns: everything that happened, and the verdict whether the promises were kept."""
    logger = logging.getLogger("toymq_py")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    world = WorkerWorld(seed, plan)
    try:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            patch.setattr(upstream, "socket", UnixSockets(world.find))
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # as in ``world``
            world.loop.run_until_complete(world.run())
    except RuntimeError as error:
        raise RuntimeError(f"seed {seed}: {error}") from error
    finally:
        _end_tasks(world.loop)
        world.loop.close()
        logger.setLevel(level)
    views = Views(ack_window_ns=250_000_000, keys_end_with_acks=world.options.retain_acked_for_ms == 0)
    for event in world.events:
        views.feed(event)
    return world.events, views.verdict()


def shrink(seed: int, plan: Plan) -> tuple[Plan, Verdict]:
    """Return the smallest plan under which a seed still breaks a promise. Assumes that it does under this plan."""
    _, verdict = run(seed, plan)
    smaller = True
    while smaller:
        smaller = False
        for name, value in (
            ("publishers", 1), ("lives", plan.lives - 1), ("kills", plan.kills - 1), ("messages", plan.messages // 2)
        ):
            if not 0 < value < getattr(plan, name):
                continue
            candidate = replace(plan, **{name: value})
            _, found = run(seed, candidate)
            if not found.ok:
                plan, verdict, smaller = candidate, found, True
    return plan, verdict


