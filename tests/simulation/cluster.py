"""One seed, one world of a cluster: two or three nodes of the real code, an etcd in memory, clients, and what goes wrong.

    world = run(seed)                  # raises Broken when a promise is broken

What is real: the node, its terms and links, the broker and its server. What is simulated: time, threads, disks, the network,
etcd. ``SimOffice`` stands for ``cluster.office``, and ``SimProcess`` for ``cluster.process`` and the supervisor.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.simulation.cluster_clients import TOPICS, Consumer, Ledger, Publisher
from tests.simulation.cluster_faults import Faults, state_of
from tests.simulation.cluster_hosts import CLUSTER, GROUP, ROOT, UUID, SimHost
from tests.simulation.world import VirtualClock
from tests.support.fake_clock import FakeClock
from tests.support.replica_rig import shared_files
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from tests.support.sim_machines import Machines, Network
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_chaos.workload import Client
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.replication.agreement import ClusterSettings
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.replica_file import ReplicaFile

DRAIN_S = 90.0
"""In a world without faults everything is as it should be after so long."""


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much happens in one world."""

    hosts: int | None = None
    faults: int = 5
    publishers: int = 2
    only: tuple[str, ...] = ()
    """The kinds of faults; all without."""


class ClusterWorld:
    """Everything of one seed."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = rng = random.Random(seed)
        random.seed(seed)  # of the node's own pauses
        self.bugs: list[str] = []
        self.happened: Counter[str] = Counter()
        self.machines = Machines(random.Random(rng.random()), self.bugs.append)
        self.loop = self.machines.new_loop()
        self.network = Network(random.Random(rng.random()))
        self.etcd = SimulatedEtcd(random.Random(rng.random()), self.loop)
        count = plan.hosts or rng.choice((2, 3))
        self.settings = ClusterSettings(UUID, count, rng.choice((1, count - 1)), 3.0)
        self.link_options = LinkOptions(timeout_s=rng.choice((1.5, 3.0)), buffer_bytes=rng.choice((64 << 10, 64 << 20)))
        self.broker_options = BrokerOptions(
            data_dir=ROOT, segment_bytes=rng.choice((4096, 16_384)), min_free_bytes=0, visibility_ms=2000,
            retain_acked_for_ms=10_000_000, shutdown_timeout_ms=500,
        )  # fmt: skip
        self.hosts = {name: SimHost(self, name) for name in ("n1", "n2", "n3")[:count]}
        self.tool = self.etcd.agreement("tool", CLUSTER, GROUP)
        self.ledger = Ledger()
        self.calm = False
        """The faults are over."""
        self.faults = Faults(self, self.tool, plan.only)

    # -- clients

    async def connect(self, client: Client) -> int:
        """Connect a client to a node that serves. Returns: its epoch."""
        while True:
            serving = [each.process for each in self.hosts.values() if each.process is not None and each.process.listener]
            if serving:
                process = self.rng.choice(serving)
                listener = process.listener
                assert listener is not None
                with suppress(ConnectionRefusedError):
                    listener.connect_from(self.loop, client)
                    return process.epoch
            await asyncio.sleep(0.02 + 0.05 * self.rng.random())

    # -- the course

    async def run(self) -> None:
        rng = self.rng
        await self.tool.create_settings(self.settings)
        for host in self.hosts.values():
            self.loop.call_later(rng.choice((0.0, 0.0, 1.0)) * rng.random(), host.start)
        async with asyncio.TaskGroup() as tasks:
            publishers = [
                tasks.create_task(Publisher(self, f"p{n}", random.Random(rng.random())).run())
                for n in range(self.plan.publishers)
            ]
            consumers = [
                tasks.create_task(Consumer(self, f"c-{topic}", random.Random(rng.random()), topic).run()) for topic in TOPICS
            ]
            await asyncio.sleep(rng.choice((0.1, 1.0, 2.0)))
            for _ in range(self.plan.faults):
                await self.faults.next()
            self.check_copies(self.in_sync_hosts())
            self.calm = True
            self.faults.heal()
            await self._until(lambda: all(each.done() for each in publishers), "every message is published")
            await self._until(lambda: not self.ledger.undelivered(), "every message is delivered")
            await self._until(self._all_in_sync, "all copies are in sync")
            for consumer in consumers:
                consumer.cancel()
        await asyncio.sleep(1.5)  # offsets are flushed
        await self._until(lambda: self._all_in_sync() and not self._differing(), "all copies are equal")
        self.check_copies(list(self.hosts.values()))

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = self.loop.now + DRAIN_S
        while not holds():
            if self.loop.now > until:
                raise Broken(f"not within {DRAIN_S:g} s of calm: {what}; {self.shown()}")
            await asyncio.sleep(0.1)

    def shown(self) -> str:
        """For people."""
        nodes = []
        for host in self.hosts.values():
            node = host.process.node if host.process is not None else None
            if node is not None:
                lags = [f"{lag.name} {lag.state}" for lag in node.term.links.lags()] if node.term is not None else []
                nodes.append(f"{host.name} {node.state} {node.waits_for} {lags or ''}")
            else:
                nodes.append(f"{host.name} is down")
        return f"{'; '.join(nodes)}; differing: {self._differing()[:3]}; at {self.loop.now:.1f}"

    def in_sync_hosts(self) -> list[SimHost]:
        """The copies that may be elected."""
        in_sync = state_of(self.etcd, self.tool).in_sync
        members = in_sync.members if in_sync is not None else ()
        found = []
        for host in self.hosts.values():
            with suppress(FileNotFoundError):
                file = ReplicaFile.load(host.disk, ROOT) if host.disk._alive else None
                if file is not None and file.record.replica in members:
                    found.append(host)
        return found

    def _all_in_sync(self) -> bool:
        for host in self.hosts.values():
            node = host.process.node if host.process is not None else None
            if node is not None and node.state == "LEADING" and node.term is not None:
                joined = [lag for lag in node.term.links.lags() if lag.state == "in sync"]
                return len(joined) == len(self.hosts) - 1 == len(node.term.in_sync.members) - 1
        return False

    def _differing(self) -> list[str]:
        copies = [_content(host.disk) for host in self.hosts.values()]
        paths = sorted({path for copy in copies for path in copy})
        return [path for path in paths if len({copy.get(path) for copy in copies}) > 1]

    def check_copies(self, hosts: list[SimHost]) -> None:
        """Open each copy as after a power cut of all at this moment. Raises: Broken."""
        for host in hosts:
            rng = random.Random(self.rng.random())
            disk = host.disk.peek_crash(rng)
            loop = SimLoop(FakeClock(VirtualClock(self.loop).wall_ns()), rng)
            broker = Broker(self.broker_options, fs=disk, scheduler=loop, clock=loop.clock)
            broker.open(1)
            try:
                self.ledger.check(broker, host.name)
            except AssertionError as error:
                raise Broken(str(error)) from None
            broker.close()


def _content(disk: SimDisk) -> dict[str, bytes]:
    return {path: content for path, content in shared_files(disk).items() if disk._alive}


class _Errors(logging.Handler):
    """Collects what is logged with a traceback: bugs."""

    def __init__(self, bugs: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._bugs = bugs

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._bugs.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _log_for(bugs: list[str], verbose: bool) -> Iterator[None]:
    logger = logging.getLogger("toymq_py")
    before = logger.level, logger.propagate
    handler = _Errors(bugs)
    if not verbose:
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        logger.setLevel(before[0])


def run(seed: int, plan: Plan = Plan(), *, verbose: bool = False) -> ClusterWorld:
    """The world of a seed, to its end. Raises: Broken."""
    world = ClusterWorld(seed, plan)
    with _log_for(world.bugs, verbose):
        task = world.loop.create_task(world.run())
        try:
            world.machines.run_until(lambda: task.done() or bool(world.bugs))
        except RuntimeError as error:
            raise Broken(f"seed {seed}: {error}; {world.shown()}") from error
        finally:
            error = task.exception() if task.done() and not task.cancelled() else None
            bugs = list(world.bugs)
            world.machines.end()
    if bugs:
        raise Broken(f"seed {seed}: {bugs[0]}")
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AssertionError):
        raise Broken(f"seed {seed}: {error}") from error
    if error is not None:
        raise error
    return world
