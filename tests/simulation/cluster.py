"""Runs a simulated world of a cluster from a seed: two or three nodes with the real code, an etcd in memory, clients, and
faults.

    world = run(seed)                  # raises Broken when a promise is broken
    world = run(seed, Plan(...))       # the same dice, another plan

What is real: the node, its terms and links, the broker and its server. What is simulated: time, threads, disks, the network,
etcd. ``SimOffice`` stands for ``cluster.office``, and ``SimProcess`` for ``cluster.process`` and the supervisor.

What is checked: all that clients are told (``Ledger``); whenever the leader or the in-sync set changes in etcd, and at each
fault, the disk of each copy that may be elected, as a power cut at that moment would leave it; at the end, every copy.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.simulation.cluster_clients import TOPICS, Consumer, Ledger, Publisher
from tests.simulation.cluster_faults import Faults, state_of
from tests.simulation.cluster_hosts import CLUSTER, GROUP, ROOT, UUID, SimHost
from tests.simulation.cluster_plan import Plan, plan_of
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
from toymq_py.errors import ToymqError
from toymq_py.replication.agreement import ClusterSettings
from toymq_py.replication.key_values import Delete, Transaction
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.replica_file import ReplicaFile

DRAIN_S = 90.0
"""In a world without faults everything is as it should be after so long."""
WIPED_S = 15.0
"""Within so long no copy leads under an etcd that was wiped."""


class Broken(AssertionError):
    """A promise was broken."""


class ClusterWorld:
    """The world of one seed."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.rng = rng = random.Random(seed)
        random.seed(seed)  # of the node's own pauses
        self.bugs: list[str] = []
        self.happened: Counter[str] = Counter()
        self.machines = Machines(random.Random(rng.random()), self.bugs.append)
        self.loop = self.machines.new_loop()
        self.network = Network(random.Random(rng.random()))
        self.etcd = SimulatedEtcd(random.Random(rng.random()), self.loop)
        self.etcd.on_transaction = self._on_transaction
        self.settings = ClusterSettings(UUID, plan.hosts, plan.min_in_sync, 3.0)
        self.link_options = LinkOptions(timeout_s=plan.timeout_s, buffer_bytes=plan.buffer_bytes)
        self.broker_options = BrokerOptions(
            data_dir=ROOT, segment_bytes=plan.segment_bytes, min_free_bytes=0, visibility_ms=2000,
            retain_acked_for_ms=10_000_000, shutdown_timeout_ms=500,
        )  # fmt: skip
        self.hosts = {name: SimHost(self, name) for name in ("n1", "n2", "n3")[: plan.hosts]}
        self.tool = self.etcd.agreement("tool", CLUSTER, GROUP)
        self.ledger = Ledger()
        self.calm = False
        """The faults are over."""
        self.faults = Faults(self, self.tool)
        self._checked: dict[str, int] = {}  # messages told when a copy was looked at
        self._in_sync: frozenset[str] = frozenset()
        self._check_rng = random.Random(rng.random())

    # -- clients

    async def connect(self, client: Client) -> int:
        """Connect a client to a node that serves. Returns: the epoch in which that node leads."""
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
            await asyncio.sleep(self.plan.begins_s)
            for step in self.plan.steps:
                await self.faults.do(step)
                self.check_electable()
            self.calm = True
            self.faults.heal()
            await self._until(lambda: all(each.done() for each in publishers), "every message is published")
            await self._until(self.ledger.all_delivered, "every message is delivered")
            await self._until(self._all_in_sync, "all copies are in sync")
            if self.plan.ending == "resets":
                await self._join_again()
            for consumer in consumers:
                consumer.cancel()
        await self._until_equal()
        self.check_copies(list(self.hosts.values()))
        if self.plan.ending == "wipe":
            await self._wipe()

    async def _until_equal(self) -> None:
        await asyncio.sleep(1.5)  # offsets are flushed
        await self._until(lambda: self._all_in_sync() and not self._differing(), "all copies are equal")

    async def _join_again(self) -> None:
        """Let followers join again while the last offsets are flushed; nothing changes afterwards, so what a copy lacks then it
        lacks for good."""
        for turn in range(3):
            await Publisher(self, f"last{turn}", random.Random(self.rng.random())).run()
            await asyncio.sleep(0.1 * self.rng.random())
            for host in self.hosts.values():
                host.slow_s = 0.02
                host.reset_links()
            await self._until_equal()

    async def _wipe(self) -> None:
        """Let etcd lose all its keys, and an operator make the cluster anew: copies that were in the old cluster must not join
        it."""
        self.etcd.wipe()
        await self.etcd.agreement("another tool", CLUSTER, GROUP).create_settings(self.settings)
        await asyncio.sleep(WIPED_S)
        leader = state_of(self.etcd, self.tool).leader
        if leader is not None:
            raise Broken(f"{leader.member.name} leads, and etcd was wiped")
        self.check_copies(list(self.hosts.values()))

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = self.loop.now + DRAIN_S
        while not holds():
            if self.loop.now > until:
                raise Broken(f"not within {DRAIN_S:g} s of calm: {what}; {self.shown()}")
            await asyncio.sleep(0.1)

    def shown(self) -> str:
        """Describe the world for people."""
        nodes = []
        for host in self.hosts.values():
            node = host.process.node if host.process is not None else None
            if node is not None:
                lags = [f"{lag.name} {lag.state}" for lag in node.term.links.lags()] if node.term is not None else []
                nodes.append(f"{host.name} {node.state} {node.waits_for} {lags or ''}")
            else:
                nodes.append(f"{host.name} is down")
        return f"{'; '.join(nodes)}; differing: {self._differing()[:3]}; at {self.loop.now:.1f}"

    # -- what is looked at

    def _on_transaction(self, client: str, transaction: Transaction, done: bool) -> None:
        self.faults.transaction(client, transaction, done=done)
        keys = self.tool._keys
        changed = {change.key: change for change in transaction.changes}
        if done and keys.in_sync in changed:
            self._check_promises()
        if done and (keys.leader in changed or keys.in_sync in changed) and not isinstance(changed.get(keys.leader), Delete):
            self.check_electable()

    def _check_promises(self) -> None:
        """Check that a copy that was added to the in-sync set has promised the epoch of the leader that added it. A violation
        is noted as a bug."""
        state = state_of(self.etcd, self.tool)
        before, self._in_sync = self._in_sync, frozenset(state.in_sync.members if state.in_sync is not None else ())
        for host in self.hosts.values():
            if state.leader is None or host.replica not in self._in_sync - before - {state.leader.member.replica}:
                continue
            file = ReplicaFile.load(host.disk.peek_crash(random.Random(self._check_rng.random())), ROOT)
            promised = file.record.promised if file is not None else 0
            if promised < state.leader.epoch:
                self.bugs.append(f"{host.name} was added under epoch {state.leader.epoch}, and has promised {promised}")

    def check_electable(self) -> None:
        """Check that each copy that may be elected, and the leader's, has all that clients were told. A violation is noted as a
        bug.

        A copy that could be elected at the last check, too, is checked again only if clients were told more since.
        """
        state = state_of(self.etcd, self.tool)
        members = set(state.in_sync.members) if state.in_sync is not None else set()
        if state.leader is not None:
            members.add(state.leader.member.replica)
        hosts = [host for host in self.hosts.values() if host.replica in members]
        told = len(self.ledger.keys)
        checked, self._checked = self._checked, {host.name: told for host in hosts}
        try:
            self.check_copies([host for host in hosts if checked.get(host.name) != told])
        except Broken as error:
            self.bugs.append(str(error))

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
        """Open each copy as after a power cut of all machines at this moment, and check it. Raises: Broken."""
        for host in hosts:
            rng = random.Random(self._check_rng.random())
            disk = host.disk.peek_crash(rng)
            disk.capacity_bytes = None
            loop = SimLoop(FakeClock(VirtualClock(self.loop).wall_ns()), rng)
            broker = Broker(self.broker_options, fs=disk, scheduler=loop, clock=loop.clock)
            try:
                broker.open(1)
                self.ledger.check(broker, host.name)
            except (AssertionError, OSError, ToymqError) as error:
                raise Broken(str(error)) from None
            broker.close()


def _content(disk: SimDisk) -> dict[str, bytes]:
    return {path: content for path, content in shared_files(disk).items() if disk._alive}


class _Errors(logging.Handler):
    """A logging handler that collects what is logged with a traceback: bugs."""

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


def run(seed: int, plan: Plan | None = None, *, verbose: bool = False) -> ClusterWorld:
    """Run the world of a seed to its end, by ``plan`` or else by the seed's own plan. Raises: Broken."""
    world = ClusterWorld(seed, plan or plan_of(seed))
    with _log_for(world.bugs, verbose):
        task = world.loop.create_task(world.run())
        try:
            world.machines.run_until(lambda: task.done() or bool(world.bugs))
        except RuntimeError as error:
            raise Broken(f"seed {seed}: {error}; {world.shown()}") from error
        finally:
            failure = task.exception() if task.done() and not task.cancelled() else None
            bugs = list(world.bugs)
            world.machines.end()
    if bugs:
        raise Broken(f"seed {seed}: {bugs[0]}")
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, AssertionError):
        raise Broken(f"seed {seed}: {failure}") from failure
    if failure is not None:
        raise failure
    return world
